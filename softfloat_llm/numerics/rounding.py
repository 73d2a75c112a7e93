"""Rounding on arrays: the only place where bits are lost.

`round_to` is the narrowing verb that everybody calls; `round_wide` is its inner form, float64 in and float64 out.
`to_odd_pair` is the cure for double rounding: it turns an unevaluated sum of two float64 into one float64 from which
any narrower rounding is right (Boldo and Melquiond, Emulation of FMA and correctly rounded sums, IEEE TC 57(4), 2008).
The words of a rounding are in `modes`; numbers change their dtype, and nothing else, in `carriers`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softfloat_llm.errors import FormatError
from softfloat_llm.numerics import exact
from softfloat_llm.numerics.carriers import EXPONENT_MASK, as_float64, as_given, bits_of, carry, real_of, widen
from softfloat_llm.numerics.formats import Array, Float64Array, Format, bf16, f64, format_of
from softfloat_llm.numerics.modes import MODES, OVERFLOWS, SUBNORMALS, check_option, check_rounding
from softfloat_llm.numerics.stochastic import Stochastic, stochastic_of


def round_to(
    x: Any,
    fmt: str | Format,
    mode: str | Stochastic = "ties_to_even",
    *,
    overflow: str = "ieee",
    subnormals: str = "keep",
) -> Any:
    """x rounded once to the format.

    x (...): floats of any NumPy or ml_dtypes dtype, integers of any size, or Fractions. The result (...) has the
    format's carrier dtype (`Format.dtype`); a scalar gives a Python float.
    **Rounds:** once, from the exact value. `overflow="ieee"`: as the mode says, or NaN in a format without infinities;
    `"saturate"`: the largest finite value. `subnormals`: `daz` takes an x that is subnormal in its own format (that of
    its dtype; of plain numbers and float64: in `fmt`) for a zero; `ftz` gives a zero where the rounding with unbounded
    exponent lies below the smallest normal value. `mode`: one of MODES, or `stochastic:BITS:SEED` (see
    `stochastic.Stochastic`), where the element at place i of x (in C order) takes random word i of the seed.
    **Raises** FormatError for an unknown format, mode or option, an x that is not real numbers, or stochastic rounding
    to more than 24 bits.

    >>> round_to(257, "bf16"), round_to(1 + 2**-8 + 2**-40, "bf16"), round_to(0.1, "bf16", "toward_zero")
    (256.0, 1.0078125, 0.099609375)

    **Source:** IEEE 754-2019, sections 4.3 and 7.4 to 7.5.
    """
    fmt = format_of(fmt)
    check_rounding(mode)
    if mode not in MODES and fmt.precision > 24:
        raise FormatError(
            f"round_to {fmt} by {mode}: random words round what float64 has beyond at most 24 bits; of {fmt} there is"
            " nothing beyond. Take a narrower format, or another mode."
        )
    check_option("overflow", overflow, OVERFLOWS)
    check_option("subnormals", subnormals, SUBNORMALS)
    values = as_given(x)
    wide = as_float64(values)
    if wide is None:
        rounded = _round_objects(values, fmt, mode, overflow, subnormals)
    else:
        if "daz" in subnormals:
            wide = flush(wide, _source_format(values) or fmt)
        rounded = round_wide(wide, fmt, mode, overflow=overflow, subnormals=subnormals)
    return rounded.item() if values.ndim == 0 else carry(rounded, fmt)


def _source_format(values: Array) -> Format | None:
    return None if values.dtype.kind in "iub" or values.dtype == np.float64 else format_of(values.dtype)


def _round_objects(values: Array, fmt: Format, mode: str | Stochastic, overflow: str, subnormals: str) -> Float64Array:
    """Integers beyond 53 bits, Fractions and extended floats, one by one through the exact form."""
    if mode not in MODES:
        odd = _round_objects(values, f64, "to_odd", "ieee", subnormals)
        return round_wide(odd, fmt, mode, overflow=overflow, subnormals=subnormals)
    assert isinstance(mode, str)
    options = {"overflow": overflow, "subnormals": subnormals}
    reals = [real_of(v) for v in values.ravel().tolist()]
    if "daz" in subnormals:
        normal = fmt.smallest_normal
        reals = [math.copysign(0.0, v) if -normal < v < normal else v for v in reals]
    flat = [exact.round_exact(v, fmt, mode, **options) for v in reals]
    return np.array(flat, np.float64).reshape(values.shape)


def round_wide(
    x: Float64Array,
    fmt: Format,
    mode: str | Stochastic = "ties_to_even",
    *,
    overflow: str = "ieee",
    subnormals: str = "keep",
) -> Float64Array:
    """`round_to` for float64 arrays, without moving the result to the format's carrier dtype.

    x (...) float64; the result (...) is a new float64 array. **Rounds:** once. `daz` does nothing here: it speaks of
    operands, and x is an exact result.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if is_one_cast(fmt, mode, overflow=overflow, subnormals="keep"):
            rounded = widen(_cast(x, fmt))
            return _flush_tiny(rounded, x, fmt, mode) if "ftz" in subnormals else rounded
        if fmt is f64:
            kept = np.clip(x, -fmt.max, fmt.max) if overflow == "saturate" else x.copy()
            return flush(kept, fmt) if "ftz" in subnormals else kept
        rounded = _on_grid(x, fmt, mode, fmt.smallest_normal)
        if "ftz" in subnormals and fmt.has_zero:
            rounded = _flush_tiny(rounded, x, fmt, mode)
        return _specials(_overflowed(rounded, fmt, mode, overflow), x, fmt)


