"""Llama's relatives: models of the same parts, and what each has beside or instead of them.

Start at `FAMILIES`. Names and defaults are those of transformers 5.24.0, models/NAME/configuration_NAME.py; what a part
computes is in modeling_NAME.py beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from softfloat_llm.errors import ConfigError
from softfloat_llm.llama.config_keys import Keys

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Family:
    """One model type: the class that transformers has for it, its own keys, and the defaults that are not Llama's."""

    model_type: str
    name: str
    own_keys: tuple[str, ...] = ()
    """Keys that other families have to leave at their neutral value, or do not have."""
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    window: str = "none"
    """`always`: sliding_window holds unless it is null; `asked`: where use_sliding_window is true; `none`: refused."""
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def as_said(self) -> str:
        """For a note: where a default comes from."""
        return f", as {self.name}Config does"

    @property
    def architectures(self) -> tuple[str, ...]:
        return f"{self.name}ForCausalLM", f"{self.name}Model"

    def default(self, key: str) -> Any:
        return self.defaults.get(key, _DEFAULTS.get(key))


_DEFAULTS: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
}  # LlamaConfig's, and the window of those that have one

_BIASES = ("attention_bias", "mlp_bias")
_MULTIPLIERS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
_QWEN = {"max_position_embeddings": 32768, "num_key_value_heads": 32}

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        Family("llama", "Llama", _BIASES),
        Family(
            "mistral", "Mistral", window="always",
            defaults={"max_position_embeddings": 131072, "num_key_value_heads": 8},
        ),
        Family("qwen2", "Qwen2", has_qkv_bias=True, window="asked", defaults=_QWEN),
        Family(
            "qwen3", "Qwen3", ("attention_bias",), has_qk_norm=True, window="asked",
            defaults=_QWEN | {"head_dim": 128},
        ),
        Family(
            "smollm3", "SmolLM3", (*_BIASES, "no_rope_layers", "no_rope_layer_interval"), window="asked",
            defaults={
                "max_position_embeddings": 32768, "num_key_value_heads": 4, "tie_word_embeddings": True,
                "rope_theta": 2000000.0, "sliding_window": None,
            },
        ),
        Family("granite", "Granite", (*_BIASES, *_MULTIPLIERS)),
    )
}  # fmt: skip


def family_of(keys: Keys) -> Family:
    """The family that model_type names (llama where it is not given). Raises ConfigError for one that is not read."""
    word = keys.get("model_type")
    if word is None:
        keys.note("model_type is not given: llama is assumed")
        word = "llama"
    if not isinstance(word, str) or word not in FAMILIES:
        keys.refuse("model_type", f"one of {', '.join(map(repr, FAMILIES))}: no other kind of model is read")
    family = FAMILIES[word]
    names = keys.get("architectures") or []
    known = [name.lower() for name in family.architectures]
    if not isinstance(names, list) or not all(isinstance(n, str) and n.lower() in known for n in names):
        keys.refuse("architectures", f"{family.architectures[0]}, of model_type {word!r}")
    return family


def window_of(keys: Keys, family: Family, layers: int) -> int | None:
    """How many positions, its own among them, a position sees; None where it sees all earlier ones.

    The same for all layers: a pass longer than this is refused, whichever layers have the window.
    """
    types = _layer_types(keys, family, layers)
    if family.window == "none":
        _check_no_window(keys)
        return None
    if family.window == "asked" and not keys.flag("use_sliding_window", False):
        if keys.get("sliding_window") is not None:
            keys.note(f"sliding_window {keys.get('sliding_window')!r} is not in use: use_sliding_window is false")
        return None
    if "sliding_window" in keys.entries and keys.get("sliding_window") is None:
        return None
    if family.default("sliding_window") is None and keys.get("sliding_window") is None:
        return None
    window = keys.integer("sliding_window", family.default("sliding_window"), family.as_said)
    if types is not None and SLIDING not in types:
        keys.note(f"sliding_window {window} is not in use: each layer of layer_types has {FULL}")
        return None
    if types is None and family.name.startswith("Qwen") and _first_sliding(keys) >= layers:
        keys.note(f"sliding_window {window} is not in use: max_window_layers is {_first_sliding(keys)} of {layers}")
        return None
    return window


def _first_sliding(keys: Keys) -> int:
    """max_window_layers: the first layer of a Qwen that has the window; 28, as Qwen2Config has it."""
    value = keys.get("max_window_layers")
    if value is None:
        keys.note("max_window_layers is not given: 28 is used, as Qwen2Config does")
        return 28
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        keys.refuse("max_window_layers", "a whole number of 0 or more")
    return int(value)


def _check_no_window(keys: Keys) -> None:
    window = keys.get("sliding_window")
    if window is None:
        return
    if keys.get("use_sliding_window") is not False:
        keys.refuse("sliding_window", "null (or use_sliding_window false): every position sees all earlier ones here")
    keys.note(f"sliding_window {window!r} is not in use: use_sliding_window is false")


def _layer_types(keys: Keys, family: Family, layers: int) -> list[str] | None:
    """What the file says of each layer, None where it says nothing."""
    types = keys.get("layer_types")
    if types is None or types == []:
        return None
    known = (FULL, SLIDING) if family.window == "asked" else (FULL,)
    if not isinstance(types, list) or not all(word in known for word in types):
        keys.refuse("layer_types", f"{' or '.join(known)} in each layer")
    if len(types) != layers:
        raise ConfigError(f"config: layer_types has {len(types)} entries, but num_hidden_layers is {layers}.")
    if SLIDING in types and keys.get("use_sliding_window") is not True:
        keys.refuse("layer_types", f"{FULL} in each layer where use_sliding_window is not true")
    return list(types)


def layers_without_rope(keys: Keys, family: Family, layers: int) -> tuple[int, ...]:
    """The layers whose queries and keys are not rotated: those with 0 in no_rope_layers, or each fourth."""
    if "no_rope_layers" not in family.own_keys:
        return ()
    given, interval = keys.get("no_rope_layers"), keys.get("no_rope_layer_interval")
    if given is not None:
        is_list = isinstance(given, list) and all(flag in (0, 1) for flag in given)
        if not is_list or len(given) < layers:
            keys.refuse("no_rope_layers", f"a list with 1 (rotated) or 0 for each of the {layers} layers")
        return tuple(layer for layer, is_rotated in enumerate(given[:layers]) if not is_rotated)
    if interval is None:
        keys.note(
            "no_rope_layers and no_rope_layer_interval are not given: each 4th layer has no rope, as SmolLM3Config"
        )
    step = 4 if interval is None else keys.integer("no_rope_layer_interval")
    return tuple(layer for layer in range(layers) if (layer + 1) % step == 0)


def multipliers_of(keys: Keys, family: Family) -> dict[str, float]:
    """Granite's four factors, 1 where they are not given; none for the others."""
    if _MULTIPLIERS[0] not in family.own_keys:
        return {}
    found = {key: keys.number(key, 1.0, family.as_said) for key in _MULTIPLIERS}
    for key in ("attention_multiplier", "logits_scaling"):
        if found[key] == 0:
            keys.refuse(key, "a number above 0")
    return found
