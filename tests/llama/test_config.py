"""What a config.json may say: accepted, noted, or refused by key and value."""

from __future__ import annotations

import math
from typing import Any

import pytest

from softfloat_llm.errors import ConfigError
from softfloat_llm.llama.config import Config, RopeScaling, config_from_dict
from tests.checkpoints import config_dict

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8,
    "low_freq_factor": 1,
    "high_freq_factor": 4,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "attention_factor": 1.1,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "truncate": False,
}


def read(**changes: Any) -> Config:
    return config_from_dict(config_dict(**changes))


def test_a_full_config_needs_no_notes() -> None:
    config = read()
    assert config.notes == ()
    assert (config.vocab_size, config.hidden_size, config.num_key_value_heads, config.head_dim) == (32, 16, 2, 4)
    assert config.rms_norm_eps == 1e-5
    assert config.eos_token_ids == (2,)
    assert config.rope_scaling is None


@pytest.mark.parametrize("value", [None, ..., {}, {"rope_type": "default"}, {"type": "default"}])
def test_no_rope_scaling_in_all_its_spellings(value: Any) -> None:
    config = read(rope_scaling=value)
    assert config.rope_scaling is None
    assert config.notes == ()


@pytest.mark.parametrize(
    ("entries", "scaling"),
    [
        ({"type": "linear", "factor": 2.0}, RopeScaling("linear", 2.0)),
        (
            {"type": "dynamic", "rope_type": "dynamic", "factor": 2.0},
            RopeScaling("dynamic", 2.0, original_max_position_embeddings=64),
        ),
        (LLAMA3, RopeScaling("llama3", 8.0, 16, low_freq_factor=1.0, high_freq_factor=4.0)),
        (
            YARN,
            RopeScaling(
                "yarn", 4.0, 16, attention_factor=1.1, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
                truncate=False,
            ),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rope_scaling_is_read_whole_from_either_place(key: str, entries: dict[str, Any], scaling: RopeScaling) -> None:
    config = read(**{key: entries})
    assert config.rope_scaling == scaling
    assert config.notes == ()


def test_each_default_of_yarn_is_noted() -> None:
    config = read(rope_scaling={"type": "yarn", "factor": 4.0})
    assert config.rope_scaling == RopeScaling("yarn", 4.0, 64, beta_fast=32.0, beta_slow=1.0, truncate=True)
    for word in ("original_max_position_embeddings", "beta_fast", "beta_slow", "truncate", "attention_factor"):
        assert any(word in note for note in config.notes), word


def test_yarn_whose_factor_is_not_the_ratio_of_lengths_is_noted_with_both() -> None:
    notes = read(rope_scaling=YARN | {"factor": 2.0}).notes
    assert any("2.0" in note and "64/16 = 4" in note for note in notes)


def test_llama3_without_original_length_takes_the_maximum_with_a_note() -> None:
    entries = {key: value for key, value in LLAMA3.items() if key != "original_max_position_embeddings"}
    config = read(rope_scaling=entries)
    assert config.rope_scaling is not None
    assert config.rope_scaling.original_max_position_embeddings == 64
    assert any("original_max_position_embeddings" in note for note in config.notes)


def test_original_length_at_the_top_level_is_used() -> None:
    entries = {key: value for key, value in LLAMA3.items() if key != "original_max_position_embeddings"}
    config = read(rope_scaling=entries, original_max_position_embeddings=16)
    assert config.rope_scaling is not None
    assert config.rope_scaling.original_max_position_embeddings == 16
    assert config.notes == ()


def test_a_key_of_another_rope_type_is_ignored_with_a_note() -> None:
    config = read(rope_scaling={"type": "linear", "factor": 2.0, "beta_fast": 32})
    assert config.notes == ("rope_scaling.beta_fast is ignored: rope type 'linear' does not use it",)


def test_rope_theta_only_inside_rope_parameters() -> None:
    config = read(rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert config.rope_theta == 500000.0
    assert config.notes == ()


def test_rope_theta_missing_is_10000_with_a_note() -> None:
    config = read(rope_theta=...)
    assert config.rope_theta == 10000.0
    assert config.notes == ("rope_theta is not given: 10000.0 is used, as LlamaConfig does",)


def test_rope_parameters_without_a_type_are_noted() -> None:
    config = read(rope_theta=..., rope_parameters={"rope_theta": 5e5})
    assert config.rope_theta == 5e5
    assert config.notes == ("rope_parameters has no rope_type: the unscaled one is used",)


@pytest.mark.parametrize("value", [..., None])
def test_key_value_heads_missing_or_null_are_the_attention_heads(value: Any) -> None:
    config = read(num_key_value_heads=value)
    assert config.num_key_value_heads == 4
    assert any("num_key_value_heads is not given: 4" in note for note in config.notes)


@pytest.mark.parametrize("value", [..., None])
def test_head_dim_missing_or_null_is_hidden_over_heads(value: Any) -> None:
    config = read(head_dim=value)
    assert config.head_dim == 4
    assert any("head_dim is not given: 4" in note for note in config.notes)


def test_head_dim_explicit_may_be_anything_even() -> None:
    assert read(head_dim=8).head_dim == 8
    assert read(hidden_size=18, head_dim=8).head_dim == 8  # hidden is no multiple of the 4 heads


def test_biases_may_be_true() -> None:
    config = read(attention_bias=True, mlp_bias=True)
    assert config.attention_bias
    assert config.mlp_bias


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("value", ["bfloat16", "torch.bfloat16"])
def test_dtype_or_torch_dtype(key: str, value: str) -> None:
    assert read(**{key: value}).dtype == "bfloat16"


@pytest.mark.parametrize(("value", "ids"), [(2, (2,)), ([1, 2], (1, 2)), (None, ()), (0, (0,))])
def test_eos_token_id_int_list_or_null(value: Any, ids: tuple[int, ...]) -> None:
    assert read(eos_token_id=value).eos_token_ids == ids


def test_pretraining_tp_is_noted() -> None:
    assert read(pretraining_tp=1).notes == ()
    assert "pretraining_tp is 2" in read(pretraining_tp=2).notes[0]


def test_a_sliding_window_that_is_switched_off_is_noted() -> None:
    assert "sliding_window 4096" in read(sliding_window=4096, use_sliding_window=False).notes[0]
    assert read(sliding_window=None).notes == ()


def test_unknown_keys_are_noted_and_harmless_ones_are_not() -> None:
    config = read(use_cache=True, transformers_version="4.40.0", bos_token_id=1, frobnicate=3)
    assert config.notes == ("frobnicate is not a key of Llama: ignored",)


def test_every_default_is_noted_in_the_smallest_config() -> None:
    entries = {
        "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4,
    }  # fmt: skip
    config = config_from_dict(entries)
    assert (config.rms_norm_eps, config.max_position_embeddings, config.tie_word_embeddings) == (1e-6, 2048, False)
    defaulted = {note.split()[0] for note in config.notes}
    assert defaulted == {
        "model_type", "hidden_act", "rope_theta", "num_key_value_heads", "head_dim", "rms_norm_eps",
        "max_position_embeddings", "tie_word_embeddings", "eos_token_id",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"num_attention_heads": 7, "num_key_value_heads": 2},
            ("num_attention_heads", "7", "num_key_value_heads", "2"),
        ),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, ("type", "longrope", "llama3")),
        ({"rope_scaling": {"type": "su", "factor": 2.0}}, ("type", "'su'")),
        ({"rope_scaling": {"rope_type": "mrope", "factor": 2.0}}, ("rope_type", "'mrope'")),
        ({"rope_scaling": {"type": "spiral", "factor": 2.0}}, ("type", "'spiral'")),
        ({"rope_scaling": {"type": "default", "mrope_section": [1, 1]}}, ("mrope_section",)),
        ({"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 2.0}}, ("'linear'", "'dynamic'")),
        ({"rope_scaling": {"factor": 2.0}}, ("factor", "rope_type is missing")),
        ({"rope_scaling": {"type": "linear"}}, ("linear", "needs factor")),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, ("factor", "'2'", "not a string")),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, ("factor", "0.5", "1 or more")),
        ({"rope_scaling": "linear"}, ("rope_scaling", "'linear'")),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4}}, ("low_freq_factor is 4", "high_freq_factor is 4")),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": None}}, ("llama3", "high_freq_factor")),
        ({"rope_scaling": LLAMA3, "original_max_position_embeddings": 32}, ("32", "16")),
        ({"rope_scaling": LLAMA3, "rope_parameters": {"rope_type": "default"}}, ("rope_scaling", "rope_parameters")),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, ("10000.0", "500000.0", "rope_parameters")),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, ("partial_rotary_factor", "0.5")),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, ("full_attention",)),
        ({"rope_theta": [10000.0]}, ("rope_theta", "[10000.0]")),
        ({"rope_theta": 0}, ("rope_theta", "0")),
        ({"partial_rotary_factor": 0.5}, ("partial_rotary_factor", "0.5")),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, ("quantization_config", "gptq to 4 bits")),
        ({"quantization_config": {"quant_method": "fp8", "bits": "?"}}, ("quantised by fp8, expected null",)),
        ({"quantization_config": "yes"}, ("quantization_config", "does not name")),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, ("compression_config", "compressed-tensors")),
        ({"sliding_window": 4096}, ("sliding_window", "4096")),
        ({"sliding_window": 4096, "use_sliding_window": True}, ("sliding_window", "4096")),
        ({"layer_types": ["sliding_attention", "full_attention"]}, ("layer_types", "sliding_attention")),
        ({"hidden_act": "gelu"}, ("hidden_act", "'gelu'", "'silu'")),
        ({"rms_norm_eps": "1e-5"}, ("rms_norm_eps", "'1e-5'", "not a string")),
        ({"rms_norm_eps": math.nan}, ("rms_norm_eps", "nan")),
        ({"rms_norm_eps": -1e-5}, ("rms_norm_eps", "-1e-05")),
        ({"rms_norm_eps": 10**400}, ("rms_norm_eps",)),
        ({"model_type": "gemma2"}, ("model_type", "'gemma2'", "'llama'", "'qwen3'")),
        ({"model_type": ["llama"]}, ("model_type", "['llama']", "'llama'")),
        ({"model_type": "mistral"}, ("architectures", "LlamaForCausalLM", "MistralForCausalLM")),
        ({"architectures": ["MistralForCausalLM"]}, ("architectures", "MistralForCausalLM")),
        ({"dtype": "bfloat16", "torch_dtype": "float16"}, ("bfloat16", "float16", "which?")),
        ({"torch_dtype": "int8"}, ("torch_dtype", "'int8'")),
        ({"eos_token_id": "2"}, ("eos_token_id", "'2'")),
        ({"eos_token_id": [2, -1]}, ("eos_token_id", "-1")),
        ({"head_dim": 3}, ("head_dim", "3", "even")),
        ({"head_dim": None, "hidden_size": 18}, ("hidden_size is 18", "num_attention_heads is 4")),
        ({"hidden_size": ...}, ("hidden_size", "missing")),
        ({"hidden_size": None}, ("hidden_size", "null")),
        ({"hidden_size": 16.0}, ("hidden_size", "16.0")),
        ({"hidden_size": True}, ("hidden_size", "True")),
        ({"num_hidden_layers": 0}, ("num_hidden_layers", "0")),
        ({"attention_bias": "false"}, ("attention_bias", "'false'")),
        ({"attn_logit_softcapping": 50.0}, ("attn_logit_softcapping", "50.0")),
        ({"num_local_experts": 8}, ("num_local_experts", "8")),
    ],
)
def test_refused_naming_key_and_value(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**changes)
    for word in words:
        assert word in str(caught.value)


def test_a_misspelt_key_is_guessed() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'hiden_size'"):
        read(hidden_size=..., hiden_size=16)


def test_a_list_is_not_a_config() -> None:
    with pytest.raises(ConfigError, match="list"):
        config_from_dict([])  # type: ignore[arg-type]
