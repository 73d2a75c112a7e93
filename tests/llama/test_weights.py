"""The table of tensors, and what a checkpoint may hold beside or instead of it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from softfloat_llm.errors import CheckpointError
from softfloat_llm.llama.config import config_from_dict
from softfloat_llm.llama.rope import inverse_frequencies
from softfloat_llm.llama.weights import Weights, tensor_shapes
from softfloat_llm.numerics.formats import f32
from tests.checkpoints import Array, config_dict, random_tensors


def weights(tensors: dict[str, Array], **changes: Any) -> Weights:
    return Weights(config_from_dict(config_dict(**changes)), tensors, "test")


def test_shapes_of_a_grouped_model() -> None:
    shapes = tensor_shapes(config_from_dict(config_dict()))
    assert len(shapes) == 1 + 2 * 9 + 2
    assert shapes["model.embed_tokens.weight"] == (32, 16)
    assert shapes["model.layers.1.self_attn.k_proj.weight"] == (8, 16)
    assert shapes["model.layers.1.self_attn.o_proj.weight"] == (16, 16)
    assert shapes["model.layers.0.mlp.down_proj.weight"] == (16, 24)
    assert shapes["lm_head.weight"] == (32, 16)


def test_shapes_with_biases_and_an_own_head_size() -> None:
    shapes = tensor_shapes(config_from_dict(config_dict(head_dim=8, attention_bias=True, mlp_bias=True)))
    assert shapes["model.layers.0.self_attn.q_proj.bias"] == (32,)
    assert shapes["model.layers.0.self_attn.v_proj.bias"] == (16,)
    assert shapes["model.layers.0.self_attn.o_proj.weight"] == (16, 32)
    assert shapes["model.layers.0.self_attn.o_proj.bias"] == (16,)
    assert shapes["model.layers.0.mlp.gate_proj.bias"] == (24,)


def test_a_whole_checkpoint_is_taken_as_it_is() -> None:
    tensors = random_tensors()
    found = weights(tensors)
    assert set(found) == set(tensors)
    assert found.notes == ()
    assert found["model.norm.weight"] is tensors["model.norm.weight"]
    assert found.formats == ("bf16",)
    assert found.lm_head is tensors["lm_head.weight"]


def test_biases_are_accepted_with_their_tensors() -> None:
    entries = config_dict(attention_bias=True, mlp_bias=True)
    found = Weights(config_from_dict(entries), random_tensors(entries))
    assert found["model.layers.1.mlp.up_proj.bias"].shape == (24,)


def test_names_without_the_prefix_are_the_same_checkpoint() -> None:
    tensors = random_tensors()
    bare = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    assert "layers.0.input_layernorm.weight" in bare
    assert weights(bare).digest == weights(tensors).digest


def test_names_with_and_without_the_prefix_together_are_refused() -> None:
    tensors = random_tensors()
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight.*twice"):
        weights(tensors | {"norm.weight": tensors["model.norm.weight"]})


def test_mixed_formats_in_one_checkpoint_are_kept() -> None:
    tensors = random_tensors()
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.float32)
    found = weights(tensors)
    assert found.formats == ("bf16", "f32")
    assert found["model.norm.weight"].dtype == np.float32


def test_tied_embeddings_need_no_lm_head() -> None:
    tensors = random_tensors(config_dict(tie_word_embeddings=True))
    found = weights(tensors, tie_word_embeddings=True)
    assert "lm_head.weight" not in found
    assert found.lm_head is tensors["model.embed_tokens.weight"]


def test_tied_embeddings_with_an_equal_lm_head_are_noted() -> None:
    tensors = random_tensors(config_dict(tie_word_embeddings=True))
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    found = weights(tensors, tie_word_embeddings=True)
    assert "lm_head.weight is ignored" in found.notes[0]


def test_tied_embeddings_with_another_lm_head_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"tie_word_embeddings is true, but lm_head\.weight"):
        weights(random_tensors(), tie_word_embeddings=True)


def test_untied_embeddings_without_lm_head_are_refused_with_a_hint() -> None:
    tensors = random_tensors()
    del tensors["lm_head.weight"]
    with pytest.raises(CheckpointError, match=r"'lm_head\.weight' not found.*tie_word_embeddings is false"):
        weights(tensors)


def test_a_missing_tensor_is_named() -> None:
    tensors = random_tensors()
    del tensors["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight' not found among 20"):
        weights(tensors)


def test_a_missing_layer_counts_its_tensors() -> None:
    with pytest.raises(CheckpointError, match=r"and 6 more not found.*3 layers"):
        weights(random_tensors(), num_hidden_layers=3)


def test_a_misshapen_tensor_is_refused_with_both_shapes() -> None:
    tensors = random_tensors()
    name = "model.layers.0.self_attn.k_proj.weight"
    tensors[name] = np.zeros((16, 16), np.float32)
    with pytest.raises(CheckpointError, match=r"k_proj\.weight has shape \(16, 16\), expected \(8, 16\)"):
        weights(tensors)


def test_vocab_size_32_with_40_rows_names_both_numbers() -> None:
    tensors = random_tensors(config_dict(vocab_size=40))
    with pytest.raises(CheckpointError, match=r"vocab_size is 32 .* has 40 rows"):
        weights(tensors)


def test_metas_names_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"tok_embeddings\.weight.*Meta"):
        weights({"tok_embeddings.weight": np.zeros((32, 16), np.float32)})


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.qweight",
        "model.layers.0.self_attn.q_proj.weight_scale",
        "model.layers.0.self_attn.q_proj.weight_scale_inv",
        "model.layers.0.mlp.up_proj.input_scale",
        "model.layers.0.mlp.up_proj.scales",
        "model.layers.0.mlp.up_proj.weight.absmax",
    ],
)
def test_quantised_weights_are_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"{name}.*quantised"):
        weights(random_tensors() | {name: np.zeros(1, np.float32)})


def test_integer_weights_are_refused() -> None:
    tensors = random_tensors()
    tensors["model.norm.weight"] = np.zeros(16, np.int8)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is stored as int8"):
        weights(tensors)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_rotary_buffers_are_ignored_and_compared(dtype: Any) -> None:
    inv_freq = np.array([1.0, 0.01], np.float32).astype(dtype)
    found = weights(random_tensors() | {"model.layers.0.self_attn.rotary_emb.inv_freq": inv_freq})
    assert "inv_freq is ignored: it agrees" in found.notes[0]
    assert found.digest == weights(random_tensors()).digest


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
def test_stored_frequencies_are_compared_with_the_scaled_ones(kind: str) -> None:
    scaling = {"rope_type": kind, "factor": 4.0}
    if kind == "llama3":
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    entries = config_dict(rope_scaling=scaling)
    buffer = inverse_frequencies(config_from_dict(entries), f32).astype(np.float32)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    told = [
        Weights(config_from_dict(entries), random_tensors(entries) | {name: b}).notes[-1] for b in (buffer, buffer * 2)
    ]
    assert "inv_freq is ignored: it agrees" in told[0]
    assert "inv_freq is ignored: it differs" in told[1]


def test_a_rotary_buffer_that_differs_is_noted_with_both_values() -> None:
    inv_freq = np.array([1.0, 0.02], np.float32)
    found = weights(random_tensors() | {"model.layers.0.self_attn.rotary_emb.inv_freq": inv_freq})
    assert "differs" in found.notes[0]
    assert "0.02 against 0.01" in found.notes[0]


def test_a_rotary_buffer_of_another_size_is_noted() -> None:
    found = weights(random_tensors() | {"rotary_emb.inv_freq": np.ones(3, np.float32)})
    assert "shape (3,)" in found.notes[0]


def test_extra_tensors_are_noted() -> None:
    found = weights(random_tensors() | {"model.layers.7.input_layernorm.weight": np.zeros(16, np.float32)})
    assert found.notes == ("ignored, not part of this Llama: model.layers.7.input_layernorm.weight",)


@pytest.mark.parametrize(("part", "key"), [("self_attn.q_proj", "attention_bias"), ("mlp.up_proj", "mlp_bias")])
def test_a_bias_that_the_config_denies_is_refused(part: str, key: str) -> None:
    with pytest.raises(CheckpointError, match=f"{part}.*{key} false"):
        weights(random_tensors() | {f"model.layers.0.{part}.bias": np.zeros(16, np.float32)})


def test_the_digest_moves_with_each_of_name_format_shape_and_bytes() -> None:
    tensors = random_tensors()
    digest = weights(tensors).digest
    assert len(digest) == 64
    reordered = dict(reversed(tensors.items()))
    assert weights(reordered).digest == digest
    wider = tensors | {"model.norm.weight": tensors["model.norm.weight"].astype(np.float32)}
    changed = tensors | {"model.norm.weight": tensors["model.norm.weight"] * ml_dtypes.bfloat16(2)}
    swapped = tensors | {
        "model.layers.0.mlp.up_proj.weight": tensors["model.layers.0.mlp.gate_proj.weight"],
        "model.layers.0.mlp.gate_proj.weight": tensors["model.layers.0.mlp.up_proj.weight"],
    }
    digests = {weights(t).digest for t in (tensors, wider, changed, swapped)}
    assert len(digests) == 4


def test_the_digest_of_a_strided_array_is_that_of_its_values() -> None:
    tensors = random_tensors()
    name = "model.layers.0.mlp.up_proj.weight"
    strided = np.asfortranarray(tensors[name])
    assert weights(tensors | {name: strided}).digest == weights(tensors).digest


def test_weights_take_no_assignment() -> None:
    found = weights(random_tensors())
    with pytest.raises(TypeError):
        found["model.norm.weight"] = np.zeros(16)  # type: ignore[index]
