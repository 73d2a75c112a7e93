"""S13: a bf16 softmax whose sum accumulates in bf16 does not add up to 1."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from softfloat_llm.numerics import functions, ops, reduce
from softfloat_llm.numerics.rounding import round_to


def softmax(scores, acc):
    """exp, sum and division in bf16, each rounded once; the sum in the accumulator."""
    weights = functions.exp(ops.sub(scores, float(scores.max())))
    total = reduce.sum(weights, f"storage=bf16,acc={acc}")
    return ops.div(weights, round_to(total, "bf16")), weights


def stuck_point(weights):
    """After which term a running bf16 sum moves no more, and where it stands."""
    total, last = 0.0, 0
    for n, weight in enumerate(weights.astype(np.float64), start=1):
        before, total = total, reduce.sum([weight], "storage=bf16,acc=bf16", init=total)
        last = n if total != before else last
    return last, total


def exact_total(probabilities):
    return float(sum(map(Fraction, probabilities.astype(np.float64).tolist()), Fraction(0)))


def test_s13_512_equal_scores_add_up_to_2_because_the_sum_sticks_at_256():
    scores = round_to(np.zeros(512), "bf16")
    p, weights = softmax(scores, "bf16")
    last, sum_of_weights = stuck_point(weights)
    print(f"sum of p {exact_total(p)}, the sum of weights sticks at {sum_of_weights} after term {last} of 512")
    assert (last, sum_of_weights) == (256, 256.0)
    assert set(p.astype(np.float64).tolist()) == {1 / 256}
    assert exact_total(p) == 2.0
    assert exact_total(softmax(scores, "f32")[0]) == 1.0


def test_s13_normal_scores_add_up_to_far_from_1_in_bf16_only():
    scores = round_to(np.random.default_rng(0).standard_normal(2048), "bf16")
    low, high = (exact_total(softmax(scores, acc)[0]) for acc in ("f32", "bf16"))
    print(f"sum of p {high:.4f} with a bf16 sum, {low:.4f} with an f32 sum")
    # with f32: one rounding of each weight's quotient and one of the sum, each at most half a bf16 ulp
    assert abs(low - 1) <= 2 * 2.0**-8 + 2.0**-15
    assert high > 1.05
