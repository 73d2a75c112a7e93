"""Odd checkpoints, as people have them, and hostile ones, as nobody should: `python -m tests.odd_checkpoints FOLDER`.

`ODD` are good and unusual: each opens and runs. `HOSTILE` lie: each is refused with a typed error.
"""

from __future__ import annotations

import json
import pickle
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from softfloat_llm.io.safetensors import write_tensors
from tests.checkpoints import config_dict, random_tensors, write_checkpoint, write_gguf
from tests.relatives import GRANITE, RELATIVES, relative

TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}<|assistant|>"


def mixed_shards_without_prefix(folder: Path) -> Path:
    """Three shards, norms in f32 and one weight in f16 among bf16, names without `model.`, a stray shard."""
    tensors = random_tensors(config_dict())
    for name in tensors:
        if "norm" in name:
            tensors[name] = tensors[name].astype(np.float32)
    tensors["lm_head.weight"] = tensors["lm_head.weight"].astype(np.float16)
    bare = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    write_checkpoint(folder, config_dict(), bare, shards=3)
    write_tensors(folder / "adapter.safetensors", {"x": np.ones(1, np.float32)})
    return folder


def qwen3_with_yarn_and_few_keys(folder: Path) -> Path:
    """Scaling in rope_parameters, tied, no eos, dtype under its newer name."""
    entries = relative(
        "qwen3", "Qwen3", tie_word_embeddings=True, rope_theta=..., eos_token_id=..., dtype="bfloat16",
        rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16},
    )  # fmt: skip
    return write_checkpoint(folder, entries, random_tensors(entries))


def granite_with_values_beyond_f16(folder: Path) -> Path:
    """f32 weights that overflow, or become subnormal or zero, in f16."""
    entries = relative("granite", "Granite", **GRANITE)
    tensors = random_tensors(entries, np.float32)
    up = tensors["model.layers.0.mlp.up_proj.weight"]
    up[0, :4] = [70000.0, 1e-6, 1e-9, 0.0]
    return write_checkpoint(folder, entries, tensors)


def smollm3_with_leftovers(folder: Path) -> Path:
    """A rotary buffer, an own output beside tied embeddings, keys of other programs, a chat template."""
    entries = RELATIVES["smollm3"] | {"tie_word_embeddings": True, "pretraining_tp": 2, "frobnicate": [1]}
    tensors = random_tensors(entries)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.float32(10000.0) ** -(
        np.arange(0, 16, 2, dtype=np.float32) / 16
    )
    write_checkpoint(folder, entries, tensors)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "</s>"}))
    return folder


