"""Small matrix products in float32 at once: those of attention are so small that cutting them into tiles takes longer.

By NumPy whatever the backend: the bits are the same. Start reading at `small_product`.
"""

from __future__ import annotations

import numpy as np

from softfloat_llm.numerics.einsum_loops import can_sum, is_sequential, sums_of_products
from softfloat_llm.numerics.extents import smallest_of
from softfloat_llm.numerics.formats import Array, Float64Array, f32
from softfloat_llm.numerics.native_sums import enters_in_turn
from softfloat_llm.numerics.operands import needs_check
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.steps import all_exact_in_float32, flushes

SMALL = 1 << 16
"""Multiplications: some 40 us of them, where tiles take 60 to 100."""
_FLOAT32 = np.dtype(np.float32)


def small_product(a: Array, b: Array, at: Precision, init: Float64Array | None) -> Array | None:
    """The accumulators (M, N) of a (M, K) times b (K, N), or None: where it is not small, or made in another way.

    As `steps.Native` makes them (`at` has that path), its condition asked of the whole: every product is exact.
    """
    if a.size * b.shape[1] > SMALL or init is not None or not _is_in_float32(at, a.shape[1]):
        return None
    if needs_check(a.dtype, at.storage) or needs_check(b.dtype, at.storage):
        return None
    with np.errstate(all="ignore"):
        left, right = np.ascontiguousarray(a.T.astype(np.float32)), b.astype(np.float32, order="C")
        if not can_sum(left, right) or not all_exact_in_float32(at, *_extremes(left, right)):
            return None
        out = np.empty((a.shape[0], b.shape[1]), np.float32)
        sums_of_products(left, right, out)
        return out


def _is_in_float32(at: Precision, k: int) -> bool:
    """True where float32 adds exact products one after another, and nothing is flushed."""
    if at.product is not None or at.acc.format is not f32 or flushes(at):
        return False
    is_kept = "daz" not in at.subnormals.storage
    return is_kept and enters_in_turn(at.order, k) and is_sequential(_FLOAT32)


def _extremes(left: Array, right: Array) -> tuple[float, float]:
    """As `extents.extremes`."""
    magnitudes = np.abs(left), np.abs(right)
    low, least = map(smallest_of, magnitudes)
    high, most = (float(x.max()) for x in magnitudes)
    return low * least, high * most
