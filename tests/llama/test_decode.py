"""Which token a row of logits chooses, and what is fed next."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.errors import NonFiniteError, TokenError
from softfloat_llm.llama.config import config_from_dict
from softfloat_llm.llama.decode import argmax, decode
from softfloat_llm.llama.forward import forward
from softfloat_llm.llama.stored_weights import StoredWeights
from softfloat_llm.llama.weights import Weights
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.recipe import recipe_of
from softfloat_llm.sites import LOGITS
from softfloat_llm.trace import Event, Trace
from tests.checkpoints import config_dict, random_tensors

CONFIG = config_from_dict(config_dict())


@pytest.fixture(scope="module")
def weights():
    return Weights(CONFIG, random_tensors())


@pytest.mark.parametrize(("row", "chosen"), [
    ([1, 2, 2], 1), ([2, 2, 2], 0), ([0.0, -0.0], 0), ([-0.0, 0.0], 0), ([-3, -1, -2], 1), ([1, np.inf, np.inf], 1),
    ([-np.inf, -np.inf], 0), ([-np.inf, -5], 1), ([7], 0),
])  # fmt: skip
@pytest.mark.parametrize("fmt", ["f32", "bf16", "f16", "e5m2", "tf32"])
def test_the_largest_logit_is_chosen_and_the_lowest_index_among_equals(row, chosen, fmt):
    assert argmax(round_to(np.array(row, np.float64), fmt)) == chosen


@pytest.mark.parametrize(("row", "lowest", "last"), [
    ([1, 2, 2, 0, 2], 1, 4), ([2, 2, 2], 0, 2), ([0.0, -0.0], 0, 1), ([3, 1], 0, 0), ([-np.inf, -np.inf], 0, 1),
    ([7], 0, 0),
])  # fmt: skip
def test_among_equals_the_rule_decides(row, lowest, last):
    """ggml_argmax updates on equality, so that of ties at 1, 3 and 4 it takes 4."""
    logits = round_to(np.array(row, np.float64), "f16")
    assert (argmax(logits), argmax(logits, ties="last")) == (lowest, last)


def test_a_run_follows_the_rule_of_its_recipe(weights):
    """A head whose rows are all alike: every logit is a tie."""
    tensors = dict(random_tensors())
    tensors["lm_head.weight"] = np.zeros_like(weights.lm_head)
    equal = Weights(config_from_dict(config_dict(tie_word_embeddings=False)), tensors)
    for ties, token in (("lowest", 0), ("last", len(weights.lm_head) - 1)):
        recipe = recipe_of(f"bf16,choice.ties={ties}")
        assert recipe.ties == ties
        chosen, fed = decode(StoredWeights(equal, recipe), [1, 2], recipe, 3, trace=Trace(()))
        assert (chosen, fed) == ((token,) * 3, (1, 2, token, token))


@pytest.mark.parametrize("fmt", ["f32", "bf16", "f16", "e4m3fn", "e5m2"])
@pytest.mark.parametrize("row", [[np.nan, 1], [1, np.nan], [np.nan, np.nan], [np.inf, np.nan]])
def test_a_row_with_nan_is_never_a_token(row, fmt):
    with pytest.raises(NonFiniteError, match="NaN, so no token can be chosen"):
        argmax(round_to(np.array(row), fmt))


def test_the_message_counts_nan_and_names_the_first_event():
    trace = Trace(())
    trace.note(Event("layers.1.mlp.down_proj.acc", (0, 3), np.inf, "f16", 17, 24))
    trace.note(Event("norm.final.out", (0, 1), np.nan, "f16"))
    with pytest.raises(NonFiniteError) as caught:
        argmax(np.array([np.nan, 1, np.nan], np.float32), trace)
    assert str(caught.value) == (
        "The logits hold 2 NaN, so no token can be chosen. It began here: layers.1.mlp.down_proj.acc at position 0,"
        " element [3] became inf: its f16 sum after 17 of 24 terms."
    )


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_free_running_feeds_what_it_chose(weights, steps):
    recipe = recipe_of("bf16")
    trace = Trace((LOGITS,))
    chosen, fed = decode(StoredWeights(weights, recipe), [1, 2, 3], recipe, steps, trace=trace)
    logits = trace.arrays[LOGITS]
    assert (len(chosen), len(fed), len(logits)) == (steps, 3 + max(steps - 1, 0), len(fed))
    assert fed == (1, 2, 3, *chosen[: max(steps - 1, 0)])
    whole = forward(weights, fed, recipe)
    assert logits.tobytes() == whole.tobytes()
    assert chosen == tuple(int(i) for i in np.argmax(whole[2:].astype(np.float32), axis=-1)[:steps])


def test_a_teacher_s_tokens_are_fed_and_its_last_is_not(weights):
    recipe = recipe_of("f16")
    trace = Trace((LOGITS,))
    chosen, fed = decode(StoredWeights(weights, recipe), [1, 2], recipe, 3, teacher=[30, 31, 0], trace=trace)
    assert fed == (1, 2, 30, 31)
    assert chosen == tuple(int(i) for i in np.argmax(forward(weights, fed, recipe)[1:].astype(np.float32), axis=-1))
    assert trace.arrays[LOGITS].shape == (4, 32)


def test_steps_that_do_not_fit_are_refused_before_the_first_pass(weights):
    recipe, seen = recipe_of("f32"), []
    with pytest.raises(TokenError, match="exceed max_position_embeddings = 64"):
        decode(StoredWeights(weights, recipe), [1] * 60, recipe, 6, trace=Trace(()), step=lambda *a: seen.append(a))
    assert seen == []
    assert len(decode(StoredWeights(weights, recipe), [1] * 60, recipe, 5, trace=Trace(()))[1]) == 64


def test_a_step_is_reported_for_each_layer_of_each_pass(weights):
    recipe, seen = recipe_of("f32"), []
    decode(StoredWeights(weights, recipe), [1], recipe, 3, trace=Trace(()), step=lambda *a: seen.append(a))
    assert seen == [(i, 6) for i in range(1, 7)]
