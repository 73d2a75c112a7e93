"""Llama's relatives: what their configs say, which parts a pass of each has, and where one is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softfloat_llm.errors import CheckpointError, ConfigError, TokenError
from softfloat_llm.io.checkpoint import Model
from softfloat_llm.llama.config import Config, config_from_dict
from softfloat_llm.llama.weights import Weights, tensor_shapes
from softfloat_llm.runs import simulate
from tests.checkpoints import random_tensors
from tests.relatives import GRANITE, RELATIVES


def config(name: str, **changes: Any) -> Config:
    entries = RELATIVES[name] | changes
    return config_from_dict({key: value for key, value in entries.items() if value is not ...})


def model(name: str, **changes: Any) -> Model:
    entries = RELATIVES[name] | changes
    return Model(name, Weights(config_from_dict(entries), random_tensors(entries)), None)


# --- configs ----------------------------------------------------------------------------------------------------------


def test_qwen2_has_biases_of_q_k_and_v_only() -> None:
    names = {name.rpartition("0.")[2] for name in tensor_shapes(config("qwen2")) if name.endswith("bias")}
    assert {name.split(".")[-2] for name in names} == {"q_proj", "k_proj", "v_proj"}


def test_qwen3_has_a_norm_of_one_head_for_queries_and_keys() -> None:
    shapes = tensor_shapes(config("qwen3"))
    assert shapes["model.layers.3.self_attn.q_norm.weight"] == shapes["model.layers.3.self_attn.k_norm.weight"] == (16,)
    assert "model.layers.0.self_attn.q_norm.weight" not in tensor_shapes(config("qwen2"))
    assert any("head_dim is not given: 128" in note for note in config("qwen3", head_dim=...).notes)


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({"no_rope_layers": [1, 1, 0, 1]}, (2,)),
        ({"no_rope_layers": None, "no_rope_layer_interval": 2}, (1, 3)),
        ({"no_rope_layers": None}, (3,)),
        ({"no_rope_layers": [0, 1, 1, 1, 0, 0]}, (0,)),
    ],
)
def test_layers_of_smollm3_without_rope(changes: dict[str, Any], layers: tuple[int, ...]) -> None:
    assert config("smollm3", **changes).layers_without_rope == layers


def test_granites_multipliers_are_read_and_each_that_is_missing_is_1_with_a_note() -> None:
    assert {key: getattr(config("granite"), key) for key in GRANITE} == GRANITE
    found = config("granite", **dict.fromkeys(GRANITE, ...))
    assert {getattr(found, key) for key in GRANITE} == {1.0}
    assert all(any(note.startswith(f"{key} is not given: 1.0") for note in found.notes) for key in GRANITE)


def test_the_defaults_of_each_family_are_its_own_and_noted() -> None:
    assert config("smollm3", tie_word_embeddings=..., rope_theta=...).rope_theta == 2000000.0
    assert config("smollm3", tie_word_embeddings=...).tie_word_embeddings
    assert config("mistral", num_key_value_heads=..., num_attention_heads=8).num_key_value_heads == 8
    assert config("mistral", num_key_value_heads=None).num_key_value_heads == 4
    assert any(
        "131072 is used, as MistralConfig does" in n for n in config("mistral", max_position_embeddings=...).notes
    )


@pytest.mark.parametrize(
    ("name", "changes", "window"),
    [
        ("mistral", {"sliding_window": 4096}, 4096),
        ("mistral", {"sliding_window": None}, None),
        ("mistral", {"sliding_window": ...}, 4096),
        ("qwen2", {"sliding_window": 8}, None),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2}, 8),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 4}, None),
        ("qwen3", {"sliding_window": 8, "use_sliding_window": True, "layer_types": ["full_attention"] * 4}, None),
        ("smollm3", {"sliding_window": 8, "use_sliding_window": True}, 8),
        ("smollm3", {"use_sliding_window": True}, None),
    ],
)
def test_the_window_that_is_in_use(name: str, changes: dict[str, Any], window: int | None) -> None:
    found = config(name, **changes)
    assert found.sliding_window == window
    is_given = changes.get("sliding_window") not in (None, ...)
    assert any("sliding_window" in note for note in found.notes) or window is not None or not is_given


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("qwen2", {"architectures": ["LlamaForCausalLM"]}, ("LlamaForCausalLM", "Qwen2ForCausalLM")),
        ("mistral", {"embedding_multiplier": 2.0}, ("embedding_multiplier", "2.0")),
        ("granite", {"no_rope_layers": [1, 1, 1, 1]}, ("no_rope_layers",)),
        ("granite", {"logits_scaling": 0}, ("logits_scaling", "0")),
        ("granite", {"attention_multiplier": "0.5"}, ("attention_multiplier", "'0.5'")),
        ("granite", {"sliding_window": 8}, ("sliding_window", "8")),
        ("smollm3", {"no_rope_layers": [1, 0]}, ("no_rope_layers", "[1, 0]", "4 layers")),
        ("smollm3", {"no_rope_layers": [1, 0, 2, 0]}, ("no_rope_layers", "[1, 0, 2, 0]")),
        ("qwen3", {"layer_types": ["full_attention"]}, ("layer_types", "1", "4")),
        ("qwen3", {"layer_types": ["sliding_attention"] * 4}, ("layer_types", "use_sliding_window")),
        ("mistral", {"layer_types": ["sliding_attention"] * 4}, ("layer_types", "sliding_attention")),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": -1}, ("max_window_layers", "-1")),
        ("qwen2", {"use_sliding_window": "yes"}, ("use_sliding_window", "'yes'")),
    ],
)
def test_refused_naming_key_and_value(name: str, changes: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        config(name, **changes)
    assert [word for word in words if word not in str(caught.value)] == []


def test_norms_of_heads_are_not_ignored_by_a_model_that_has_none() -> None:
    with pytest.raises(CheckpointError, match=r"k_norm\.weight', but a llama has no such norm.*model_type"):
        Weights(config("llama, yarn"), random_tensors(RELATIVES["qwen3"]))
    without = {
        n: t for n, t in random_tensors(RELATIVES["qwen3"]).items() if n != "model.layers.3.self_attn.q_norm.weight"
    }
    with pytest.raises(CheckpointError, match=r"q_norm\.weight' not found"):
        Weights(config("qwen3"), without)


def test_a_key_of_another_family_is_ignored_with_a_note() -> None:
    assert "attention_bias is not a key of Qwen2: ignored" in config("qwen2", attention_bias=True).notes


# --- passes -----------------------------------------------------------------------------------------------------------


def test_a_pass_longer_than_the_window_is_refused_when_it_is_asked_for() -> None:
    assert simulate(tokens=range(1, 9), model=model("mistral"), recipe="bf16").steps == 1
    for tokens, steps in ((9, 1), (8, 2), (2, 8)):
        with pytest.raises(TokenError, match="exceed sliding_window = 8"):
            simulate(tokens=range(1, 1 + tokens), model=model("mistral"), recipe="bf16", steps=steps)


def test_queries_and_keys_of_qwen3_are_normalised_head_by_head() -> None:
    run = simulate(tokens=[1, 2, 3], model=model("qwen3"), recipe="f32", taps=["layers.0.norm.?.*"])
    for head, groups in (("q", 4), ("k", 2)):
        taken, given = (run[f"layers.0.norm.{head}.{stage}"].astype(np.float64) for stage in ("in", "out"))
        assert taken.shape == given.shape == (3, groups, 16)
        assert run[f"layers.0.norm.{head}.acc"].shape == (3, groups)
        weight = model("qwen3").weights[f"model.layers.0.self_attn.{head}_norm.weight"].astype(np.float64)
        wanted = taken / np.sqrt((taken**2).mean(-1, keepdims=True) + 1e-5) * weight
        assert np.abs(given / wanted - 1).max() < 8 * 2.0**-24  # a sum of 16 squares, five further roundings


def test_a_layer_without_rope_has_no_rotation() -> None:
    run = simulate(tokens=[1, 2, 3], model=model("smollm3"), recipe="bf16", taps=["*"])
    assert [i for i in range(4) if f"layers.{i}.attn.rope.out" in run] == [0, 2]
    keys = run["layers.1.kv.k.out"]
    assert keys.tobytes() == run["layers.1.attn.k_proj.out"].reshape(keys.shape).tobytes()


def test_granites_multiplications_round_to_f32_first() -> None:
    run = simulate(tokens=[1, 2, 3], model=model("granite"), recipe="bf16", taps=["*"])
    rows = run["embed.in"].astype(np.float32) * np.float32(12)
    assert np.array_equal(run["embed.out"], rows.astype(run["embed.out"].dtype))
    scores = run["layers.0.attn.scores.out"].astype(np.float32) * np.float32(GRANITE["attention_multiplier"])
    assert np.array_equal(run["layers.0.attn.scale.out"], scores.astype(run["embed.out"].dtype))


@pytest.mark.parametrize("name", RELATIVES)
def test_logits_do_not_depend_on_later_tokens(name: str) -> None:
    whole = simulate(tokens=[1, 5, 9, 30, 2, 7], model=model(name), recipe="bf16")["logits"]
    first = simulate(tokens=[1, 5, 9], model=model(name), recipe="bf16")["logits"]
    assert whole[:3].tobytes() == first.tobytes()


def test_dynamic_scaling_allows_factor_times_the_length() -> None:
    scaled = model("llama, dynamic")
    assert simulate(tokens=[1] * 24, model=scaled, recipe="bf16").steps == 1
    with pytest.raises(TokenError, match=r"25 prompt tokens.*exceed max_position_embeddings = 24"):
        simulate(tokens=[1] * 25, model=scaled, recipe="bf16")


# --- PyTorch ----------------------------------------------------------------------------------------------------------

TOKENS = (1, 5, 9, 30, 2, 7, 63, 11)


@pytest.mark.torch
@pytest.mark.parametrize("name", RELATIVES)
def test_logits_in_f32_are_transformers_to_some_roundings(name: str) -> None:
    from softfloat_llm.live.transformers_run import run_transformers

    theirs = run_transformers(tokens=TOKENS, model=model(name), format="f32")["logits"].astype(np.float64)
    ours = simulate(tokens=TOKENS, model=model(name), recipe="f32")["logits"].astype(np.float64)
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()


@pytest.mark.torch
@pytest.mark.parametrize("mkldnn", [False, True])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", RELATIVES)
def test_logits_in_bf16_are_transformers_bit_for_bit(name: str, attention: str, mkldnn: bool) -> None:
    """Through PyTorch's own kernels (oneDNN off), and through those that it takes on this CPU."""
    from softfloat_llm.live.transformers_run import run_transformers
    from tests.live.kernels_here import recipe_or_skip

    theirs = run_transformers(
        tokens=TOKENS[:6], model=model(name), format="bf16", attention=attention, steps=3, mkldnn=mkldnn, taps=["*.out"]
    )
    recipe = recipe_or_skip(attention, "bf16", mkldnn=mkldnn)
    ours = simulate(tokens=TOKENS[:6], model=model(name), recipe=recipe, steps=3, teacher=theirs, taps=["*.out"])
    for tap in [*theirs.names, "logits"]:
        if "attn.mask" not in tap:
            np.testing.assert_array_equal(ours[tap], theirs[tap], err_msg=tap)


@pytest.mark.torch
@pytest.mark.parametrize("name", RELATIVES)
def test_our_copy_of_a_model_is_what_transformers_loads_from_its_folder(name: str, tmp_path: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from softfloat_llm.live.transformers_model import from_torch
    from softfloat_llm.live.transformers_run import run_transformers
    from tests.checkpoints import write_checkpoint

    folder = write_checkpoint(tmp_path / "model", RELATIVES[name])
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").eval()
    with torch.inference_mode():
        logits = from_torch(theirs(torch.tensor([TOKENS])).logits[0])
    ours = run_transformers(tokens=TOKENS, model=folder, format="bf16")
    np.testing.assert_array_equal(ours["logits"], logits)
