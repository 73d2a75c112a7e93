"""How small and how large operands are, for each k: what the conditions of the fast forms are asked of.

Those of weights are remembered, where the weights cannot change: see `unchanging`.

Start reading at `spread`.
"""

from __future__ import annotations

import weakref
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from softfloat_llm.numerics.formats import Array, Float64Array, bf16, f16, f32

_ROWS_AT_ONCE = 64  # of the magnitudes that are looked at: the temporaries stay small
_CODES_AT_ONCE = 1 << 17  # they stay in the second-level cache, and few calls see to them
Codes = npt.NDArray[np.uint16]
_MAGNITUDE = np.uint16(0x7FFF)
_ABOVE_ALL = np.uint16(0xFFFF)
_F16_INFINITY, _BF16_INFINITY = 0x7C00, 0x7F80


class _OfRows(NamedTuple):
    smallest: Float64Array
    largest: Float64Array
    has_zero: npt.NDArray[np.bool_]


class Extent(_OfRows):
    """Of each row of a block (K, n): the smallest magnitude that is not zero (inf: none), the largest, any zero. (K,)

    With an infinity `largest` is inf; with a NaN it is NaN, so that no condition of the form `largest <= x` holds.
    """

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest of all rows."""
        return float(self.smallest.min(initial=np.inf)), float(self.largest.max(initial=0.0))


class Stored:
    """Operands as they are stored, blocks (K, n) side by side, whose extent is found when it is first asked for."""

    def __init__(self, blocks: tuple[Array, ...]) -> None:
        self._blocks = blocks

    @cached_property
    def extent(self) -> Extent:
        """Of each k, over all n."""
        first, *others = (_remembered(block) for block in self._blocks)
        for other in others:
            largest = np.maximum(first.largest, other.largest)
            first = Extent(np.minimum(first.smallest, other.smallest), largest, first.has_zero | other.has_zero)
        return first


class Operands(NamedTuple):
    """One side of a tile: `wide` (K, n) in the kernel's dtype, contiguous; `stored` has them, and maybe others too."""

    wide: Array
    stored: Stored

    @property
    def shape(self) -> tuple[int, int]:
        """(K, n)."""
        return self.wide.shape[0], self.wide.shape[1]


class Side(Protocol):
    """Anything of which the bounds are known."""

    @property
    def stored(self) -> Stored: ...


def smallest_of(magnitudes: Array) -> float:
    """The smallest of some magnitudes (...) that is not zero; inf where there is none."""
    smallest = float(magnitudes.min(initial=np.inf))
    if smallest == 0:
        smallest = float(np.minimum.reduce(magnitudes, axis=None, where=magnitudes > 0, initial=np.inf))
    return smallest


def extremes(left: Operands, right: Side) -> tuple[float, float]:
    """Bounds of |a*b| over a whole tile: the smallest that is not zero (inf: none), and the largest (or NaN).

    left is looked at itself, as it is small.
    """
    magnitude = np.abs(left.wide)
    smallest, largest = right.stored.extent.ends
    return smallest_of(magnitude) * smallest, float(magnitude.max(initial=0.0)) * largest


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


def spread(left: Side, right: Side) -> Spread:
    """The bounds of the products of a tile, left (K, M) and right (K, n)."""
    a, b = left.stored.extent, right.stored.extent
    return Spread(a.smallest * b.smallest, a.largest * b.largest, a.has_zero | b.has_zero)


_kept: dict[tuple[Any, ...], tuple[weakref.ref[Any], Extent]] = {}
_MOST_KEPT = 1 << 12


def _remembered(block: Array) -> Extent:
    """`extent_of`, kept where the block lies in memory that nobody can write to (weights, which come again)."""
    owner = _unchanging_owner(block)
    if owner is None:
        return extent_of(block)
    key = (block.ctypes.data, block.shape, block.strides, block.dtype)
    kept = _kept.get(key)
    if kept is None or kept[0]() is not owner:  # another array has had this place
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        _kept[key] = kept = (weakref.ref(owner), extent_of(block))
    return kept[1]


def unchanging(array: Array) -> Array:
    """A copy in a `bytes` object, laid out in the same order: unlike a flag, that cannot be taken back."""
    order: Literal["C", "F"] = "F" if array.flags.f_contiguous else "C"
    return np.frombuffer(array.tobytes(order), array.dtype).reshape(array.shape, order=order)


def _unchanging_owner(block: Array) -> Any:
    """The array that a view is of, where that is a file mapped for reading or lies in `bytes`; else None.

    One that is only flagged as read-only may be flagged as writeable again, or have a view that always was.
    """
    owner: Any = block
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if isinstance(owner, np.memmap):
        return owner if owner.mode == "r" else None
    return owner if isinstance(owner.base, bytes) else None


