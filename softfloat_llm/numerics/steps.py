"""The fast steps of an accumulator on a tile, in place, each with the condition under which it is exact.

`Native`: float32 (or float64) additions by the hardware. `Fused`: fma to float32, in float64. `Narrow`: any IEEE-like
format of up to 24 bits, in float64. Where the condition fails for some k, those take the evident step of `accumulate`,
which is also the twin that the tests hold everything here against. Start reading at `Native.enter`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from softfloat_llm.numerics.accumulate import Plain, arithmetic_of
from softfloat_llm.numerics.einsum_loops import can_sum, is_sequential, products_are_rounded, sums_of_products
from softfloat_llm.numerics.extents import Spread
from softfloat_llm.numerics.formats import Array, Float64Array, Format, f32
from softfloat_llm.numerics.operands import Widen
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import round_wide, two_sum
from softfloat_llm.numerics.tiles import Piece, Products, Rounder, is_native, term_bits
from softfloat_llm.numerics.trees import Instruction
from softfloat_llm.numerics.underflow_rounding import lowest_bit, reach, steps_of

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
    """What the three have in common: the terms, the evident twin, and buffers of the tile's shape."""

    dtype: np.dtype[Any] = np.dtype(np.float64)
    keeps_zero_signs = True

    def __init__(self, products: Products, at: Precision, ok: OkMask) -> None:
        self.products, self.at, self.depth = products, at, products.depth
        self.ok = None if ok is None or ok.all() else ok
        self.shape = (products.left.shape[1], products.right.shape[1])

    @cached_property
    def twin(self) -> Plain:
        """The evident steps."""
        return arithmetic_of(self.at.acc, self.at)

    @cached_property
    def _numbers(self) -> npt.NDArray[np.intp]:
        return np.arange(len(self.products.left))

    def buffer(self) -> Array:
        """A new array for an accumulator of the tile."""
        return np.empty(self.shape, self.dtype)

    def round(self, acc: Array, fmt: Format) -> None:
        """acc = acc rounded to a format in which a partial sum is stored."""
        acc[...] = round_wide(acc.astype(np.float64), fmt, self.twin.mode)

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
        self._midpoints = _Midpoints(f32.precision, self.shape)

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


class _Midpoints:
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


