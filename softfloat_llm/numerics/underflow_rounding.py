"""Rounding to a narrow format by three float64 operations, in which the hardware's own rounding does all the work.

A number t that is kept scaled up is rounded to p bits where t and 2^S t, S = 53 - p, are added: float64's last bit is
then p's. Where that sum lies at the lower end of float64's range, its last bit stops at 2^-1074, just as the last bit
of a narrow subnormal stops: so the scale is chosen that the two stops are the same one. Start reading at
`UnderflowSteps`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np

from softfloat_llm.numerics.formats import Float64Array, Format
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.tiles import in_turn, term_bits

_LOWEST = -1074  # 2^-1074 is float64's smallest value
_LOWEST_NORMAL = -1022
_FEWEST = 8  # steps in a row that are worth it: scaling the sum takes two passes more


class Constants(NamedTuple):
    """What rounding to p bits takes: of a t that is given as D = 2^s t, it makes 2^(s - shift) R(t).

    With d = 2^shift t,

        c = D (2^-shift + 1) 2^(low - s)        one rounding: d + t, times 2^(low - shift)
        C = c 2^(s - low)                       exact
        C - D = 2^(s - shift) R(t)              exact

    For |t| in [2^e, 2^(e + 1)), float64's last place at d + t is 2^(e + 1 - p), as the format's is at t; low puts the
    format's smallest subnormal on 2^-1074, so that neither has a place below it. d is a multiple of that place, hence
    d + t rounds to d + R(t); and an even multiple where t is the middle of two values, hence ties go to even alike.
    **Right** where

    * p is at most 26;
    * t is a multiple of 2^-shift smallest subnormals (so that d is one of the last place everywhere);
    * |t| is not beyond the format's range;
    * t has at most 52 bits or does not lie within 2^(m - shift) below a power of two 2^m: there d + t crosses into the
      next binade, where the last place is twice as large. R(t) is 2^m there, as that is less than half a place of the
      format away, and d is a multiple of the larger place where t has at most 52 bits.

    A zero that comes out is +0. On CPUs on which subnormal numbers are slow, c is one only where R(t) is.
    Source: the sum that cuts a number in two is Veltkamp's (Dekker, A floating-point technique for extending the
    available precision, 1971); that ties go to even, and the underflow, are argued here and tested exhaustively.
    """

    shift: int
    low: int
    top: int
    """The largest s: 2^(s - low) must be a float64."""

    def down(self, s: int) -> float:
        return float(np.ldexp(1.0 + 2.0**-self.shift, self.low - s))

    def back(self, s: int) -> float:
        return 2.0 ** (s - self.low)


@lru_cache(maxsize=64)
def constants_of(fmt: Format) -> Constants | None:
    """The constants of a format; None where float64's range is too small for them."""
    shift, lowest = 53 - fmt.precision, exponent_of(fmt.smallest_subnormal)
    low = shift + _LOWEST - lowest
    top = 1022 + low
    return Constants(shift, low, top) if top + fmt.emax + 2 <= 1023 else None


def exponent_of(power: float) -> int:
    """The exponent of a power of two."""
    return int(np.frexp(power)[1]) - 1


