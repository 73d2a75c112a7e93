"""PyTorch's own bits, from NumPy alone: transformers on a CPU, eager and sdpa, bf16 and f16, against its output.

`data/references/half.npz` holds what PyTorch gave (see the README there). All of it is held here, the second block of
queries of the flash kernel (position 32 of `story`) too.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from softfloat_llm.numerics.formats import encode
from softfloat_llm.runs import simulate

RECORDED = np.load(Path(__file__).parent / "data" / "references" / "half.npz")
PROMPTS = ("france", "story", "sum")
FORMATS = {"bfloat16": "bf16", "float16": "f16"}
CASES = [(name, fmt, attention) for name in PROMPTS for fmt in FORMATS for attention in ("eager", "sdpa")]
LAYERS = 30

pytestmark = pytest.mark.smollm2


def recorded(case, what):
    return RECORDED[f"{'.'.join(case)}.{what}"]


def recipe_of_case(case):
    _, fmt, attention = case
    return f"transformers-{attention}-{FORMATS[fmt]}-cpu-amx"


def largest_eight(rows, fmt):
    """Ids (n, 8), lowest first among equals, and codes (n, 8) of the largest logits of each row."""
    ids = np.argsort(-rows.astype(np.float64), axis=-1, kind="stable")[:, :8]
    return ids, np.take_along_axis(encode(rows, fmt), ids, axis=-1)


def hidden_digests(run, length):
    """Of the codes of what transformers lists as hidden states: embedding, each layer but the last, the final norm."""
    names = ["embed.out", *(f"layers.{i}.mlp.residual.out" for i in range(LAYERS - 1)), "norm.final.out"]
    codes = [encode(run[name][:length], run.format_of_tap(name)) for name in names]
    return [hashlib.sha256(np.ascontiguousarray(c).tobytes()).hexdigest() for c in codes]


@pytest.mark.parametrize("case", CASES, ids=".".join)
def test_every_hidden_state_and_logit_and_the_first_cached_steps_are_pytorchs_own(case, smollm2_folder):
    ids = recorded(case, "ids").tolist()
    run = simulate(tokens=ids, model=smollm2_folder, recipe=recipe_of_case(case), steps=4)
    assert hidden_digests(run, len(ids)) == recorded(case, "hidden_sha256").tolist()
    np.testing.assert_array_equal(encode(run["logits"][len(ids) - 1], run.logits_format), recorded(case, "logits"))
    tokens, codes = largest_eight(run.step_logits, run.logits_format)
    np.testing.assert_array_equal(tokens, recorded(case, "step_top")[:4])
    np.testing.assert_array_equal(codes, recorded(case, "step_logits")[:4])


@pytest.mark.parametrize("case", [c for c in CASES if c[0] == "story"], ids=".".join)
def test_twenty_cached_steps_are_pytorchs_own(case, smollm2_folder):
    run = simulate(tokens=recorded(case, "ids").tolist(), model=smollm2_folder, recipe=recipe_of_case(case), steps=20)
    assert list(run.generated) == recorded(case, "greedy").tolist()
    tokens, codes = largest_eight(run.step_logits, run.logits_format)
    np.testing.assert_array_equal(tokens, recorded(case, "step_top"))
    np.testing.assert_array_equal(codes, recorded(case, "step_logits"))


@pytest.mark.parametrize("case", CASES, ids=".".join)
def test_a_teacher_forced_pass_over_up_to_34_tokens_is_pytorchs_own(case, smollm2_folder):
    ids = recorded(case, "ids").tolist() + RECORDED[f"{case[0]}.reference_greedy"].tolist()
    run = simulate(tokens=ids, model=smollm2_folder, recipe=recipe_of_case(case), steps=0)
    tokens, codes = largest_eight(run["logits"][-21:-1], run.logits_format)
    np.testing.assert_array_equal(tokens, recorded(case, "forced_top"))
    np.testing.assert_array_equal(codes, recorded(case, "forced_logits"))
