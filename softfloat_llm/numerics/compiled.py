"""The steps of `steps` compiled by numba: the same bits, without the passes over memory. The extra `fast` brings numba.

Nothing here is fast-math: LLVM neither reorders nor contracts, so that each `+` and `*` below is one IEEE operation of
its type, and `_fma` is one fused operation. Where the form of a step differs from NumPy's, its docstring says why the
bits do not. Start reading at `KIT`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from softfloat_llm.numerics.formats import Array, Float64Array, Format, bf16, f32
from softfloat_llm.numerics.operands import widened
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import EXPONENT_MASK
from softfloat_llm.numerics.steps import Kit, Native, OnTile, Path, Steps, flushes, is_never_doubtful, never_tiny
from softfloat_llm.numerics.tiles import Piece, Products, is_native

F = TypeVar("F", bound=Callable[..., Any])
Grid = tuple[float, float, float]
"""What `_round` needs of a format: see `_grid`."""

_STRIP = 512  # columns: their accumulators stay in the first-level cache while all terms enter
_BLOCK = 32  # rows and columns of weights that are turned at once
_EXPONENT = int(EXPONENT_MASK)


def compiled(function: F) -> F:
    """The function as machine code for the types that it is called with, kept between runs; it lets go of the lock."""
    return cast(F, numba.njit(nogil=True, cache=True, error_model="numpy")(function))


def _instruction(result: Any, *arguments: Any, emit: Callable[..., Any]) -> Any:
    """What an intrinsic gives back to numba: its signature, and the code of one LLVM instruction."""
    return result(*arguments), lambda context, builder, signature, values: emit(context, builder, *values)


def _bitcast(to: Any) -> Callable[..., Any]:
    return lambda context, builder, value: builder.bitcast(value, context.get_value_type(to))


def _bits_of(typing_context: Any, x: Any) -> Any:
    """The word of a float64."""
    return _instruction(types.int64, types.float64, emit=_bitcast(types.int64))


def _float_of(typing_context: Any, word: Any) -> Any:
    """The float64 of a word."""
    return _instruction(types.float64, types.int64, emit=_bitcast(types.float64))


def _fma_of(typing_context: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z in float32, rounded once: an instruction where the CPU has one, else the C library's function."""
    floats = (types.float32,) * 3
    return _instruction(types.float32, *floats, emit=lambda context, builder, *values: builder.fma(*values))


_bits: Any = intrinsic(_bits_of)
_float: Any = intrinsic(_float_of)
_fma: Any = intrinsic(_fma_of)


# --- rounding ---------------------------------------------------------------------------------------------------------


def _grid(fmt: Format) -> Grid:
    """The smallest normal value, 1.5 * 2^(53 - p), and the largest value."""
    return fmt.smallest_normal, 1.5 * 2.0 ** (53 - fmt.precision), fmt.max


@compiled
def _round(t: float, grid: Grid) -> float:
    """t rounded as `tiles.Rounder` does: ties to even, the sign of a zero kept, infinite beyond the largest value."""
    lowest, factor, largest = grid
    q = max(_float(_bits(t) & _EXPONENT), lowest) * factor
    r = (t + q) - q
    r = r if abs(r) <= largest else t * np.inf  # an infinity (q is one too, and r a NaN) or a NaN stays what it is
    signed: float = np.copysign(r, t)
    return signed


@compiled
def _sum_to_odd(x: float, y: float) -> float:
    """x + y to 53 bits, rounded to odd: to round it again to at most 51 bits is to round the exact sum.

    Where the sum was not exact and its last bit is even, it moves one place toward the error that TwoSum gives.
    Sources: Knuth, TAOCP 2, 4.2.2; Boldo and Melquiond, Emulation of FMA and correctly rounded sums (2008).
    """
    s = x + y
    part = s - x
    error = (x - (s - part)) + (y - part)  # NaN where the sum is not finite
    word = _bits(s)
    is_inexact = (error < 0.0) | (error > 0.0)
    moved = word + (1 if (error > 0.0) == (s > 0.0) else -1)
    odd: float = _float(moved if is_inexact & ((word & 1) == 0) else word)
    return odd


