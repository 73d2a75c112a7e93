"""S7: one f16 matmul [8,1536]x[1536,576]: an f16 accumulator errs 20 to 60 times as much as an f32 accumulator.

x and w are f16 roundings of normal draws, w scaled by 1/sqrt(576), so that the results reach the article's 6 to 8. Both
accumulators get exact products in sequence. The error is the largest distance from the exact product of the f16
operands (float64 holds it to some 1e-14), over 10 seeds.
"""

from __future__ import annotations

from tests.claims import reproduced


def test_s07_an_f16_accumulator_errs_20_to_60_times_as_much_as_an_f32_one(tiny_bench):
    reproduced(tiny_bench, "S7")
