"""identify_format(pairs): which format, rounding mode and rules make these numbers of those.

A search over all formats, modes, overflow rules, treatments of subnormals, and a detour through float32; each is tried
on every sample by `round_to`. Start reading at `identify_format`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from softfloat_llm.analysis.answers import Answer, Table, counted
from softfloat_llm.analysis.distances import differs
from softfloat_llm.analysis.exact_text import shown
from softfloat_llm.analysis.identify import SCHEMA
from softfloat_llm.analysis.numbers import jsonable
from softfloat_llm.analysis.reading import Number, number_of
from softfloat_llm.errors import ArrayError
from softfloat_llm.numerics.carriers import widen
from softfloat_llm.numerics.exact import Real
from softfloat_llm.numerics.formats import FORMATS, Array, Float64Array, Format, f32, f64, format_of
from softfloat_llm.numerics.modes import MODES, OVERFLOWS, SUBNORMALS
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.numerics.ulps import ulp

MOST_PAIRS = 20_000
MOST_PROBED = 3  # formats for which inputs are made that would tell more
THROUGH = ("none", "f32")
Pairs = Sequence[tuple[str | Real | Number, str | Real | Number]]


@dataclass(frozen=True)
class Rule:
    """A rounding: format, mode, what overflow gives, what becomes of subnormals, and a format passed through."""

    format: Format
    mode: str
    overflow: str
    subnormals: str
    through: str

    def __str__(self) -> str:
        words = [str(self.format), self.mode]
        words += [f"overflow {self.overflow}"] if self.overflow != "ieee" else []
        words += [f"subnormals {self.subnormals}"] if self.subnormals != "keep" else []
        words += [f"through {self.through}"] if self.through != "none" else []
        return ", ".join(words)

    def apply(self, x: Any) -> Array:
        """x rounded so, as an array."""
        first = x if self.through == "none" else np.asarray(round_to(x, self.through)).astype(np.float64)
        options = {"overflow": self.overflow, "subnormals": self.subnormals}
        return np.asarray(round_to(first, self.format, self.mode, **options))

    def to_dict(self) -> dict[str, str]:
        words = {"mode": self.mode, "overflow": self.overflow, "subnormals": self.subnormals, "through": self.through}
        return {"format": str(self.format)} | words


@dataclass(frozen=True)
class Probe:
    """An input for which the rules that fit give different results: a sample that would tell them apart."""

    x: Fraction
    results: tuple[tuple[float, tuple[Rule, ...]], ...]

    def to_dict(self) -> dict[str, Any]:
        ends = [{"result": jsonable(y), "rules": len(same), "first": same[0].to_dict()} for y, same in self.results]
        return {"x": str(self.x), "results": ends}


@dataclass(frozen=True)
class RoundingRule(Answer):
    """The rules that fit all samples, the plainest first; else the nearest and how many samples they miss."""

    samples: int
    tried: int
    fits: tuple[Rule, ...]
    nearest: tuple[tuple[Rule, int], ...]
    probe: Probe | None

    @cached_property
    def open(self) -> dict[str, tuple[str, ...]]:
        """key -> the words that the samples do not tell apart."""
        words = [rule.to_dict() for rule in self.fits]
        left = {key: tuple(dict.fromkeys(w[key] for w in words)) for key in (words[0] if words else {})}
        return {key: choices for key, choices in left.items() if len(choices) > 1}

    def heading(self) -> list[tuple[str, str]]:
        return [("given", f"{counted(self.samples, 'pair')} of a number and what became of it")]

    def sentences(self) -> list[str]:
        if not self.fits:
            return [f"None of {counted(self.tried, 'rule')} fits all samples.", *self._about_nearest()]
        which = "rule fits" if len(self.fits) == 1 else "rules fit"
        lines = [f"{len(self.fits)} of {self.tried} {which}; the plainest: {self.fits[0]}."]
        if self.open:
            choices = [f"{key} {_some(words)}" for key, words in self.open.items()]
            lines.append(f"Not told apart by these samples: {'; '.join(choices)}.")
        if self.probe is not None:
            ends = [f"{_number(y)} by {rules[0]}" for y, rules in self.probe.results]
            lines.append(f"A sample that would tell: {shown(self.probe.x, 40)} gives {', '.join(ends[:3])}.")
        return lines

    def _about_nearest(self) -> list[str]:
        if not self.nearest:
            return ["No format holds the results, which are taken as they stand: give all their digits."]
        rule, missed = self.nearest[0]
        return [f"The nearest misses {missed} of {self.samples}: {rule}."]

    def tables(self, *, verbose: bool = False) -> list[Table]:
        """The rules that fit, those of one format and mode in one row (`verbose`: each by itself); else the nearest."""
        header = ("format", "mode", "overflow", "subnormals", "through")
        if verbose or not self.fits:
            rows = [(rule, 0) for rule in self.fits] or list(self.nearest)
            cells = tuple((*rule.to_dict().values(), str(missed)) for rule, missed in rows)
            return [Table((*header, "missed"), cells, (5,))]
        groups: dict[tuple[str, str], list[Rule]] = {}
        for rule in self.fits:
            groups.setdefault((str(rule.format), rule.mode), []).append(rule)
        cells = tuple((*key, *_joined(rules), str(len(rules))) for key, rules in groups.items())
        return [Table((*header, "rules"), cells, (5,)).cut(8)]

    def to_dict(self) -> dict[str, Any]:
        """The rules as JSON has them."""
        return {
            "schema": SCHEMA,
            "what": "format",
            "samples": self.samples,
            "tried": self.tried,
            "fits": [rule.to_dict() for rule in self.fits],
            "nearest": [rule.to_dict() | {"missed": missed} for rule, missed in self.nearest],
            "open": {key: list(words) for key, words in self.open.items()},
            "probe": self.probe and self.probe.to_dict(),
        }


def _joined(rules: Sequence[Rule]) -> list[str]:
    """For each further key the words that occur."""
    return [
        _some(list(dict.fromkeys(rule.to_dict()[key] for rule in rules)))
        for key in ("overflow", "subnormals", "through")
    ]


def _some(words: Sequence[str]) -> str:
    return " or ".join(words) if len(words) <= 4 else f"{' or '.join(words[:3])} or {len(words) - 3} more"


def _number(x: float) -> str:
    return shown(Fraction(x)) if math.isfinite(x) else str(x)


def identify_format(pairs: Pairs) -> RoundingRule:
    """Which roundings turn the first number of each pair into the second.

    pairs: numbers or their texts, which are taken exactly. NaN is NaN whatever its code; -0 is not +0.
    **Raises** ArrayError for no pairs or more than 20,000; WordError for what is no number.

    >>> found = identify_format([("257", "256"), ("259", "260"), ("0.1", "0.10009765625"), ("-257", "-256")])
    >>> [str(rule) for rule in found.fits if rule.format.name == "bf16"][0]
    'bf16, ties_to_even'
    """
    numbers = [(number_of(x), number_of(y)) for x, y in pairs]
    if not 0 < len(numbers) <= MOST_PAIRS:
        raise ArrayError(f"{len(numbers)} pairs are given: from 1 to {MOST_PAIRS} can be looked at.")
    inputs, outputs = _operands([x for x, _ in numbers]), np.array([float(y.value) for _, y in numbers])
    is_exact = all(not y.is_finite or Fraction(float(y.value)) == y.exact for _, y in numbers)
    tried, found = 0, []
    for rule in rules(outputs) if is_exact else ():
        tried += 1
        missed = int(np.count_nonzero(differs(widen(rule.apply(inputs)), outputs)))
        found.append((rule, missed))
    fits = tuple(rule for rule, missed in found if not missed)
    nearest = () if fits else tuple(sorted(found, key=lambda pair: pair[1])[:5])
    return RoundingRule(len(numbers), tried, fits, nearest, telling(fits))


def _operands(numbers: Sequence[Number]) -> Any:
    """The inputs as float64 where that holds all of them, else as exact objects."""
    if all(not x.is_finite or Fraction(float(x.value)) == x.exact for x in numbers if _is_moderate(x)) and all(
        map(_is_moderate, numbers)
    ):
        return np.array([float(x.value) for x in numbers])
    objects = np.empty(len(numbers), object)
    objects[:] = [x.value for x in numbers]
    return objects


def _is_moderate(x: Number) -> bool:
    """True where float64 has a finite number of about that size."""
    return not x.is_finite or abs(x.exact) <= Fraction(f64.max)


def formats_of(outputs: Float64Array) -> list[Format]:
    """The formats whose values all outputs are: the named ones, else those of other widths."""
    named = [fmt for fmt in FORMATS.values() if fmt != f64 and _holds(outputs, fmt)]
    if named:
        return sorted(named, key=lambda fmt: fmt.bits)
    others = (format_of(f"e{x}m{y}") for y in range(24) for x in range(2, 9))
    return [fmt for fmt in others if _holds(outputs, fmt)]


def _holds(outputs: Float64Array, fmt: Format) -> bool:
    return not differs(widen(np.asarray(round_to(outputs, fmt))), outputs).any()


def rules(outputs: Float64Array) -> Iterator[Rule]:
    """The grid: every format that holds the outputs, with every mode and rule that can matter for it."""
    for fmt in formats_of(outputs):
        through = [word for word in THROUGH if word == "none" or fmt.precision < f32.precision]
        for mode in MODES:
            for overflow in OVERFLOWS:
                for subnormals in SUBNORMALS if fmt.has_zero else ("keep",):
                    yield from (Rule(fmt, mode, overflow, subnormals, way) for way in through)


# --- what would tell --------------------------------------------------------------------------------------------------


def telling(fits: Sequence[Rule]) -> Probe | None:
    """Of some inputs that are hard, the one that parts the rules most evenly; None where none parts them."""
    if len(fits) < 2:
        return None
    formats = list(dict.fromkeys(rule.format for rule in fits))[:MOST_PROBED]
    inputs = list(dict.fromkeys(x for fmt in formats for x in hard_inputs(fmt)))
    objects = np.empty(len(inputs), object)
    objects[:] = inputs
    results = np.array([widen(rule.apply(objects)) for rule in fits])
    best, parted = None, 0
    for place, x in enumerate(inputs):
        groups: dict[str, list[int]] = {}
        for row, y in enumerate(results[:, place].tolist()):
            groups.setdefault("nan" if math.isnan(y) else y.hex(), []).append(row)
        largest = max(len(rows) for rows in groups.values())
        if len(fits) - largest > parted:
            parted = len(fits) - largest
            ends = tuple((float(results[rows[0], place]), tuple(fits[r] for r in rows)) for rows in groups.values())
            best = Probe(x, ends)
    return best


def hard_inputs(fmt: Format) -> list[Fraction]:
    """Ties of both signs and parities, what float32 makes a tie of, the border of overflow, subnormals."""
    eps, top = Fraction(fmt.eps), Fraction(fmt.max)
    last, tiny = Fraction(float(ulp(fmt.max, fmt))), Fraction(fmt.smallest_subnormal)
    ties = [1 + eps / 2, 1 + 3 * eps / 2, 1 + eps / 2 + Fraction(1, 2**40), 1 + eps / 3, 1 + 2 * eps / 3]
    ends = [top + last / 4, top + last / 2, top + last, top * 4, Fraction(fmt.smallest_normal) - tiny / 4]
    small = [tiny, tiny / 2, tiny * 3 / 2, tiny / 3, Fraction(fmt.smallest_normal) - tiny / 2]
    return [sign * x for x in (*ties, *ends, *small) for sign in (1, -1)]