# --- chains: acc = R(acc + term) for each k in turn -------------------------------------------------------------------


@compiled
def _exact(x: float, y: float, product: Grid) -> float:
    """A product of two values of at most 24 bits: exact in float64."""
    return np.float64(x) * np.float64(y)


@compiled
def _rounded(x: float, y: float, product: Grid) -> float:
    return _round(np.float64(x) * np.float64(y), product)


@compiled
def _nearest(acc: float, term: float, grid: Grid) -> float:
    """R(acc + term) where rounding to 53 bits first is harmless: `steps.Narrow` says when."""
    return _round(acc + term, grid)


@compiled
def _once(acc: float, term: float, grid: Grid) -> float:
    """R(acc + term), always."""
    return _round(_sum_to_odd(acc, term), grid)


@compiled
def _in_float32(acc: float, term: float, grid: Grid) -> np.float32:
    """acc + term in float32, for a term that is a float32 value."""
    return np.float32(acc) + np.float32(term)


@compiled
def _in_float64(acc: float, term: float, grid: Grid) -> float:
    """acc + term in float64."""
    return acc + term


def _chain(term_of: Callable[..., float], step: Callable[..., Any]) -> Callable[..., None]:
    """A loop over strips, rows, terms and columns. acc (M, n), left (K, M), right (K, n)."""

    @compiled
    def chain(acc: Array, left: Array, right: Array, product: Grid, grid: Grid) -> None:
        rows, columns = acc.shape
        for start in range(0, columns, _STRIP):
            stop = min(start + _STRIP, columns)
            for row in range(rows):
                strip = acc[row, start:stop]
                for k in range(len(left)):
                    x, values = left[k, row], right[k, start:stop]
                    for i in range(len(strip)):
                        strip[i] = step(strip[i], term_of(x, values[i], product), grid)

    return chain


_CHAINS = {
    (is_rounded, step): _chain(_rounded if is_rounded else _exact, step)
    for is_rounded in (False, True)
    for step in (_nearest, _once, _in_float32, _in_float64)
}


@compiled
def _join(acc: Array, other: Array, grid: Grid) -> None:
    """acc = R(acc + other), both (M, n)."""
    rows, columns = acc.shape
    for row in range(rows):
        for i in range(columns):
            acc[row, i] = _round(acc[row, i] + other[row, i], grid)


@compiled
def _multiply_add(acc: Array, left: Array, right: Array) -> None:
    """acc = acc + left[k] right[k], the product and the sum each rounded to the arrays' own type."""
    rows, columns = acc.shape
    for start in range(0, columns, _STRIP):
        stop = min(start + _STRIP, columns)
        for row in range(rows):
            strip = acc[row, start:stop]
            for k in range(len(left)):
                x, values = left[k, row], right[k, start:stop]
                for i in range(len(strip)):
                    strip[i] = strip[i] + x * values[i]


@compiled
def _fused_multiply_add(acc: Array, left: Array, right: Array) -> None:
    """acc = fma(left[k], right[k], acc), all float32."""
    rows, columns = acc.shape
    for start in range(0, columns, _STRIP):
        stop = min(start + _STRIP, columns)
        for row in range(rows):
            strip = acc[row, start:stop]
            for k in range(len(left)):
                x, values = left[k, row], right[k, start:stop]
                for i in range(len(strip)):
                    strip[i] = _fma(x, values[i], strip[i])


