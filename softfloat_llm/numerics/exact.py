"""Real numbers, exactly: the evident scalar twin of everything in `rounding`, `ops` and `reduce`.

A finite float is a fraction; `round_exact` maps a fraction to a format by comparing it with the two neighbours.
Nothing here is fast, and nothing here is subtle: the tests hold the array forms against it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from softfloat_llm.numerics.formats import Format, format_of

Real = Fraction | int | float


def fraction(x: Real) -> Fraction:
    """The exact value of a finite number."""
    return x if isinstance(x, Fraction) else Fraction(x)


def dot_exact(a: Iterable[float], b: Iterable[float]) -> Fraction:
    """The sum of a*b without any rounding."""
    return sum((fraction(float(x)) * fraction(float(y)) for x, y in zip(a, b, strict=True)), Fraction(0))


def floor_log2(x: Fraction) -> int:
    """floor(log2(x)) for x > 0."""
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    return guess if x >= Fraction(2) ** guess else guess - 1


def round_exact(
    x: Real, fmt: str | Format, mode: str = "ties_to_even", *, overflow: str = "ieee", subnormals: str = "keep"
) -> float:
    """x rounded once to the format, as `rounding.round_to` does for arrays.

    x: a Fraction, int or float (NaN, infinities and -0.0 included). A Fraction or int zero counts as +0.
    **Rounds:** once. With `ftz` in `subnormals`, a nonzero x whose rounding with unbounded exponent lies below the
    smallest normal value gives a zero. (`daz` speaks of operands, of which x is none: see `rounding.flush`.)

    >>> round_exact(Fraction(257), "bf16")
    256.0
    """
    fmt = format_of(fmt)
    if isinstance(x, float):
        if math.isnan(x):
            return _nan_in(fmt, x)
        if math.isinf(x):
            return _overflowed(x < 0, fmt, True, overflow)
    is_negative = math.copysign(1.0, x) < 0 if isinstance(x, float) else x < 0
    magnitude = abs(fraction(x))
    if magnitude == 0:
        return _zero(is_negative, fmt)
    if not fmt.is_signed and is_negative:
        return math.nan
    smallest_normal = Fraction(2) ** fmt.emin
    is_flushing = "ftz" in subnormals and fmt.has_zero
    if is_flushing and _on_grid(magnitude, is_negative, fmt, mode, None) < smallest_normal:
        return _zero(is_negative, fmt)
    rounded = _on_grid(magnitude, is_negative, fmt, mode, fmt.emin)
    if rounded > fraction(fmt.max):
        return _overflowed(is_negative, fmt, _overflow_goes_away(mode, is_negative), overflow)
    if rounded == 0:
        return _zero(is_negative, fmt) if fmt.has_zero else fmt.smallest_normal
    return float(-rounded if is_negative else rounded)


def _on_grid(magnitude: Fraction, is_negative: bool, fmt: Format, mode: str, emin: int | None) -> Fraction:
    """The magnitude rounded to `precision` bits; the exponent stops at emin, or is unbounded where emin is None."""
    exponent = floor_log2(magnitude) if emin is None else max(floor_log2(magnitude), emin)
    quantum = Fraction(2) ** (exponent - fmt.trailing_bits)
    below = magnitude // quantum
    rest = magnitude / quantum - below
    return (below + (1 if _goes_away(int(below), rest, is_negative, mode) else 0)) * quantum


def _goes_away(below: int, rest: Fraction, is_negative: bool, mode: str) -> bool:
    """Away from zero or not: the whole of a rounding mode. `rest`: the part of an ulp that lies beyond `below`."""
    half = Fraction(1, 2)
    match mode:
        case "ties_to_even":
            return rest > half or (rest == half and below % 2 == 1)
        case "ties_to_away":
            return rest >= half
        case "toward_zero":
            return False
        case "toward_positive":
            return rest > 0 and not is_negative
        case "toward_negative":
            return rest > 0 and is_negative
        case "to_odd":
            return rest > 0 and below % 2 == 0
    raise AssertionError(mode)


def _overflow_goes_away(mode: str, is_negative: bool) -> bool:
    """True where a value beyond the largest finite one becomes an infinity (IEEE 754-2019, section 7.4)."""
    directed = {"toward_zero": False, "to_odd": False, "toward_positive": not is_negative}
    return directed.get(mode, is_negative if mode == "toward_negative" else True)


def _overflowed(is_negative: bool, fmt: Format, goes_away: bool, overflow: str) -> float:
    sign = -1.0 if is_negative else 1.0
    if is_negative and not fmt.is_signed:
        return math.nan
    if overflow == "saturate" or not goes_away or not (fmt.has_infinity or fmt.has_nan):
        return sign * fmt.max
    return sign * math.inf if fmt.has_infinity else math.nan


def _nan_in(fmt: Format, x: float) -> float:
    """NaN, or in a format without one a zero of the other sign, as ml_dtypes has it."""
    return math.nan if fmt.has_nan else -math.copysign(0.0, x)


def _zero(is_negative: bool, fmt: Format) -> float:
    if not fmt.has_zero:
        return math.nan
    return -0.0 if is_negative and fmt.has_negative_zero else 0.0
