"""Why "2 + 2 =" goes on otherwise in bf16 sdpa: after "3 + 2 = 5. This", f32 says ' example', and PyTorch's bf16 ' is'.

At step 12 of the greedy text three ids share the largest bf16 logit, in PyTorch's own run too; the lowest is taken.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from softfloat_llm.analysis.compare import compare
from softfloat_llm.analysis.explain_step import NEEDED_TAPS, explain_step
from softfloat_llm.analysis.names import named
from softfloat_llm.runs import simulate
from tests.smollm2 import smollm2

pytestmark = pytest.mark.smollm2
REFERENCES = Path(__file__).parents[1] / "data" / "references"
SDPA = "transformers-sdpa-bf16-cpu-amx"
STEP = 12


@pytest.fixture(scope="module")
def recorded():
    """PyTorch's greedy tokens in float32, and what its bf16 sdpa chose from, step by step."""
    with np.load(REFERENCES / "sum.float32.eager.npz") as wide, np.load(REFERENCES / "half.npz") as half:
        narrow = {key: half[f"sum.bfloat16.sdpa.{key}"] for key in ("greedy", "step_top", "step_logits")}
        return {"ids": wide["ids"].tolist(), "f32": wide["greedy"].tolist()} | narrow


@pytest.fixture(scope="module")
def runs(recorded):
    """One pass over the prompt and the twelve tokens that both chose: what the next one is chosen from."""
    tokens = recorded["ids"] + recorded["f32"][:STEP]
    recipes = {"f32": ("*.out",), SDPA: NEEDED_TAPS}
    return [
        named(simulate(tokens=tokens, model=smollm2(), recipe=recipe, taps=taps), smollm2())
        for recipe, taps in recipes.items()
    ]


def test_pytorch_s_own_texts_part_at_step_12_by_a_tie_of_three(recorded):
    pairs = zip(recorded["greedy"].tolist(), recorded["f32"], strict=True)
    assert next(n for n, (a, b) in enumerate(pairs) if a != b) == STEP
    ids, codes = recorded["step_top"][STEP], recorded["step_logits"][STEP]
    assert ids[:3].tolist() == [314, 966, 1183]
    assert codes[0] == codes[1] == codes[2] != codes[3]


def test_compare_names_the_flip_the_margin_and_all_ids_that_tie(recorded, runs):
    reference, run = runs
    found = compare(run, reference)
    (step,) = found.steps
    print(found)
    assert (step.reference.token, step.run.token) == (recorded["f32"][STEP], int(recorded["greedy"][STEP]))
    assert (step.reference.piece, step.run.piece) == (" example", " is")
    assert [one.token for one in step.tied] == recorded["step_top"][STEP][:3].tolist()
    assert step.words == "flip (tie, lowest id 314 wins)"
    assert 0.2 < step.margin_ulp < 0.3  # a quarter of a bf16 ulp: rounding alone can decide
    assert 2 * step.error > step.margin
    text = str(found)
    assert "In the run the ids 314 ' is', 966 ' result', 1183 ' example' share the logit 25: the lowest id" in text
    assert "enough to turn it" in text


def test_explain_says_that_the_last_rounding_decides(runs):
    reference, run = runs
    story = explain_step(run, 0, against=reference, missing="")
    print(story)
    assert (story.kind, story.decider) == ("tie", "lm_head output")
    assert story.summed_lead > 0  # before it is rounded, ' example' still leads
    assert [one.piece for one in story.candidates[:2]] == [" example", " is"]
