"""Narrow accumulators in every mode, and in formats unlike IEEE's, where no sum leaves the range.

acc + term is formed in float64 and moved to the lower end of float64's range, where the last places of the format, its
subnormals' too, are one bit of the word; what is below that bit is then cut off by a few operations on integers. Start
reading at `Masked`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from softfloat_llm.numerics.extents import Spread
from softfloat_llm.numerics.formats import Array
from softfloat_llm.numerics.narrow_steps import is_never_doubtful
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import to_odd_pair, two_sum
from softfloat_llm.numerics.steps import OnTile
from softfloat_llm.numerics.tiles import Piece, Products, term_bits

Words = npt.NDArray[np.int64]
_NEAREST = ("ties_to_even", "ties_to_away")


class Masked(OnTile):
    """acc = R(acc + term) in any of the six modes: t = acc + term, then t 2^low, whose word is rounded, and back.

    2^low puts the smallest normal value on float64's, 2^-1022: above it as below it, the format's last place is then
    bit 53 - p of the word, and words of one sign are in the order of the numbers, so that a carry is right too.
    **Right** where t 2^low is exact (`_is_held`), where no sum leaves the range (`_are_bounded`), and where t is the
    exact sum (`_is_exact`), or rounded to odd where it is not; or (to nearest) rounded where that changes no rounding:
    see `narrow_steps.Narrow`. Elsewhere, the evident step. An inexact t is not below 2^emin, so that its last bit is
    held too.

    A zero has t's sign, which is not what a sum of zero has toward_negative, nor where the format has no -0.
    """

    def __init__(self, products: Products, at: Precision, bounds: Spread) -> None:
        super().__init__(products, at, None)
        assert at.acc.format is not None
        self.format, self.bounds, mode = at.acc.format, bounds, at.rounding.acc
        self.keeps_zero_signs = mode != "toward_negative" and self.format.has_negative_zero
        self.depth = min(self.depth, _DEPTH)
        self._sum, self._room = self.buffer(), np.empty(self.shape, np.int64)
        low = _LOWEST_NORMAL - self.format.emin
        self._down, self._up = np.array(2.0**low), np.array(2.0**-low)
        self._round, self._cut = _ROUNDINGS[mode], Cut(53 - self.format.precision)
        self._growth = 1.0 + 2.0 ** (1 - self.format.precision)  # of a sum by one rounding
        self._largest = bounds.largest
        if at.product is not None:  # rounding at most doubles a product, or makes a tiny one the smallest subnormal
            self._largest = 2.0 * bounds.largest + at.product.smallest_subnormal
            self._largest[~(2.0 * bounds.largest <= at.product.max)] = np.inf
        self._lowest = bounds.lowest_bits(term_bits(at) + 1)  # + 1: a rounded product may be a little smaller
        self._is_held = self._lowest >= 2.0 ** (self.format.emin - 52)
        self._must_be_exact = mode not in _NEAREST or not is_never_doubtful(at)

    def _fast(self, acc: Array, piece: Piece) -> None:
        largest = max(acc.max(), -acc.min()) + np.add.reduce(self._largest[piece.ks])
        largest = (largest + piece.length * self.format.smallest_subnormal) * self._growth**piece.length
        if not (largest <= self.format.max and self._is_held[piece.ks].all()):
            for k in self._numbers[piece.ks].tolist():
                acc[...] = self.twin.enter(acc, self.products.wide(k))
            return
        is_odd_needed = self._must_be_exact and not self._is_exact(largest, piece)
        words = acc.view(np.int64)
        for term in self.products.of(piece):
            t = to_odd_pair(*two_sum(acc, term)) if is_odd_needed else np.add(acc, term, out=self._sum)
            np.multiply(t, self._down, out=acc)
            self._round(words, self._room, self._cut)
            np.multiply(acc, self._up, out=acc)

    def _is_exact(self, largest: float, piece: Piece) -> bool:
        """True where float64 holds every sum of the piece: a multiple of some last bit, and at most 2^53 of them."""
        lowest = min(self._lowest[piece.ks].min(), self.format.smallest_subnormal)
        return bool(largest <= 2.0**53 * lowest)

    def join(self, acc: Array, other: Array) -> None:
        """acc = R(acc + other), by the evident step."""
        acc[...] = self.twin.add(acc, other)


_DEPTH = 16  # terms in a piece: the bound of their sums is known before, and grows with each
_LOWEST_NORMAL = -1022  # of float64


def can_mask(at: Precision) -> bool:
    """True where float64 has room for the sums of a precision, and its formats have signs, zeros and at least 2 bits.

    Of a lone bit, what is cut off a word would be rounded by the exponent's last one.
    """
    fmt = at.acc.format
    assert fmt is not None
    has_room = fmt.emin <= 0 and term_bits(at) + fmt.precision <= 52
    return fmt.is_signed and fmt.has_zero and fmt.precision > 1 and has_room and at.rounding.acc in _ROUNDINGS


# --- words ------------------------------------------------------------------------------------------------------------


class Cut:
    """Which bits of a word go: the last `bits`."""

    def __init__(self, bits: int) -> None:
        self.bits = np.int64(bits)
        self.rest, self.kept = np.int64((1 << bits) - 1), np.int64(-1 << bits)
        self.half = np.int64(1 << (bits - 1))


def _toward_zero(words: Words, _: Words, cut: Cut) -> None:
    np.bitwise_and(words, cut.kept, out=words)


def _ties_to_away(words: Words, _: Words, cut: Cut) -> None:
    np.add(words, cut.half, out=words)
    np.bitwise_and(words, cut.kept, out=words)


def _ties_to_even(words: Words, room: Words, cut: Cut) -> None:
    """Half less one, and one more where the last bit that stays is 1."""
    np.right_shift(words, cut.bits, out=room)
    np.bitwise_and(room, np.int64(1), out=room)
    np.add(words, room, out=words)
    np.add(words, cut.half - np.int64(1), out=words)
    np.bitwise_and(words, cut.kept, out=words)


def _to_odd(words: Words, room: Words, cut: Cut) -> None:
    """The last bit that stays is set where a bit goes."""
    np.bitwise_and(words, cut.rest, out=room)
    np.add(room, cut.rest, out=room)
    np.bitwise_or(words, room, out=words)
    np.bitwise_and(words, cut.kept, out=words)


def _toward_negative(words: Words, room: Words, cut: Cut) -> None:
    """Away from zero where the sign bit is set."""
    np.right_shift(words, np.int64(63), out=room)
    np.bitwise_and(room, cut.rest, out=room)
    np.add(words, room, out=words)
    np.bitwise_and(words, cut.kept, out=words)


def _toward_positive(words: Words, room: Words, cut: Cut) -> None:
    """Away from zero where the sign bit is not set."""
    np.right_shift(words, np.int64(63), out=room)
    np.invert(room, out=room)
    np.bitwise_and(room, cut.rest, out=room)
    np.add(words, room, out=words)
    np.bitwise_and(words, cut.kept, out=words)


_ROUNDINGS: dict[str, Callable[[Words, Words, Cut], None]] = {
    "ties_to_even": _ties_to_even, "ties_to_away": _ties_to_away, "toward_zero": _toward_zero,
    "toward_positive": _toward_positive, "toward_negative": _toward_negative, "to_odd": _to_odd,
}  # fmt: skip
