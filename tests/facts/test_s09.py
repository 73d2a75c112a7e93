"""S9: attention in f32 instead of bf16 moves the error, but does not decide the close step.

Everything else stays in bf16: weights, activations, the residual stream, the cache. Up to the first flip of a
teacher-forced run, free running gives the same tokens, so the step of that flip is the length of the common prefix.
"""

from __future__ import annotations

import pytest

from softfloat_llm.claims.model_runs import ATTENTION_IN_F32
from softfloat_llm.recipe import recipe_of
from tests.claims import reproduced


def test_s09_the_recipe_changes_attention_only():
    recipe = recipe_of(ATTENTION_IN_F32)
    assert {site for site, words in recipe.words().items() if words != recipe_of("bf16").words()[site]} == {
        "attn.scores", "attn.scale", "attn.softmax", "attn.pv"
    }  # fmt: skip
    recipe.check_fit()


def test_s09_on_tiny_near_ties_the_error_moves_both_ways_and_flips_stay_or_come(tiny_bench):
    reproduced(tiny_bench, "S9")


@pytest.mark.smollm2
def test_s09_on_smollm2_the_error_moves_to_either_side_and_the_closest_step_keeps_its_token(smollm2_bench):
    reproduced(smollm2_bench, "S9")
