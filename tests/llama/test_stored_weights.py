"""Weights as they are kept between passes: as a checkpoint has them, or turned, side by side, in strips."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.llama.config import config_from_dict
from softfloat_llm.llama.forward import forward
from softfloat_llm.llama.stored_weights import StoredWeights
from softfloat_llm.llama.weights import Weights
from softfloat_llm.numerics import kernels
from softfloat_llm.numerics.crew import Crew
from softfloat_llm.recipe import recipe_of
from tests.checkpoints import config_dict, random_tensors

QKV = tuple((f"attn.{name}", f"model.layers.0.self_attn.{name}") for name in ("q_proj", "k_proj", "v_proj"))
RECIPES = ["bf16", "f16", "f16,acc=f16", "f16,acc=f16,attn.k_proj.storage=bf16", "bf16,linear.acc=exact"]


@pytest.fixture(scope="module")
def weights():
    return open_model("tiny").weights


@pytest.mark.parametrize("recipe", ["bf16", "f16"])
def test_layers_of_one_input_are_kept_as_one(weights, recipe):
    store, alone = (StoredWeights(weights, recipe_of(recipe)) for _ in range(2))
    for _ in range(2):
        found = store.linears(QKV)
    assert found.turned is not None
    assert found is store.linears(QKV)
    start = 0
    for (weight, bias), part, (site, name) in zip(found.layers, found.turned.parts, QKV, strict=True):
        assert bias is None
        assert np.array_equal(weight, alone.linear(site, name)[0])
        assert np.array_equal(found.turned.whole[:, start : start + len(weight)], weight.T)
        assert np.shares_memory(part, found.turned.whole)
        start += len(weight)


@pytest.mark.parametrize("recipe", ["bf16", "f16"])
def test_layers_with_biases_are_settled_too(recipe):
    """With the biases that a store gives which has settled nothing."""
    entries = config_dict(attention_bias=True)
    weights, recipe = Weights(config_from_dict(entries), random_tensors(entries)), recipe_of(recipe)
    store = StoredWeights(weights, recipe)
    for _ in range(2):
        found = store.linears(QKV)
    assert found is store.linears(QKV)
    for (weight, bias), (site, name) in zip(found.layers, QKV, strict=True):
        alone = StoredWeights(weights, recipe).linear(site, name)
        for kept, expected in zip((weight, bias), alone, strict=True):
            assert (kept.dtype, kept.shape, kept.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def test_layers_of_two_storages_are_kept_apart(weights):
    store = StoredWeights(weights, recipe_of("f16,attn.k_proj.storage=f32"))
    for _ in range(3):
        found = store.linears(QKV)
        assert found.turned is None
        assert [weight.dtype.itemsize for weight, _ in found.layers] == [2, weights[f"{QKV[1][1]}.weight"].itemsize, 2]


@pytest.mark.parametrize("backend", kernels.BACKENDS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_passes_agree_however_weights_are_kept(weights, recipe, backend, monkeypatch):
    if backend == "numba":
        pytest.importorskip("numba")
    recipe, crew = recipe_of(recipe), Crew(1, backend)
    first = forward(weights, [1, 2, 3], recipe, crew=crew)  # nothing is kept
    for widened in (kernels._WIDENED, 256 * 4 * weights.config.hidden_size):  # lm_head as one, and in strips
        monkeypatch.setattr(kernels, "_WIDENED", widened)
        store = StoredWeights(weights, recipe)
        for _ in range(3):
            assert forward(store, [1, 2, 3], recipe, crew=crew).tobytes() == first.tobytes()
