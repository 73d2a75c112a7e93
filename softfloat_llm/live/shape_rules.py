"""Rules by shape and place, made of what was measured at some shapes: `order if M >= 2 and N == 7 and n == 5`.

Start reading at `rules_of`. What it makes says at every measured shape and place what was measured there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from softfloat_llm.conditions import Condition
from softfloat_llm.errors import LiveError


class Told(NamedTuple):
    """The sizes of a product, and its (place, word) pairs, the last for all other places."""

    dims: Mapping[str, int]
    ways: tuple[tuple[str, str], ...]


def rules_of(key: str, axis: str, told: Sequence[Told]) -> dict[str, str]:
    """The most frequent word as the plain one; for shapes of other words, rules over runs of sizes along the axis."""
    usual = Counter(each.ways[-1][1] for each in told).most_common(1)[0][0]
    rules: dict[str, str] = {}
    for family, members in _families(told, axis):
        for (place, word), runs in _runs(members, axis, usual).items():
            for low, high in runs:
                parts = [*family, *_range(axis, low, high), *([place] if place else [])]
                rules[f"{key} if {' and '.join(parts)}"] = word
    made = {key: usual} | dict(sorted(rules.items(), key=lambda rule: _breadth(rule[0])))
    _check_said(key, made, told)
    return made


def _breadth(rule: str) -> int:
    """Rules for one row or column before those for several, and those before rules for all: the first one wins."""
    return 0 if re.search(r" [mn] == ", rule) else 1 if re.search(r" [mn] ", rule) else 2


def _check_said(key: str, rules: Mapping[str, str], told: Sequence[Told]) -> None:
    """Raises LiveError where the rules do not say at every measured shape what was measured there."""
    conditions = [(Condition(rule.removeprefix(f"{key} if ")), word) for rule, word in rules.items() if " if " in rule]
    for each in told:
        ways = [(Condition(place) if place else None, word) for place, word in each.ways]
        sizes = {axis: each.dims.get(axis, 1) for axis in "MN"}
        for m, n in _corners([condition for condition, _ in ways if condition], sizes):
            wanted = next(word for condition, word in ways if condition is None or condition.holds_at(sizes, m, n))
            said = [word for c, word in conditions if c.holds(each.dims) and c.holds_at(sizes, m, n)]
            if (said or [rules[key]])[0] != wanted:
                raise LiveError(f"No rules were found that say {wanted} at {dict(each.dims)}, row {m}, column {n}.")


def _corners(conditions: Sequence[Condition], sizes: Mapping[str, int]) -> list[tuple[int, int]]:
    """Rows and columns at which what conditions say may change, and the first."""
    rows, columns = (
        sorted({0, *(cut for c in conditions for cut in c.cuts(sizes, axis) if cut < sizes[axis])}) for axis in "MN"
    )
    return [(m, n) for m in rows for n in columns]


def _families(told: Sequence[Told], axis: str) -> list[tuple[list[str], list[Told]]]:
    """One query, and several: kernels tell them apart. Together where shapes of both agree, and along M."""
    letter = "T" if any("T" in each.dims for each in told) else "M"
    by_size: dict[int, set[tuple[tuple[str, str], ...]]] = {}
    for each in told:
        by_size.setdefault(each.dims[axis], set()).add(each.ways)
    if axis == "M" or all(len(ways) == 1 for ways in by_size.values()):
        return [([], list(told))]
    one = [each for each in told if each.dims[letter] == 1]
    more = [each for each in told if each.dims[letter] > 1]
    return [([f"{letter} == 1"], one), ([f"{letter} >= 2"], more)]


def _runs(members: Sequence[Told], axis: str, usual: str) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """(place, word) -> the runs of measured sizes, first and last, at which it is said; without what is usual."""
    runs: dict[tuple[str, str], list[tuple[int, int]]] = {}
    by_size: dict[int, tuple[tuple[str, str], ...]] = {}
    for each in members:
        if by_size.setdefault(each.dims[axis], each.ways) != each.ways:
            where = f"{axis} = {each.dims[axis]}"
            raise LiveError(f"At {where} two shapes add in two ways, and differ elsewhere: no rule was found.")
    sizes = sorted(by_size)
    for before, size in zip([None, *sizes], sizes, strict=False):
        ways = by_size[size]
        is_usual = all(word == usual for _, word in ways)
        for place, word in () if is_usual else ways:
            if not place and word == usual:
                continue
            known = runs.setdefault((place, word), [])
            if known and known[-1][1] == before:
                known[-1] = (known[-1][0], size)
            else:
                known.append((size, size))
    return runs


def _range(axis: str, low: int, high: int) -> list[str]:
    return [f"{axis} == {low}"] if low == high else [f"{axis} >= {low}", f"{axis} <= {high}"]
