"""The fast steps of an accumulator on a tile, in place, each with the condition under which it is exact.

`Native`: float32 (or float64) additions by the hardware. `Fused`: fma to float32, in float64. Narrow accumulators have
modules of their own, `narrow_steps`, `narrow_in_float32` and `masked_steps`. Where the condition fails for some k,
those take the evident step of `accumulate`, which is also the twin that the tests hold everything here against. Start
reading at `Native.enter`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from softfloat_llm.numerics.accumulate import Plain, arithmetic_of, stored_partial
from softfloat_llm.numerics.einsum_loops import can_sum, is_sequential, products_are_rounded, sums_of_products
from softfloat_llm.numerics.extents import Spread
from softfloat_llm.numerics.formats import Array, Float64Array, Format, f32
from softfloat_llm.numerics.operands import Widen
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import two_sum
from softfloat_llm.numerics.tiles import Piece, Products, aligned, is_native, term_bits

Path = Literal["native", "fused", "narrow", "masked", "evident"]

Flags = npt.NDArray[np.bool_]
OkMask = Flags | None
"""For each k, whether the fast step is exact; None where it always is."""


class Steps(Protocol):
    """What the stack machine of `kernels` asks of an accumulator. All arrays (M, n), changed in place."""

    @property
    def keeps_zero_signs(self) -> bool: ...
    def buffer(self) -> Array: ...
    def begin(self, acc: Array, piece: Piece) -> None: ...
    def enter(self, acc: Array, piece: Piece) -> None: ...
    def term(self, acc: Array, piece: Piece) -> None: ...
    def join(self, acc: Array, other: Array) -> None: ...
    def round(self, acc: Array, fmt: Format) -> None: ...


class OnTile:
    """What all steps have in common: the terms, the evident twin, and buffers of the tile's shape."""

    dtype: np.dtype[Any] = np.dtype(np.float64)
    keeps_zero_signs = True

    def __init__(self, products: Products, at: Precision, ok: OkMask) -> None:
        self.products, self.at, self.depth = products, at, products.depth
        self.ok = None if ok is None or ok.all() else ok
        self.shape = products.shape

    @cached_property
    def twin(self) -> Plain:
        """The evident steps."""
        return arithmetic_of(self.at.acc, self.at)

    @cached_property
    def _numbers(self) -> npt.NDArray[np.intp]:
        return np.arange(len(self.products.left))

    def buffer(self) -> Array:
        """A new array for an accumulator of the tile."""
        return aligned(self.shape, self.dtype)

    def round(self, acc: Array, fmt: Format) -> None:
        """acc = acc rounded to a format in which a partial sum is stored."""
        acc[...] = stored_partial(acc.astype(np.float64), fmt, self.twin.mode)

    def enter(self, acc: Array, piece: Piece) -> None:
        """acc = R(acc + term), for each term of the piece in turn."""
        for part in piece.parts(self.depth):
            if self.ok is None or self.ok[part.ks].all():
                self._fast(acc, part)
            else:
                self._some_fast(acc, part)

    def begin(self, acc: Array, piece: Piece) -> None:
        """acc = +0, then as `enter`."""
        acc[...] = 0.0
        self.enter(acc, piece)

    def _some_fast(self, acc: Array, piece: Piece) -> None:
        assert self.ok is not None
        for k in self._numbers[piece.ks].tolist():
            if self.ok[k]:
                self._fast(acc, Piece(slice(k, k + 1), 1))
            else:
                acc[...] = self.twin.enter(acc.astype(np.float64), self.products.wide(k))

    def term(self, acc: Array, piece: Piece) -> None:
        """acc = R(the one term of the piece)."""
        acc[...] = self.twin.rounded(self.products.wide(int(self._numbers[piece.ks][0])))

    def _fast(self, acc: Array, piece: Piece) -> None:
        raise NotImplementedError

    def _redone(self, acc: Array, term: Array, where: npt.NDArray[np.intp]) -> Array:
        """The evident step's results at some places."""
        redone: Array = self.twin.enter(acc.reshape(-1)[where], term.reshape(-1)[where])
        return redone


class Native(OnTile):
    """acc = acc + term in float32 or float64: one multiplication and one addition of the hardware.

    Right where each term is a value of that type: the product is exact in it (`exact_in_float32`), or has been rounded
    to it or to a narrower format. IEEE 754 then makes the addition one rounding, subnormals, signed zeros and overflow
    included.
    """

    def __init__(self, products: Products, at: Precision, ok: OkMask) -> None:
        super().__init__(products, at, ok)
        assert at.acc.format is not None
        self.dtype = at.acc.format.dtype
        is_one_loop = at.product is None or (is_native(at.product, self.dtype) and products_are_rounded(self.dtype))
        self._is_one_loop = is_one_loop and self.ok is None and is_sequential(self.dtype)

    def begin(self, acc: Array, piece: Piece) -> None:
        """acc = +0, then as `enter`: one loop of NumPy's own where that is sequential, as it is."""
        if self._is_one_loop and can_sum(self.products.left, self.products.right):
            left, right = (piece.of(x.wide).astype(self.dtype, copy=False) for x in self.products.sides)
            sums_of_products(left, right, acc)
        else:
            super().begin(acc, piece)

    def _fast(self, acc: Array, piece: Piece) -> None:
        add = np.add
        for term in self._terms(piece):
            add(acc, term, acc)

    def term(self, acc: Array, piece: Piece) -> None:
        if self.ok is None or self.ok[piece.ks].all():
            acc[...] = self._terms(piece)[0]
        else:
            super().term(acc, piece)

    def join(self, acc: Array, other: Array) -> None:
        """acc = acc + other."""
        np.add(acc, other, out=acc)

    def _terms(self, piece: Piece) -> Array:
        return self.products.of(piece).astype(self.dtype, copy=False)


