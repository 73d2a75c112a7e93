"""What enters the accumulators of a tile: the products of a few k at a time.

A tile is `left` (K, M), contiguous in the dtype that the kernel works in, and `right` (K, n), which is so too or stays
as it is stored (`stored_rows`). `Products` forms the terms of a piece of the order; `Rounder` rounds float64 or float32
arrays to a narrow format in a few whole-array passes. Start reading at `Products.of`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from softfloat_llm.numerics.carriers import EXPONENT_MASK
from softfloat_llm.numerics.extents import Operands, Spread, spread
from softfloat_llm.numerics.formats import Array, Float64Array, Format, f32, f64
from softfloat_llm.numerics.operands import rounded_product
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.stored_rows import StoredRows

SIGN_MASK = np.int64(-1 << 63)  # of float64


_ALIGNED = 64  # bytes: a cache line, and the longest vectors


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike = np.float64) -> Array:
    """An empty array that begins on a cache line: two that do not are added up to a fifth slower (Zen 4, NumPy 2.4)."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + _ALIGNED, np.uint8)
    first = -room.ctypes.data % _ALIGNED
    return room[first : first + size].view(dtype).reshape(shape)


class Piece(NamedTuple):
    """Some k that enter one accumulator one after the other."""

    ks: slice | npt.NDArray[np.intp]
    length: int

    def cut(self, start: int, stop: int) -> Piece:
        """Some neighbours of it."""
        stop = min(stop, self.length)
        if not isinstance(self.ks, slice):
            return Piece(self.ks[start:stop], stop - start)
        step = self.ks.step or 1
        first, end = self.ks.start + step * start, self.ks.start + step * stop
        return Piece(slice(first, end if end >= 0 else None, step), stop - start)

    def parts(self, depth: int) -> Iterator[Piece]:
        """The piece in pieces of at most `depth`."""
        if self.length <= depth:
            yield self
            return
        for start in range(0, self.length, depth):
            yield self.cut(start, start + depth)

    def runs(self, flags: npt.NDArray[np.bool_]) -> Iterator[tuple[Piece, bool]]:
        """Pieces of neighbours whose flags (length,) are equal, and what they are."""
        starts = [0, *(np.flatnonzero(flags[1:] != flags[:-1]) + 1).tolist(), self.length]
        for start, stop in pairwise(starts):
            yield self.cut(start, stop), bool(flags[start])

    def of(self, x: Array) -> Array:
        """The rows of x (K, ...), in ascending places of memory."""
        if isinstance(self.ks, slice) and (self.ks.step or 1) < 0:
            return np.ascontiguousarray(x[self.ks])
        return x[self.ks]


class _Words(NamedTuple):
    """A carrier's words, and what is in them."""

    dtype: np.dtype[Any]
    exponent: np.integer[Any]
    sign: np.integer[Any]
    digits: int
    emax: int


_WORDS = {
    f64.dtype: _Words(np.dtype(np.int64), np.int64(EXPONENT_MASK), SIGN_MASK, 53, 1023),
    f32.dtype: _Words(np.dtype(np.int32), np.int32(0x7F80_0000), np.int32(-1 << 31), 24, 127),
}


