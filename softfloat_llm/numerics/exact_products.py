"""matmul with the exact accumulator: the mathematically exact sums of products, rounded once to the output.

The operands are cut into slices so narrow that a float64 BLAS product of two slices makes no rounding at all, whatever
the order, the threads and the fused operations in it; the few exact partial results of each element are then added
without error and rounded once. Start reading at `_tile`.
Source: Ozaki, Ogita, Oishi and Rump, Error-free transformations of matrix multiplication (Numerical Algorithms, 2012).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from softfloat_llm.numerics.accumulate import exact_sum
from softfloat_llm.numerics.extents import smallest_of
from softfloat_llm.numerics.formats import Array, Float64Array, f64
from softfloat_llm.numerics.fused import grown
from softfloat_llm.numerics.operands import carried, rounded_product
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import round_pair, to_odd_pair, two_sum

_ROWS = 64  # of a in a tile
_WIDENED = 1 << 20  # elements of b in a tile, in float64
_SUMS = 1 << 17  # in a tile: each has a few parts and temporaries in float64
_SLICE = 4  # products of a few rows of a take as long as one slice of b (benchmarks/bench_exact.py)
_ONE_BY_ONE = 1 << 16  # terms that the evident form takes at once
_LARGEST_INIT = 2.0**1000  # beyond it, sums of what float64 holds could leave it: the evident form takes those


def matmul(a: Array, b: Array, at: Precision, *, init: Float64Array | None = None) -> Float64Array:
    """The exact sums of products and of `init`, rounded once to `at.output`: (M, N) float64.

    a (M, K), b (K, N): values of `at.storage` in any dtype. init (M, N) any finite values, infinities or NaN.
    **Rounds:** once, in the output's mode (and each product before, where `at.product` is a format: then each element
    is summed on its own by `accumulate.exact_sum`, slowly). **Raises** FormatError as `operands.operand` does.
    """
    out = np.empty((a.shape[0], b.shape[1]))
    width = max(64, min(_WIDENED // max(1, b.shape[0]), _SUMS // max(1, min(a.shape[0], _ROWS))))
    with np.errstate(all="ignore"):
        for n in range(0, b.shape[1], width):
            columns = slice(n, min(n + width, b.shape[1]))
            right = _wide(b[:, columns], "b", at)
            for m in range(0, a.shape[0], _ROWS):
                rows = slice(m, min(m + _ROWS, a.shape[0]))
                left = _wide(a[rows], "a", at)
                out[rows, columns] = _tile(left, right, at, None if init is None else init[rows, columns])
    return out


def _wide(block: Array, name: str, at: Precision) -> Float64Array:
    """By way of float32, which is the faster one to widen to."""
    dtype = np.dtype(np.float64 if at.storage is f64 else np.float32)
    wide: Float64Array = carried(block, name, at, dtype).astype(np.float64, copy=False)
    return wide


def _tile(left: Float64Array, right: Float64Array, at: Precision, init: Float64Array | None) -> Float64Array:
    """left (M, K), right (K, n) and init (M, n) float64; the result (M, n) holds values of the output."""
    if left.shape[1] == 0 or not (at.product is None or (at.product is f64 and at.storage.precision <= 24)):
        return _one_by_one(left, right, at, init, np.ones((left.shape[0], right.shape[1]), np.bool_))
    is_odd_one = _has_nonfinite(left, 1)[:, None] | _has_nonfinite(right, 0)
    parts = _exact_parts(np.where(np.isfinite(left), left, 0.0), _finite(right), at.storage.precision)
    if init is not None:
        is_odd_one |= ~(np.abs(init) < _LARGEST_INIT)
        parts.append(np.where(is_odd_one, 0.0, init))
    s, e = _exact_pair(parts)
    out = round_pair(s, e, at.output, **at.rules("output"))
    if at.rounding.output == "toward_negative":  # the sign of an exact zero depends on the terms
        is_odd_one |= s == 0
    if is_odd_one.any():
        out[is_odd_one] = _one_by_one(left, right, at, init, is_odd_one)[is_odd_one]
    return out


def _has_nonfinite(x: Float64Array, axis: int) -> npt.NDArray[np.bool_]:
    is_finite: npt.NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(x), axis=axis)
    return ~is_finite


def _finite(x: Float64Array) -> Float64Array:
    return x if np.isfinite(x).all() else np.where(np.isfinite(x), x, 0.0)


def _one_by_one(
    left: Float64Array, right: Float64Array, at: Precision, init: Float64Array | None, wanted: Array
) -> Float64Array:
    """The wanted elements (M, n) by the evident form; zero elsewhere."""
    out = np.zeros(wanted.shape)
    rows, columns = np.nonzero(wanted)
    at_once = max(1, _ONE_BY_ONE // (left.shape[1] + 1))
    for start in range(0, len(rows), at_once):
        i, j = rows[start : start + at_once], columns[start : start + at_once]
        terms = rounded_product(left[i], right[:, j].T, at)
        if init is not None:
            terms = np.concatenate([terms, init[i, j, None]], axis=1)
        out[i, j] = exact_sum(terms, at)
    return out


# --- slices ----------------------------------------------------------------------------------------------------------


class _Grid(NamedTuple):
    """Every value is a multiple of 2^lowest and at most 2^(lowest + bits) in magnitude."""

    lowest: int
    bits: int


def _grid(x: Float64Array, precision: int) -> _Grid:
    """The grid of finite values of at most `precision` significand bits: its last place is the smallest one's."""
    magnitude = np.abs(x)
    largest = magnitude.max()
    if largest == 0:
        return _Grid(0, 0)
    lowest = math.frexp(smallest_of(magnitude))[1] - precision
    return _Grid(lowest, math.frexp(largest)[1] - lowest)