def round_carried(
    x: Array,
    fmt: Format,
    mode: str | Stochastic = "ties_to_even",
    *,
    overflow: str = "ieee",
    subnormals: str = "keep",
) -> Array:
    """`carry` of `round_wide`: x (...) and the result (...) in carrier dtypes, or x in float64. Rounds: once."""
    if is_one_cast(fmt, mode, overflow=overflow, subnormals=subnormals):
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            narrow = x.dtype != np.float64
            return x.astype(np.float32, copy=False).astype(fmt.dtype) if narrow else _cast(x, fmt)
    return carry(round_wide(x.astype(np.float64, copy=False), fmt, mode, overflow=overflow, subnormals=subnormals), fmt)


_ONE_CAST = ("f32", "f16", "bf16")
"""NumPy and ml_dtypes cast float32 to these by one rounding, ties to even; NumPy the first two from float64 too."""
_ELEMENTS_AT_ONCE = 1 << 18  # so that the float64 temporaries stay small


def is_one_cast(fmt: Format, mode: str | Stochastic, *, overflow: str, subnormals: str) -> bool:
    """True where the cast from float32 (from float64, `_cast`) to the format's dtype is its rounding by these rules."""
    is_plain = mode == "ties_to_even" and overflow == "ieee" and subnormals == "keep"
    return is_plain and fmt.name in _ONE_CAST


def _cast(x: Float64Array, fmt: Format) -> Array:
    """x in the dtype of a format of `_ONE_CAST`. **Rounds:** once, ties to even.

    To bf16 ml_dtypes casts by way of float32, which would be two roundings: x goes there with 12 bits, rounded to odd.
    float32 holds those exactly from 2^-138 on (what is smaller gives 0), and to odd is harmless before a rounding to at
    most 10 bits (Boldo and Melquiond).
    """
    return (_odd_of_12_bits(x) if fmt is bf16 else x).astype(fmt.dtype)


_REST = np.int64((1 << 41) - 1)  # the bits of a float64 beyond its first 12 significand bits


def _odd_of_12_bits(x: Float64Array) -> Float64Array:
    """x rounded to odd at 12 significand bits: the last of them set where one of the rest is."""
    bits = bits_of(x)
    odd = (bits & _REST) + _REST  # a carry into the last bit
    odd |= bits
    odd &= ~_REST
    return odd.view(np.float64)


def round_block(
    x: Array, fmt: Format, mode: str | Stochastic = "ties_to_even", *, overflow: str = "ieee", subnormals: str = "keep"
) -> Array:
    """`round_to` for large arrays of at most 24 significand bits: block by block, by one cast where that is the same.

    x (...) an array in a carrier dtype; the result (...) in the format's. **Rounds:** once. The cast from float32 is
    one rounding; it is taken where x fits float32, ties go to even, and nothing is flushed or saturated.
    """
    is_narrow = x.dtype.itemsize <= 4 and x.dtype.kind not in "iub"
    is_cast = is_narrow and is_one_cast(fmt, mode, overflow=overflow, subnormals=subnormals)
    out = np.empty(x.shape, fmt.dtype)
    flat_in, flat_out = x.reshape(-1), out.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, x.size, _ELEMENTS_AT_ONCE):
            block = flat_in[start : start + _ELEMENTS_AT_ONCE]
            if is_cast:
                rounded = block.astype(np.float32).astype(fmt.dtype)
            else:
                rule = _from_index(mode, start)
                rounded = round_to(block, fmt, rule, overflow=overflow, subnormals=subnormals)
            flat_out[start : start + _ELEMENTS_AT_ONCE] = rounded
    return out


def _from_index(mode: str | Stochastic, first: int) -> str | Stochastic:
    rule = None if mode in MODES else stochastic_of(mode)
    return mode if rule is None else rule.from_index(first)


