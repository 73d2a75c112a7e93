"""Loops over tiles and codes as machine code: what `compiled` makes its steps of. Start reading at `_multiplied_in`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from softfloat_llm.numerics.carriers import EXPONENT_MASK
from softfloat_llm.numerics.compiled_instructions import (
    bits,
    compiled,
    fetch,
    float32,
    float64,
    fma,
    give_way,
    inner,
    named,
    seen,
)
from softfloat_llm.numerics.compiled_widening import WORDS
from softfloat_llm.numerics.formats import Array, Format

Grid = tuple[float, float, float]
"""What `_round` needs of a format: see `grid_of`."""

_STRIP = 512  # columns: their accumulators stay in the first-level cache while all terms enter
_NARROW_STRIP = 192  # columns: four rows of them, widened, leave room there for the accumulators of some rows
_ROWS = 16  # of acc, whose sums stay in the second-level cache while all terms enter
_AHEAD = 12  # rows: fetched so early, they are there when they are needed
_EXPONENT = int(EXPONENT_MASK)


# --- rounding ---------------------------------------------------------------------------------------------------------


def grid_of(fmt: Format) -> Grid:
    """The smallest normal value, 1.5 * 2^(53 - p), and the largest value."""
    return fmt.smallest_normal, 1.5 * 2.0 ** (53 - fmt.precision), fmt.max


@inner
def _round(t: float, grid: Grid) -> float:
    """t rounded as `tiles.Rounder` does: ties to even, the sign of a zero kept, infinite beyond the largest value."""
    lowest, factor, largest = grid
    q = max(float64(bits(t) & _EXPONENT), lowest) * factor
    r = (t + q) - q
    r = r if abs(r) <= largest else t * np.inf  # an infinity (q is one too, and r a NaN) or a NaN stays what it is
    signed: float = np.copysign(r, t)
    return signed


@inner
def _sum_to_odd(x: float, y: float) -> float:
    """x + y to 53 bits, rounded to odd: to round it again to at most 51 bits is to round the exact sum.

    Where the sum was not exact and its last bit is even, it moves one place toward the error that TwoSum gives.
    Sources: Knuth, TAOCP 2, 4.2.2; Boldo and Melquiond, Emulation of FMA and correctly rounded sums (2008).
    """
    s = x + y
    part = s - x
    error = (x - (s - part)) + (y - part)  # NaN where the sum is not finite
    word = bits(s)
    is_inexact = (error < 0.0) | (error > 0.0)
    moved = word + (1 if (error > 0.0) == (s > 0.0) else -1)
    odd: float = float64(moved if is_inexact & ((word & 1) == 0) else word)
    return odd


# --- chains: acc = R(acc + term) for each k in turn -------------------------------------------------------------------


@inner
def _exact(x: float, y: float, product: Grid) -> float:
    """A product of two values of at most 24 bits: exact in float64."""
    return np.float64(x) * np.float64(y)


@inner
def _rounded(x: float, y: float, product: Grid) -> float:
    return _round(np.float64(x) * np.float64(y), product)


@inner
def nearest(acc: float, term: float, grid: Grid) -> float:
    """R(acc + term) where rounding to 53 bits first is harmless: `narrow_steps.Narrow` says when."""
    return _round(acc + term, grid)


@inner
def once(acc: float, term: float, grid: Grid) -> float:
    """R(acc + term), always."""
    return _round(_sum_to_odd(acc, term), grid)


@inner
def in_float32(acc: float, term: float, grid: Grid) -> np.float32:
    """acc + term in float32, for a term that is a float32 value."""
    return np.float32(acc) + np.float32(term)


@inner
def in_float64(acc: float, term: float, grid: Grid) -> float:
    """acc + term in float64."""
    return acc + term


def _chain(term_of: Callable[..., float], step: Callable[..., Any]) -> Callable[..., None]:
    """A loop over strips, rows, terms and columns (first to before last). acc (M, n), left (K, M), right (K, n)."""

    @inner
    @named(term_of, step)
    def chain(acc: Array, left: Array, right: Array, product: Grid, grid: Grid, first: int, last: int) -> None:
        for start in range(first, last, _STRIP):
            stop = min(start + _STRIP, last)
            for row in range(len(acc)):
                strip = acc[row, start:stop]
                for k in range(len(left)):
                    x, values = left[k, row], right[k, start:stop]
                    for i in range(len(strip)):
                        strip[i] = step(strip[i], term_of(x, values[i], product), grid)

    return chain


_CHAINS = {
    (is_rounded, step): _chain(_rounded if is_rounded else _exact, step)
    for is_rounded in (False, True)
    for step in (nearest, once, in_float32, in_float64)
}
CHAINS = {which: compiled(chain) for which, chain in _CHAINS.items()}


@compiled
def join(acc: Array, other: Array, grid: Grid) -> None:
    """acc = R(acc + other), both (M, n)."""
    rows, columns = acc.shape
    for row in range(rows):
        for i in range(columns):
            acc[row, i] = _round(acc[row, i] + other[row, i], grid)


@inner
def _plain(acc: Any, x: Any, y: Any) -> Any:
    """The product and the sum each rounded to the type of all three."""
    return acc + x * y


@inner
def _fused(acc: Any, x: Any, y: Any) -> Any:
    return fma(x, y, acc)


Loop = Callable[..., None]


def _multiplied_in(step: Callable[..., Any]) -> tuple[Loop, dict[Any, Loop]]:
    """Loops of acc = step(acc, left[k], right[k]) for each k. acc (M, n), left (K, M), right (K, n), of one type.

    Of the columns from `first` to before `last`. Four terms at a time, so that a sum is taken from memory and put back
    once for them. The other loops, by dtype, take right as its codes.
    """

    @inner
    @named(step)
    def part(acc: Array, left: Array, right: Array, start: int, stop: int, before: int) -> None:
        """Some columns. right (K, n - before) lacks so many of the first ones."""
        terms = len(left)
        for row in range(len(acc)):
            strip = acc[row, start:stop]
            for k in range(terms % 4):
                x, values = left[k, row], right[k, start - before : stop - before]
                for i in range(len(strip)):
                    strip[i] = step(strip[i], x, values[i])
            for k in range(terms % 4, terms, 4):
                x0, x1, x2, x3 = left[k, row], left[k + 1, row], left[k + 2, row], left[k + 3, row]
                y0, y1 = right[k, start - before : stop - before], right[k + 1, start - before : stop - before]
                y2, y3 = right[k + 2, start - before : stop - before], right[k + 3, start - before : stop - before]
                for i in range(len(strip)):
                    strip[i] = step(step(step(step(strip[i], x0, y0[i]), x1, y1[i]), x2, y2[i]), x3, y3[i])

    @compiled
    @named(part)
    def loop(acc: Array, left: Array, right: Array, first: int, last: int) -> None:
        for start in range(first, last, _STRIP):
            part(acc, left, right, start, min(start + _STRIP, last), 0)

    return loop, {dtype: _of_codes(part, word_of) for dtype, word_of in WORDS.items()}


def _of_codes(part: Loop, word_of: Callable[..., Any]) -> Loop:
    """A loop that takes right as codes uint16, and widens them four rows and a few columns at a time.

    So they come from memory once, as they are stored, however many rows acc has. A thread that reads but some columns
    of each row is not seen by the CPU to go on with the next row, so the cache is told.
    """

    @compiled
    @named(part, word_of)
    def loop(acc: Array, left: Array, codes: Array, first: int, last: int) -> None:
        terms, wide = len(left), np.empty((4, _NARROW_STRIP), np.float32)
        for top in range(0, len(acc), _ROWS):
            rows = acc[top : top + _ROWS]
            for k in range(0, terms, 4):
                those, n = left[k : k + 4, top : top + _ROWS], min(4, terms - k)
                for start in range(first, last, _NARROW_STRIP):
                    stop = min(start + _NARROW_STRIP, last)
                    for j in range(n):
                        for i in range(start, stop, 32):  # codes to a line of 64 bytes
                            fetch(codes, min(k + _AHEAD + j, terms - 1), i)
                        words, row = wide[j], codes[k + j, start:stop]
                        for i in range(len(row)):
                            words[i] = float32(word_of(row[i]))
                    part(rows, those, wide, start, stop, start)

    return loop


multiply_add, multiply_add_codes = _multiplied_in(_plain)
fused_multiply_add, fused_multiply_add_codes = _multiplied_in(_fused)


# --- chains rounded by underflow -------------------------------------------------------------------------------------


@inner
def _exactly(strip: Array, sums: Array, left: Array, right: Array, row: int, begin: int, rounds: Any) -> None:
    """One round of `underflow_rounding.UnderflowSteps`, and its exact products.

    strip, sums (n,): columns from `begin` on; left (K, M), right (K, N).
    Four terms at a time, so that a sum is taken from memory and put back once for them.
    """
    factors, down, back, _, _ = rounds
    terms, stop = len(left), begin + len(strip)
    ahead = (terms - 1) % 4 + 1
    for k in range(ahead):
        x, d, b, values = left[k, row] * factors[k], down[k], back[k], right[k, begin:stop]
        for i in range(len(strip)):
            t = strip[i] + x * np.float64(values[i])
            sums[i] = t
            strip[i] = (t * d) * b - t
    for k in range(ahead, terms, 4):
        x0, x1 = left[k, row] * factors[k], left[k + 1, row] * factors[k + 1]
        x2, x3 = left[k + 2, row] * factors[k + 2], left[k + 3, row] * factors[k + 3]
        y0, y1 = right[k, begin:stop], right[k + 1, begin:stop]
        y2, y3 = right[k + 2, begin:stop], right[k + 3, begin:stop]
        for i in range(len(strip)):
            t = strip[i] + x0 * np.float64(y0[i])
            r = (t * down[k]) * back[k] - t
            t = r + x1 * np.float64(y1[i])
            r = (t * down[k + 1]) * back[k + 1] - t
            t = r + x2 * np.float64(y2[i])
            r = (t * down[k + 2]) * back[k + 2] - t
            t = r + x3 * np.float64(y3[i])
            sums[i] = t
            strip[i] = (t * down[k + 3]) * back[k + 3] - t


@inner
def _of_rounded(strip: Array, sums: Array, left: Array, right: Array, row: int, begin: int, rounds: Any) -> None:
    """The same with products that are rounded so too."""
    factors, down, back, first_down, first_back = rounds
    for k in range(len(left)):
        x, values = left[k, row] * factors[k], right[k, begin : begin + len(strip)]
        for i in range(len(strip)):
            exact = x * np.float64(values[i])
            t = strip[i] + ((exact * first_down[k]) * first_back[k] - exact)
            sums[i] = t
            strip[i] = (t * down[k]) * back[k] - t


def _by_underflow(steps: Callable[..., None], chain: Callable[..., None]) -> Callable[..., None]:
    """A loop over strips and rounds, each by `steps` where its conditions hold for the strip, else by `chain`.

    What `narrow_steps.Narrow` asks of a tile's sums is asked of a strip's: no sum meets those beside it, so the bound
    of the ones at hand is enough (`Narrow._reach`). `chain` rounds as `nearest`, which is right for all sums of a
    precision that is never doubtful; where one may be, or may be a trifle, `Narrow` has asked before, piece by piece.
    """

    @compiled
    @named(steps, chain)
    def loop(
        acc: Array, sums: Array, left: Array, right: Array, rounds: Any, ends: Any, bounds: Any, grids: Any,
        first: int, last: int,
    ) -> None:  # fmt: skip
        """acc (M, n) = R(acc + term), of the columns from `first` to before `last`.

        sums: the exact ones before the last R, as to their signs.
        """
        is_quick, least, largest, per_largest = bounds
        start, scales_back = ends
        for begin in range(first, last, _STRIP):
            stop = min(begin + _STRIP, last)
            k = 0
            while k < len(left):
                n = _alike(is_quick[k : k + len(rounds[1])])
                x, y = left[k : k + n], right[k : k + n]
                reach = (_largest(acc, begin, stop) + largest[k : k + n].sum()) * per_largest
                if is_quick[k] and least[k : k + n].min() >= reach:
                    for row in range(len(acc)):
                        strip = acc[row, begin:stop]
                        _scale(strip, start)
                        steps(strip, sums[row, begin:stop], x, y, row, begin, rounds)
                        _scale(strip, scales_back[n])
                else:
                    chain(acc, x, y, grids[0], grids[1], begin, stop)
                    sums[:, begin:stop] = acc[:, begin:stop]
                k += n

    return loop


@inner
def _alike(flags: Array) -> int:
    """How many from the first on are as the first."""
    for k in range(len(flags)):
        if flags[k] != flags[0]:
            return k
    return len(flags)


@inner
def _largest(acc: Array, begin: int, stop: int) -> float:
    """The largest magnitude of some columns."""
    top = 0.0
    for row in range(len(acc)):
        for i in range(begin, stop):
            top = max(top, abs(acc[row, i]))
    return top


@inner
def _scale(strip: Array, factor: float) -> None:
    for i in range(len(strip)):
        strip[i] = strip[i] * factor


by_underflow = _by_underflow(_exactly, _CHAINS[False, nearest])
rounded_by_underflow = _by_underflow(_of_rounded, _CHAINS[True, nearest])


# --- threads ----------------------------------------------------------------------------------------------------------

_TURNS = 1 << 11  # two milliseconds: longer than what lies between two products of a layer (SmolLM2, 5 tokens)
_LOOKS = 1 << 10  # to a turn


@compiled
def _look_out(words: Array, watched: int, old: int) -> None:
    """As `threads.LookOut`. After each turn another thread may have the core, where one waits for it."""
    for _ in range(_TURNS):
        for _ in range(_LOOKS):
            if seen(words, watched) != old:
                return
        give_way()


look_out = _look_out if hasattr(os, "sched_yield") else None
"""None under Windows, which has no such call."""
