"""PyTorch's own bits in float32, from NumPy alone: transformers on an Intel CPU with MKL, eager and sdpa.

`data/references/float32.npz` holds what PyTorch gave (see the README there). Its `generate` takes the logits of the
last position of a prompt alone, so the first of its steps is a product of one row, which MKL sums in another order than
the rows of a whole pass. Not one bit differs; all 20 steps and the passes of all three prompts were compared once.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from softfloat_llm.llama import blocks
from softfloat_llm.numerics.formats import encode, f32
from softfloat_llm.recipe import recipe_of
from softfloat_llm.runs import simulate
from tests.smollm2 import smollm2

RECORDED = np.load(Path(__file__).parent / "data" / "references" / "float32.npz")
CASES = [("france", "eager"), ("story", "eager"), ("story", "sdpa")]
LAYERS = 30
STEPS = 2

pytestmark = pytest.mark.smollm2


def recorded(case, what):
    return RECORDED[f"{'.'.join(case)}.{what}"]


def digest(x):
    return hashlib.sha256(np.ascontiguousarray(encode(x, f32)).tobytes()).hexdigest()


def largest_eight(rows):
    """Ids (n, 8), lowest first among equals, and codes (n, 8) of the largest logits of each row."""
    ids = np.argsort(-rows.astype(np.float64), axis=-1, kind="stable")[:, :8]
    return ids, np.take_along_axis(encode(rows, f32), ids, axis=-1)


def held_as_recorded(rows, case, what, places):
    ids, codes = largest_eight(rows)
    np.testing.assert_array_equal(ids, recorded(case, f"{what}_top")[places])
    np.testing.assert_array_equal(codes, recorded(case, f"{what}_logits")[places])


@pytest.mark.parametrize("case", CASES, ids=".".join)
def test_every_hidden_state_and_logit_and_the_first_steps_are_pytorchs_own(case, smollm2_folder):
    ids, recipe = recorded(case, "ids").tolist(), f"transformers-{case[1]}-f32-cpu-mkl"
    run = simulate(tokens=ids, model=smollm2_folder, recipe=recipe, steps=STEPS)
    names = ["embed.out", *(f"layers.{i}.mlp.residual.out" for i in range(LAYERS - 1)), "norm.final.out"]
    assert [digest(run[name][: len(ids)]) for name in names] == recorded(case, "hidden_sha256").tolist()
    assert digest(run["logits"][len(ids) - 1]) == str(recorded(case, "logits_sha256"))
    last = run["norm.final.out"][len(ids) - 1 : len(ids)]
    alone = blocks.linear(last, smollm2().weights.lm_head, recipe_of(recipe).at("lm_head")).out
    held_as_recorded(alone, case, "step", slice(0, 1))
    held_as_recorded(run.step_logits[1:], case, "step", slice(1, STEPS))


def test_a_teacher_forced_pass_over_34_tokens_is_pytorchs_own(smollm2_folder):
    case = ("story", "sdpa")
    ids = recorded(case, "ids").tolist() + recorded(("story", "eager"), "greedy").tolist()
    run = simulate(tokens=ids, model=smollm2_folder, recipe="transformers-sdpa-f32-cpu-mkl", steps=0)
    held_as_recorded(run["logits"][-21:-1], case, "forced", slice(None))
