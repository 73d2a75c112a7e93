"""add, sub, mul, div, sqrt, fma: one exact operation, one rounding.

Each operation finds its exact result as a pair (s, e) of float64 with s = fl(s + e), and rounds that pair once. Where a
pair is not enough (operands wider than float32's 24 bits) the exact fractions are used, element by element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from softfloat_llm.errors import FormatError
from softfloat_llm.numerics.carriers import as_float64, bits_of, carry
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.formats import Float64Array, Format, f32, format_of
from softfloat_llm.numerics.modes import SUBNORMALS, check_mode, check_option
from softfloat_llm.numerics.rounding import flush, round_held_sum, round_pair, round_sum, round_wide, unsigned_nan

_TINY = 2.0**-1000  # stands for "a little": far below half an ulp of any quotient or root of 24-bit operands
Pair = tuple[Float64Array, Float64Array]


def add(
    x: Any, y: Any, fmt: str | Format | None = None, mode: str = "ties_to_even", *, subnormals: str = "keep"
) -> Any:
    """x + y, rounded once to the format (of the operands where `fmt` is not given).

    x, y: arrays that broadcast, of one format; Python numbers and float64 arrays are taken as the reals that they are.
    **Rounds:** once. An exact zero sum is +0 (-0 toward_negative); -0 + -0 = -0. `subnormals`: `daz` takes subnormal
    operands for zeros, `ftz` flushes the result (see `rounding.round_to`).
    **Raises** FormatError where the operands have two formats, or none and `fmt` is not given.

    >>> add(256, 1, "bf16"), add(256, 1, "bf16", "toward_positive")
    (256.0, 258.0)
    """
    return _run("+", _add_wide, _add_fraction, (x, y), fmt, mode, subnormals)


def sub(
    x: Any, y: Any, fmt: str | Format | None = None, mode: str = "ties_to_even", *, subnormals: str = "keep"
) -> Any:
    """x - y, rounded once; otherwise as `add`."""
    return _run("-", _sub_wide, _sub_fraction, (x, y), fmt, mode, subnormals)


def mul(
    x: Any, y: Any, fmt: str | Format | None = None, mode: str = "ties_to_even", *, subnormals: str = "keep"
) -> Any:
    """x * y, rounded once; otherwise as `add`.

    >>> mul(1.3125, 7.96875, "bf16", "toward_positive")
    10.5
    """
    return _run("*", _mul_wide, _mul_fraction, (x, y), fmt, mode, subnormals)


def div(
    x: Any, y: Any, fmt: str | Format | None = None, mode: str = "ties_to_even", *, subnormals: str = "keep"
) -> Any:
    """x / y, rounded once; x/0 is an infinity, 0/0 NaN. Otherwise as `add`."""
    return _run("/", _div_wide, _div_fraction, (x, y), fmt, mode, subnormals)


def sqrt(x: Any, fmt: str | Format | None = None, mode: str = "ties_to_even", *, subnormals: str = "keep") -> Any:
    """The square root of x, rounded once; sqrt(-0) = -0, and NaN below zero. Otherwise as `add`."""
    return _run("sqrt", _sqrt_wide, _sqrt_fraction, (x,), fmt, mode, subnormals)


def div_wide(x: Float64Array | float, y: Float64Array | float, fmt: Format) -> Float64Array:
    """`div` for float64 arrays, without moving the result to the carrier. **Rounds:** once, ties to even.

    x and y have at most 24 bits each; to f64, which float64's own division rounds to, they may have more.
    """
    with np.errstate(all="ignore"):
        return _div_wide((x, y), fmt, "ties_to_even", "keep")


def sqrt_wide(x: Float64Array, fmt: Format) -> Float64Array:
    """`sqrt`, as `div_wide` is `div`."""
    with np.errstate(all="ignore"):
        return _sqrt_wide((x,), fmt, "ties_to_even", "keep")


def fma(
    x: Any, y: Any, z: Any, fmt: str | Format | None = None, mode: str = "ties_to_even", *, subnormals: str = "keep"
) -> Any:
    """x*y + z, rounded once (the product is not rounded). Otherwise as `add`.

    >>> fma(1 + 2**-10, 1 - 2**-10, -1, "f16")   # the rounded product would be 1, and the result 0
    -9.5367431640625e-07
    """
    return _run("fma", _fma_wide, _fma_fraction, (x, y, z), fmt, mode, subnormals)


def common_format(operands: tuple[Any, ...], what: str) -> Format | None:
    """The one format that the operands' dtypes name; None where they name none (Python numbers, float64, integers).

    Raises FormatError where two formats meet.
    """
    named = []
    for operand in operands:
        dtype = getattr(operand, "dtype", None)
        if dtype is not None and dtype.kind not in "iub" and dtype != np.float64:
            named.append(format_of(dtype))
    if len(set(named)) > 1:
        raise FormatError(
            f"{what} of operands in {' and '.join(str(f) for f in named)}: they must share one format."
            " Round one of them first, with round_to."
        )
    return named[0] if named else None


def _run(
    what: str,
    in_float64: Callable[[Any, Format, str, str], Float64Array],
    as_fraction: Callable[..., Fraction | float],
    operands: tuple[Any, ...],
    fmt: str | Format | None,
    mode: str,
    subnormals: str,
) -> Any:
    check_mode(mode)
    check_option("subnormals", subnormals, SUBNORMALS)
    operand_format = common_format(operands, what)
    if fmt is None and operand_format is None:
        raise FormatError(f"{what} of plain numbers needs the format of its result, such as fmt='bf16'.")
    out = format_of(fmt) if fmt is not None else operand_format
    assert out is not None
    wide = _fitting([_wide_operand(o, what) for o in operands], what)
    if "daz" in subnormals:
        wide = tuple(flush(w, operand_format or out) for w in wide)
    with np.errstate(all="ignore"):
        if all(_is_f32(o) or _fits_f32(w) for o, w in zip(operands, wide, strict=True)):
            rounded = in_float64(wide, out, mode, subnormals)
        else:
            rounded = _by_fractions(as_fraction, np.broadcast_arrays(*wide), out, mode, subnormals)
    return rounded.item() if rounded.ndim == 0 else carry(rounded, out)


def _wide_operand(operand: Any, what: str) -> Float64Array:
    wide = as_float64(np.asarray(operand))
    if wide is None:
        raise FormatError(f"{what}: an operand has more bits than float64 holds. Round it first, with round_to.")
    return wide


def _fitting(operands: list[Float64Array], what: str) -> tuple[Float64Array, ...]:
    """The operands, once it is certain that they broadcast."""
    try:
        np.broadcast_shapes(*(operand.shape for operand in operands))
    except ValueError:
        shapes = " and ".join(str(operand.shape) for operand in operands)
        raise FormatError(f"{what} of arrays of the shapes {shapes}: they do not broadcast.") from None
    return tuple(operands)


def _is_f32(operand: Any) -> bool:
    """True for an array whose dtype float32 holds."""
    dtype = getattr(operand, "dtype", None)
    return dtype is not None and dtype.kind not in "iub" and dtype.itemsize <= 4


def _fits_f32(x: Float64Array) -> bool:
    return bool(np.array_equal(x.astype(np.float32), x, equal_nan=True))


def _add_wide(wide: Any, fmt: Format, mode: str, subnormals: str) -> Float64Array:
    """Of two values of f32, which the operands are here."""
    made = round_held_sum if fmt is f32 else round_sum
    return made(wide[0], wide[1], fmt, mode, subnormals=subnormals)


def _sub_wide(wide: Any, fmt: Format, mode: str, subnormals: str) -> Float64Array:
    return _add_wide((wide[0], -wide[1]), fmt, mode, subnormals)


def _mul_wide(wide: Any, fmt: Format, mode: str, subnormals: str) -> Float64Array:
    """Two significands of 24 bits make 48: exact in float64, whose exponents reach far below 2^-298."""
    product = wide[0] * wide[1]
    if not fmt.has_nan:
        product = unsigned_nan(product)
    return round_wide(product, fmt, mode, subnormals=subnormals)


def _fma_wide(wide: Any, fmt: Format, mode: str, subnormals: str) -> Float64Array:
    return round_sum(wide[0] * wide[1], wide[2], fmt, mode, subnormals=subnormals)


def _div_wide(wide: Any, fmt: Format, mode: str, subnormals: str) -> Float64Array:
    """Ties to even, to at most 24 bits: rounding to float64 first is harmless.

    The middle m of two values has 25 bits at most. Unless x/y is m, x - m*y is at least one of the last places of m*y,
    which has 49 bits: x/y is further from m than float64's rounding can carry it.
    """
    if mode == "ties_to_even" and fmt.precision <= 24:
        quotient = wide[0] / wide[1]
        return round_wide(quotient if fmt.has_nan else unsigned_nan(quotient), fmt, subnormals=subnormals)
    return round_pair(*_div_pair(*wide), fmt, mode, subnormals=subnormals)


def _sqrt_wide(wide: Any, fmt: Format, mode: str, subnormals: str) -> Float64Array:
    return round_pair(*_sqrt_pair(*wide), fmt, mode, subnormals=subnormals)


def _div_pair(x: Float64Array, y: Float64Array) -> Pair:
    """The quotient q, and a small number on the side where the exact quotient lies: the sign of x - q*y, exactly.

    q is split in halves of 26 and 27 bits, so that the remainder is exact.
    """
    q = x / y
    remainder = _minus_product(x, q, y)
    return q, np.where(np.isfinite(q) & (y != 0), np.sign(remainder) * np.sign(y) * _TINY, 0.0)


def _sqrt_pair(x: Float64Array) -> Pair:
    """The root r, and the side of the exact root by the same split (r has at most 53 bits, x at most 24)."""
    r = np.sqrt(x)
    high = _upper_half(r)
    low = r - high
    remainder = ((x - high * high) - 2.0 * high * low) - low * low
    return r, np.where(np.isfinite(r), np.sign(remainder) * _TINY, 0.0)


def _minus_product(x: Float64Array, q: Float64Array, y: Float64Array) -> Float64Array:
    """x - q*y without error, for y of 24 bits and q = fl(x / y).

    q = high + low with 26 and 27 bits, so both products have at most 51 bits. x - high*y is a multiple of its last
    place and smaller than 2^27 of them; so is the final difference.
    """
    high = _upper_half(q)
    return (x - high * y) - (q - high) * y


def _upper_half(q: Float64Array) -> Float64Array:
    """q with its 27 last significand bits cleared."""
    return (bits_of(q) & np.int64(-1 << 27)).view(np.float64)


def _by_fractions(
    as_fraction: Callable[..., Fraction | float], wide: Any, out: Format, mode: str, subnormals: str
) -> Float64Array:
    exact = [as_fraction(*(float(o) for o in operands)) for operands in zip(*(w.ravel() for w in wide), strict=True)]
    results = [round_exact(_signed_zero(value, mode), out, mode, subnormals=subnormals) for value in exact]
    return np.array(results, np.float64).reshape(wide[0].shape)


def _signed_zero(value: Fraction | float, mode: str) -> Fraction | float:
    """A Fraction that is zero is a sum that cancelled: -0 toward_negative, else +0 (IEEE 754-2019, section 6.3).

    A NaN is +NaN, as `rounding.unsigned_nan` has it.
    """
    if isinstance(value, float) and math.isnan(value):
        return math.nan
    return -0.0 if isinstance(value, Fraction) and value == 0 and mode == "toward_negative" else value


def _finite(*operands: float) -> bool:
    return all(math.isfinite(o) for o in operands)


def _add_fraction(x: float, y: float) -> Fraction | float:
    is_plain = not _finite(x, y) or (x == y == 0 and math.copysign(1.0, x) == math.copysign(1.0, y))
    return x + y if is_plain else Fraction(x) + Fraction(y)


def _sub_fraction(x: float, y: float) -> Fraction | float:
    return _add_fraction(x, -y)


def _mul_fraction(x: float, y: float) -> Fraction | float:
    return Fraction(x) * Fraction(y) if _finite(x, y) and x and y else x * y


def _div_fraction(x: float, y: float) -> Fraction | float:
    return Fraction(x) / Fraction(y) if _finite(x, y) and x and y else float(np.float64(x) / np.float64(y))


def _fma_fraction(x: float, y: float, z: float) -> Fraction | float:
    product = _mul_fraction(x, y)
    if isinstance(product, Fraction):
        return product + Fraction(z) if math.isfinite(z) else z
    return _add_fraction(product, z)


def _sqrt_fraction(x: float) -> Fraction | float:
    """The root to 128 bits beyond the operand's scale, with a last bit that says whether something was left over."""
    if not (math.isfinite(x) and x > 0):
        return float(np.sqrt(np.float64(x)))
    value = Fraction(x)
    scale = 4**160
    scaled = value * scale**8  # more than float64's smallest exponent, so an integer
    root = math.isqrt(int(scaled))
    sticky = Fraction(0) if root * root == scaled else Fraction(1, 2)
    return (root + sticky) / Fraction(2**160) ** 8