class Rounder:
    """Rounds float64 arrays to a format of at most 25 bits, ties to even, subnormals kept, beyond the range infinite.

    Or float32 arrays of numbers below 2^100 to one of at most 12 bits, with float32's 24 in place of 53.

    With q = max(2^floor(log2 |t|), smallest normal) * 1.5 * 2^(53 - p), the sum t + q lies in q's binade (|t| is less
    than a third of q), where float64's spacing is the ulp of t in the format, or the subnormals' step: adding q rounds
    t as the format does, and q is an even multiple of the step, so that ties go to even. Subtracting q is exact.

    Beyond the range, where `is_bounded` does not promise that there is none: q stops at the last binade's, so that an
    infinite t stays infinite, and multiplying by 2^(1023 - emax), which overflows exactly from 2^(emax + 1) on, and
    back, turns what was rounded beyond the largest value into an infinity. A NaN stays NaN.

    The sign of a zero is lost in (t + q) - q; the last two passes put t's back, which is the exact value's.
    Source: Higham and Pranesh, Simulating Low Precision Floating-Point Arithmetic (2019), for the idea of the constant.
    """

    def __init__(self, fmt: Format, shape: tuple[int, ...], dtype: np.dtype[Any] = f64.dtype) -> None:
        self._words = _WORDS[dtype]
        assert 2 * fmt.precision <= self._words.digits, "q is beside the format's places"
        self._q = aligned(shape, dtype)
        self._q_bits = self._q.view(self._words.dtype)
        # positive floats are ordered as their words, of which NumPy 2.0 to 2.4 take the maximum in half the time; of
        # a tile's shape, as with a row it takes up to twice as long, and with a scalar three times
        self._lowest = np.full(shape[-2:], fmt.smallest_normal, dtype).view(self._words.dtype)
        self._highest = np.full(shape[-1], 2.0**fmt.emax, dtype).view(self._words.dtype)
        self._factor = np.array(1.5 * 2.0 ** (self._words.digits - fmt.precision), dtype)
        self._to_brink = 2.0 ** (self._words.emax - fmt.emax)

    def round(self, t: Array, out: Array, *, is_bounded: bool = False, keeps_signs: bool = True) -> None:
        """out = R(t). t and out: contiguous arrays of the shape, or of fewer of its leading rows, distinct.

        Without `keeps_signs` what rounds to zero may be +0 where it should be -0, and out may be t.
        """
        q, q_bits, t_bits = self._q[: len(t)], self._q_bits[: len(t)], t.view(self._words.dtype)
        np.bitwise_and(t_bits, self._words.exponent, out=q_bits)
        np.maximum(q_bits, self._lowest if t.ndim > 2 else self._lowest[: len(t)], out=q_bits)
        if not is_bounded:
            np.minimum(q_bits, self._highest, out=q_bits)
        np.multiply(q, self._factor, out=q)
        np.add(t, q, out=out)
        np.subtract(out, q, out=out)
        if not is_bounded:
            np.multiply(out, self._to_brink, out=out)
            np.multiply(out, 1.0 / self._to_brink, out=out)
        if keeps_signs:
            np.bitwise_and(t_bits, self._words.sign, out=q_bits)
            out_bits = out.view(self._words.dtype)
            np.bitwise_or(out_bits, q_bits, out=out_bits)


def can_round(fmt: Format) -> bool:
    """True for the formats that `Rounder` knows: IEEE-like ones (all that it uses) of at most 25 bits."""
    is_like_ieee = fmt.has_infinity and fmt.nan == "ieee" and fmt.is_signed and fmt.has_zero
    return is_like_ieee and fmt.precision <= 25


def in_turn(values: Float64Array, first: int, n: int) -> Float64Array:
    """The values that n terms from number `first` on take, (n, 1): each in its turn, then from the first one again."""
    return values.take(np.arange(first, first + n), mode="wrap")[:, None]


class Scale(Protocol):
    """What terms take on, and how they are rounded then: `underflow_rounding.UnderflowSteps`."""

    factors: Float64Array

    def round_products(self, products: Float64Array, room: Float64Array, first: int) -> None: ...


