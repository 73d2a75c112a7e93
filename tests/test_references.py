"""The recipe f32 against transformers in float32 on SmolLM2: every logit to 2e-4, 20 greedy tokens the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.smollm2 import FRANCE, free_run, smollm2

REFERENCES = Path(__file__).parent / "data" / "references"
PROMPTS = {
    "france": "The capital of France is",
    "story": "Once upon a time, in a land far away, there lived a",
    "sum": "2 + 2 =",
}
TOLERANCE = 2e-4  # PyTorch's orders and exponentials are others: some 100 roundings of 2^-25 of values up to 2^6 apart


def reference(name):
    with np.load(REFERENCES / f"{name}.float32.eager.npz") as arrays:
        return {key: arrays[key] for key in arrays.files}


@pytest.mark.parametrize("name", PROMPTS)
def test_a_reference_is_complete(name):
    arrays = reference(name)
    assert {key: (a.dtype.str, a.shape[-1]) for key, a in arrays.items() if key != "ids"} == {
        "logits": ("<u4", 49152), "greedy": ("<i4", 20),
    }  # fmt: skip
    assert int(np.argmax(arrays["logits"].view(np.float32))) == arrays["greedy"][0]
    assert name != "france" or tuple(arrays["ids"].tolist()) == FRANCE


@pytest.mark.smollm2
@pytest.mark.parametrize("name", PROMPTS)
def test_the_tokenizer_gives_the_ids_of_the_reference(name):
    assert smollm2().encode(PROMPTS[name]) == reference(name)["ids"].tolist()


@pytest.mark.smollm2
@pytest.mark.parametrize("name", PROMPTS)
def test_every_logit_of_the_recipe_f32_is_that_of_transformers_to_2e_4_and_its_20_greedy_tokens_are_theirs(name):
    arrays = reference(name)
    run = free_run("f32", tuple(arrays["ids"].tolist()), 20)
    wanted = arrays["logits"].view(np.float32).astype(np.float64)
    error = np.abs(run["logits"][len(arrays["ids"]) - 1].astype(np.float64) - wanted)
    print(f"{name}: largest difference {error.max():.2e} at id {error.argmax()}, logits up to {wanted.max():.2f}")
    assert error.max() <= TOLERANCE
    assert run.generated == tuple(arrays["greedy"].tolist())
