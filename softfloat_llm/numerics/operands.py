"""Operands and their products on the way into a sum: the check that the storage holds them, `daz`, the product stage.

`operand` and `rounded_product` are the evident forms, on float64. `carried` brings a block of a matrix to the dtype
that a kernel works in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from softfloat_llm.errors import FormatError
from softfloat_llm.numerics.carriers import as_float64
from softfloat_llm.numerics.extents import is_all_finite
from softfloat_llm.numerics.formats import CARRIERS, Array, Float64Array, Format, bf16, f16
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import flush, round_wide, unsigned_nan
from softfloat_llm.numerics.stochastic import Part, Stochastic

_WORD = np.dtype(np.uint32)
_UPPER_HALF = np.uint32(0xFFFF_0000)
_F16_IN_F32 = np.uint32(0x8FFF_E000).view(np.int32)  # sign, 5 exponent and 10 trailing bits
_F32_TOP = np.uint32(0x7F80_0000)  # the exponent of infinities and NaN
_TURNED_AT_ONCE = 1 << 15  # words: whole rows that stay in the cache (benchmarks/bench_matmul.py, widening)
_WIDENED_AT_ONCE = 1 << 16  # elements of float16: a few passes over them stay in the cache
_CHECKED_AT_ONCE = 1 << 14  # elements: the check's float64 temporaries stay in the cache


def operand(x: npt.ArrayLike, name: str, at: Precision) -> Float64Array:
    """x as float64, each value one of `at.storage`; subnormal operands flushed where the storage stage says `daz`.

    Raises FormatError, naming the first value that the storage cannot hold.
    """
    values = np.asarray(x)
    wide = reals(values, name)
    if needs_check(values.dtype, at.storage):
        check_held(wide, name, at.storage)
    return flush(wide, at.storage) if "daz" in at.subnormals.storage else wide


def reals(x: npt.ArrayLike, name: str) -> Float64Array:
    """x as float64. Raises FormatError where that would round."""
    wide = as_float64(np.asarray(x))
    if wide is None:
        raise FormatError(f"Operand {name} has more bits than float64 holds. Round it first, with round_to.")
    return wide


def needs_check(dtype: np.dtype[Any], fmt: Format) -> bool:
    """True where an array of this dtype can have values that the format does not hold."""
    if dtype == fmt.dtype and fmt.has_own_dtype:
        return False
    return dtype not in CARRIERS or not CARRIERS[dtype].is_subset_of(fmt)


def check_held(wide: Float64Array, name: str, fmt: Format, stage: str = "storage") -> None:
    """Raises FormatError where a value is not one of the format of the stage."""
    is_lost = (round_wide(wide, fmt) != wide) & ~(np.isnan(wide) & fmt.has_nan)
    if is_lost.any():
        found = wide[is_lost].flat[0]
        raise FormatError(
            f"Operand {name} has the value {float(found)!r}, which {stage}={fmt} cannot hold."
            f" Round it first, with round_to({name}, '{fmt}'), or choose another {stage}."
        )


def rule_of(at: Precision, stage: str, part: Part | None = None, step: int = 0) -> str | Stochastic:
    """The rounding mode of a stage; one by random words takes those of the part, and of the step."""
    rule: str | Stochastic = at.rules(stage)["mode"]
    if isinstance(rule, str):
        return rule
    return rule.at_step(step) if part is None else rule.for_part(part).at_step(step)


def rounded_product(
    x: Float64Array, y: Float64Array, at: Precision, *, part: Part | None = None, step: int = 0
) -> Float64Array:
    """The products of x and y (...), as the product stage leaves them: exact, or rounded once to its format.

    Exact in float64 for storage of at most 24 significand bits. `part` and `step` say which products these are, for
    random words.
    """
    with np.errstate(all="ignore"):
        exact = x * y
    if at.product is None:
        return exact
    if not at.product.has_nan:
        exact = unsigned_nan(exact)
    rules = at.rules("product") | {"mode": rule_of(at, "product", part, step)}
    return round_wide(exact, at.product, **rules)


Widen = Callable[[Array, np.dtype[Any]], Array]
"""A block of operands in a dtype that holds all their values, contiguous."""


def carried(block: Array, name: str, at: Precision, dtype: np.dtype[Any], widen: Widen | None = None) -> Array:
    """A block (rows, columns) of operands in a kernel's dtype, contiguous; checked and flushed as `operand` does.

    Rounds nothing: float32 holds every storage format but f64, float64 holds all. The input is not changed, but may be
    what is returned. `widen` does what `widened` does. Raises FormatError as `operand` does.
    """
    if needs_check(block.dtype, at.storage):
        _check_in_parts(block, name, at.storage)
    wide = (widen or widened)(block, dtype)
    return flush(wide, at.storage).astype(dtype, copy=False) if "daz" in at.subnormals.storage else wide


def _check_in_parts(block: Array, name: str, fmt: Format) -> None:
    rows = max(1, _CHECKED_AT_ONCE // max(1, block.shape[1]))
    for start in range(0, block.shape[0], rows):
        check_held(reals(block[start : start + rows], name), name, fmt)


def widened(block: Array, dtype: np.dtype[Any]) -> Array:
    """A block (rows, columns) in a kernel's dtype, contiguous; an exact conversion.

    Transposed weights are made contiguous as narrow codes, before they are widened: that halves the bytes moved.

    Formats of one byte are looked up in the table of all their codes: 0.9 ns an element, where the casts of ml_dtypes'
    8-bit types take 10 ns. Float16 takes 0.3 ns by its bits, 1 to 2 ns by a cast (benchmarks/bench_matmul.py).
    """
    has_rows = block.strides[1] == block.itemsize or block.shape[1] == 1
    if dtype == np.float32 and block.dtype in (bf16.dtype, f16.dtype) and not has_rows and has_even_columns(block.T):
        return _widened_pairs(block.T)
    if dtype == np.float32 and block.dtype == f16.dtype and has_rows:
        return _widened_f16(block)
    flat = np.ascontiguousarray(block)
    if flat.dtype.itemsize > 2 or flat.dtype == bf16.dtype or flat.dtype.kind in "biu":
        return flat.astype(dtype, copy=False)
    return _table(flat.dtype, dtype).take(flat.view(f"u{flat.dtype.itemsize}"))


def has_even_columns(rows: Array) -> bool:
    """True where two neighbours of each row can be read as one word."""
    if sys.byteorder != "little":  # there the even element is the upper half
        return False
    is_row_major = rows.strides[1] == rows.itemsize and rows.strides[0] % 4 == 0
    return is_row_major and rows.shape[1] % 2 == 0 and rows.size > 0 and rows.ctypes.data % 4 == 0


def _widened_pairs(rows: Array) -> Array:
    """The transpose of bf16 or f16 rows (n, K) as float32 (K, n).

    Two elements are moved as one word, half as many as there are elements, and taken apart where they are widened.
    """
    turned = turned_pairs(rows)
    wide = np.empty((rows.shape[1], rows.shape[0]), _WORD)
    np.left_shift(turned, 16, out=wide[0::2])
    if rows.dtype == f16.dtype:
        wide[1::2] = turned
        words = wide.view(np.int32)
        np.right_shift(words, 3, out=words)
        return from_spread_f16(words, is_finite=is_all_finite(rows))
    np.bitwise_and(turned, _UPPER_HALF, out=wide[1::2])
    return wide.view(np.float32)  # a bf16 is the upper half of the float32 of its value


def turned_pairs(rows: Array) -> Array:
    """Rows (n, K) of 16 bits an element as words (K/2, n) of two neighbours, the even one in the lower half."""
    words = rows.view(_WORD)
    turned = np.empty(words.shape[::-1], _WORD)
    at_once = max(1, _TURNED_AT_ONCE // max(1, words.shape[1]))
    for start in range(0, len(words), at_once):
        turned[:, start : start + at_once] = words[start : start + at_once].T
    return turned


def _widened_f16(block: Array) -> Array:
    """A block of f16 (rows, columns), each row contiguous, as float32, a few rows at a time."""
    codes, wide, is_finite = block.view(np.int16), np.empty(block.shape, np.int32), is_all_finite(block)
    at_once = max(1, _WIDENED_AT_ONCE // max(1, block.shape[1]))
    for start in range(0, len(codes), at_once):
        words = wide[start : start + at_once]
        np.copyto(words, codes[start : start + at_once])  # copies of the sign come in
        np.left_shift(words, 13, out=words)
        from_spread_f16(words, is_finite=is_finite)
    return wide.view(np.float32)


def from_spread_f16(words: npt.NDArray[np.int32], *, is_finite: bool) -> Array:
    """The float16 whose sign is in the upper bits of words, and the rest 13 places up, as float32. Changes the words.

    There, past the longer exponent field, the code means 2^-112 times the value (112 is the difference of the biases),
    subnormals too: both formats count them from the smallest normal value. What has the exponent 31 was an infinity or
    NaN, and is given the exponent of those; with `is_finite` there is none.
    """
    np.bitwise_and(words, _F16_IN_F32, out=words)
    wide = words.view(np.float32)
    np.multiply(wide, np.float32(2.0**112), out=wide)
    if not is_finite:
        np.bitwise_or(words, np.where(np.abs(wide) >= 65536.0, _F32_TOP.view(np.int32), np.int32(0)), out=words)
    return wide


@lru_cache(maxsize=64)
def _table(source: np.dtype[Any], dtype: np.dtype[Any]) -> Array:
    codes = np.arange(1 << 8 * source.itemsize).astype(f"u{source.itemsize}")
    with np.errstate(invalid="ignore"):
        return codes.view(source).astype(dtype)
