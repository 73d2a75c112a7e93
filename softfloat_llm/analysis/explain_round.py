"""explain_round(x, to): the story of one rounding, with exact numbers.

X as the rational that it is, the two neighbours in the format, the midpoint between them, the distances as fractions,
and what decided. Start reading at `explain_round`; `explain_round_text` has the words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from softfloat_llm.analysis import explain_round_text as told
from softfloat_llm.analysis.answers import Answer, Table
from softfloat_llm.analysis.exact_text import fields
from softfloat_llm.analysis.numbers import hex_float, jsonable
from softfloat_llm.analysis.reading import Number, number_of
from softfloat_llm.numerics.carriers import carry
from softfloat_llm.numerics.exact import Real, floor_log2, round_exact
from softfloat_llm.numerics.formats import Format, encode, f32, f64, format_of
from softfloat_llm.numerics.modes import OVERFLOWS, SUBNORMALS, check_mode, check_option
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.numerics.ulps import ulp

SCHEMA = "softfloat-llm/explain/1"
Kind = Literal[
    "special", "zero", "exact", "nearest", "tie", "directed", "overflow", "saturated", "flushed", "operand flushed",
    "no such value",
]  # fmt: skip


@dataclass(frozen=True)
class Neighbour:
    """One of the two values between which x lies, and how far x is from it."""

    value: float
    distance: Fraction


@dataclass(frozen=True)
class ThroughFormat:
    """The same x rounded to a wider format first: where the result is another one, that is double rounding."""

    format: Format
    first: float
    result: float
    differs: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON: plain numbers, non-finite ones as strings."""
        values = {"first": jsonable(self.first), "result": jsonable(self.result)}
        return {"format": str(self.format), "differs": self.differs} | values


@dataclass(frozen=True)
class Rounding(Answer):
    """One rounding: what was given, what came out, and between what the mode chose.

    `below` and `above` are the neighbours in the order of values (None where the format has none on that side), and
    `midpoint` lies half way between. `significand` is the integer of `precision` bits that x cut toward zero has, and
    `rest` what was cut, in ulps: 0 <= rest < 1.
    """

    given: Number
    format: Format
    mode: str
    overflow: str
    subnormals: str
    result: float
    kind: Kind
    below: Neighbour | None = None
    above: Neighbour | None = None
    midpoint: Fraction | None = None
    significand: int = 0
    rest: Fraction = Fraction(0)
    exponent: int = 0
    through: tuple[ThroughFormat, ...] = ()

    @property
    def error(self) -> Fraction | None:
        """result - x; None where one of them is not finite."""
        if not self.given.is_finite or not math.isfinite(self.result):
            return None
        return Fraction(self.result) - self.given.exact

    @property
    def error_ulp(self) -> Fraction | None:
        """The error in ulps of the format at the result."""
        if self.error is None:
            return None
        return self.error / Fraction(float(ulp(self.result, self.format)))

    @property
    def is_subnormal(self) -> bool:
        """True where the result lies below the smallest normal value, and is no zero."""
        return 0 < abs(self.result) < self.format.smallest_normal

    def heading(self) -> list[tuple[str, str]]:
        bits = [("bits", told.bits_line(self))] if self.significand or self.rest else []
        return [("rounding", told.asked(self)), *bits]

    def sentences(self) -> list[str]:
        return [*told.answer(self), told.why(self), *told.notes(self)]

    def tables(self, *, verbose: bool = False) -> list[Table]:
        return told.tables(self, verbose=verbose)

    def to_dict(self) -> dict[str, Any]:
        """The story as JSON has it: exact numbers as fractions in strings, non-finite ones as strings."""
        error, error_ulp = self.error, self.error_ulp
        return {
            "schema": SCHEMA,
            "what": "round",
            "x": self.given.text,
            "x_exact": str(self.given.exact) if self.given.is_finite else jsonable(float(self.given.value)),
            "format": str(self.format),
            "mode": self.mode,
            "overflow": self.overflow,
            "subnormals": self.subnormals,
            "result": value_facts(self.result, self.format),
            "kind": self.kind,
            "why": told.why(self),
            "is_subnormal": self.is_subnormal,
            "below": self.below and neighbour_facts(self.below, self.format),
            "above": self.above and neighbour_facts(self.above, self.format),
            "midpoint": None if self.midpoint is None else str(self.midpoint),
            "error": None if error is None else str(error),
            "error_ulp": None if error_ulp is None else str(error_ulp),
            "ulp_format": str(self.format),
            "through": [way.to_dict() for way in self.through],
        }


def value_facts(x: float, fmt: Format) -> dict[str, Any]:
    """What JSON says of a value of a format: the number, its hex float, code and fields."""
    if math.isnan(x) and not fmt.has_nan:
        return {"value": "nan", "hex": "nan", "code": None, "sign": None, "exponent": None, "trailing": None}
    sign, exponent, trailing = fields(x, fmt)
    bits = {"code": int(encode(x, fmt)), "sign": sign, "exponent": exponent, "trailing": trailing}
    return {"value": jsonable(x), "hex": hex_float(x)} | bits


def neighbour_facts(found: Neighbour, fmt: Format) -> dict[str, Any]:
    """The same of a neighbour, which may lie beyond the format's range, and its distance."""
    facts = value_facts(found.value, fmt) if abs(found.value) <= fmt.max else {"value": jsonable(found.value)}
    return facts | {"distance": str(found.distance)}