def all_exact_in_float32(at: Precision, smallest: float, largest: float) -> bool:
    """True where every product of a tile is exact: `exact_in_float32` for the extremes of the whole tile."""
    return largest <= f32.max and smallest * 2.0 ** -term_bits(at) >= f32.smallest_subnormal


def exact_in_float32(at: Precision, bounds: Spread) -> OkMask:
    """Where every product of a k is exact in float32, for storage of at most 12 bits (so products of at most 24).

    No overflow: the largest is not beyond the largest float32. No underflow: a nonzero product of significands of p
    bits is more than the smallest magnitude times 2^-2p above zero in its last place, which must not be below 2^-149.
    """
    ok: npt.NDArray[np.bool_] = bounds.largest <= f32.max
    return ok & (bounds.lowest_bits(term_bits(at)) >= f32.smallest_subnormal)


def flushes(at: Precision) -> bool:
    """True where a product or a sum may be flushed to zero."""
    return at.subnormals.acc != "keep" or (at.product is not None and at.subnormals.product != "keep")


def never_tiny(at: Precision, bounds: Spread) -> bool:
    """True where ftz and daz never act on float32 sums: every term is a multiple of 2^-126, so each sum is one too.

    A product rounded to float32 (not below its own magnitude's half) keeps a bit of room.
    """
    return bool((bounds.lowest_bits(term_bits(at) + 1) >= f32.smallest_normal).all())


class Fused(OnTile):
    """acc = fma(a, b, acc) to float32 in float64: s = acc + product rounds to 53 bits, the cast to 24.

    Rounding twice differs from rounding once only where s is a midpoint of float32 although the exact sum is not. From
    2^-126 on a midpoint is seen by its last 29 bits, 1000…; there the step is redone exactly. Below 2^-126 s is itself
    exact: acc is a multiple of 2^-149 and the product of 2^-178 (`wide_enough`), which leaves 52 bits.
    Partial sums join so too: 53 bits are at least 2 * 24 + 2, where rounding twice is harmless (Figueroa 1995).
    """

    def __init__(self, products: Products, at: Precision, ok: OkMask) -> None:
        super().__init__(products, at, ok)
        self._sum, self._narrow = self.buffer(), np.empty(self.shape, np.float32)
        self._midpoints = Midpoints(f32.precision, self.shape)

    def _fast(self, acc: Array, piece: Piece) -> None:
        s = self._sum
        for term in self.products.of(piece):
            np.add(acc, term, out=s)
            where = self._inexact_midpoints(acc, term) if self._midpoints.are_in(s) else self._numbers[:0]
            if len(where):
                redone = self._redone(acc, term, where)
                self._cast(acc)
                acc.reshape(-1)[where] = redone
            else:
                self._cast(acc)

    def _inexact_midpoints(self, acc: Float64Array, term: Float64Array) -> npt.NDArray[np.intp]:
        """Where the sum is a midpoint that is not the exact sum: most midpoints are, where terms have few bits."""
        where = np.flatnonzero(self._midpoints.flags)
        _, error = two_sum(acc.reshape(-1)[where], term.reshape(-1)[where])
        left: npt.NDArray[np.intp] = where[error != 0]
        return left

    def join(self, acc: Array, other: Array) -> None:
        """acc = R(acc + other)."""
        np.add(acc, other, out=self._sum)
        self._cast(acc)

    def _cast(self, acc: Array) -> None:
        np.copyto(self._narrow, self._sum, casting="same_kind")
        np.copyto(acc, self._narrow)


def wide_enough(at: Precision, bounds: Spread) -> OkMask:
    """Where every product of a k is a multiple of 2^-178, so that `Fused` needs no look at subnormal sums."""
    return bounds.lowest_bits(term_bits(at)) >= 2.0**-178


class Midpoints:
    """Finds the float64 values that lie in the middle of two values of a format of p bits (normal ones)."""

    def __init__(self, precision: int, shape: tuple[int, ...]) -> None:
        self._half = np.int64(1 << (52 - precision))
        self._mask = np.int64((1 << (53 - precision)) - 1)
        self._bits, self.flags = np.empty(shape, np.int64), np.empty(shape, np.bool_)

    def are_in(self, s: Float64Array) -> bool:
        """True where there is one; `flags` then says which."""
        np.bitwise_and(s.view(np.int64), self._mask, out=self._bits)
        np.equal(self._bits, self._half, out=self.flags)
        return bool(np.count_nonzero(self.flags))


class Kit(NamedTuple):
    """What a backend brings for `kernels` to work with."""

    steps: Callable[[Products, Precision, Path, Float64Array | None], Steps | None]
    """The steps of a path on a tile, and where the accumulators start; None where the tile's values allow none."""
    widen: Widen
    is_compiled: bool = False
    """Whether the loops of its steps cut a tile into strips, and share it between threads, themselves."""
    takes_codes: Callable[[Precision, Path], bool] = lambda at, path: False
    """Whether they take one block of b as it is stored (a `StoredRows`), whatever a is."""
