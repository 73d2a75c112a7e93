"""What is known of a model before it is run: its config as understood, the site of each tensor, its rotary frequencies.

Start at `understood`. Plain data, for `analysis.inspect`, which counts the values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from softfloat_llm.io.checkpoint import Model
from softfloat_llm.llama.config import Config
from softfloat_llm.llama.rope import attention_factor, inverse_frequencies
from softfloat_llm.llama.weights import EMBEDDING, LM_HEAD
from softfloat_llm.numerics.formats import f32
from softfloat_llm.sites import SITES

_LAYER = re.compile(r"model\.layers\.\d+\.(?:self_attn\.|mlp\.)?(\w+)\.(?:weight|bias)")
_NORMS = {
    "input_layernorm": "norm.input",
    "post_attention_layernorm": "norm.post_attention",
    "q_norm": "norm.q",
    "k_norm": "norm.k",
}
_WHOLE = {EMBEDDING: "embed", LM_HEAD: "lm_head", "model.norm.weight": "norm.final"}


@dataclass(frozen=True)
class Rope:
    """The rotary part: theta, the scaling's fields, the frequencies in f32, and yarn's factor of cosines and sines."""

    theta: float
    scaling: Mapping[str, Any] | None
    frequencies: tuple[float, ...]
    attention_factor: float
    position_limit: int
    layers_without: tuple[int, ...]


@dataclass(frozen=True)
class Understood:
    """A model's config as it was understood, the site that takes each tensor, and what was assumed or ignored."""

    config: Mapping[str, Any]
    sites: Mapping[str, str]
    rope: Rope
    is_tied: bool
    has_tokenizer: bool
    notes: tuple[str, ...]


def understood(model: Model) -> Understood:
    """All that is known of an opened model but for its values."""
    config = model.config
    fields = {key: value for key, value in asdict(config).items() if key != "notes"}
    sites = {name: site_of(name) for name in model.weights}
    return Understood(
        fields, sites, _rope(config), config.tie_word_embeddings, model.tokenizer is not None, model.notes
    )


def site_of(name: str) -> str:
    """The site that takes a tensor of this checkpoint name.

    >>> site_of("model.layers.3.self_attn.q_proj.bias")
    'attn.q_proj'
    """
    if name in _WHOLE:
        return _WHOLE[name]
    match = _LAYER.fullmatch(name)
    assert match is not None, name
    part = match[1]
    return _NORMS.get(part) or next(site for site in SITES if site.endswith(f".{part}"))


def _rope(config: Config) -> Rope:
    scaling = config.rope_scaling
    fields = None if scaling is None else {key: v for key, v in asdict(scaling).items() if v is not None}
    frequencies = tuple(float(x) for x in inverse_frequencies(config, f32))
    limit = (
        config.position_limit if config.sliding_window is None else min(config.position_limit, config.sliding_window)
    )
    factor = attention_factor(scaling)
    return Rope(config.rope_theta, fields, frequencies, factor, limit, config.layers_without_rope)
