"""exp, log, rsqrt, sin, cos, tanh, sigmoid and pow: the exact value rounded once, the same bits on every machine.

Each function is evaluated in three stages, and each stage takes only what the one before could not decide:

1. `approximations` gives a float64 y with a proven relative error below e; the rounding modes are monotone, so where
   y (1 - e) and y (1 + e) round to one value, that is the result. For f32 all but some 2^-24 of the elements end here.
2. `special_values`: where the value is exact (cos 0), or hides closer beside a float64 than e can tell (exp of 1e-30,
   tanh of 20, sin of a tiny x), it is replaced by that float64, or by the value rounded to odd, which rounds alike.
3. `enclosures.settle`: integers of growing size, one element at a time (Ziv, 1991).

Start reading at `exp`, then `function_wide`. No function of a C library is called: only + - * / sqrt, comparisons and
bit operations of float64, which are the same everywhere, and Python integers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from softfloat_llm.errors import FormatError
from softfloat_llm.numerics import approximations, enclosures
from softfloat_llm.numerics import special_values as sv
from softfloat_llm.numerics.carriers import carry
from softfloat_llm.numerics.formats import Array, Float64Array, Format, f32, format_of
from softfloat_llm.numerics.modes import SUBNORMALS, check_mode, check_option
from softfloat_llm.numerics.ops import common_format
from softfloat_llm.numerics.rounding import flush, round_wide

_BLOCK = 8192  # elements at a time: a dozen float64 temporaries of one block stay in a 1 MiB cache
_FEW = 8  # numbers, up to which one by one is quicker than all at once
_WORTH_A_TABLE = 4096  # elements from which a call on a 16-bit format builds, or reads, its table of 65,536 results


# --- The public functions -------------------------------------------------------------------------------------------


def exp(x: Any, fmt: str | Format | None = None, mode: str = "ties_to_even", *, subnormals: str = "keep") -> Any:
    """e^x, rounded once to the format (that of x where `fmt` is not given).

    x (...): an array whose dtype names its format; with `fmt`, any floats, taken as the reals that they are. The result
    (...) has the format's carrier dtype; a scalar gives a Python float. `subnormals`: as in `round_to`.
    **Rounds:** once, on every input and in every mode. exp(-inf) = +0, exp(inf) = inf, NaN gives a positive quiet NaN.
    **Raises** FormatError for float64 results, an unknown format or mode, or plain numbers without a format.

    >>> exp(1.0, "bf16"), exp(1e-30, "f32", "toward_positive"), exp(-1000.0, "f16", "toward_positive")
    (2.71875, 1.0000001192092896, 5.960464477539063e-08)

    **Source:** the definition of correct rounding, IEEE 754-2019, section 9.2; method: Muller et al., Handbook of
    Floating-Point Arithmetic, 2nd edition, chapters 10 to 12.
    """
    return _run("exp", (x,), fmt, mode, subnormals)


def log(x: Any, fmt: str | Format | None = None, mode: str = "ties_to_even", *, subnormals: str = "keep") -> Any:
    """The natural logarithm of x, rounded once; otherwise as `exp`. log(+-0) = -inf, log(1) = +0, NaN below zero.

    >>> log(10.0, "f16"), log(0.0, "f16"), log(1.0, "f16", "toward_negative")
    (2.302734375, -inf, 0.0)
    """
    return _run("log", (x,), fmt, mode, subnormals)


def rsqrt(x: Any, fmt: str | Format | None = None, mode: str = "ties_to_even", *, subnormals: str = "keep") -> Any:
    """1 / sqrt(x), rounded once (not the two roundings of div(1, sqrt(x))); otherwise as `exp`.

    rsqrt(+0) = inf, rsqrt(-0) = -inf (the limit of 1 / sqrt(x), as sqrt(-0) = -0), rsqrt(inf) = +0, NaN below zero.

    >>> rsqrt(0.25, "bf16"), rsqrt(3.0, "bf16"), rsqrt(-0.0, "bf16")
    (2.0, 0.578125, -inf)
    """
    return _run("rsqrt", (x,), fmt, mode, subnormals)


def sin(x: Any, fmt: str | Format | None = None, mode: str = "ties_to_even", *, subnormals: str = "keep") -> Any:
    """The sine of x radians, rounded once; otherwise as `exp`. sin(+-0) = +-0, sin(+-inf) = NaN. x of any size.

    >>> sin(2.0**127, "f32"), sin(1e-30, "f32", "toward_zero") < 1e-30
    (0.623385488986969, True)
    """
    return _run("sin", (x,), fmt, mode, subnormals)


def cos(x: Any, fmt: str | Format | None = None, mode: str = "ties_to_even", *, subnormals: str = "keep") -> Any:
    """The cosine of x radians, rounded once; otherwise as `exp`. cos(+-inf) = NaN. x of any size.

    >>> cos(1.0, "f16"), cos(1e-30, "f32", "toward_zero")
    (0.54052734375, 0.9999999403953552)
    """
    return _run("cos", (x,), fmt, mode, subnormals)


def tanh(x: Any, fmt: str | Format | None = None, mode: str = "ties_to_even", *, subnormals: str = "keep") -> Any:
    """The hyperbolic tangent of x, rounded once; otherwise as `exp`. tanh(+-0) = +-0, tanh(+-inf) = +-1.

    >>> tanh(0.5, "bf16"), tanh(50.0, "bf16"), tanh(50.0, "bf16", "toward_zero")
    (0.462890625, 1.0, 0.99609375)
    """
    return _run("tanh", (x,), fmt, mode, subnormals)


def sigmoid(x: Any, fmt: str | Format | None = None, mode: str = "ties_to_even", *, subnormals: str = "keep") -> Any:
    """1 / (1 + e^-x), rounded once; otherwise as `exp`. sigmoid(-inf) = +0, sigmoid(inf) = 1.

    >>> sigmoid(0.0, "bf16"), sigmoid(-2.0, "bf16")
    (0.5, 0.119140625)
    """
    return _run("sigmoid", (x,), fmt, mode, subnormals)


def pow(
    x: Any, y: Any, fmt: str | Format | None = None, mode: str = "ties_to_even", *, subnormals: str = "keep"
) -> Any:
    """x^y, rounded once; x and y broadcast; otherwise as `exp`.

    x^+-0 = 1 and 1^y = 1 for every x and y, NaN included. For x < 0: NaN where y is finite and no integer, else
    (-1)^y |x|^y. For y odd, +-0 and +-inf give a result of the same sign; for any other y a positive one: 0 or inf as
    |x|^y goes there (0^y = inf for y < 0). x^+-inf is 0 or inf in the same way; (-1)^+-inf = 1.

    >>> pow(10000.0, -2 / 64, "f32"), pow(-2.0, 3.0, "f32"), pow(0.0, -1.0, "f32")
    (0.7498942017555237, -8.0, inf)

    **Source:** special values: IEEE 754-2019, section 9.2.1, pow.
    """
    return _run("pow", (x, y), fmt, mode, subnormals)


def exp_wide(x: Float64Array, fmt: Format, mode: str = "ties_to_even") -> Float64Array:
    """`exp` for float64 arrays (...), without moving the result to the carrier dtype. Rounds: once."""
    return function_wide("exp", (x,), fmt, mode)


def rsqrt_wide(x: Float64Array, fmt: Format, mode: str = "ties_to_even") -> Float64Array:
    """`rsqrt` for float64 arrays (...), without moving the result to the carrier dtype. Rounds: once."""
    if x.size <= _FEW and mode == "ties_to_even" and fmt is f32:
        few = [_one_rsqrt(value) for value in x.ravel().tolist()]
        if None not in few:
            return np.array(few, np.float64).reshape(x.shape)
    return function_wide("rsqrt", (x,), fmt, mode)


def _one_rsqrt(x: float) -> float | None:
    """`rsqrt` of one number to f32, ties to even, where stage 1 decides it: without the calls that many share."""
    if not _RSQRT_ENDS[0] < x < _RSQRT_ENDS[1]:
        return None
    y, error = 1.0 / math.sqrt(x), 2.0 ** -approximations.ERROR_BITS["rsqrt"]
    low, high = _FLOAT32.unpack(_FLOAT32.pack(y * (1.0 - error), y * (1.0 + error)))
    return low if low == high else None


_FLOAT32 = struct.Struct("=2f")  # rounds as IEEE 754 has it, ties to even
_RSQRT_ENDS = 2.0**-250, 2.0**250  # between them float32 has the root and its reciprocal as normal numbers


# --- Evaluation -----------------------------------------------------------------------------------------------------


def function_wide(
    name: str, args: tuple[Float64Array, ...], fmt: Format, mode: str = "ties_to_even", *, subnormals: str = "keep"
) -> Float64Array:
    """The named function (a key of `FUNCTIONS`) of float64 arrays of one shape; the result is float64, of that shape.

    Rounds: once to the format. Raises FormatError for f64: the bounds here are for at most 24 significand bits.
    """
    if fmt.precision > 24:
        raise FormatError(f"{name} can be rounded to formats of at most 32 bits, such as f32 or bf16, not to {fmt}.")
    function, rounding = FUNCTIONS[name], _Rounding(fmt, mode, subnormals)
    flat = tuple(np.ascontiguousarray(a).reshape(-1) for a in args)
    with np.errstate(all="ignore"):
        if flat[0].size <= _BLOCK:
            return _block(function, flat, rounding).reshape(args[0].shape)
        out = np.empty(flat[0].size)
        for start in range(0, out.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            out[part] = _block(function, tuple(a[part] for a in flat), rounding)
    return out.reshape(args[0].shape)


class _Rounding(NamedTuple):
    """Where the one rounding of a call goes."""

    fmt: Format
    mode: str
    subnormals: str

    def __call__(self, x: Float64Array) -> Float64Array:
        return round_wide(x, self.fmt, self.mode, subnormals=self.subnormals)


class Function(NamedTuple):
    """What one function is made of. Every member takes the float64 arguments, of shape (n,)."""

    name: str
    approximate: Callable[..., Float64Array]
    """y with relative error below 2^-`ERROR_BITS[name]`, or NaN where the bound may not hold."""
    is_special: Callable[..., Array]
    """Where an argument or the result is not a finite number other than zero that the stages can treat."""
    special: Callable[..., Float64Array]
    """The exact result (0, 1, an infinity, NaN) at those."""
    stand_in: Callable[..., Float64Array]
    """A float64 that rounds as the exact value does, or NaN where there is none."""


def _block(function: Function, args: tuple[Float64Array, ...], rounding: _Rounding) -> Float64Array:
    """The function of one block: the special values apart, the rest by the three stages."""
    is_special = function.is_special(*args)
    if not is_special.any():
        return _regular(function, args, rounding)
    out = np.empty_like(args[0])
    out[is_special] = rounding(function.special(*(a[is_special] for a in args)))
    is_regular = ~is_special
    out[is_regular] = _regular(function, tuple(a[is_regular] for a in args), rounding)
    return out


def _regular(function: Function, args: tuple[Float64Array, ...], rounding: _Rounding) -> Float64Array:
    """Stage 1: both ends of the interval around the approximation, rounded; the rest goes on."""
    y = function.approximate(*args)
    error = 2.0 ** -approximations.ERROR_BITS[function.name]
    ends: Float64Array = np.multiply.outer((1.0 - error, 1.0 + error), y)
    low: Float64Array
    low, high = rounding(ends)
    is_split = low != high
    if rounding.fmt.has_nan and not np.logical_or.reduce(is_split):  # a NaN is split from itself
        return low
    is_unknown = np.isnan(y)
    rest = np.flatnonzero(is_split | is_unknown)
    # two NaN ends of a known y are a decided overflow, in a format without infinities
    rest = rest[is_unknown[rest] | ~(np.isnan(low[rest]) & np.isnan(high[rest]))]
    if rest.size:
        low[rest] = _undecided(function, tuple(a[rest] for a in args), rounding)
    return low


def _undecided(function: Function, args: tuple[Float64Array, ...], rounding: _Rounding) -> Float64Array:
    """Stages 2 and 3."""
    value = function.stand_in(*args)
    out = rounding(value)
    for i in np.flatnonzero(np.isnan(value)):
        out[i] = enclosures.settle(function.name, tuple(float(a[i]) for a in args), *rounding)
    return out


def _run(name: str, operands: tuple[Any, ...], fmt: str | Format | None, mode: str, subnormals: str) -> Any:
    check_mode(mode)
    check_option("subnormals", subnormals, SUBNORMALS)
    operand_format = common_format(operands, name)
    if fmt is None and operand_format is None:
        raise FormatError(f"{name} of plain numbers needs the format of its result, such as fmt='bf16'.")
    out = format_of(fmt) if fmt is not None else operand_format
    assert out is not None
    if len(operands) == 1 and operand_format == out and _has_table(operands[0], out):
        by_code: Array = table(name, out, mode, subnormals)[operands[0].view(np.uint16)]
        return by_code
    wide = _wide(operands)
    if "daz" in subnormals:
        wide = tuple(flush(w, operand_format or out) for w in wide)
    rounded = function_wide(name, wide, out, mode, subnormals=subnormals)
    return rounded.item() if rounded.ndim == 0 else carry(rounded, out)


def _wide(operands: tuple[Any, ...]) -> tuple[Float64Array, ...]:
    """The operands as float64 arrays of one shape; exact (a signalling NaN becomes a quiet one)."""
    with np.errstate(invalid="ignore"):
        return tuple(np.broadcast_arrays(*(np.asarray(o).astype(np.float64) for o in operands)))


def _has_table(x: Any, fmt: Format) -> bool:
    return x.size >= _WORTH_A_TABLE and fmt.has_own_dtype and fmt.bits == 16


@cache
def table(name: str, fmt: Format, mode: str, subnormals: str) -> Array:
    """The function of every code of a 16-bit format, by code: (65536,) of the carrier dtype. Made when first used."""
    (x,) = _wide((np.arange(1 << 16, dtype=np.uint16).view(fmt.dtype),))
    if "daz" in subnormals:
        x = flush(x, fmt)
    results = carry(function_wide(name, (x,), fmt, mode, subnormals=subnormals), fmt)
    results.flags.writeable = False
    return results


# --- The table ------------------------------------------------------------------------------------------------------

FUNCTIONS = {
    f.name: f
    for f in (
        Function("exp", approximations.exp, sv.is_not_finite, sv.exp_special, sv.exp_stand_in),
        Function("log", approximations.log, sv.is_not_positive, sv.log_special, sv.no_stand_in),
        Function("rsqrt", approximations.rsqrt, sv.is_not_positive, sv.rsqrt_special, sv.rsqrt_stand_in),
        Function("sin", approximations.sin, sv.is_zero_or_not_finite, sv.sin_special, sv.sin_stand_in),
        Function("cos", approximations.cos, sv.is_not_finite, sv.no_stand_in, sv.cos_stand_in),
        Function("tanh", approximations.tanh, sv.is_not_finite, sv.tanh_special, sv.tanh_stand_in),
        Function("sigmoid", approximations.sigmoid, sv.is_not_finite, sv.sigmoid_special, sv.sigmoid_stand_in),
        Function("pow", sv.signed_pow, sv.is_pow_special, sv.pow_special, sv.pow_stand_in),
    )
}
