"""placeholder: being written"""

from __future__ import annotations

import numpy as np

from softfloat_llm.numerics.accumulate import arithmetic_of, exact_sum, follow
from softfloat_llm.numerics.formats import Array, Float64Array
from softfloat_llm.numerics.precision import EXACT, Precision


def matmul(a: Array, b: Array, at: Precision, *, init: Float64Array | None = None, workers: int = 1) -> Float64Array:
    from softfloat_llm.numerics.reduce import operand, rounded_product

    left, right = operand(a, "a", at), operand(b, "b", at)
    shape = (a.shape[0], b.shape[1])
    if at.acc == EXACT:
        return np.stack([exact_sum(rounded_product(row[None, :], right.T, at), at) for row in left])
    program = at.order.tree(a.shape[1]).program()
    terms = lambda k: rounded_product(left[:, k, None], right[k], at)
    return follow(program, terms, arithmetic_of(at.acc, at), shape, init)
