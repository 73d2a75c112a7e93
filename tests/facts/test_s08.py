"""S8: on the whole model bf16 errs ten times as much as f16, and f16 with f16 accumulators errs like bf16.

Largest difference of a logit at the last position of the prompt, against the recipe f32.
"""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.runs import simulate
from tests.smollm2 import free_run

BOUNDS = {"f16": (0.03, 0.06), "bf16": (0.3, 0.7), "candle-f16-cpu-neon": (0.3, 0.5)}


def last_error(run, reference):
    ours, theirs = (r["logits"][4].astype(np.float64) for r in (run, reference))
    return float(np.abs(ours - theirs).max())


@pytest.mark.smollm2
@pytest.mark.parametrize("recipe", BOUNDS)
def test_s08_the_logit_error_of_a_recipe_lies_between_its_bounds(recipe):
    low, high = BOUNDS[recipe]
    reference = free_run("f32", steps=20)
    error = last_error(free_run(recipe), reference)
    print(f"{recipe}: {error:.4f}, logits up to {reference['logits'][4].max():.2f}")
    assert low <= error <= high


def test_s08_on_tiny_f16_accumulators_cost_what_bf16_storage_costs_and_f16_storage_alone_a_tenth():
    tiny = open_model("tiny")
    reference = simulate(model=tiny, recipe="f32", taps=())
    error = {r: last_error(simulate(model=tiny, recipe=r, taps=()), reference) for r in (*BOUNDS, "f16,acc=f16")}
    print(error)
    assert 4 < error["bf16"] / error["f16"] < 16  # 3 bits fewer: about 8
    assert error["candle-f16-cpu-neon"] > 1.5 * error["f16"]
    assert error["f16,acc=f16"] > 1.5 * error["f16"]
