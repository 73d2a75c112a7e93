"""Conditions on the shape of a sum, for rules such as `order if M >= 33 and K == 576`: data in a recipe, not code.

A kernel that takes rows or columns in groups often has another loop for those left over. So a condition can also speak
of where an element stands: `n >= N - N % 4`, the columns that groups of 4 leave over.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from math import prod
from typing import NamedTuple

from softfloat_llm.errors import RecipeError

_OPERATORS: dict[str, Callable[[int, int], bool]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_COMPARISON = re.compile(r"([MNKBT](?:\*[MNKBT])*(?: % [1-9][0-9]{0,8})?) (<=|>=|==|!=|<|>) ([0-9]{1,18})")
_PLACE = re.compile(
    r"([mn]) (>=|==|<) (?:(?P<axis>[MN]) - (?P=axis) % (?P<group>[1-9][0-9]{0,8})(?: \+ (?P<shift>[0-9]{1,9}))?"
    r"|(?P<number>[0-9]{1,9}))"
)


class _Place(NamedTuple):
    """`n >= N - N % 4 + 1`: axis N, groups of 4, shift 1. `n < 2`: axis N, no groups, shift 2."""

    axis: str
    compare: Callable[[int, int], bool]
    group: int
    shift: int

    def bound(self, size: int) -> int:
        return self.shift + (size - size % self.group if self.group else 0)


class Condition:
    """A conjunction of comparisons of dimensions with numbers: `M == 1 and B*M*N*K <= 4096 and K % 64 == 0`.

    M rows (query positions), N columns, K terms of each sum, B products of this shape at once (heads), T queries of the
    pass (M is those of a block, where attention takes them in blocks). The row m or column n of an element, from 0, is
    compared with a number, or with where the last incomplete group starts: `n < 2`, `n >= N - N % 4`,
    `n == N - N % 4 + 1`.
    Raises RecipeError for any other text.
    """

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split())
        parts = [part.strip() for part in self.text.split(" and ")]
        places = [_place(part) for part in parts]
        self._places = tuple(place for place in places if place is not None)
        self._comparisons = tuple(
            _parsed(part, self.text) for part, place in zip(parts, places, strict=True) if place is None
        )

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Condition({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def has_place(self) -> bool:
        """True where it speaks of where an element stands."""
        return bool(self._places)

    def cuts(self, sizes: Mapping[str, int], axis: str) -> list[int]:
        """Where along the axis, M or N, an element stands from which on it may hold, or not hold any more."""
        cuts: list[int] = []
        for place in (place for place in self._places if place.axis == axis):
            bound = place.bound(sizes[axis])
            cuts += [bound, bound + 1] if place.compare is operator.eq else [bound]
        return cuts

    def holds_at(self, sizes: Mapping[str, int], m: int, n: int) -> bool:
        """True where what it says of row m and column n holds, in a product of these sizes."""
        at = {"M": m, "N": n}
        return all(place.compare(at[place.axis], place.bound(sizes[place.axis])) for place in self._places)

    def holds(self, dims: Mapping[str, int]) -> bool:
        """True where every comparison of dimensions holds; a dimension that is not given counts as 1."""
        return all(compare(_value(name, dims), number) for name, compare, number in self._comparisons)


def _place(part: str) -> _Place | None:
    match = _PLACE.fullmatch(part)
    if match is None or match["axis"] not in (None, match[1].upper()):
        return None
    shift = int(match["number"] or match["shift"] or 0)
    return _Place(match[1].upper(), _OPERATORS[match[2]], int(match["group"] or 0), shift)


def _parsed(part: str, text: str) -> tuple[str, Callable[[int, int], bool], int]:
    match = _COMPARISON.fullmatch(part)
    if match is None:
        raise RecipeError(
            f"Condition {text!r}: {part!r} is no comparison such as M >= 33, B*M*N*K <= 4096 or K % 64 == 0,"
            " joined by 'and'."
        )
    return match[1], _OPERATORS[match[2]], int(match[3])


def _value(name: str, dims: Mapping[str, int]) -> int:
    factors, _, modulus = name.partition(" % ")
    value = prod(dims.get(factor, 1) for factor in factors.split("*"))
    return value % int(modulus) if modulus else value
