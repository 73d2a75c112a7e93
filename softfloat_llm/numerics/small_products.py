"""Small matrix products in float32 at once: those of attention are so small that cutting them into tiles takes longer.

By NumPy whatever the backend: the bits are the same. Start reading at `grouped_product`.
"""

from __future__ import annotations

import numpy as np

from softfloat_llm.numerics.einsum_loops import are_groups_sequential, sums_of_groups
from softfloat_llm.numerics.extents import is_below, smallest_of
from softfloat_llm.numerics.formats import Array, Float64Array, f32
from softfloat_llm.numerics.native_sums import enters_in_turn
from softfloat_llm.numerics.operands import needs_check
from softfloat_llm.numerics.paths import path_of
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.steps import all_exact_in_float32, flushes

SMALL = 1 << 16
"""Multiplications: some 40 us of them, where tiles take 60 to 100."""
_FLOAT32 = np.dtype(np.float32)


def small_product(a: Array, b: Array, at: Precision, init: Float64Array | None) -> Array | None:
    """The accumulators (M, N) of a (M, K) times b (K, N), or None: where it is not small, or made in another way."""
    if a.size * b.shape[1] > SMALL or init is not None:
        return None
    product = grouped_product(a[:, None], b[None], at)
    return None if product is None else product[:, 0]


def grouped_product(a: Array, b: Array, at: Precision) -> Array | None:
    """a (T, H, K) times b (G, K, N), H/G rows by each group: the accumulators (T, H, N), or None: made in another way.

    As `steps.Native` makes them, its condition asked of the whole: every product is exact. That none was beyond float32
    is seen in the sums, which are known to be finite; where one is not, all are made in another way.
    """
    (positions, heads, terms), (groups, _, columns) = a.shape, b.shape
    if columns < 2 or not a.size or not _is_in_float32(at, terms):  # one column: another loop
        return None
    if needs_check(a.dtype, at.storage) or needs_check(b.dtype, at.storage):
        return None
    with np.errstate(all="ignore"):
        left, right = a.astype(np.float32, order="C"), b.astype(np.float32, order="C")
        if not all_exact_in_float32(at, _smallest(left) * _smallest(right), f32.max):
            return None
        out = np.empty((positions, heads, columns), np.float32)
        in_groups = positions, groups, heads // groups, -1
        sums_of_groups(left.reshape(in_groups), right, out.reshape(in_groups))
        return out if is_below(out, f32.max) else None


def _is_in_float32(at: Precision, k: int) -> bool:
    """True where float32 adds exact products one after another, and nothing is flushed."""
    if at.product is not None or at.acc.format is not f32 or path_of(at) != "native" or flushes(at):
        return False
    is_kept = "daz" not in at.subnormals.storage
    return is_kept and enters_in_turn(at.order, k) and are_groups_sequential(_FLOAT32)


def _smallest(x: Array) -> float:
    return smallest_of(np.abs(x))
