"""The shape and constants of a Llama or a relative of it, from its config.json: each key accepted, noted or refused.

Start at `config_from_dict`. Each value that the file does not give is a line in `Config.notes`; each key whose
value would change the result in a way that this package does not compute is refused, naming key and value.
Defaults are those of transformers (5.24.0), each said in a note; those of the relatives stand in `families`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from softfloat_llm.errors import ConfigError
from softfloat_llm.llama.config_keys import Keys
from softfloat_llm.llama.families import Family, family_of, layers_without_rope, multipliers_of, window_of
from softfloat_llm.llama.rope_scaling import RopeScaling, rope_of

__all__ = ["Config", "RopeScaling", "config_from_dict"]


@dataclass(frozen=True)
class Config:
    """A model's shape and constants, under the names of config.json. `notes` lists what was assumed."""

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
    model_type: str = "llama"
    qkv_bias: bool = False
    """q, k and v have a bias, o has none (Qwen2)."""
    qk_norm: bool = False
    """Queries and keys are normalised head by head before they are rotated (Qwen3)."""
    sliding_window: int | None = None
    """A pass over more positions is refused: no window is computed here."""
    layers_without_rope: tuple[int, ...] = ()
    embedding_multiplier: float = 1.0
    attention_multiplier: float | None = None
    """What scores are scaled by in place of head_dim^-1/2."""
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    """What logits are divided by."""

    @property
    def position_limit(self) -> int:
        """How many positions a pass may have: dynamic scaling goes on to `factor` times max_position_embeddings."""
        scaling = self.rope_scaling
        if scaling is not None and scaling.rope_type == "dynamic":
            return int(min(scaling.factor * self.max_position_embeddings, 2.0**31))  # int32: no position is larger
        return self.max_position_embeddings


# Keys that change a forward pass where their value is another than these; only a family that has them may say more.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
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
    "attention_multiplier": (None,),
    "no_rope_layers": (None,),
    "no_rope_layer_interval": (None, 0),
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

MOST_LAYERS = 10_000  # some 80 times the deepest Llama (3.1 405B: 126), so that a wrong number takes no memory

_DTYPES = (
    "float64", "float32", "float16", "bfloat16",
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
)  # fmt: skip


def config_from_dict(entries: Mapping[str, Any]) -> Config:
    """The Config that a parsed config.json describes.

    Raises ConfigError, naming the key and its value, for what the family has not or this package does not compute.

    >>> config_from_dict({"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    ...                   "num_attention_heads": 4, "rms_norm_eps": 1e-5}).head_dim
    4
    """
    if not isinstance(entries, Mapping):
        raise ConfigError(f"config: found {type(entries).__name__}, expected an object with keys such as hidden_size.")
    keys = Keys(entries)
    family = family_of(keys)
    _check_neutral(keys, family)
    theta, scaling = rope_of(keys, family)
    layers = keys.integer("num_hidden_layers")
    if layers > MOST_LAYERS:
        keys.refuse("num_hidden_layers", f"at most {MOST_LAYERS}")
    factors = multipliers_of(keys, family)
    config = Config(
        vocab_size=keys.integer("vocab_size"),
        hidden_size=keys.integer("hidden_size"),
        intermediate_size=keys.integer("intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=keys.integer("num_attention_heads"),
        num_key_value_heads=_key_value_heads(keys, family),
        head_dim=_head_dim(keys, family),
        rms_norm_eps=keys.number("rms_norm_eps", family.default("rms_norm_eps"), family.as_said),
        rope_theta=theta,
        max_position_embeddings=_length(keys, family),
        tie_word_embeddings=keys.flag("tie_word_embeddings", family.default("tie_word_embeddings"), family.as_said),
        attention_bias=_has_bias(keys, family, "attention_bias"),
        mlp_bias=_has_bias(keys, family, "mlp_bias"),
        rope_scaling=scaling,
        eos_token_ids=_eos(keys),
        dtype=_dtype(keys),
        model_type=family.model_type,
        qkv_bias=family.has_qkv_bias,
        qk_norm=family.has_qk_norm,
        sliding_window=window_of(keys, family, layers),
        layers_without_rope=layers_without_rope(keys, family, layers),
        embedding_multiplier=factors.get("embedding_multiplier", 1.0),
        attention_multiplier=factors.get("attention_multiplier"),
        residual_multiplier=factors.get("residual_multiplier", 1.0),
        logits_scaling=factors.get("logits_scaling", 1.0),
    )
    _note_unread(keys, family)
    return replace(config, notes=tuple(dict.fromkeys(keys.notes)))


def _length(keys: Keys, family: Family) -> int:
    return keys.integer("max_position_embeddings", family.default("max_position_embeddings"), family.as_said)


def _has_bias(keys: Keys, family: Family, key: str) -> bool:
    return key in family.own_keys and key in keys.entries and keys.flag(key, False)


def _check_neutral(keys: Keys, family: Family) -> None:
    """Refuse every key that would add a part which the family does not have."""
    _check_not_quantised(keys)
    for key, neutral in _NEUTRAL.items():
        if key not in family.own_keys and keys.get(key) not in neutral:
            words = " or ".join("null" if value is None else repr(value) for value in neutral)
            keys.refuse(key, f"{words}: this package does not compute it")
    act = keys.get("hidden_act")
    if act is None:
        keys.note(f"hidden_act is not given: silu is used{family.as_said}")
    elif act not in ("silu", "swish"):
        keys.refuse("hidden_act", "'silu'")
    _check_pretraining_tp(keys)


def _check_not_quantised(keys: Keys) -> None:
    """Refuse quantised weights, saying by what and to how many bits where the file says it."""
    for key in ("quantization_config", "compression_config"):
        value = keys.get(key)
        if value is None:
            continue
        said = value if isinstance(value, Mapping) else {}
        method = said.get("quant_method", "a method that it does not name")
        bits = f" to {said['bits']} bits" if isinstance(said.get("bits"), int) else ""
        raise ConfigError(
            f"config: {key} says that the weights are quantised by {method}{bits}, expected null: weights in f32,"
            " f16 or bf16. Dequantise the checkpoint first, or take the one that it was made of."
        )


def _check_pretraining_tp(keys: Keys) -> None:
    if keys.get("pretraining_tp") is not None and keys.integer("pretraining_tp") > 1:
        keys.note(
            f"pretraining_tp is {keys.get('pretraining_tp')}: it splits the sums of linear layers in some versions of"
            " transformers; here the recipe's order decides"
        )


def _key_value_heads(keys: Keys, family: Family) -> int:
    heads = keys.integer("num_attention_heads")
    fixed = None if "num_key_value_heads" in keys.entries else family.default("num_key_value_heads")
    why = " (one for each attention head)" if fixed is None else family.as_said
    groups = keys.integer("num_key_value_heads", fixed or heads, why)
    if heads % groups:
        raise ConfigError(
            f"config: num_attention_heads is {heads} and num_key_value_heads is {groups}: "
            "the first must be a multiple of the second."
        )
    return groups


def _head_dim(keys: Keys, family: Family) -> int:
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    if "head_dim" not in keys.entries and family.default("head_dim") is not None:
        size = keys.integer("head_dim", family.default("head_dim"), family.as_said)
    elif keys.get("head_dim") is None:
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


def _note_unread(keys: Keys, family: Family) -> None:
    for key in keys.entries:
        if key not in keys.read and key not in _WITHOUT_EFFECT:
            keys.note(f"{key} is not a key of {family.name}: ignored")
