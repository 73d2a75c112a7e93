"""S6: teacher forced on the f32 run's tokens, bf16 flips only where the margin is below twice the logit error.

Two logits that are each off by at most e change places only where they lie less than 2e apart.
"""

from __future__ import annotations

import pytest

from tests.claims import reproduced


@pytest.mark.smollm2
def test_s06_bf16_flips_only_where_the_margin_is_below_twice_the_logit_error(smollm2_bench):
    reproduced(smollm2_bench, "S6")
    assert smollm2_bench.taught("bf16").fed == smollm2_bench.reference().fed


def test_s06_on_tiny_near_ties_flip_and_clear_margins_do_not(tiny_bench):
    reproduced(tiny_bench, "S6")