def flush(x: Float64Array, fmt: Format) -> Float64Array:
    """x with the format's subnormals replaced by zeros of their sign."""
    return np.where(np.abs(x) < fmt.smallest_normal, np.copysign(0.0, x), x)


def _on_grid(x: Float64Array, fmt: Format, mode: str | Stochastic, floor: float) -> Float64Array:
    """x rounded to `precision` bits; below `floor` (a power of two) to the grid of `floor`. No overflow, no specials.

    The scaling by the quantum is exact: it is a power of two, and the quotient stays below 2^precision. (An infinite x
    gets the quantum of float64's last binade, and stays infinite.) To nearest, ties to even: by a sum in whose binade
    float64's last place is the quantum (see `tiles.Rounder`); what lies beyond 2^900 is beyond every format, rounded or
    not.
    """
    binade = np.maximum((bits_of(x) & EXPONENT_MASK).view(np.float64), floor)
    if mode == "ties_to_even" and fmt.precision <= 50:
        pull = np.minimum(binade, 2.0**900) * (1.5 * 2.0 ** (53 - fmt.precision))
        return np.copysign((x + pull) - pull, x)
    quantum = np.minimum(binade, 2.0**1023) * fmt.eps
    rounded: Float64Array = _to_integer(x / quantum, mode) * quantum
    return rounded


_INTEGER_UFUNCS = {
    "ties_to_even": np.rint, "toward_zero": np.trunc, "toward_positive": np.ceil, "toward_negative": np.floor
}  # fmt: skip


def _to_integer(y: Float64Array, mode: str | Stochastic) -> Float64Array:
    """y rounded to an integer; a zero keeps the sign of y. |y| below 2^53, or y already an integer."""
    if mode in _INTEGER_UFUNCS:
        integer: Float64Array = _INTEGER_UFUNCS[mode](y)
        return integer
    if mode not in MODES and (rule := stochastic_of(mode)):
        return rule.to_integer(y)
    below = np.trunc(y)
    rest = np.abs(y - below)
    if mode == "ties_to_away":
        goes_away = rest >= 0.5
    else:  # to_odd
        goes_away = (rest > 0) & (np.trunc(below * 0.5) * 2.0 == below)
    away: Float64Array = np.copysign(np.abs(below) + goes_away, y)
    return away


def _flush_tiny(rounded: Float64Array, x: Float64Array, fmt: Format, mode: str | Stochastic) -> Float64Array:
    """Tininess after rounding with unbounded exponent: 2^emin (1 - 2^-p-1) is kept, 2^emin (1 - 2^-p) is flushed."""
    is_small = np.abs(x) < fmt.smallest_normal
    if not is_small.any():
        return rounded
    unbounded = _on_grid(x, fmt, mode, 2.0**-1000)[is_small]
    kept = np.where(np.abs(unbounded) < fmt.smallest_normal, np.copysign(0.0, unbounded), unbounded)
    flushed = np.asarray(rounded)  # of a single number, NumPy made a scalar
    flushed[is_small] = kept
    return flushed


def _overflowed(rounded: Float64Array, fmt: Format, mode: str | Stochastic, overflow: str) -> Float64Array:
    is_beyond = np.abs(rounded) > fmt.max
    if not is_beyond.any():
        return rounded
    is_negative = rounded < 0
    largest = np.where(is_negative, -fmt.max, fmt.max)
    beyond = np.where(is_negative, -np.inf, np.inf) if fmt.has_infinity else np.full(rounded.shape, np.nan)
    if overflow == "saturate" or not (fmt.has_infinity or fmt.has_nan):
        result = largest
    else:
        # an infinite operand is no overflow: it stays infinite, in the directed modes too
        goes_away = np.isinf(rounded) | _overflow_goes_away(mode, is_negative)
        result = np.where(goes_away, beyond, largest)
    return np.where(is_beyond, result, rounded)


def _overflow_goes_away(mode: str | Stochastic, is_negative: Array) -> Any:
    match mode:
        case "toward_positive":
            return ~is_negative
        case "toward_negative":
            return is_negative
        case "toward_zero" | "to_odd":
            return False
    return True


def _specials(rounded: Float64Array, x: Float64Array, fmt: Format) -> Float64Array:
    """Where the format lacks what float64 has: NaN, -0, a zero, negative values. As ml_dtypes does."""
    if not fmt.has_nan:
        rounded = np.where(np.isnan(rounded), -np.copysign(0.0, x), rounded)
    if not fmt.has_zero:
        rounded = np.where((rounded == 0) & (x != 0), fmt.smallest_normal, rounded)
        rounded = np.where((x <= 0) | np.isnan(x), np.nan, rounded)
    if not fmt.has_negative_zero:
        rounded = rounded + 0.0
    return rounded


