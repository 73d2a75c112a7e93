"""S13: a bf16 softmax whose sum accumulates in bf16 does not add up to 1."""

from __future__ import annotations

from tests.claims import reproduced


def test_s13_equal_scores_add_up_to_2_because_the_sum_sticks_and_normal_ones_to_far_from_1(tiny_bench):
    reproduced(tiny_bench, "S13")
