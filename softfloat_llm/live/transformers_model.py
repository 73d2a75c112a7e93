"""A transformers model made of our own Config and Weights: no network, no file, the same values.

Start reading at `build`. What `from_pretrained` would do to a checkpoint is done here: each weight rounded once to the
model's format, rotary frequencies kept in float32.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from softfloat_llm.errors import LiveError
from softfloat_llm.io.checkpoint import Model
from softfloat_llm.llama.config import Config
from softfloat_llm.llama.families import FAMILIES
from softfloat_llm.numerics.formats import Array, Format, format_of
from softfloat_llm.numerics.rounding import round_block

DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def torch_dtype(torch: Any, fmt: Format) -> Any:
    """PyTorch's dtype of a format. Raises LiveError for a format in which it has no such model."""
    if fmt.name not in DTYPES:
        raise LiveError(f"A live run in {fmt}: transformers runs a model in one of {', '.join(DTYPES)}.")
    return getattr(torch, DTYPES[fmt.name])


def to_torch(torch: Any, array: Array, fmt: Format) -> Any:
    """The tensor of the values of an array, each rounded once to the format (not at all where it lies in it)."""
    held = array if array.dtype == fmt.dtype else round_block(array, fmt)
    copy = np.array(held, order="C")  # a memory map cannot be written to, of which PyTorch warns
    return torch.from_numpy(copy.view(np.int16)).view(torch.bfloat16) if fmt.name == "bf16" else torch.from_numpy(copy)


def from_torch(tensor: Any) -> Array:
    """The array of a tensor, in NumPy's dtype of its format. bf16 is read by its codes."""
    import torch

    plain = tensor.detach().contiguous()
    if plain.dtype == torch.bfloat16:
        return np.array(plain.view(torch.int16).numpy()).view(format_of("bf16").dtype)
    return np.array(plain.numpy())


def build(model: Model, fmt: Format, attention: str) -> Any:
    """transformers' model of that family with the weights in a format, attention `eager` or `sdpa`, ready to be called.

    Raises LiveError where transformers refuses the config.
    """
    import torch
    import transformers

    dtype = torch_dtype(torch, fmt)
    try:
        config = transformers_config(model.config, attention)
        with torch.device("meta"):
            empty = getattr(transformers, f"{FAMILIES[model.config.model_type].name}ForCausalLM")(config)
    except (ValueError, TypeError, KeyError) as error:
        raise LiveError(f"transformers refuses the config of {model.name}: {error}") from None
    empty.load_state_dict(_state(model, fmt), strict=True, assign=True)
    empty.model.rotary_emb = type(empty.model.rotary_emb)(config=config)  # its frequencies, in float32 and off meta
    empty.tie_weights()
    assert all(p.dtype == dtype and not p.is_meta for p in empty.parameters())
    return empty.eval()


def _state(model: Model, fmt: Format) -> dict[str, Any]:
    """Every tensor under its checkpoint name; the output's, where it is tied to the embedding, is the same tensor."""
    import torch

    state = {name: to_torch(torch, array, fmt) for name, array in model.weights.items()}
    if model.config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    return state


def transformers_config(config: Config, attention: str) -> Any:
    """transformers' LlamaConfig (or that of the relative) with the values of ours."""
    import transformers

    names = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings",
        "attention_bias", "mlp_bias",
    )  # fmt: skip
    same = {name: getattr(config, name) for name in names}
    ends = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None, "use_cache": True}
    family = getattr(transformers, f"{FAMILIES[config.model_type].name}Config")
    made = family(**same, **_rope(config), **_of_family(config), **ends)
    made._attn_implementation = attention
    return made


def _of_family(config: Config) -> dict[str, Any]:
    """What only some families have. A window is left out: no pass here is long enough to meet it."""
    match config.model_type:
        case "mistral":
            return {"sliding_window": None}
        case "smollm3":
            layers = range(config.num_hidden_layers)
            return {"no_rope_layers": [int(layer not in config.layers_without_rope) for layer in layers]}
        case "granite":
            names = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
            return {name: getattr(config, name) for name in names}
    return {}


def _rope(config: Config) -> dict[str, Any]:
    """theta and scaling, under the names of the installed version (5: one dict; 4: two keys)."""
    from transformers import LlamaConfig

    scaling = config.rope_scaling
    fields = {key: value for key, value in asdict(scaling).items() if value is not None} if scaling else {}
    if hasattr(LlamaConfig(), "rope_parameters"):
        return {"rope_parameters": {"rope_type": "default", **fields, "rope_theta": config.rope_theta}}
    return {"rope_theta": config.rope_theta, "rope_scaling": fields or None}