def unsigned_nan(x: Float64Array) -> Float64Array:
    """x with every NaN as +NaN: what an invalid operation gives, whose sign is the CPU's choice (x86 -, ARM +).

    It shows where a format without NaN has a zero of the other sign instead.
    """
    return np.where(np.isnan(x), np.nan, x)


def two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """s = fl(x + y) and its exact error e, so that s + e = x + y. Six operations; no condition on the magnitudes.

    Source: Knuth, The Art of Computer Programming 2, section 4.2.2, theorem B.
    """
    s = x + y
    z = s - x
    return s, (x - (s - z)) + (y - z)


def to_odd_pair(s: Float64Array, e: Float64Array) -> Float64Array:
    """The real number s + e rounded to odd, where s = fl(s + e) to nearest: float64 arrays of one shape.

    Where e is not zero and the last bit of s is even, s moves one ulp towards e. Rounding the result to any format of
    at most 51 bits, in any mode, equals one rounding of s + e. An infinite or NaN s is left alone.
    """
    bits = bits_of(s)
    is_moved = (e != 0) & np.isfinite(e) & (bits & 1 == 0)
    step = np.where((e > 0) == (s > 0), np.int64(1), np.int64(-1))
    return (bits + np.where(is_moved, step, np.int64(0))).view(np.float64)


def round_pair(
    s: Float64Array,
    e: Float64Array,
    fmt: Format,
    mode: str | Stochastic,
    *,
    overflow: str = "ieee",
    subnormals: str = "keep",
) -> Float64Array:
    """The real number s + e (s = fl(s + e)) rounded once to the format; float64 arrays in and out."""
    if not fmt.has_nan:
        s = unsigned_nan(s)
    if fmt is not f64:
        return round_wide(to_odd_pair(s, e), fmt, mode, overflow=overflow, subnormals=subnormals)
    is_up = (e > 0) & np.isfinite(e)
    is_down = (e < 0) & np.isfinite(e)
    match mode:
        case "toward_positive":
            return np.where(is_up, np.nextafter(s, np.inf), s)
        case "toward_negative":
            return np.where(is_down, np.nextafter(s, -np.inf), s)
        case "toward_zero":
            is_beyond = (is_down & (s > 0)) | (is_up & (s < 0))
            return np.where(is_beyond, np.nextafter(s, 0.0), s)
        case "to_odd":
            return to_odd_pair(s, e)
        case "ties_to_away":
            is_tie = np.abs(e) * 2 == np.abs(np.nextafter(s, np.copysign(np.inf, s)) - s)
            is_away = is_tie & ((e > 0) == (s > 0))
            return np.where(is_away, np.nextafter(s, np.copysign(np.inf, s)), s)
    return s.copy()


def round_sum(
    x: Float64Array,
    y: Float64Array,
    fmt: Format,
    mode: str | Stochastic,
    *,
    overflow: str = "ieee",
    subnormals: str = "keep",
) -> Float64Array:
    """x + y rounded once to the format; float64 arrays in and out.

    A sum that is exactly zero is +0, and in toward_negative -0 unless both terms are +0 (IEEE 754-2019, section 6.3).
    """
    with np.errstate(invalid="ignore"):  # the error of an infinite sum is NaN; round_pair does not look at it
        pair = two_sum(x, y)
    rounded = round_pair(*pair, fmt, mode, overflow=overflow, subnormals=subnormals)
    if mode != "toward_negative":
        return rounded
    is_both_positive = (x == 0) & (y == 0) & ~np.signbit(x) & ~np.signbit(y)
    is_negative_zero = (x == -y) & np.isfinite(x) & ~is_both_positive & fmt.has_negative_zero
    return np.where(is_negative_zero, -0.0, rounded)


def round_held_sum(
    x: Float64Array,
    y: Float64Array,
    fmt: Format,
    mode: str | Stochastic = "ties_to_even",
    *,
    overflow: str = "ieee",
    subnormals: str = "keep",
) -> Float64Array:
    """`round_sum` of values of the format; float64 arrays in and out.

    Of at most 24 bits and to even, rounding to float64 first is harmless, which has 2 * 24 + 2 bits (Figueroa 1995). A
    sum below the normal range is exact, as both are multiples of the smallest subnormal: no wider range is allowed.
    """
    if mode != "ties_to_even" or fmt.precision > 24 or not fmt.has_nan:
        return round_sum(x, y, fmt, mode, overflow=overflow, subnormals=subnormals)
    with np.errstate(invalid="ignore"):  # inf - inf is NaN
        return round_wide(x + y, fmt, overflow=overflow, subnormals=subnormals)