class Products:
    """The terms of a tile as the product stage leaves them, in `dtype` (left and right may be narrower).

    `of` multiplies in that dtype: exact where the caller has seen to it, or the product stage itself where that is
    ties_to_even to float32 (or float64) and so what the multiplication does. To another format: exact in float64, then
    one rounding.
    """

    def __init__(
        self,
        left: Operands,
        right: Operands | StoredRows,
        at: Precision,
        depth: int,
        dtype: np.dtype[Any],
        threads: int = 1,
    ) -> None:
        self.sides, self.at, self.dtype, self.depth, self.threads = (left, right), at, dtype, depth, threads
        self.left = left.wide
        self.shape = self.left.shape[1], right.shape[1]
        """Of the accumulators (M, n)."""
        self._shape = (depth, *self.shape)
        self.last_term: Array = self.left[:0]
        """The last of the `scaled` terms so far."""

    @property
    def right(self) -> Array:
        """All of it, wide. The fast forms ask for rows."""
        return self.sides[1].wide

    def operands(self, ks: slice | npt.NDArray[np.intp]) -> tuple[Array, Array]:
        """Some rows of both, (count, M) and (count, n), wide."""
        right = self._right_rows(ks)
        return self.left[ks], right.wide if isinstance(right, StoredRows) else right

    @cached_property
    def spread(self) -> Spread:
        """The bounds of the products of each k."""
        return spread(*self.sides)

    @cached_property
    def _wide_left(self) -> Array:
        return self.left.astype(self.dtype, copy=False)

    @cached_property
    def _wide_right(self) -> Array:
        return aligned((self.depth, self.shape[1]), self.dtype)

    @cached_property
    def _words(self) -> npt.NDArray[np.int32]:
        return aligned((self.depth, self.shape[1]), np.int32)

    @cached_property
    def _block(self) -> Array:
        return aligned(self._shape, self.dtype)

    @cached_property
    def _rows(self) -> list[Array]:
        """The terms of the block, one by one."""
        return list(self._block)

    @cached_property
    def _room(self) -> Array:
        return aligned(self._shape, self.dtype)

    @cached_property
    def _rounder(self) -> Rounder | None:
        product = self.at.product
        return None if product is None or is_native(product, self.dtype) else Rounder(product, self._shape, self.dtype)

    def of(self, piece: Piece, *, is_bounded: bool = False, keeps_signs: bool = True) -> Array:
        """The terms of a piece (count, M, n). Good until the next call.

        `is_bounded`: no product can round beyond the largest value of the product's format. Without `keeps_signs` one
        that rounds to zero may be +0 where it should be -0.
        """
        block = self._multiplied(self._wide_left[piece.ks, :, None], self._right_rows(piece.ks), slice(piece.length))
        if self._rounder is None:
            return block
        rounded = self._room[: piece.length] if keeps_signs else block
        self._rounder.round(block, rounded, is_bounded=is_bounded, keeps_signs=keeps_signs)
        return rounded

    def scaled(self, piece: Piece, scale: Scale) -> Iterable[Float64Array]:
        """The terms (M, n) of a piece in turn, times the scale's factors. Good until the next one is asked for."""
        return chain.from_iterable(self._scaled_blocks(piece, scale))

    def _scaled_blocks(self, piece: Piece, scale: Scale) -> Iterator[list[Float64Array]]:
        left = (self._wide_left[piece.ks] * in_turn(scale.factors, 0, piece.length))[..., None]
        right = self._right_rows(piece.ks)
        for first in range(0, piece.length, self.depth):
            here = slice(first, first + self.depth)
            block = self._multiplied(left[here], right, here)
            if self.at.product is not None:
                scale.round_products(block, self._room[: len(block)], first)
            self.last_term = self._rows[len(block) - 1]
            yield self._rows[: len(block)]

    def _right_rows(self, ks: slice | npt.NDArray[np.intp]) -> Array | StoredRows:
        right = self.sides[1]
        return right[ks] if isinstance(right, StoredRows) else right.wide[ks]

    def _multiplied(self, left: Array, right: Array | StoredRows, here: slice) -> Array:
        """left (count, M, 1) times the rows of right (..., n) that are meant."""
        block: Array = self._block[: len(left)]
        np.multiply(left, self._widened(right, here, len(left))[:, None], block)
        return block

    def _widened(self, right: Array | StoredRows, here: slice, count: int) -> Array:
        """Rows (count, n) in this dtype."""
        if isinstance(right, StoredRows):
            wide = self._wide_right[:count]
            right.widen(here, wide, self._words[:count])
            return wide
        if right.dtype == self.dtype:
            return right[here]
        wide = self._wide_right[:count]
        np.copyto(wide, right[here])
        return wide

    def wide(self, k: int) -> Float64Array:
        """Term k (M, n) by the evident form, in float64."""
        left, right = self.operands(slice(k, k + 1))
        return rounded_product(left[0, :, None].astype(np.float64), right[0].astype(np.float64), self.at)


def is_native(product: Format, dtype: np.dtype[Any]) -> bool:
    """True where the hardware's multiplication of this dtype rounds to the product's format."""
    return product is f64 or (product is f32 and dtype == np.float32)


def term_bits(at: Precision) -> int:
    """An upper bound of the significand bits of a term."""
    exact = 2 * at.storage.precision
    return exact if at.product is None else min(exact, at.product.precision)
