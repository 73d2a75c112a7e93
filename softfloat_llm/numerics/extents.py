"""How small and how large operands are, for each k: what the conditions of the fast forms are asked of.

Start reading at `spread`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from softfloat_llm.numerics.formats import Array, Float64Array, bf16, f16

_ROWS_AT_ONCE = 64  # of the magnitudes that are looked at: the temporaries stay small
_CODES_AT_ONCE = 1 << 14  # they stay in the first-level cache
_MAGNITUDE = np.uint16(0x7FFF)
_ABOVE_ALL = np.uint16(0xFFFF)


class Extent(NamedTuple):
    """Of each row of a block (K, n): the smallest magnitude that is not zero (inf: none), the largest, any zero. (K,)

    With an infinity `largest` is inf; with a NaN it is NaN, so that no condition of the form `largest <= x` holds.
    """

    smallest: Float64Array
    largest: Float64Array
    has_zero: npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Operands:
    """One side of a tile: `wide` (K, n) in the kernel's dtype, contiguous, and the same values as they are stored."""

    wide: Array
    stored: Array

    @cached_property
    def extent(self) -> Extent:
        """Of each k, over the tile."""
        return extent_of(self.stored)


class Spread(NamedTuple):
    """For each k, bounds of |a*b| over a tile (K,): the smallest that is not zero (inf: none), and the largest.

    Exact: the bounds are products of two magnitudes of at most 24 bits. With an infinite operand `largest` is inf or
    NaN, with a NaN it is NaN, so that no condition of the form `bound <= limit` holds.
    """

    smallest: Float64Array
    largest: Float64Array
    has_zero: npt.NDArray[np.bool_]

    def lowest_bits(self, bits: int) -> Float64Array:
        """Below the last bit of each product that is not zero, where its significand has at most this many bits."""
        return self.smallest * 2.0**-bits


def spread(left: Operands, right: Operands) -> Spread:
    """The bounds of the products of a tile, left (K, M) and right (K, n)."""
    a, b = left.extent, right.extent
    return Spread(a.smallest * b.smallest, a.largest * b.largest, a.has_zero | b.has_zero)


def extent_of(block: Array) -> Extent:
    """The extent of each row of a block (K, n), in any dtype that holds floats."""
    if block.dtype in (f16.dtype, bf16.dtype):
        return _extent_of_codes(block)
    if block.dtype.itemsize < 4:
        block = block.astype(np.float32)
    bounds, has_zero = np.zeros((2, block.shape[0])), np.zeros(block.shape[0], np.bool_)
    for start in range(0, block.shape[0] if block.shape[1] else 0, _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        magnitudes = np.abs(block[rows])
        bounds[:, rows] = np.minimum.reduce(magnitudes, axis=1), np.maximum.reduce(magnitudes, axis=1)
    has_zero = bounds[0] == 0
    for k in np.flatnonzero(has_zero):
        magnitude = np.abs(block[k])
        bounds[0, k] = np.minimum.reduce(magnitude, where=magnitude > 0, initial=np.inf)
    return Extent(bounds[0], bounds[1], has_zero)


def _extent_of_codes(block: Array) -> Extent:
    """Of float16 or bfloat16: without the sign, codes are ordered as the magnitudes; a zero, one less, is the top."""
    codes = block.T.view(np.uint16)  # (n, K)
    smallest, largest = np.full(block.shape[0], _ABOVE_ALL), np.zeros(block.shape[0], np.uint16)
    lowered = np.zeros_like(largest)
    at_once = max(1, _CODES_AT_ONCE // max(1, block.shape[0]))
    for start in range(0, len(codes), at_once):
        words = codes[start : start + at_once] & _MAGNITUDE
        np.maximum(largest, np.maximum.reduce(words, axis=0), out=largest)
        np.subtract(words, np.uint16(1), out=words)
        np.minimum(smallest, np.minimum.reduce(words, axis=0), out=smallest)
        np.maximum(lowered, np.maximum.reduce(words, axis=0), out=lowered)
    low, high = ((x.view(block.dtype)).astype(np.float64) for x in (smallest + np.uint16(1), largest))
    return Extent(np.where(smallest == _ABOVE_ALL, np.inf, low), high, lowered == _ABOVE_ALL)