class Narrow(OnTile):
    """acc = R(acc + term) for a format of p bits, in float64: t = acc + term, rounded by `underflow_rounding.Steps`,
    or by `Rounder` where the conditions of those do not hold.

    With w bits in a term and w + p <= 52 (`kernels` sees to it), t may differ from the exact sum only where that
    changes no rounding, or where `is_doubtful` says so. Suppose t is a midpoint of the format, and the exact sum is
    not t; then the smaller summand y has a last bit below 2^(e - 52), where 2^e <= |t| < 2^(e + 1), so that |y| is
    below 2^(e - 53 + its bits).

    * y is the term: acc lies on the format's grid, at least 2^(e - p) away from the midpoint t. But |y| is less, as
      w < 53 - p. So this cannot be; nor in the subnormals, whose midpoints are further away.
    * y is acc: the term can be the midpoint itself, and acc a trifle that decides the tie. Not so if the term was
      rounded to at most p bits (it lies on the grid then). Not so if 2^53 smallest subnormals reach beyond twice the
      range, as in every format of up to 5 exponent bits: acc is a multiple of them and t would be beyond overflow. In
      the subnormals of acc both summands are multiples of 2^(e - 52), so that t is exact. Otherwise, `is_doubtful`.
    """

    def __init__(
        self, products: Products, at: Precision, bounds: Spread, largest_sum: float, *, has_signed_zeros: bool
    ) -> None:
        super().__init__(products, at, None)
        assert at.acc.format is not None
        self.format, self.bounds, self.is_bounded = at.acc.format, bounds, largest_sum <= at.acc.format.max
        self._sum, self._rounder = self.buffer(), Rounder(self.format, self.shape)
        self._midpoints = _Midpoints(self.format.precision, self.shape)
        self._lowest_bits = bounds.lowest_bits(term_bits(at) + 1)  # + 1: a rounded product may be a little smaller
        self._is_never_doubtful = is_never_doubtful(at)
        self._can_be_trifle = self._is_never_doubtful and not _is_short_range(self.format)
        self._largest_sum, self._are_bounded = largest_sum, np.ones_like(bounds.has_zero)  # the terms of each k
        if at.product is not None:
            self._are_bounded = bounds.largest * 2.0 <= at.product.max
        self._quick = steps_of(at) if self.is_bounded else None
        self._loses_signs = self._quick is not None and has_signed_zeros
        if self._quick is not None:
            self.depth = min(self.depth, self._quick.count)
            self._room = self.buffer()
            self._is_quick, self._least = self._can_be_quick(at), self._least_terms(at)
            self._can_be_zero = bounds.has_zero
            if at.product is not None:
                self._can_be_zero = bounds.has_zero | ~(bounds.smallest > at.product.smallest_subnormal)
            self._has_floor = self._lowest_bits < self.format.smallest_subnormal
            if at.product is not None and at.product.smallest_subnormal >= self.format.smallest_subnormal:
                self._has_floor = np.zeros_like(self._has_floor)

    def _can_be_quick(self, at: Precision) -> npt.NDArray[np.bool_]:
        """For each k, whether its terms meet the conditions of `underflow_rounding` that do not hang on the sum."""
        is_held: Flags = self.bounds.lowest_bits(2 * at.storage.precision) >= lowest_bit(at.product or self.format)
        if at.product is None:
            return is_held
        return is_held & self._are_bounded & (at.product.smallest_subnormal >= lowest_bit(self.format))

    def _least_terms(self, at: Precision) -> Float64Array:
        """For each k, below the magnitude of each term that is not zero."""
        if at.product is None:
            return self.bounds.smallest
        return np.maximum(self.bounds.smallest / 2.0, at.product.smallest_subnormal)

    def enter(self, acc: Array, piece: Piece) -> None:
        """acc = R(acc + term), for each term of the piece in turn.

        A sum that comes out of `underflow_rounding` as zero is +0. It gets the sign of the last exact sum, which is
        right where the last term is not zero, as R(-0 + x) = R(+0 + x); else `keeps_zero_signs` says no more than that.
        """
        super().enter(acc, piece)
        self._sign_zeros(acc, piece)

    def _sign_zeros(self, acc: Array, piece: Piece) -> None:
        if self._loses_signs and piece.length and np.count_nonzero(acc) < acc.size:
            np.copysign(acc, self._sum, out=acc)
            if self._can_be_zero[self._numbers[piece.ks][-1]]:
                self.keeps_zero_signs = False

    def _fast(self, acc: Array, piece: Piece) -> None:
        if not self.is_bounded or (not self._is_never_doubtful and self.is_doubtful(acc, piece)):
            self._one_by_one(acc, piece)
            return
        is_quick = self._quick_terms(acc, piece)
        for part, can_be_quick in piece.runs(is_quick):
            if can_be_quick and not (self._can_be_trifle and self._has_trifles(acc, part)):
                self._by_underflow(acc, part)
            else:
                self._one_by_one(acc, part)

    def _quick_terms(self, acc: Array, piece: Piece) -> npt.NDArray[np.bool_]:
        """Which terms of the piece can be added by underflow, where acc is the sum before them."""
        if self._quick is None:
            return np.zeros(piece.length, np.bool_)
        is_quick, least = self._is_quick[piece.ks], self._least[piece.ks]
        if (least >= reach(self.format, self._largest_sum)).all():
            return is_quick
        is_far: npt.NDArray[np.bool_] = least >= self._reach(max(acc.max(), -acc.min()), piece)
        return is_quick & is_far

    def _has_trifles(self, acc: Array, piece: Piece) -> bool:
        """True where a sum before a term may be the trifle that brings sum + term too close below a power of two.

        Asked only where `is_doubtful` is not, which sees to it too; so a term has at most p bits. Let no sum before
        the piece, and no term, be below reach(L) = 2^(p - 52) L, with L as in `_reach`. Then all are multiples of a
        power of two that is more than 2^-52 L, and what they add up and are rounded to is too. Beside a trifle, the
        power of two is the term itself, at most L: the sum below it has at most 52 bits.
        """
        magnitude = np.abs(acc, out=self._sum)
        return not _smallest_of(magnitude) >= self._reach(magnitude.max(), piece)

    def _reach(self, largest_acc: float, piece: Piece) -> float:
        """`reach` of the sums of a piece that begins with sums of this size: they stay below 2 L, L twice all together.

        R(acc + term) is no further from acc + term than acc is, so a step moves acc by at most twice the term; and
        rounding at most doubles a product.
        """
        return reach(self.format, 2.0 * (largest_acc + np.add.reduce(self.bounds.largest[piece.ks])))

    def _by_underflow(self, acc: Array, piece: Piece) -> None:
        assert self._quick is not None
        terms = self.products.scaled(piece, self._quick)
        self._quick.run(acc, terms, self._sum, self._room, has_floor=bool(self._has_floor[piece.ks].any()))

    def _one_by_one(self, acc: Array, piece: Piece) -> None:
        """The step that also does right beyond the range and where the rounding to float64 is in doubt."""
        for term in self.products.of(piece, is_bounded=bool(self._are_bounded[piece.ks].all())):
            np.add(acc, term, out=self._sum)
            if not self._is_never_doubtful and self._midpoints.are_in(self._sum):
                where = np.flatnonzero(self._midpoints.flags)
                redone = self._redone(acc, term, where)
                self._rounder.round(self._sum, acc, is_bounded=self.is_bounded)
                acc.reshape(-1)[where] = redone
            else:
                self._rounder.round(self._sum, acc, is_bounded=self.is_bounded)

    def is_doubtful(self, acc: Array, piece: Piece) -> bool:
        """False where each acc + term of the piece with the larger term is exact in float64.

        acc now, and so in all steps of the piece, is a multiple of some G: no last bit of acc or of a term lies below
        it. The sum is at most 4 times the largest product (a rounded one is up to twice the exact one), hence exact if
        that stays below 2^53 G.
        """
        smallest = _smallest_of(np.abs(acc, out=self._sum))
        acc_bit = max(smallest * 2.0**-self.format.precision, self.format.smallest_subnormal)
        grid = min(acc_bit, self._lowest_bits[piece.ks].min())
        return not self.bounds.largest[piece.ks].max() * 4.0 <= 2.0**53 * grid

    def term(self, acc: Array, piece: Piece) -> None:
        self._rounder.round(self.products.of(piece)[0], acc)

    def join(self, acc: Array, other: Array) -> None:
        """acc = R(acc + other): 53 bits are at least 2p + 2, where rounding twice is harmless (Figueroa 1995)."""
        np.add(acc, other, out=self._sum)
        self._rounder.round(self._sum, acc)


