"""log_softmax in stated formats, and what it does to the ranking of the logits.

A sampler often ranks log-probabilities, not logits. Every step here is rounded correctly, and a correctly rounded step
never turns an order round, so a log-probability cannot pass another one; but two can become equal, and of equals the
lowest id is taken. Start reading at `log_softmax`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from softfloat_llm.numerics import functions, reduce
from softfloat_llm.numerics.carriers import carry, widen
from softfloat_llm.numerics.formats import Array, Format, format_of
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import round_sum, round_wide


def log_softmax(rows: npt.ArrayLike, fmt: str | Format, *, compute: str | Format = "f32", order: str = "seq") -> Array:
    """x - max - log(sum of e^(x - max)) of each row, in the carrier dtype of the format.

    rows (..., V): any values up to f32; the result (..., V).
    **Rounds:** to `compute`: x - max, its exponential, each addition of the sum (in `order`), its logarithm, the last
    difference; then once to the format. With +inf or NaN in a row, all of the row is NaN.
    **Raises** FormatError for a `compute` of more than 24 significand bits.

    >>> log_softmax([22.371271, 22.277479, 1.0], "bf16").astype(float).tolist()   # 0.0938 apart; 0.6475 and 0.7413
    [-0.6484375, -0.7421875, -22.0]

    **Source:** the order of the operations is that of PyTorch 2.13, aten/src/ATen/native/cpu/SoftMaxKernel.cpp,
    vec_log_softmax_lastdim_kernel, whose sum has another order.
    """
    c, out = format_of(compute), format_of(fmt)
    x = np.asarray(rows).astype(np.float64)
    with np.errstate(invalid="ignore"):
        lowered = round_sum(x, -x.max(axis=-1, keepdims=True), c, "ties_to_even")
        terms = functions.exp_wide(lowered, c)
        at = Precision(storage=c, acc=c, output=c, order=order)
        total = widen(np.asarray(reduce.sum(terms, at)))[..., None]
        logarithm = functions.function_wide("log", (np.ascontiguousarray(total),), c)
        return carry(round_wide(round_sum(lowered, -logarithm, c, "ties_to_even"), out), out)
