"""S7: one f16 matmul [8,1536]x[1536,576]: an f16 accumulator errs 20 to 60 times as much as an f32 accumulator.

x and w are f16 roundings of normal draws, w scaled by 1/sqrt(576), so that the results reach the article's 6 to 8. Both
accumulators get exact products in sequence. The error is the largest distance from the exact product of the f16
operands (float64 holds it to some 1e-14).
"""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.rounding import round_to, ulp


@pytest.mark.parametrize("seed", range(10))
def test_s07_an_f16_accumulator_errs_20_to_60_times_as_much_as_an_f32_one(seed):
    rng = np.random.default_rng(seed)
    x = round_to(rng.standard_normal((8, 1536)), "f16")
    w = round_to(rng.standard_normal((1536, 576)) / np.sqrt(576), "f16")
    reference = x.astype(np.float64) @ w.astype(np.float64)
    error = {
        acc: np.abs(reduce.matmul(x, w, f"storage=f16,acc={acc}").astype(np.float64) - reference).max()
        for acc in ("f16", "f32")
    }
    largest = np.abs(reference).max()
    print(f"f16 {error['f16']:.4e}, f32 {error['f32']:.4e}, {error['f16'] / error['f32']:.0f} times, max {largest:.3f}")
    assert 20 <= error["f16"] / error["f32"] <= 60
    half_ulp = ulp(largest, "f16") / 2
    # the f32 accumulator adds 1536 roundings of at most half an f32 ulp of a partial sum below 16 to the last one
    assert 0.8 * half_ulp <= error["f32"] <= half_ulp + 1536 * 2.0**-21