def is_never_doubtful(at: Precision) -> bool:
    """True where rounding acc + term to float64 first never decides a tie wrongly: see `Narrow`."""
    fmt = at.acc.format
    assert fmt is not None
    is_on_grid = at.product is not None and at.product.precision <= fmt.precision
    return is_on_grid or _is_short_range(fmt)


def _is_short_range(fmt: Format) -> bool:
    """True where every value is a multiple of 2^-51 times the largest: up to 5 exponent bits."""
    return 2.0**53 * fmt.smallest_subnormal >= 4.0 * fmt.max


def _smallest_of(magnitudes: Float64Array) -> float:
    """The smallest magnitude that is not zero; inf where there is none."""
    smallest: float = magnitudes.min()
    if smallest == 0:
        smallest = np.minimum.reduce(magnitudes, axis=None, where=magnitudes > 0, initial=np.inf)
    return smallest


def has_signed_zeros(at: Precision, start: Float64Array | None) -> bool:
    """False where a chain can never become -0, whatever the terms.

    Rounded products are multiples of the product format's smallest value. If that is one of the accumulator's grid, no
    sum rounds to zero that is not zero, and from +0 on a sum of zeros is +0; but `start` may have a -0.
    """
    assert at.acc.format is not None
    is_off_grid = at.product is None or at.product.smallest_subnormal < at.acc.format.smallest_subnormal
    return is_off_grid or (start is not None and bool(np.signbit(start[start == 0]).any()))


def largest_sum(at: Precision, bounds: Spread, program: Sequence[Instruction], start: Float64Array | None) -> float:
    """Not below any sum of any of the terms, in any order, as rounded; inf where nothing can be said.

    No more roundings lie between a term and the result than there are terms and instructions. Each is at most a factor
    1 + 2^-p, or half the smallest subnormal (of the narrowest format in which a partial sum is stored). Infinite or NaN
    where an operand is, where a product may become infinite in its own format, and where a stored sum may.
    """
    fmt, roundings = at.acc.format, len(bounds.largest) + len(program)
    assert fmt is not None
    if at.product is not None and not (2.0 * bounds.largest <= at.product.max).all():
        return float("inf")  # however wide the accumulator is
    stored = [fmt, *(argument for name, argument in program if name == "round")]
    total = float(np.add.reduce(bounds.largest)) + roundings * max(each.smallest_subnormal for each in stored)
    if start is not None:
        total += float(np.abs(start).max(initial=0.0))
    if at.product is not None:  # rounding at most doubles a product, or makes a tiny one the smallest subnormal
        total = 2.0 * total + len(bounds.largest) * at.product.smallest_subnormal
    with np.errstate(over="ignore"):
        total *= float(np.float64(1.0 + 2.0 ** -min(each.precision for each in stored)) ** roundings)
    return total if total <= min(each.max for each in stored) else float("inf")


class Kit(NamedTuple):
    """What a backend brings for `kernels` to work with."""

    steps: Callable[[Products, Precision, Path, Float64Array | None], Steps | None]
    """The steps of a path on a tile, and where the accumulators start; None where the tile's values allow none."""
    widen: Widen
