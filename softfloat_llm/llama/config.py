"""The shape and constants of a Llama model, from its config.json: every key is accepted, noted or refused.

Start at `config_from_dict`. Each value that the file does not give is a line in `Config.notes`; each key whose
value would change the result in a way that this package does not compute is refused, naming key and value.
Defaults are those of transformers' LlamaConfig (5.24.0), each said in a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from softfloat_llm.errors import ConfigError
from softfloat_llm.llama.config_keys import Keys
from softfloat_llm.llama.rope_scaling import RopeScaling, rope_of

__all__ = ["Config", "RopeScaling", "config_from_dict"]


@dataclass(frozen=True)
class Config:
    """A Llama model's shape and constants, under the names of config.json. `notes` lists what was assumed."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_scaling: RopeScaling | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str | None = None
    """The format that the file says the weights are in; the tensors themselves decide."""
    notes: tuple[str, ...] = ()


# Keys that change a forward pass where their value is another than these; Llama has no such part.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    "compression_config": (None,),
    "partial_rotary_factor": (None, 1),
    "clip_qkv": (None,),
    "logit_scale": (None, 1),
    "logits_scaling": (None, 1),
    "embedding_multiplier": (None, 1),
    "residual_multiplier": (None, 1),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "use_qk_norm": (None, False),
    "qk_layernorm": (None, False),
    "no_rope_layers": (None,),
    "rope_interleaved": (None, False),
    "num_local_experts": (None, 0),
    "num_experts": (None, 0),
    "add_cross_attention": (None, False),
}

# Keys that no forward pass reads.
_WITHOUT_EFFECT = {
    "_name_or_path", "_commit_hash", "attention_dropout", "attn_implementation", "_attn_implementation",
    "auto_map", "bos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "decoder_start_token_id",
    "chunk_size_feed_forward", "finetuning_task", "id2label", "label2id", "num_labels", "initializer_range",
    "is_encoder_decoder", "is_llama_config", "output_attentions", "output_hidden_states", "problem_type",
    "return_dict", "torchscript", "transformers.js_config", "transformers_version", "use_cache",
    "use_bfloat16", "max_sequence_length", "max_window_layers", "use_sliding_window", "is_decoder",
}  # fmt: skip

_DTYPES = (
    "float64", "float32", "float16", "bfloat16",
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
)  # fmt: skip
_ARCHITECTURES = ("llamaforcausallm", "llamamodel")


def config_from_dict(entries: Mapping[str, Any]) -> Config:
    """The Config that a parsed config.json describes.

    Raises ConfigError, naming the key and its value, for what Llama does not have or this package does not compute.

    >>> config_from_dict({"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    ...                   "num_attention_heads": 4, "rms_norm_eps": 1e-5}).head_dim
    4
    """
    if not isinstance(entries, Mapping):
        raise ConfigError(f"config: found {type(entries).__name__}, expected an object with keys such as hidden_size.")
    keys = Keys(entries)
    _check_model_type(keys)
    _check_neutral(keys)
    theta, scaling = rope_of(keys)
    config = Config(
        vocab_size=keys.integer("vocab_size"),
        hidden_size=keys.integer("hidden_size"),
        intermediate_size=keys.integer("intermediate_size"),
        num_hidden_layers=keys.integer("num_hidden_layers"),
        num_attention_heads=keys.integer("num_attention_heads"),
        num_key_value_heads=_key_value_heads(keys),
        head_dim=_head_dim(keys),
        rms_norm_eps=keys.number("rms_norm_eps", 1e-6, ", as LlamaConfig does"),
        rope_theta=theta,
        max_position_embeddings=keys.integer("max_position_embeddings", 2048, ", as LlamaConfig does"),
        tie_word_embeddings=keys.flag("tie_word_embeddings", False, ", as LlamaConfig does"),
        attention_bias=keys.flag("attention_bias", False) if "attention_bias" in entries else False,
        mlp_bias=keys.flag("mlp_bias", False) if "mlp_bias" in entries else False,
        rope_scaling=scaling,
        eos_token_ids=_eos(keys),
        dtype=_dtype(keys),
    )
    _note_unread(keys)
    return replace(config, notes=tuple(dict.fromkeys(keys.notes)))


