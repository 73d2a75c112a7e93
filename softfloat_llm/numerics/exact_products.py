"""matmul with the exact accumulator: the mathematically exact sums of products, rounded once to the output."""

from __future__ import annotations

import numpy as np

from softfloat_llm.numerics.accumulate import exact_sum
from softfloat_llm.numerics.formats import Array, Float64Array
from softfloat_llm.numerics.operands import operand, rounded_product
from softfloat_llm.numerics.precision import Precision


def matmul(a: Array, b: Array, at: Precision, *, init: Float64Array | None = None) -> Float64Array:
    """The exact sums (M, N), rounded once to `at.output`."""
    left, right = operand(a, "a", at), operand(b, "b", at)
    out = np.empty((a.shape[0], b.shape[1]))
    for n in range(b.shape[1]):
        terms = rounded_product(left, right[:, n], at)
        if init is not None:
            terms = np.concatenate([terms, init[:, n, None]], axis=1)
        out[:, n] = exact_sum(terms, at)
    return out
