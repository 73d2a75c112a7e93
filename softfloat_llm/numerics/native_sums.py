"""Sums and sums of squares in float32's own arithmetic, over the last axis: those of norms and softmaxes.

Start reading at `native_sum`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from softfloat_llm.numerics.accumulate import NativeF32, follow, is_plain_f32
from softfloat_llm.numerics.formats import Array, f32
from softfloat_llm.numerics.modes import USUAL
from softfloat_llm.numerics.orders import Order
from softfloat_llm.numerics.precision import Precision


def native_squares(x: Array, at: Precision) -> Array | None:
    """The sum of x*x over the last axis, as `reduce.dot` leaves the accumulator, in float32's own arithmetic.

    x (..., K) in the storage format's dtype. None where that is not what `at` asks for: products and sums each rounded
    once to f32, ties to even, nothing flushed and nothing saturated.
    """
    is_held = x.dtype == at.storage.dtype and at.storage.has_own_dtype
    if not is_held or not _has_native_squares(at):
        return None
    with np.errstate(all="ignore"):
        narrow = x.astype(np.float32)
        return _native_sum(np.multiply(narrow, narrow, out=narrow), at)


def native_sum(x: Array, at: Precision) -> Array | None:
    """The sum of x (..., K) over the last axis, as `reduce.sum` leaves the accumulator, in float32's own arithmetic.

    None where x is not float32, or that is not what `at` asks for: sums rounded once to f32, as above.
    """
    is_native = x.dtype == np.float32 and at.storage is f32 and _has_native_sum(at)
    if not is_native:
        return None
    with np.errstate(all="ignore"):
        return _native_sum(x, at)


@lru_cache(maxsize=256)
def _has_native_sum(at: Precision) -> bool:
    return is_plain_f32(at) and at.order.adder is None and "daz" not in at.subnormals.storage


@lru_cache(maxsize=256)
def _has_native_squares(at: Precision) -> bool:
    is_native = at.product is f32 and at.rules("product") == USUAL
    return is_native and at.storage.precision <= 24 and _has_native_sum(at)


def _native_sum(terms: Array, at: Precision) -> Array:
    """The sum of float32 terms (..., K) over the last axis, in the order of `at`.

    One after another, the state is +0 first: that is the sum without it, but for a sum of -0 alone.
    """
    if enters_in_turn(at.order, terms.shape[-1]):
        last: Array = np.add.accumulate(terms, axis=-1)[..., -1] + np.float32(0)
        return last
    columns = np.ascontiguousarray(np.moveaxis(terms, -1, 0))
    steps = NativeF32(f32, **USUAL, is_fused=False)
    program = at.order.tree(terms.shape[-1]).program()
    return follow(program, columns.__getitem__, steps, terms.shape[:-1], None).astype(np.float32)


@lru_cache(maxsize=256)
def enters_in_turn(order: Order, n: int) -> bool:
    """True where n terms, at least one, enter one accumulator from the first to the last."""
    program = order.tree(n).program()
    is_chain = n > 0 and [name for name, _ in program] == ["init", "enter"]
    return is_chain and list(program[1][1]) == list(range(n))