def is_all_finite(x: Array) -> bool:
    """True where an array (...) holds neither an infinity nor a NaN."""
    if x.dtype in (f16.dtype, bf16.dtype):
        codes = x.view(np.uint16) & _MAGNITUDE
        infinity = _F16_INFINITY if x.dtype == f16.dtype else _BF16_INFINITY
        return not codes.size or codes.item(codes.argmax()) < infinity  # a shorter call than max
    return is_below(x, f32.max) or bool(np.isfinite(x).all())


_LARGEST_SQUARE = 2.0**126  # in the range of float32


def is_below(x: Array, limit: float) -> bool:
    """True only where all magnitudes in x (...) are known to be below a limit; False says nothing.

    In one pass, where x is float32: the sum of all squares, in whatever order they are added, is no less than the
    rounded square of any, as rounding never puts a larger number below a smaller one; a NaN makes it NaN. The square of
    the limit is therefore rounded as they are.
    """
    if x.dtype != np.float32:
        return False
    return bool(np.vdot(x, x) < np.float32(min(limit * limit, _LARGEST_SQUARE)))


def extent_of(block: Array) -> Extent:
    """The extent of each row of a block (K, n), in any dtype that holds floats."""
    if not block.size:
        rows = np.zeros(block.shape[0])
        return Extent(rows + np.inf, rows, rows > 0)
    if block.dtype in (f16.dtype, bf16.dtype):
        return _extent_of_codes(block)
    if block.dtype.itemsize < 4:
        block = block.astype(np.float32)
    bounds = np.zeros((2, block.shape[0]))
    for start in range(0, block.shape[0], _ROWS_AT_ONCE):
        here = slice(start, start + _ROWS_AT_ONCE)
        magnitudes = np.abs(block[here])
        bounds[:, here] = np.minimum.reduce(magnitudes, axis=1), np.maximum.reduce(magnitudes, axis=1)
    has_zero = bounds[0] == 0
    for k in np.flatnonzero(has_zero):
        magnitude = np.abs(block[k])
        bounds[0, k] = np.minimum.reduce(magnitude, where=magnitude > 0, initial=np.inf)
    return Extent(bounds[0], bounds[1], has_zero)


def _extent_of_codes(block: Array) -> Extent:
    """Of float16 or bfloat16: without the sign, codes are ordered as the magnitudes; a zero, one less, is the top."""
    is_turned = block.T.flags.c_contiguous and not block.flags.c_contiguous
    codes = (block.T if is_turned else np.ascontiguousarray(block)).view(np.uint16)
    smallest, largest, lowered = (_of_rows_turned if is_turned else _of_rows)(codes)
    low, high = (x.view(block.dtype).astype(np.float64) for x in (smallest + np.uint16(1), largest))
    return Extent(np.where(smallest == _ABOVE_ALL, np.inf, low), high, lowered == _ABOVE_ALL)


def _of_rows(codes: Codes) -> tuple[Codes, Codes, Codes]:
    """Of each row of codes (K, n): the smallest less one, the largest, the largest less one."""
    found = np.empty((3, len(codes)), np.uint16)
    at_once = max(1, _CODES_AT_ONCE // codes.shape[1])
    for start in range(0, len(codes), at_once):
        rows = slice(start, start + at_once)
        words = codes[rows] & _MAGNITUDE
        np.maximum.reduce(words, axis=1, out=found[1, rows])
        np.subtract(words, np.uint16(1), out=words)
        np.minimum.reduce(words, axis=1, out=found[0, rows])
        np.maximum.reduce(words, axis=1, out=found[2, rows])
    return found[0], found[1], found[2]


def _of_rows_turned(codes: Codes) -> tuple[Codes, Codes, Codes]:
    """The same of the columns of codes (n, K)."""
    at_once = max(1, _CODES_AT_ONCE // codes.shape[1])
    found = [_of_columns(codes[start : start + at_once]) for start in range(0, len(codes), at_once)]
    if len(found) == 1:
        return found[0]
    smallest, largest, lowered = zip(*found, strict=True)
    return np.minimum.reduce(smallest), np.maximum.reduce(largest), np.maximum.reduce(lowered)


def _of_columns(codes: Codes) -> tuple[Codes, Codes, Codes]:
    """The same of few enough codes to look at them at once."""
    words = codes & _MAGNITUDE
    largest = np.maximum.reduce(words)
    np.subtract(words, np.uint16(1), out=words)
    return np.minimum.reduce(words), largest, np.maximum.reduce(words)