def gguf_of_many_types(folder: Path) -> Path:
    """A .gguf file with Q8_0, Q4_0, Q4_1 and F16 weights beside F32."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = config_dict(hidden_size=64, intermediate_size=64, num_attention_heads=4, head_dim=16, vocab_size=260)
    kinds = {"blk.0.ffn_up.weight": "Q8_0", "blk.0.ffn_gate.weight": "Q4_0", "blk.1.ffn_down.weight": "Q4_1"}
    return write_gguf(
        folder / "model.gguf", entries, random_tensors(entries), kinds | {"token_embd.weight": "F16"}
    )  # fmt: skip


ODD: dict[str, Callable[[Path], Path]] = {
    make.__name__.replace("_", "-"): make
    for make in (
        mixed_shards_without_prefix, qwen3_with_yarn_and_few_keys, granite_with_values_beyond_f16,
        smollm3_with_leftovers, gguf_of_many_types,
    )
}  # fmt: skip


# --- hostile ----------------------------------------------------------------------------------------------------------


def _with_header(header: Any, data: bytes = bytes(8), length: int | None = None) -> Callable[[Path], Path]:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()

    def make(folder: Path) -> Path:
        write_checkpoint(folder)
        size = len(text) if length is None else length
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", size) + text + data)
        return folder

    return make


def _with_index(index: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        write_checkpoint(folder)
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
        text = index if isinstance(index, bytes) else json.dumps(index).encode()
        (folder / "model.safetensors.index.json").write_bytes(text)
        return folder

    return make


def _with_config(**changes: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        write_checkpoint(folder)
        (folder / "config.json").write_text(json.dumps(config_dict(**changes)))
        return folder

    return make


def _with_raw_config(text: bytes, size: int | None = None) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        write_checkpoint(folder)
        (folder / "config.json").write_bytes(text)
        if size is not None:
            with open(folder / "config.json", "r+b") as file:
                file.truncate(size)  # sparse
        return folder

    return make


def _link_to_itself(folder: Path) -> Path:
    write_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("model.safetensors")
    return folder


class _Runs:
    def __reduce__(self) -> Any:
        return (open, ("/tmp/softfloat-llm-was-here", "w"))


def _pickle(folder: Path) -> Path:
    write_checkpoint(folder)
    (folder / "model.safetensors").write_bytes(pickle.dumps(_Runs()))
    return folder


def _pickle_alone(folder: Path) -> Path:
    write_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Runs()))
    return folder


def _gguf(*parts: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.gguf").write_bytes(b"GGUF" + struct.pack("<I", 3) + b"".join(parts))
        return folder / "model.gguf"

    return make


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _tensor(shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    axes = b"".join(struct.pack("<Q", n) for n in shape)
    return _string(b"token_embd.weight") + struct.pack("<I", len(shape)) + axes + struct.pack("<IQ", kind, offset)


_F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
_HUGE = 2**63 - 1
HOSTILE: dict[str, Callable[[Path], Path]] = {
    "header of 2^63 bytes": _with_header(b"{}", length=2**63),
    "header of 99 MB in a file of 10": _with_header(b"{}", length=99_000_000),
    "negative offsets": _with_header({"a": _F32 | {"data_offsets": [-8, 0]}}),
    "overlapping tensors": _with_header({"a": _F32, "b": _F32}),
    "huge shape": _with_header({"a": _F32 | {"shape": [2**40, 2**40]}}),
    "huge shape of nothing": _with_header({"a": {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}}, b""),
    "header of nested lists": _with_header(b'{"a":' + b"[" * 200_000),
    "header of one long number": _with_header(b'{"a":' + b"9" * 100_000 + b"}"),
    "index that climbs": _with_index({"weight_map": {"model.norm.weight": "../../../etc/passwd"}}),
    "index to an absolute path": _with_index({"weight_map": {"model.norm.weight": "/etc/passwd"}}),
    "index to itself": _with_index({"weight_map": {"a": "model.safetensors.index.json"}}),
    "index of nested objects": _with_index(b'{"weight_map":' * 100_000),
    "index without a map": _with_index({"weight_map": ["a"]}),
    "a billion layers": _with_config(num_hidden_layers=10**9),
    "a billion layers of a relative": _with_config(
        model_type="smollm3", architectures=["SmolLM3ForCausalLM"], num_hidden_layers=10**9
    ),
    "heads of 2^62": _with_config(head_dim=2**62),
    "theta of 1e308 and a factor of 1e308": _with_config(
        rope_theta=1e308, rope_scaling={"rope_type": "dynamic", "factor": 1e308}
    ),
    "config of nested lists": _with_raw_config(b'{"a":' + b"[" * 200_000),
    "config of 8 GB": _with_raw_config(b'{"a":1}', 8 << 30),
    "config that is no text": _with_raw_config(b"\xff\xfe\x00"),
    "weights that are a link to themselves": _link_to_itself,
    "pickle under another name": _pickle,
    "pickle": _pickle_alone,
    "gguf with 2^63 tensors": _gguf(struct.pack("<QQ", _HUGE, 0)),
    "gguf with 2^63 keys": _gguf(struct.pack("<QQ", 0, _HUGE)),
    "gguf with a key of 2^63 bytes": _gguf(struct.pack("<QQ", 0, 1), struct.pack("<Q", _HUGE), b"abc"),
    "gguf with an array of 2^63": _gguf(struct.pack("<QQ", 0, 1), _string(b"a"), struct.pack("<IIQ", 9, 0, _HUGE)),
    "gguf with arrays of arrays": _gguf(struct.pack("<QQ", 0, 1), _string(b"a"), struct.pack("<IIQ", 9, 9, 1) * 99),
    "gguf with a huge shape": _gguf(struct.pack("<QQ", 1, 0), _tensor((2**62, 2**62)), bytes(64)),
    "gguf with a huge shape of nothing": _gguf(struct.pack("<QQ", 1, 0), _tensor((0, 2**62, 2**62)), bytes(64)),
    "gguf with a far offset": _gguf(struct.pack("<QQ", 1, 0), _tensor((2,), 0, _HUGE), bytes(64)),
}


def k_quant_blocks(shape: tuple[int, ...], kind: gguf.GGMLQuantizationType, seed: int = 0) -> Any:
    """Random blocks of a K-quant, its f16 scales finite and small: (rows, bytes)."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(seed).integers(0, 256, (shape[0], shape[1] // block, size), dtype=np.uint8)
    scale = np.array([0.001], np.float16).view(np.uint8)
    for at in (0, 2) if kind.name in ("Q4_K", "Q5_K") else (size - 4, size - 2) if kind.name == "Q2_K" else (size - 2,):
        raw[..., at : at + 2] = scale
    return raw.reshape(shape[0], -1)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    for name, make in ODD.items():
        print(make(target / name))
