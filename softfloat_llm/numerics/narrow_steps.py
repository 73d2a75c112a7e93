"""The fast steps of a narrow accumulator: any IEEE-like format of up to 24 bits, in float64. Start reading at `Narrow`.

The conditions of each form are asked of bounds of the operands; a piece of the sum that does not meet them takes the
next slower form, and what it gives is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from softfloat_llm.numerics.extents import Spread, smallest_of
from softfloat_llm.numerics.formats import Array, Float64Array, Format
from softfloat_llm.numerics.operands import rounded_product
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.steps import Flags, Midpoints, OnTile
from softfloat_llm.numerics.tiles import Piece, Products, Rounder, term_bits
from softfloat_llm.numerics.trees import Instruction
from softfloat_llm.numerics.underflow_rounding import lowest_bit, reach, steps_of


class Narrow(OnTile):
    """acc = R(acc + term) for a format of p bits, in float64: t = acc + term is rounded.

    By `underflow_rounding.UnderflowSteps`, or by `Rounder` where the conditions of those do not hold.

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

    def __init__(self, products: Products, at: Precision, start: Float64Array | None) -> None:
        super().__init__(products, at, None)
        assert at.acc.format is not None
        bounds, program = products.spread, at.order.tree(len(products.left)).program()
        self.format, self.bounds, self._largest_sum = at.acc.format, bounds, largest_sum(at, bounds, program, start)
        self.is_bounded = self._largest_sum <= self.format.max
        self._sum = self._last_sum = self.buffer()  # the exact sum; that of the last step, or 2^s times as much
        self._lowest_bits = bounds.lowest_bits(term_bits(at) + 1)  # + 1: a rounded product may be a little smaller
        self._is_never_doubtful = is_never_doubtful(at)
        self._can_be_trifle = self._is_never_doubtful and not _is_short_range(self.format)
        self._are_bounded = np.ones_like(bounds.has_zero)  # the terms of each k
        if at.product is not None:
            self._are_bounded = bounds.largest * 2.0 <= at.product.max
        self._quick = steps_of(at) if self.is_bounded else None
        self._is_safe = self._is_always_quick = False  # nothing hangs on the sums but their size; not even that
        self._loses_signs = self._quick is not None and has_signed_zeros(at, start)
        if self._quick is not None:
            self.depth = max(self.depth, self._quick.count)  # what is asked of a piece takes passes over the sums
            self._is_quick, self._least = self._can_be_quick(at), self._least_terms(at)
            self._can_be_zero = bounds.has_zero
            if at.product is not None:
                self._can_be_zero = bounds.has_zero | ~(bounds.smallest > at.product.smallest_subnormal)
            is_on_grid = at.product is not None and at.product.smallest_subnormal >= self.format.smallest_subnormal
            self._has_floor = not is_on_grid and bool((self._lowest_bits < self.format.smallest_subnormal).any())
            # no term is near enough to zero to be a trifle beside any sum at all
            self._is_far = bool((self._least >= reach(self.format, self._largest_sum)).all())
            self._is_safe = self._is_never_doubtful and not self._can_be_trifle
            self._is_always_quick = self._is_safe and self._is_far and bool(self._is_quick.all())

    @cached_property
    def _rounder(self) -> Rounder:
        return Rounder(self.format, self.shape)

    @cached_property
    def _midpoints(self) -> Midpoints:
        return Midpoints(self.format.precision, self.shape)

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
        if self._is_always_quick:
            self._by_underflow(acc, piece)
        elif self._is_safe:
            self._in_long_pieces(acc, piece)
        else:
            super().enter(acc, piece)
        self._sign_zeros(acc, piece)

    def _in_long_pieces(self, acc: Array, piece: Piece) -> None:
        """As `OnTile.enter`. What is far from zero beside all sums of a long piece is beside those of a part of it, so
        a part is asked about again only where the whole was not."""
        for part, is_quick in piece.runs(self._quick_terms(acc, piece)):
            if is_quick:
                self._by_underflow(acc, part)
            else:
                super().enter(acc, part)

    def _sign_zeros(self, acc: Array, piece: Piece) -> None:
        """Sums that are zero with the sign of the last exact sum: see `enter`."""
        if self._loses_signs and piece.length and np.count_nonzero(acc) < acc.size:
            np.copysign(acc, self._last_sum, out=acc)
            last = int(self._numbers[piece.ks][-1])
            if self._can_be_zero[last] and self._are_zero(last, acc == 0):
                self.keeps_zero_signs = False

    def _are_zero(self, k: int, where: npt.NDArray[np.bool_]) -> bool:
        """True where term k is zero at one of these places (M, n)."""
        rows, columns = np.nonzero(where)
        left, right = (x[0].astype(np.float64) for x in self.products.operands(slice(k, k + 1)))
        return bool((rounded_product(left[rows], right[columns], self.at) == 0).any())

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
        is_quick = self._is_quick[piece.ks]
        if self._is_far:
            return is_quick
        is_far: npt.NDArray[np.bool_] = self._least[piece.ks] >= self._reach(max(acc.max(), -acc.min()), piece)
        return is_quick & is_far

    def _has_trifles(self, acc: Array, piece: Piece) -> bool:
        """True where a sum before a term may be the trifle that brings sum + term too close below a power of two.

        Asked only where `is_doubtful` is not, which sees to it too; so a term has at most p bits. Let no sum before
        the piece, and no term, be below reach(L) = 2^(p - 52) L, with L as in `_reach`. Then all are multiples of a
        power of two that is more than 2^-52 L, and what they add up and are rounded to is too. Beside a trifle, the
        power of two is the term itself, at most L: the sum below it has at most 52 bits.
        """
        magnitude = np.abs(acc, out=self._sum)
        return not smallest_of(magnitude) >= self._reach(magnitude.max(), piece)

    def _reach(self, largest_acc: float, piece: Piece) -> float:
        """`reach` of the sums of a piece that begins with sums of this size: they stay below 2 L, L twice all together.

        R(acc + term) is no further from acc + term than acc is, so a step moves acc by at most twice the term; and
        rounding at most doubles a product.
        """
        return reach(self.format, 2.0 * (largest_acc + np.add.reduce(self.bounds.largest[piece.ks])))

    def _by_underflow(self, acc: Array, piece: Piece) -> None:
        assert self._quick is not None
        self._quick.run(acc, self.products.scaled(piece, self._quick), piece.length, has_floor=self._has_floor)
        self._last_sum = self.products.last_term

    def _one_by_one(self, acc: Array, piece: Piece) -> None:
        """The step that also does right beyond the range and where the rounding to float64 is in doubt."""
        self._last_sum = self._sum
        for part in piece.parts(self.products.depth):
            for term in self.products.of(part, is_bounded=bool(self._are_bounded[part.ks].all())):
                self._one(acc, term)

    def _one(self, acc: Array, term: Array) -> None:
        """acc = R(acc + term)."""
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
        smallest = smallest_of(np.abs(acc, out=self._sum))
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
