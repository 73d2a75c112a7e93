"""S6: teacher forced on the f32 run's tokens, bf16 flips only where the margin is below twice the logit error.

Two logits that are each off by at most e change places only where they lie less than 2e apart.
"""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.numerics.rounding import ulp
from softfloat_llm.runs import simulate
from softfloat_llm.tiny import NEAR_TIES
from tests.smollm2 import free_run, taught_run


def margins_and_errors(run, reference):
    """For each step: top1 - top2 of the reference, and the largest error of the run's logits."""
    theirs, ours = (r.step_logits.astype(np.float64) for r in (reference, run))
    top = np.sort(theirs, axis=-1)
    return top[:, -1] - top[:, -2], np.abs(ours - theirs).max(axis=-1)


def flips(run, reference):
    return [step for step, (ours, theirs) in enumerate(zip(run.generated, reference.generated, strict=True))
            if ours != theirs]  # fmt: skip


def check(run, reference):
    """Flips only below twice the error; gives the flipped steps."""
    margins, errors = margins_and_errors(run, reference)
    flipped = flips(run, reference)
    for step in range(run.steps):
        grid = margins[step] / ulp(float(reference.step_logits[step].max()), "bf16")
        mark = "flips" if step in flipped else ""
        print(f"{step:3} margin {margins[step]:.3f} = {grid:.2f} bf16 ulp, error {errors[step]:.3f} {mark}")
    assert all(margins[step] < 2 * errors[step] for step in flipped)
    return flipped


@pytest.mark.smollm2
def test_s06_bf16_flips_only_where_the_margin_is_below_twice_the_logit_error():
    reference, run = free_run("f32", steps=20), taught_run("bf16")
    assert run.fed == reference.fed
    flipped = check(run, reference)
    margins, errors = margins_and_errors(run, reference)
    assert sum(margins < 2 * errors) >= 4  # there are steps at which a flip would be possible
    assert 0.2 < np.median(errors) < 0.7
    print(f"{len(flipped)} of 20 steps flip")


def test_s06_on_tiny_near_ties_flip_and_clear_margins_do_not():
    tiny, flipped, steps = open_model("tiny"), 0, 0
    for prompt in ("The capital of France is", *NEAR_TIES[:8]):
        reference = simulate(prompt, model=tiny, recipe="f32", steps=4, taps=())
        run = simulate(model=tiny, recipe="bf16", teacher=reference, taps=())
        flipped += len(check(run, reference))
        steps += run.steps
    print(f"{flipped} of {steps} steps flip")
    assert 0 < flipped < steps / 4
