"""Distances on a format's grid: ulps, the order of its values, and how many of them lie between two numbers.

An ulp is the distance to the next value in a number's binade, of a named format. Start reading at `ulp`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from softfloat_llm.numerics.carriers import EXPONENT_MASK, bits_of
from softfloat_llm.numerics.formats import Array, Float64Array, Format, decode, encode, format_of
from softfloat_llm.numerics.rounding import round_to

_NO_PLACE = np.iinfo(np.int64).min  # the place of NaN, below all others


def ulp(x: npt.ArrayLike, fmt: str | Format) -> Any:
    """Distance to the next value of the format in x's binade; the smallest subnormal at zero. x (...), float64 out.

    >>> ulp(20.0, "bf16"), ulp(20.0, "f16")
    (0.125, 0.015625)
    """
    fmt = format_of(fmt)
    wide = np.asarray(x).astype(np.float64)
    binade = (bits_of(wide) & EXPONENT_MASK).view(np.float64)
    step = np.maximum(binade, fmt.smallest_normal) * fmt.eps
    is_finite = np.isfinite(wide)
    step = step if is_finite.all() else np.where(is_finite, step, np.nan)
    return step.item() if wide.ndim == 0 else step


def ordinal(x: npt.ArrayLike, fmt: str | Format) -> npt.NDArray[np.int64]:
    """The place of each value in the format's order: 0 for both zeros, 1 for the smallest positive value, and so on.

    x (...) values of the format, infinities included. NaN has no place: it gives the smallest int64.
    """
    fmt = format_of(fmt)
    given = np.asarray(x)
    if fmt.has_own_dtype and given.dtype == fmt.dtype and fmt.is_signed and fmt.nan == "ieee":
        return _ordinal_of_words(given, fmt)
    codes = encode(given, fmt).astype(np.int64)
    values = given.astype(np.float64)
    is_negative = np.signbit(values) & fmt.is_signed
    magnitude = np.where(is_negative, codes & ~(np.int64(-1) << np.int64(fmt.bits - 1)), codes)
    places = np.where(is_negative, -magnitude, magnitude)
    return np.where(np.isnan(values), _NO_PLACE, places)


def _ordinal_of_words(x: Array, fmt: Format) -> npt.NDArray[np.int64]:
    """`ordinal` of a carrier coded as IEEE 754 says: its words without the sign are in order, NaN last."""
    words = encode(x, fmt).view(f"i{x.dtype.itemsize}").astype(np.int64)
    sign = words >> 63  # -1 or 0: to negate, all bits are turned and 1 is added
    magnitude = words & np.int64((1 << (fmt.bits - 1)) - 1)
    infinity = ((1 << fmt.exponent_bits) - 1) << fmt.trailing_bits
    is_nan = magnitude > infinity
    places: npt.NDArray[np.int64] = (magnitude ^ sign) - sign
    return np.where(is_nan, _NO_PLACE, places) if is_nan.any() else places


def ulp_distance(a: npt.ArrayLike, b: npt.ArrayLike, fmt: str | Format) -> npt.NDArray[np.int64]:
    """How many steps of the format lie between a and b (...).

    Two NaN are 0 apart, a NaN and a number the largest int64; so are values of f64 that are further apart than that.

    >>> int(ulp_distance(22.375, 22.25, "bf16"))
    1
    """
    low, high = ordinal(a, fmt), ordinal(b, fmt)
    is_apart = (low == _NO_PLACE) != (high == _NO_PLACE)
    if is_apart.any():
        low, high = np.where(is_apart, 0, low), np.where(is_apart, 0, high)
    with np.errstate(over="ignore"):  # modulo 2^64, in which each distance has its place
        distance = np.maximum(low, high).view(np.uint64) - np.minimum(low, high).view(np.uint64)
    farthest = np.iinfo(np.int64).max
    return np.where(is_apart, farthest, np.minimum(distance, np.uint64(farthest)).view(np.int64))


def neighbours(x: float, fmt: str | Format) -> tuple[float, float]:
    """The largest value of the format not above x, and the smallest not below it (both x, where the format holds x).

    >>> neighbours(22.277479, "bf16")
    (22.25, 22.375)
    """
    return float(round_to(x, fmt, "toward_negative")), float(round_to(x, fmt, "toward_positive"))


def value_of_ordinal(places: npt.ArrayLike, fmt: str | Format) -> Float64Array:
    """The values at the given places of the format's order (the inverse of `ordinal`)."""
    fmt = format_of(fmt)
    places = np.asarray(places, np.int64)
    values: Float64Array = np.copysign(decode(np.abs(places), fmt), places)
    return values