class CompiledNative(Native):
    """acc = acc + term in float32 or float64, products included."""

    def __init__(self, products: Products, at: Precision) -> None:
        super().__init__(products, at, None)
        self.depth = len(products.left)  # no block of products is formed

    def begin(self, acc: Array, piece: Piece) -> None:
        """acc = +0, then as `enter`."""
        OnTile.begin(self, acc, piece)

    def _fast(self, acc: Array, piece: Piece) -> None:
        left, right = self.products.left[piece.ks], self.products.right[piece.ks]
        product = self.products.at.product
        if product is not None and not is_native(product, self.products.dtype):
            step = _in_float32 if self.dtype == np.float32 else _in_float64
            _CHAINS[True, step](acc, left, right, _grid(product), _grid(product))
            return
        _multiply_add(acc, left.astype(self.dtype, copy=False), right.astype(self.dtype, copy=False))


class CompiledFused(CompiledNative):
    """acc = fma(a, b, acc) in float32: one instruction, right for all values."""

    def _fast(self, acc: Array, piece: Piece) -> None:
        _fused_multiply_add(acc, self.products.left[piece.ks], self.products.right[piece.ks])

    def term(self, acc: Array, piece: Piece) -> None:
        """acc = R(the term): fma(a, b, -0), as -0 changes no sum, not even the sign of a zero."""
        acc[...] = -0.0
        self._fast(acc, piece)


class CompiledNarrow(OnTile):
    """acc = R(acc + term) for an IEEE-like format of at most 24 bits, in any range."""

    def __init__(self, products: Products, at: Precision) -> None:
        super().__init__(products, at, None)
        assert at.acc.format is not None
        self.depth = len(products.left)
        self.product, self.format = at.product, at.acc.format
        self._chain = _CHAINS[at.product is not None, _nearest if is_never_doubtful(at) else _once]

    def _fast(self, acc: Array, piece: Piece) -> None:
        left, right = self.products.left[piece.ks], self.products.right[piece.ks]
        self._chain(acc, left, right, _grid(self.product or self.format), _grid(self.format))

    def term(self, acc: Array, piece: Piece) -> None:
        """acc = R(the term): -0 changes no sum."""
        acc[...] = -0.0
        self._fast(acc, piece)

    def join(self, acc: Array, other: Array) -> None:
        """acc = R(acc + other): 53 bits are at least 2p + 2, where rounding twice is harmless (Figueroa 1995)."""
        _join(acc, other, _grid(self.format))


def _steps(products: Products, at: Precision, path: Path, start: Float64Array | None) -> Steps | None:
    """The compiled steps of a path. Sums that may have to be flushed are left to the evident form, as in `kernels`."""
    if path == "narrow":
        return CompiledNarrow(products, at)
    if flushes(at) and (start is not None or not never_tiny(at, products.spread)):
        return None
    is_float32_fma = at.product is None and at.acc.format is f32
    return CompiledFused(products, at) if is_float32_fma else CompiledNative(products, at)


# --- widening ---------------------------------------------------------------------------------------------------------


@compiled
def _turned(codes: Array, wide: Array) -> None:
    """wide[k, n] = codes[n, k] as the upper half of a word. codes uint16 (n, K), wide uint32 (K, n)."""
    rows, columns = codes.shape
    for first in range(0, rows, _BLOCK):
        last = min(first + _BLOCK, rows)
        for left in range(0, columns, _BLOCK):
            for k in range(left, min(left + _BLOCK, columns)):
                for n in range(first, last):
                    wide[k, n] = np.uint32(codes[n, k]) << np.uint32(16)


def widened_here(block: Array, dtype: np.dtype[Any]) -> Array:
    """As `operands.widened`: transposed bf16 weights are turned and widened in one go."""
    if dtype != np.float32 or block.dtype != bf16.dtype or not block.T.flags.c_contiguous:
        return widened(block, dtype)
    wide = np.empty(block.shape, np.uint32)
    _turned(block.T.view(np.uint16), wide)
    return wide.view(np.float32)  # a bf16 is the upper half of the float32 of its value


KIT = Kit(_steps, widened_here)
"""What `kernels` takes in place of NumPy's steps."""
