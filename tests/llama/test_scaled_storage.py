"""Scaled storage in a forward pass: weights, activations and cache as blocks decode to, with what that cost told."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.errors import RecipeError
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.llama.stored_weights import StoredWeights
from softfloat_llm.llama.weights import Weights
from softfloat_llm.numerics.scaled import SCALED, quantise
from softfloat_llm.recipe import Recipe
from softfloat_llm.runs import simulate
from softfloat_llm.sites import LINEAR

TOKENS = [1, 5, 9, 17]


@pytest.fixture(scope="module")
def tiny():
    return open_model("tiny")


@pytest.mark.parametrize("name", SCALED)
def test_weights_enter_as_they_decode(name, tiny):
    """The same bits as a checkpoint whose linear weights are the decoded ones."""
    recipe = Recipe("f32", at={"linear.weights": name, "lm_head.weights": "plain"})
    decoded = {
        key: quantise(tensor, name).decoded if key.endswith("_proj.weight") else np.asarray(tensor)
        for key, tensor in tiny.weights.items()
    }
    run = simulate(tokens=TOKENS, model=tiny, recipe=recipe)
    other = type(tiny)("decoded", Weights(tiny.config, decoded), tiny.tokenizer)
    assert run.digest == simulate(tokens=TOKENS, model=other, recipe="f32").digest
    assert run.digest != simulate(tokens=TOKENS, model=tiny, recipe="f32").digest
    (note,) = [line for line in run.notes if line.startswith("Weights as")]
    assert name in note
    assert "clipped" in note


def test_activations_enter_as_they_decode(tiny):
    recipe = Recipe("f32", at={"mlp.down_proj.activations": "mxfp8-e4m3"})
    run = simulate(tokens=TOKENS, model=tiny, recipe=recipe, taps=("*.act_mul.out", "*.down_proj.in"))
    given = run["layers.0.mlp.act_mul.out"]
    np.testing.assert_array_equal(run["layers.0.mlp.down_proj.in"], quantise(given, "mxfp8-e4m3").decoded)
    assert any(line.startswith("mlp.down_proj: ") for line in run.notes)


def test_the_cache_holds_what_blocks_decode_to(tiny):
    recipe = Recipe("f32", at={"kv.k.blocks": "nvfp4"})  # heads of 16
    run = simulate(tokens=TOKENS, model=tiny, recipe=recipe, taps=("*.attn.rope.out", "*.kv.*.out"))
    heads = tiny.config.num_attention_heads
    keys = run["layers.0.attn.rope.out"][:, heads:]
    np.testing.assert_array_equal(run["layers.0.kv.k.out"], quantise(keys, "nvfp4").decoded)


def test_a_narrow_cache_tells_what_it_clipped_and_flushed(tiny):
    run = simulate(
        tokens=TOKENS,
        model=tiny,
        recipe=Recipe("f32", kv="e4m3fn", at={"kv.k.scale": "0.001", "kv.overflow": "saturate"}),
    )
    (keys,) = [line for line in run.notes if line.startswith("kv.k")]
    (values,) = [line for line in run.notes if line.startswith("kv.v")]
    assert not keys.startswith("kv.k: 0 clipped")
    assert values.startswith("kv.v: 0 clipped")


def test_rounded_weights_beyond_the_budget_are_rounded_again(tiny, monkeypatch):
    kept = simulate(tokens=TOKENS, model=tiny, recipe="f16").digest
    monkeypatch.setattr("softfloat_llm.llama.stored_weights._KEPT", 0)
    assert simulate(tokens=TOKENS, model=tiny, recipe="f16").digest == kept
    weights = StoredWeights(tiny.weights, Recipe(storage="e4m3fn"))
    first, _ = weights.linear("mlp.up_proj", "model.layers.0.mlp.up_proj")
    again, _ = weights.linear("mlp.up_proj", "model.layers.0.mlp.up_proj")
    assert first is not again
    np.testing.assert_array_equal(first, again)


def test_an_unknown_scaled_format_is_refused():
    with pytest.raises(RecipeError, match="Did you mean 'mxfp4'"):
        Recipe("f32", at={"linear.weights": "mxfp44"})
    assert all("weights" in Recipe("f32").at(site).options for site in LINEAR)
