"""S9: attention in f32 instead of bf16 moves the error, but does not decide the close step.

Everything else stays in bf16: weights, activations, the residual stream, the cache. Up to the first flip of a
teacher-forced run, free running gives the same tokens, so the step of that flip is the length of the common prefix.
"""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.recipe import recipe_of
from softfloat_llm.runs import simulate
from softfloat_llm.tiny import NEAR_TIES
from tests.smollm2 import free_run, taught_run

IN_F32 = "bf16,attn.scores=f32,attn.scale=f32,attn.softmax=f32,attn.pv.storage=f32"


def errors_and_flips(run, reference):
    """The largest error of the logits at each step, and the steps that choose another token."""
    ours, theirs = (r.step_logits.astype(np.float64) for r in (run, reference))
    pairs = zip(run.generated, reference.generated, strict=True)
    return np.abs(ours - theirs).max(axis=-1), [step for step, (a, b) in enumerate(pairs) if a != b]


def test_s09_the_recipe_changes_attention_only():
    recipe = recipe_of(IN_F32)
    assert {site for site, words in recipe.words().items() if words != recipe_of("bf16").words()[site]} == {
        "attn.scores", "attn.scale", "attn.softmax", "attn.pv"
    }  # fmt: skip
    recipe.check_fit()


def test_s09_on_tiny_near_ties_the_error_moves_both_ways_and_flips_stay_or_come():
    tiny, sides, flipped = open_model("tiny"), [], []
    for prompt in NEAR_TIES[:8]:
        reference = simulate(prompt, model=tiny, recipe="f32", steps=4, taps=())
        runs = [simulate(model=tiny, recipe=r, teacher=reference, taps=()) for r in ("bf16", IN_F32)]
        (low, low_flips), (high, high_flips) = (errors_and_flips(run, reference) for run in runs)
        sides += (high < low).tolist()
        flipped += [low_flips, high_flips]
    print(f"f32 attention errs less at {sum(sides)} of {len(sides)} steps; flips {flipped}")
    assert 0 < sum(sides) < len(sides)
    assert any(flipped[1::2])  # close steps flip with f32 attention too


@pytest.mark.smollm2
def test_s09_on_smollm2_the_error_moves_to_either_side_and_the_closest_step_keeps_its_token():
    reference = free_run("f32", steps=20)
    top = np.sort(reference.step_logits.astype(np.float64), axis=-1)
    closest = int(np.argmin(top[:, -1] - top[:, -2]))
    errors, chosen = {}, {}
    for name, recipe in (("bf16", "bf16"), ("f32 attention", IN_F32)):
        run = taught_run(recipe)
        errors[name], flips = errors_and_flips(run, reference)
        chosen[name] = run.generated[closest]
        told = f"error at step 0 {errors[name][0]:.3f}, median {np.median(errors[name]):.3f}"
        print(f"{name}: {told}, prefix {flips[0] if flips else 20}/20, flips {flips}; closest step {closest}")
    low, high = errors.values()
    assert np.count_nonzero(low != high) >= 15  # of 20; logits are multiples of an eighth, so some may agree
    assert 0 < np.count_nonzero(high < low) < 20
    assert chosen["bf16"] == chosen["f32 attention"]
