"""The fast steps of a narrow accumulator whose terms are no wider than it is: in float32, at half of the memory.

Rounded products of f16 into f16, or exact ones of 8-bit formats. Start reading at `NarrowInFloat32`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from softfloat_llm.numerics.formats import Array, Float64Array, f32
from softfloat_llm.numerics.narrow_steps import largest_sum
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.steps import OnTile
from softfloat_llm.numerics.tiles import Piece, Products, can_round, is_native, term_bits

_FLOAT32 = np.dtype(np.float32)
_MOST_BITS = 11  # of the format: 2p + 2 <= 24


class NarrowInFloat32(OnTile):
    """acc = R(acc + term) for a format of p <= 11 bits, in float32: four passes a step. See `can_be_in_float32`.

    acc and the terms are multiples of the format's smallest subnormal, of at most p bits each.

    * t = acc + term, rounded to float32's 24 >= 2p + 2 bits, rounds to the same value as the exact sum (Figueroa, When
      is double rounding innocuous?, 1995).
    * With S = 24 - p, R(t) = (t - g) + g, where g = (2^S + 1) t: each operation rounds once. Veltkamp's cut (Dekker, A
      floating-point technique for extending the available precision, 1971), which gives a nearest value of p bits;
      that it gives the even one of two is tested for every significand. Nothing depends on the exponent while g is
      within float32's range.
    * Below the format's normal range t is a value of it already, of fewer than p bits, and is left as it is.

    A sum that is zero comes out as +0. From +0 on, each such sum is one: x - x, or +0 and a zero.
    """

    dtype = _FLOAT32

    def __init__(self, products: Products, at: Precision) -> None:
        super().__init__(products, at, None)
        assert at.acc.format is not None
        self._times = np.array(2.0 ** (f32.precision - at.acc.format.precision) + 1.0, np.float32)
        self._sum, self._rest = self.buffer(), self.buffer()

    def enter(self, acc: Array, piece: Piece) -> None:
        """acc = R(acc + term), for each term of the piece in turn."""
        if np.signbit(acc[acc == 0]).any():
            self.keeps_zero_signs = False
        super().enter(acc, piece)

    def begin(self, acc: Array, piece: Piece) -> None:
        """acc = +0, then as `enter`."""
        acc[...] = 0.0
        super().enter(acc, piece)

    def _fast(self, acc: Array, piece: Piece) -> None:
        add, multiply, subtract, times = np.add, np.multiply, np.subtract, self._times
        for t in self.products.of(piece, is_bounded=True, keeps_signs=False):
            add(acc, t, t)
            multiply(t, times, acc)
            subtract(t, acc, t)
            add(t, acc, acc)

    def term(self, acc: Array, piece: Piece) -> None:
        """acc = the one term of the piece, which is a value of the format."""
        acc[...] = self.products.of(piece, is_bounded=True)[0]

    def join(self, acc: Array, other: Array) -> None:
        """acc = R(acc + other). A zero has the sign of the sum."""
        np.add(acc, other, out=self._sum)
        cut(self._sum, self._times, self._rest, acc)
        np.copysign(acc, self._sum, out=acc)


def cut(t: Array, times: Array, room: Array, out: Array) -> None:
    """out = t rounded to p bits, with times = 2^(24 - p) + 1: see `NarrowInFloat32`. All of one shape; t is kept."""
    np.multiply(t, times, out=out)
    np.subtract(t, out, out=room)
    np.add(room, out, out=out)


@lru_cache(maxsize=64)
def may_be_in_float32(at: Precision) -> bool:
    """True where `can_be_in_float32` hangs on the operands alone, of a precision whose path is `narrow`."""
    fmt, product = at.acc.format, at.product
    if fmt is None or fmt.precision > _MOST_BITS or not can_round(fmt) or term_bits(at) > fmt.precision:
        return False
    is_on_grid = product is None or (can_round(product) and product.smallest_subnormal >= fmt.smallest_subnormal)
    is_rounded = product is None or is_native(product, _FLOAT32) or 2 * product.precision <= f32.precision
    return is_on_grid and is_rounded and 2 * at.storage.precision <= f32.precision


def can_be_in_float32(products: Products, at: Precision, start: Float64Array | None) -> bool:
    """True where the terms of a tile, and their sums, meet the conditions of `NarrowInFloat32`.

    Terms have at most p bits and lie on the accumulator's grid; no sum is beyond its range, nor what rounding makes of
    a sum or a product, 2^(24 - p) times as much, beyond float32's; and multiplying two operands in float32 is exact.
    """
    fmt = at.acc.format
    assert fmt is not None
    bounds, program = products.spread, at.order.tree(len(products.left)).program()
    lowest = f32.smallest_subnormal if at.product is not None else fmt.smallest_subnormal
    if not (bounds.lowest_bits(2 * at.storage.precision) >= lowest).all():
        return False
    largest = largest_sum(at, bounds, program, start)
    fewest = min(fmt.precision, (at.product or fmt).precision)
    return largest <= fmt.max and largest * 2.0 ** (f32.precision + 1 - fewest) <= f32.max


def steps_in_float32(products: Products, at: Precision, start: Float64Array | None) -> NarrowInFloat32 | None:
    """The steps of a tile, on terms of its own; None where the values do not allow them."""
    if not may_be_in_float32(at) or not can_be_in_float32(products, at, start):
        return None
    return NarrowInFloat32(Products(*products.sides, at, 2 * products.depth, _FLOAT32), at)
