"""What enters the accumulators of a tile: the products of a few k at a time, and how large and small they can be.

A tile is `left` (K, M) and `right` (K, n), both contiguous in the dtype that the kernel works in. `Products` forms the
terms of a piece of the order, `Spread` bounds them for each k, and `Rounder` rounds float64 arrays to a narrow format
in a few whole-array passes. Start reading at `Products.of`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from softfloat_llm.numerics.formats import Array, Float64Array, Format, f32, f64
from softfloat_llm.numerics.operands import rounded_product
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import EXPONENT_MASK

# elements. With its usual buffer of 8192, NumPy (2.0 to 2.4) copies a broadcast operand whose rows are shorter than
# about a third of that before it multiplies: 0.27 ns an element instead of 0.09 (benchmarks/bench_matmul.py)
_SMALLEST_BUFFER = 16
_MAGNITUDE = np.uint32(0x7FFF_FFFF)  # of float32
_ABOVE_ALL = np.uint32(0xFFFF_FFFF)
_WORDS_AT_ONCE = 1 << 14  # of the words that `extremes` looks at: they stay in the first-level cache
SIGN_MASK = np.int64(-1 << 63)  # of float64
_ROWS_AT_ONCE = 64  # of the magnitudes that `spread` looks at: its temporaries stay small


class Piece(NamedTuple):
    """Some k that enter one accumulator one after the other."""

    ks: slice | npt.NDArray[np.intp]
    length: int


class Spread(NamedTuple):
    """For each k, bounds of |a*b| over a tile (K,): the smallest that is not zero (inf: none), and the largest.

    Exact: the bounds are products of two magnitudes of at most 24 bits. With an infinite operand `largest` is inf or
    NaN, with a NaN both are NaN, so that no condition of the form `bound <= limit` holds.
    """

    smallest: Float64Array
    largest: Float64Array
    has_zero: npt.NDArray[np.bool_]

    def lowest_bits(self, bits: int) -> Float64Array:
        """Below the last bit of each product that is not zero, where its significand has at most this many bits."""
        return self.smallest * 2.0**-bits


def spread(left: Array, right: Array) -> Spread:
    """The bounds of the products of a tile, left (K, M) and right (K, n)."""
    (low_a, high_a), (low_b, high_b) = _magnitudes(left), _magnitudes(right)
    zero_a, zero_b = (low_a == 0), (low_b == 0)
    smallest = _without_zeros(low_a, left, zero_a) * _without_zeros(low_b, right, zero_b)
    return Spread(smallest, high_a * high_b, zero_a | zero_b)


def extremes(x: npt.NDArray[np.float32]) -> tuple[float, float]:
    """The smallest magnitude that is not zero (inf where there is none) and the largest (NaN counts above inf).

    x: a contiguous float32 tile. Without the sign, float32 words are ordered as the magnitudes; a zero, one less, wraps
    round to the top.
    """
    smallest, largest = _ABOVE_ALL, np.uint32(0)
    flat = x.reshape(-1).view(np.uint32)
    for start in range(0, flat.size, _WORDS_AT_ONCE):
        words = flat[start : start + _WORDS_AT_ONCE] & _MAGNITUDE
        largest = max(largest, np.maximum.reduce(words))
        np.subtract(words, np.uint32(1), out=words)
        smallest = min(smallest, np.minimum.reduce(words))
    if smallest == _ABOVE_ALL:
        return np.inf, 0.0
    low, high = np.array([smallest + np.uint32(1), largest]).view(np.float32)
    return float(low), float(high)


def _magnitudes(x: Array) -> tuple[Float64Array, Float64Array]:
    """The smallest and the largest |x| of each row, NaN where there is a NaN."""
    bounds = np.zeros((2, x.shape[0]))
    for start in range(0, x.shape[0], _ROWS_AT_ONCE):
        rows = np.abs(x[start : start + _ROWS_AT_ONCE])
        bounds[:, start : start + _ROWS_AT_ONCE] = np.minimum.reduce(rows, axis=1), np.maximum.reduce(rows, axis=1)
    return bounds[0], bounds[1]


def _without_zeros(low: Float64Array, x: Array, has_zero: npt.NDArray[np.bool_]) -> Float64Array:
    """`low`, where rows with zeros count the others only."""
    for row in np.flatnonzero(has_zero):
        magnitude = np.abs(x[row])
        low[row] = np.minimum.reduce(magnitude, where=magnitude > 0, initial=np.inf)
    return low


class Rounder:
    """Rounds float64 arrays to a format of at most 25 bits, ties to even, subnormals kept, beyond the range infinite.

    With q = max(2^floor(log2 |t|), smallest normal) * 1.5 * 2^(53 - p), the sum t + q lies in q's binade (|t| is less
    than a third of q), where float64's spacing is the ulp of t in the format, or the subnormals' step: adding q rounds
    t as the format does, and q is an even multiple of the step, so that ties go to even. Subtracting q is exact.

    Beyond the range, where `is_bounded` does not promise that there is none: q stops at the last binade's, so that an
    infinite t stays infinite, and multiplying by 2^(1023 - emax), which overflows exactly from 2^(emax + 1) on, and
    back, turns what was rounded beyond the largest value into an infinity. A NaN stays NaN.

    The sign of a zero is lost in (t + q) - q; `is_signed` puts t's back, which is the exact value's.
    Source: Higham and Pranesh, Simulating Low Precision Floating-Point Arithmetic (2019), for the idea of the constant.
    """

    def __init__(self, fmt: Format, shape: tuple[int, ...]) -> None:
        self._q = np.empty(shape)
        self._q_bits = self._q.view(np.int64)
        # positive floats are ordered as their words, of which NumPy 2.0 to 2.4 take the maximum in half the time; whole
        # rows, as with a scalar it takes three times as long
        self._lowest = np.full(shape[-1], fmt.smallest_normal).view(np.int64)
        self._highest = np.full(shape[-1], 2.0**fmt.emax).view(np.int64)
        self._factor = 1.5 * 2.0 ** (53 - fmt.precision)
        self._to_brink = 2.0 ** (1023 - fmt.emax)

    def round(self, t: Float64Array, out: Float64Array, *, is_bounded: bool = False, is_signed: bool = True) -> None:
        """out = R(t). t and out: distinct contiguous arrays of the shape, or of fewer of its leading rows."""
        q, q_bits, t_bits = self._q[: len(t)], self._q_bits[: len(t)], t.view(np.int64)
        np.bitwise_and(t_bits, EXPONENT_MASK, out=q_bits)
        np.maximum(q_bits, self._lowest, out=q_bits)
        if not is_bounded:
            np.minimum(q_bits, self._highest, out=q_bits)
        np.multiply(q, self._factor, out=q)
        np.add(t, q, out=out)
        np.subtract(out, q, out=out)
        if not is_bounded:
            np.multiply(out, self._to_brink, out=out)
            np.multiply(out, 1.0 / self._to_brink, out=out)
        if is_signed:
            np.bitwise_and(t_bits, SIGN_MASK, out=q_bits)
            out_bits = out.view(np.int64)
            np.bitwise_or(out_bits, q_bits, out=out_bits)

    def chain(self, acc: Float64Array, terms: Array, t: Float64Array) -> None:
        """acc = R(acc + term) for each term (count, *shape) in turn: bounded, and without the sign of a zero.

        The same six passes as in `round`, without a Python call a step. t: a buffer, which keeps the last exact sum.
        """
        q, q_bits, t_bits, lowest = self._q, self._q_bits, t.view(np.int64), self._lowest
        mask, factor = np.array(EXPONENT_MASK), np.array(self._factor)
        add, subtract, multiply, bitwise_and, maximum = np.add, np.subtract, np.multiply, np.bitwise_and, np.maximum
        for term in terms:
            add(acc, term, t)
            bitwise_and(t_bits, mask, q_bits)
            maximum(q_bits, lowest, out=q_bits)
            multiply(q, factor, q)
            add(t, q, acc)
            subtract(acc, q, acc)

    def restore_signs(self, acc: Float64Array, t: Float64Array) -> None:
        """Gives each zero of acc = R(t) the sign of t; the others have it."""
        acc_bits = acc.view(np.int64)
        np.bitwise_and(t.view(np.int64), SIGN_MASK, out=self._q_bits)
        np.bitwise_or(acc_bits, self._q_bits, out=acc_bits)


def can_round(fmt: Format) -> bool:
    """True for the formats that `Rounder` knows: IEEE-like ones (all that it uses) of at most 25 bits."""
    is_like_ieee = fmt.has_infinity and fmt.nan == "ieee" and fmt.is_signed and fmt.has_zero
    return is_like_ieee and fmt.precision <= 25


class Products:
    """The terms of a tile as the product stage leaves them, in `dtype` (left and right may be narrower).

    `of` multiplies in that dtype: exact where the caller has seen to it, or the product stage itself where that is
    ties_to_even to float32 (or float64) and so what the multiplication does. To another format: exact in float64, then
    one rounding.
    """

    def __init__(self, left: Array, right: Array, at: Precision, depth: int, dtype: np.dtype[Any]) -> None:
        self.left, self.right, self.at, self.dtype = left, right, at, dtype
        self._shape = (depth, left.shape[1], right.shape[1])

    @cached_property
    def _block(self) -> Array:
        return np.empty(self._shape, self.dtype)

    @cached_property
    def _rounding(self) -> tuple[Rounder, Float64Array] | None:
        product = self.at.product
        if product is None or is_native(product, self.dtype):
            return None
        return Rounder(product, self._shape), np.empty(self._shape)

    def of(self, piece: Piece, *, is_bounded: bool = False, is_signed: bool = True) -> Array:
        """The terms of a piece (count, M, n). Good until the next call.

        `is_bounded`: no product can round beyond the largest value of the product's format. `is_signed`: False where
        the sign of a product that rounds to zero does not matter.
        """
        block: Array = self._block[: piece.length]
        left = self.left[piece.ks].astype(self.dtype, copy=False)
        right = self.right[piece.ks].astype(self.dtype, copy=False)
        usual = np.setbufsize(_SMALLEST_BUFFER)
        try:
            np.multiply(left[:, :, None], right[:, None, :], out=block)
        finally:
            np.setbufsize(usual)
        if self._rounding is None:
            return block
        rounder, room = self._rounding
        rounded = room[: piece.length]
        rounder.round(block, rounded, is_bounded=is_bounded, is_signed=is_signed)
        return rounded

    def wide(self, k: int) -> Float64Array:
        """Term k (M, n) by the evident form, in float64."""
        left, right = self.left[k].astype(np.float64), self.right[k].astype(np.float64)
        return rounded_product(left[:, None], right, self.at)


def is_native(product: Format, dtype: np.dtype[Any]) -> bool:
    """True where the hardware's multiplication of this dtype rounds to the product's format."""
    return product is f64 or (product is f32 and dtype == np.float32)


def term_bits(at: Precision) -> int:
    """An upper bound of the significand bits of a term."""
    exact = 2 * at.storage.precision
    return exact if at.product is None else min(exact, at.product.precision)
