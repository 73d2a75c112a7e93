"""Small random Llama checkpoints, written where a test wants them: `from tests.checkpoints import write_checkpoint`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from softfloat_llm.io.safetensors import write_tensors
from softfloat_llm.llama.config import config_from_dict
from softfloat_llm.llama.weights import tensor_shapes

Array = npt.NDArray[Any]
BF16 = np.dtype(ml_dtypes.bfloat16)


def config_dict(**changes: Any) -> dict[str, Any]:
    """The config.json of a Llama of two layers, grouped heads, head size 4. A change to `...` removes the key."""
    entries: dict[str, Any] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    }
    entries |= changes
    return {key: value for key, value in entries.items() if value is not ...}


def random_tensors(
    entries: dict[str, Any] | None = None, dtype: npt.DTypeLike = BF16, seed: int = 0, scale: float = 0.25
) -> dict[str, Array]:
    """Every tensor that the config asks for: normal values of size `scale`, norms near 1; the same for a seed."""
    draw = np.random.default_rng(seed)
    tensors = {}
    for name, shape in tensor_shapes(config_from_dict(entries or config_dict())).items():
        values = draw.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        tensors[name] = (values + np.float32("norm" in name)).astype(dtype)
    return tensors


def write_checkpoint(
    folder: Path,
    entries: dict[str, Any] | None = None,
    tensors: dict[str, Array] | None = None,
    *,
    shards: int = 1,
    tokenizer: str | None = None,
) -> Path:
    """Write a Hugging Face folder: config.json, the tensors in `shards` files, and tokenizer.json where given."""
    entries = config_dict() if entries is None else entries
    tensors = random_tensors(entries) if tensors is None else tensors
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(entries))
    if tokenizer is not None:
        (folder / "tokenizer.json").write_text(tokenizer)
    if shards == 1:
        write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    else:
        _write_shards(folder, tensors, shards)
    return folder


def _write_shards(folder: Path, tensors: dict[str, Array], shards: int) -> None:
    names = sorted(tensors)
    placed = {
        name: f"model-{i * shards // len(names) + 1:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(names)
    }
    for shard in set(placed.values()):
        write_tensors(folder / shard, {name: tensors[name] for name in names if placed[name] == shard})
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def smollm_vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Tokens, their kinds and merges of a small byte-level vocabulary of 260: two specials, 256 bytes, two merges."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = ["<|endoftext|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "Ġa", "12"]
    return tokens, [3, 3, *[1] * 258], ["Ġ a", "1 2"]


def write_gguf(
    path: Path, entries: dict[str, Any], tensors: dict[str, Array], kinds: dict[str, str] | None = None
) -> Path:
    """Write a Llama .gguf file as llama.cpp's converter would: q and k rows for interleaved pairs, a smollm vocabulary.

    `kinds` gives the type that a tensor is stored in, by its GGUF name (F32 where it is not named).
    """
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(entries["max_position_embeddings"])
    writer.add_embedding_length(entries["hidden_size"])
    writer.add_block_count(entries["num_hidden_layers"])
    writer.add_feed_forward_length(entries["intermediate_size"])
    writer.add_head_count(entries["num_attention_heads"])
    writer.add_head_count_kv(entries["num_key_value_heads"])
    writer.add_rope_dimension_count(entries["head_dim"])
    writer.add_rope_freq_base(entries["rope_theta"])
    writer.add_layer_norm_rms_eps(entries["rms_norm_eps"])
    writer.add_vocab_size(entries["vocab_size"])
    tokens, types, merges = smollm_vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(1)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, entries["num_hidden_layers"])
    for name, tensor in tensors.items():
        stem, _, ending = name.rpartition(".")
        target = f"{names.get_name(stem)}.{ending}"
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(stem.rpartition(".")[2])
        stored = _interleaved_rows(tensor, entries[heads]) if heads else tensor
        kind = gguf.GGMLQuantizationType[(kinds or {}).get(target, "F32")]
        writer.add_tensor(target, gguf.quants.quantize(stored.astype(np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _interleaved_rows(tensor: Array, heads: int) -> Array:
    """As convert_hf_to_gguf.py's LlamaModel.permute has it."""
    rows = tensor.shape[0]
    return tensor.reshape(heads, 2, rows // heads // 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