def explain_round(
    x: str | Real | Number,
    to: str | Format,
    mode: str = "ties_to_even",
    *,
    overflow: str = "ieee",
    subnormals: str = "keep",
) -> Rounding:
    """How x was rounded to a format, and why it went that way.

    x: a number, or its text (`reading.number_of`), which is taken exactly; the other words are those of
    `rounding.round_to`, whose result this is.
    **Raises** WordError for a text that is no number, FormatError for an unknown format, mode or option.

    >>> story = explain_round("257", "bf16")
    >>> story.result, story.kind, story.midpoint, str(story.error)
    (256.0, 'tie', Fraction(257, 1), '-1')
    """
    given, fmt = number_of(x), format_of(to)
    check_mode(mode)
    check_option("overflow", overflow, OVERFLOWS)
    check_option("subnormals", subnormals, SUBNORMALS)
    result = _rounded(given.value, given.format, fmt, mode, overflow, subnormals)
    if not given.is_finite or given.exact == 0 or (given.exact < 0 and not fmt.is_signed):
        return Rounding(given, fmt, mode, overflow, subnormals, result, _kind_of_special(given, fmt, result))
    exact = given.exact
    exponent = max(floor_log2(abs(exact)), fmt.emin)
    quantum = Fraction(2) ** (exponent - fmt.trailing_bits)
    significand = int(abs(exact) // quantum)
    rest = abs(exact) / quantum - significand
    below, above = _neighbours(exact, significand, quantum, rest, fmt)
    is_between = below is not None and above is not None and rest != 0
    story = Rounding(
        given=given,
        format=fmt,
        mode=mode,
        overflow=overflow,
        subnormals=subnormals,
        result=result,
        kind="nearest",
        below=below,
        above=above,
        midpoint=(2 * significand + 1) * quantum / 2 * (-1 if exact < 0 else 1) if is_between else None,
        significand=significand,
        rest=rest,
        exponent=exponent,
    )
    return replace(story, kind=_kind(story), through=_through(story))


def _rounded(
    value: Fraction | float, own: Format | None, fmt: Format, mode: str, overflow: str, subnormals: str
) -> float:
    """round_to, with what came as a code in the dtype of its format."""
    operand = carry(np.asarray(float(value)), own) if own is not None and own.has_own_dtype else value
    return float(round_to(operand, fmt, mode, overflow=overflow, subnormals=subnormals))


def _kind_of_special(given: Number, fmt: Format, result: float) -> Kind:
    if given.is_finite:
        return "zero" if given.exact == 0 and fmt.has_zero else "no such value"
    if math.isinf(given.value) and math.isfinite(result):
        return "saturated"
    is_held = fmt.has_nan if math.isnan(given.value) else fmt.has_infinity
    return "special" if is_held else "no such value"


def _neighbours(
    exact: Fraction, significand: int, quantum: Fraction, rest: Fraction, fmt: Format
) -> tuple[Neighbour | None, Neighbour | None]:
    """The values on both sides of x (twice the same where the format holds it), in the order of values.

    The one beyond the largest finite value is that which would come next if the exponents went on; it is None where x
    lies beyond that too.
    """
    largest = Fraction(fmt.max)
    toward, away = significand * quantum, (significand + (rest != 0)) * quantum
    if toward > largest or (rest == 0 and away > largest):
        toward, beyond = largest, None
    else:
        beyond = Neighbour(float(away), away - abs(exact)) if away < Fraction(2) ** 1024 else None
    inner = Neighbour(float(toward), abs(exact) - toward) if toward or fmt.has_zero else None
    if exact > 0:
        return inner, beyond
    return tuple(n and Neighbour(-n.value, n.distance) for n in (beyond, inner))  # type: ignore[return-value]


def _kind(story: Rounding) -> Kind:
    """What decided, for a nonzero finite x that the format could hold the sign of."""
    exact, fmt = story.given.exact, story.format
    if math.isfinite(story.result) and Fraction(story.result) == exact:
        return "exact"
    if "daz" in story.subnormals and story.result == 0 and is_subnormal_operand(story):
        return "operand flushed"
    if "ftz" in story.subnormals and story.result == 0 and round_exact(exact, fmt, story.mode) != 0:
        return "flushed"
    if abs(told.rounded_unbounded(story)) > fmt.max:
        return "saturated" if math.isfinite(story.result) else "overflow"
    if not story.mode.startswith("ties"):
        return "directed"
    return "tie" if story.rest == Fraction(1, 2) else "nearest"


def is_subnormal_operand(story: Rounding) -> bool:
    """True where x is subnormal in its own format, which for plain numbers is the one that it is rounded to."""
    own = story.given.format or story.format
    return story.given.is_finite and abs(story.given.exact) < Fraction(own.smallest_normal)


def _through(story: Rounding) -> tuple[ThroughFormat, ...]:
    """What a rounding to f64 or f32 before this one makes of it, for those that are wider."""
    found = []
    for carrier in (f64, f32):
        if story.format.is_subset_of(carrier) and carrier != story.format:
            first = round_exact(story.given.value, carrier)
            rules = story.mode, story.overflow, story.subnormals
            second = _rounded(first, None, story.format, *rules)
            found.append(ThroughFormat(carrier, first, second, not _is_same(second, story.result)))
    return tuple(found)


def _is_same(x: float, y: float) -> bool:
    """The same value, the sign of a zero included; all NaN are one."""
    return (x == y and math.copysign(1, x) == math.copysign(1, y)) or (math.isnan(x) and math.isnan(y))