def _check_model_type(keys: Keys) -> None:
    if keys.get("model_type") is None:
        keys.note("model_type is not given: llama is assumed")
    elif keys.get("model_type") != "llama":
        keys.refuse("model_type", "'llama': only Llama checkpoints are read for now")
    names = keys.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(n, str) and n.lower() in _ARCHITECTURES for n in names):
        keys.refuse("architectures", "LlamaForCausalLM")


def _check_neutral(keys: Keys) -> None:
    """Refuse every key that would add a part which Llama does not have."""
    for key, neutral in _NEUTRAL.items():
        if keys.get(key) not in neutral:
            words = " or ".join("null" if value is None else repr(value) for value in neutral)
            keys.refuse(key, f"{words}: this package does not compute it")
    act = keys.get("hidden_act")
    if act is None:
        keys.note("hidden_act is not given: silu is used, as LlamaConfig does")
    elif act not in ("silu", "swish"):
        keys.refuse("hidden_act", "'silu'")
    layers = keys.get("layer_types") or []
    if not isinstance(layers, list) or any(layer != "full_attention" for layer in layers):
        keys.refuse("layer_types", "full_attention in each layer")
    _check_sliding_window(keys)
    _check_pretraining_tp(keys)


def _check_sliding_window(keys: Keys) -> None:
    window = keys.get("sliding_window")
    if window is None:
        return
    if keys.get("use_sliding_window") is not False:
        keys.refuse("sliding_window", "null (or use_sliding_window false): every position sees all earlier ones here")
    keys.note(f"sliding_window {window!r} is not in use: use_sliding_window is false")


def _check_pretraining_tp(keys: Keys) -> None:
    if keys.get("pretraining_tp") is not None and keys.integer("pretraining_tp") > 1:
        keys.note(
            f"pretraining_tp is {keys.get('pretraining_tp')}: it splits the sums of linear layers in some versions of"
            " transformers; here the recipe's order decides"
        )


def _key_value_heads(keys: Keys) -> int:
    heads = keys.integer("num_attention_heads")
    groups = keys.integer("num_key_value_heads", heads, " (one for each attention head)")
    if heads % groups:
        raise ConfigError(
            f"config: num_attention_heads is {heads} and num_key_value_heads is {groups}: "
            "the first must be a multiple of the second."
        )
    return groups


def _head_dim(keys: Keys) -> int:
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    if keys.get("head_dim") is None:
        if hidden % heads:
            raise ConfigError(
                f"config: hidden_size is {hidden} and num_attention_heads is {heads}: "
                "the first must be a multiple of the second where head_dim is not given."
            )
        keys.note(f"head_dim is not given: {hidden // heads} is used (hidden_size {hidden} / {heads} heads)")
        size = hidden // heads
    else:
        size = keys.integer("head_dim")
    if size % 2:
        raise ConfigError(f"config: head_dim is {size}, expected an even number: rotary embedding turns pairs.")
    return size


def _eos(keys: Keys) -> tuple[int, ...]:
    value = keys.get("eos_token_id")
    if value is None:
        keys.note("eos_token_id is not given: no token ends a text")
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        keys.refuse("eos_token_id", "a token id, a list of them, or null")
    return tuple(ids)


def _dtype(keys: Keys) -> str | None:
    found = {key: keys.get(key) for key in ("dtype", "torch_dtype") if keys.get(key) is not None}
    for key, name in found.items():
        if not isinstance(name, str) or name.removeprefix("torch.") not in _DTYPES:
            keys.refuse(key, f"one of {', '.join(_DTYPES)}")
    names = {name.removeprefix("torch.") for name in found.values()}
    if len(names) > 1:
        raise ConfigError(f"config: dtype is {found['dtype']!r} and torch_dtype is {found['torch_dtype']!r}: which?")
    return names.pop() if names else None


def _note_unread(keys: Keys) -> None:
    for key in keys.entries:
        if key not in keys.read and key not in _WITHOUT_EFFECT:
            keys.note(f"{key} is not a key of Llama: ignored")