def _exact_parts(left: Float64Array, right: Float64Array, precision: int) -> list[Float64Array]:
    """Float64 matrices (M, n) whose sum is exactly left @ right.

    Slices of left are integers of at most 2^v units, slices of right of at most 2^w (`_slices`). Every product of two
    elements is then an integer of at most 2^(v + w) products of the units, and every sum of some of the K products, in
    whatever order and with or without fma, an integer of at most K 2^(v + w) <= 2^53 of them: float64 holds it. The
    units lie in [2^-172, 2^128], so that nothing under- or overflows.
    """
    grid_a, grid_b = _grid(left, precision), _grid(right, precision)
    count_a, count_b = _counts(grid_a.bits, grid_b.bits, 53 - (left.shape[1] - 1).bit_length())
    slices_a, slices_b = _slices(left, grid_a, count_a), _slices(right, grid_b, count_b)
    return [x @ y for y in slices_b for x in slices_a]


def _counts(bits_a: int, bits_b: int, budget: int) -> tuple[int, int]:
    """In how many slices to cut both, so that two slices together have at most `budget` bits: the cheapest way."""
    ways = []
    for count_b in range(1, max(1, bits_b) + 1):
        width_a = budget - -(-bits_b // count_b)
        if width_a >= 1:
            count_a = max(1, -(-bits_a // width_a))
            ways.append((count_a * count_b + _SLICE * (count_b - 1), count_a, count_b))
    return min(ways)[1:]


def _slices(x: Float64Array, grid: _Grid, count: int) -> list[Float64Array]:
    """x cut into `count` slices that add up to it; each an integer of at most 2^width units, width = bits / count.

    Adding and subtracting 1.5 * 2^52 units rounds to multiples of the unit, as the rest stays below 2^51 of them. What
    is left is at most half a unit, so at most 2^(width - 1) of the next one; the last rest is a multiple of the grid.
    """
    width = -(-grid.bits // count)
    slices = []
    for remaining in range(count - 1, 0, -1):
        pull = 1.5 * 2.0 ** (52 + grid.lowest + width * remaining)
        high = x + pull
        high -= pull
        slices.append(high)
        x = x - high
    return [*slices, x]


# --- exact addition --------------------------------------------------------------------------------------------------


def _exact_pair(parts: list[Float64Array]) -> tuple[Float64Array, Float64Array]:
    """(s, e) with s = fl(sum of the parts); e has the sign of the rest, is 0 where there is none, and is on the right
    side of half an ulp of s.

    The parts become an expansion, whose components do not overlap. From the top, components are added as long as
    that is exact; then s + e are the two next, and of all below them only the sign counts, which is the sign of the
    first that is not zero. It moves e to its odd neighbour, so that no tie is left where there is none.
    """
    components = _expansion(parts)
    s, e = components.pop(), np.zeros_like(parts[0])
    sign = np.zeros_like(e)
    while components:
        component = components.pop()
        is_exact_yet = e == 0
        sign = np.where((sign == 0) & ~is_exact_yet, np.sign(component), sign)
        higher, lower = two_sum(s, component)
        s, e = np.where(is_exact_yet, higher, s), np.where(is_exact_yet, lower, e)
    s, e = two_sum(s, to_odd_pair(e, sign))
    return s + 0.0, e  # a sum that is exactly zero is +0


def _expansion(parts: list[Float64Array]) -> list[Float64Array]:
    """Components with the same exact sum that do not overlap, the smallest first.

    Source: Shewchuk, Adaptive Precision Floating-Point Arithmetic (1997), theorem 10 (grow-expansion).
    """
    components: list[Float64Array] = []
    for part in parts:
        components = grown(components, part)
    return components