class UnderflowSteps:
    """acc = R(acc + term) for terms in turn: four passes a step, and the product; three where no term needs a floor.

    Each step leaves the sum 2^-shift times as large as it found it, so each term is given 2^-shift times as large as
    the one before: `factors`, which the operands take on. Rounded products come out so too (`round_products`). After
    `count` steps, a round, float64's range is used up, and the sum is scaled up anew.
    """

    def __init__(self, at: Precision, count: int, top: int) -> None:
        acc, product = constants_of(_format(at)), None if at.product is None else constants_of(at.product)
        assert acc is not None
        self.count, self.shift = count, acc.shift
        scales = [top - acc.shift * j for j in range(count + 1)]
        ahead = 0 if product is None else product.shift
        self.factors = np.ldexp(1.0, np.array(scales[:count]) + ahead)
        self.start, self.ends = 2.0 ** scales[0], np.array([2.0**-s for s in scales])
        self.down, self.back = (np.array([f(s) for s in scales[:count]]) for f in (acc.down, acc.back))
        if product is not None:
            further = [s + ahead for s in scales[:count]]
            self.down_product, self.back_product = (
                np.array([f(s) for s in further]) for f in (product.down, product.back)
            )
        again = self.ends[count] * self.start  # exact; two factors where it is beyond the range
        self._to_next = (again,) if np.isfinite(again) else (self.ends[count], self.start)
        self._passes = [*map(np.array, self.down)], [*map(np.array, self.back)], np.array(1.0 + 2.0**-acc.shift)

    def run(self, acc: Float64Array, terms: Iterable[Float64Array], n: int, *, has_floor: bool) -> None:
        """acc (M, N) = R(acc + term) for each of n terms (M, N), which carry `factors`, round after round.

        A term is left as the sum t that is rounded: a step then goes over two arrays, which stay in the cache.
        `has_floor`: False where every term is a multiple of the smallest subnormal, so that no sum is below its place.
        """
        step, to_come = self._step if has_floor else self._step_without_floor, iter(terms)
        if n:
            np.multiply(acc, self.start, acc)
        for left in range(n, 0, -self.count):
            step(acc, islice(to_come, self.count))
            for factor in self._to_next if left > self.count else (self.ends[left],):
                np.multiply(acc, factor, acc)

    def _step(self, acc: Float64Array, terms: Iterable[Float64Array]) -> None:
        add, multiply, subtract = np.add, np.multiply, np.subtract
        downs, backs, _ = self._passes  # without dimensions: a ufunc makes nothing of them first
        for t, down, back in zip(terms, downs, backs, strict=False):  # terms first: none is taken and lost at the end
            add(acc, t, t)
            multiply(t, down, acc)
            multiply(acc, back, acc)
            subtract(acc, t, acc)

    def _step_without_floor(self, acc: Float64Array, terms: Iterable[Float64Array]) -> None:
        add, multiply, subtract = np.add, np.multiply, np.subtract
        _, _, times = self._passes
        for t in terms:
            add(acc, t, t)
            multiply(t, times, acc)
            subtract(acc, t, acc)

    def round_products(self, products: Float64Array, room: Float64Array, first: int) -> None:
        """products (n, M, N), which carry `factors` from `first` on, rounded to the product's format. room: as they."""
        down, back = (in_turn(x, first, len(products))[..., None] for x in (self.down_product, self.back_product))
        np.multiply(products, down, out=room)
        np.multiply(room, back, out=room)
        np.subtract(room, products, out=products)


def _format(at: Precision) -> Format:
    assert at.acc.format is not None
    return at.acc.format


@lru_cache(maxsize=64)
def steps_of(at: Precision) -> UnderflowSteps | None:
    """The steps of a precision, or None where its formats do not allow them.

    With w bits in a term and w + 2p <= 52, the last condition of `Constants` hangs on lone trifles. Let t = acc + term
    lie within 2^(m - shift) below 2^m and have 53 bits, so that one of the two has a bit at 2^(m - 53) or below.

    * If it is the term, that is less than 2^(m - 53 + w) <= 2^(m - 1 - 2p), and acc so close to 2^m that, on the
      format's grid, it is 2^m itself: |term| <= 2^(m - shift). `reach` is about those.
    * If it is acc, that is less than 2^(m - 53 + p) = 2^(m - shift): `narrow_steps.Narrow` sees to it.
    """
    fmt = _format(at)
    acc, product = constants_of(fmt), None if at.product is None else constants_of(at.product)
    if acc is None or (at.product is not None and product is None) or at.storage.precision > 26:
        return None
    if term_bits(at) + 2 * fmt.precision > 52:
        return None
    top = acc.top if product is None else min(acc.top, product.top - product.shift)
    lowest = min(exponent_of(fmt.smallest_subnormal) - acc.shift, exponent_of(at.storage.smallest_subnormal))
    count = (top - _LOWEST_NORMAL + lowest) // acc.shift + 1
    return UnderflowSteps(at, count, top) if count >= _FEWEST else None


def reach(fmt: Format, largest_sum: float) -> float:
    """A nonzero number below this may be the trifle beside a power of two, of sums up to twice this: see `steps_of`."""
    return largest_sum * 2.0 ** (1 - (53 - fmt.precision))


def lowest_bit(fmt: Format) -> float:
    """What numbers that can be rounded are multiples of: the first condition of `Constants`."""
    return fmt.smallest_subnormal * 2.0 ** -(53 - fmt.precision)
