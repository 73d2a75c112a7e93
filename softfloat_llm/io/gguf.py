"""Reading Llama models from .gguf files: plain tensors as they are stored, quantised ones dequantised to float32.

Start at `load_gguf`. The file is read here, with each length checked; the `gguf` package dequantises.
Source of the layout: ggml's docs/gguf.md, versions 2 and 3.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from softfloat_llm.errors import CheckpointError
from softfloat_llm.io.chat import ChatTemplate
from softfloat_llm.io.tokenizer import Tokenizer
from softfloat_llm.llama.config import Config, config_from_dict
from softfloat_llm.llama.weights import Weights
from softfloat_llm.numerics.formats import Array

_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING, _ARRAY = 8, 9
_PLAIN = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}
_QUANTISED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")

# GGUF name of a layer's part -> checkpoint name.
_LAYER_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_WHOLE["output.weight"] = "lm_head.weight"
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


@dataclass(frozen=True)
class Gguf:
    """A .gguf file: its metadata, and per tensor its type, its shape and its bytes (memory mapped)."""

    path: Path
    metadata: dict[str, Any]
    types: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    stored: dict[str, Array]

    def tensor(self, name: str) -> Array:
        """A tensor in the format it is stored in; a quantised one as the float32 values that it stands for.

        Q8_0: d*q. Q4_0: d*(q - 8). Q4_1: d*q + m, two roundings. Each operation is rounded to float32. The others
        (Q5_0, Q5_1, K-quants) as the gguf package's quants.py has them.
        """
        kind, shape, data = self.types[name], self.shapes[name], self.stored[name]
        if kind in _PLAIN:
            plain: Array = data.view(_PLAIN[kind]).reshape(shape)
            return plain
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        values: Array = dequantize(data.reshape(*shape[:-1], -1), GGMLQuantizationType[kind])
        return values.reshape(shape)


def load_gguf(path: str | Path) -> tuple[Weights, Tokenizer | None]:
    """The weights of a Llama .gguf file, and its tokenizer where it is of the one kind that is known here (smollm).

    Raises CheckpointError or ConfigError.
    """
    file = read_gguf(path)
    config = config_from_dict(config_entries(file))
    weights = Weights(config, dict(checkpoint_tensors(file, config)), str(path), _type_notes(file))
    if file.metadata.get("tokenizer.ggml.pre") != "smollm":
        return weights, None
    return weights, Tokenizer(path, text=lambda: tokenizer_json(file))


def chat_template_of_gguf(path: str | Path) -> ChatTemplate | None:
    """The chat template that a .gguf file carries, with its special tokens; or None."""
    file = read_gguf(path)
    text, names = file.metadata.get("tokenizer.chat_template"), file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(text, str):
        return None
    tokens = {}
    for key in ("bos", "eos"):
        place = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(names, list) and isinstance(place, int) and 0 <= place < len(names):
            tokens[f"{key}_token"] = str(names[place])
    return ChatTemplate(text, str(path), tokens)


def _type_notes(file: Gguf) -> list[str]:
    """A note where tensors are quantised: how many, of which types."""
    counts = Counter(kind for kind in file.types.values() if kind not in _PLAIN)
    words = ", ".join(f"{number} as {kind}" for kind, number in sorted(counts.items()))
    return [f"tensors stored in blocks are decoded to f32: {words}"] if counts else []


def config_entries(file: Gguf) -> dict[str, Any]:
    """The entries of the config.json that this file would have beside it."""
    known = file.metadata
    _check_is_llama(file)
    kind = _needed(file, "general.architecture")
    heads = known.get(f"{kind}.attention.head_count")
    entries = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": file.shapes.get("token_embd.weight", (known.get(f"{kind}.vocab_size"),))[0],
        "hidden_size": known.get(f"{kind}.embedding_length"),
        "intermediate_size": known.get(f"{kind}.feed_forward_length"),
        "num_hidden_layers": known.get(f"{kind}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": known.get(f"{kind}.attention.head_count_kv", heads),
        "head_dim": known.get(f"{kind}.attention.key_length", known.get(f"{kind}.rope.dimension_count")),
        "hidden_act": "silu",
        "rms_norm_eps": _decimal(known.get(f"{kind}.attention.layer_norm_rms_epsilon")),
        "rope_theta": _decimal(known.get(f"{kind}.rope.freq_base")),
        "rope_scaling": _rope_scaling(file),
        "max_position_embeddings": known.get(f"{kind}.context_length"),
        "tie_word_embeddings": "output.weight" not in file.shapes,
        "attention_bias": "blk.0.attn_q.bias" in file.shapes,
        "mlp_bias": "blk.0.ffn_up.bias" in file.shapes,
        "bos_token_id": known.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": known.get("tokenizer.ggml.eos_token_id"),
    }
    return entries


def _check_is_llama(file: Gguf) -> None:
    kind = _needed(file, "general.architecture")
    if kind != "llama":
        raise CheckpointError(
            f"{file.path}: general.architecture is {kind!r}, expected 'llama': no other is read for now."
        )
    if "rope_freqs.weight" in file.shapes:
        raise CheckpointError(
            f"{file.path}: found rope_freqs.weight, factors of llama3 rope scaling, whose parameters the file does not "
            "give. Use the Hugging Face folder of this model."
        )
    rotated, size = file.metadata.get("llama.rope.dimension_count"), file.metadata.get("llama.attention.key_length")
    if rotated is not None and size is not None and rotated != size:
        raise CheckpointError(
            f"{file.path}: llama.rope.dimension_count is {rotated}, llama.attention.key_length {size}."
        )


def _needed(file: Gguf, key: str) -> Any:
    if key not in file.metadata:
        raise CheckpointError(f"{file.path}: the key {key!r} is missing.")
    return file.metadata[key]


def _decimal(value: Any) -> Any:
    """The shortest decimal that reads back to a float32: 1e-05, where the file holds 9.999999747378752e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _rope_scaling(file: Gguf) -> dict[str, Any] | None:
    kind = file.metadata.get("llama.rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind != "linear":
        raise CheckpointError(f"{file.path}: llama.rope.scaling.type is {kind!r}, expected none or linear.")
    return {"rope_type": "linear", "factor": _decimal(_needed(file, "llama.rope.scaling.factor"))}


def checkpoint_tensors(file: Gguf, config: Config) -> Iterator[tuple[str, Array]]:
    """Checkpoint name and tensor, one after another, the rows of q and k back in their order."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name in file.shapes:
        match = _LAYER_NAME.fullmatch(name)
        if name in _WHOLE:
            yield _WHOLE[name], file.tensor(name)
        elif match is not None and match[2] in _LAYER_PARTS:
            tensor = file.tensor(name)
            if match[2] in heads:
                tensor = half_split_rows(tensor, heads[match[2]], file.path, name)
            yield f"model.layers.{match[1]}.{_LAYER_PARTS[match[2]]}.{match[3]}", tensor
        else:
            yield name, file.tensor(name)


def half_split_rows(tensor: Array, heads: int, path: Path, name: str) -> Array:
    """Rows stored for interleaved rotary pairs, as a checkpoint has them: in each head, row 2i + j goes to j*C/2 + i.

    tensor (H*C, ...); the result has the same shape.
    """
    rows, rest = tensor.shape[0], tensor.shape[1:]
    if rows % (2 * heads):
        raise CheckpointError(f"{path}: {name} has {rows} rows, expected a multiple of 2 x {heads} heads.")
    return tensor.reshape(heads, rows // heads // 2, 2, *rest).swapaxes(1, 2).reshape(rows, *rest)


def tokenizer_json(file: Gguf) -> str:
    """The tokenizer.json of a `smollm` vocabulary: byte-level BPE over words whose digits stand alone."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    names, kinds, merges = (_needed(file, f"tokenizer.ggml.{key}") for key in ("tokens", "token_type", "merges"))
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    library = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=pairs))
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    library.decoder = decoders.ByteLevel()
    special = [name for name, kind in zip(names, kinds, strict=True) if kind == 3]  # 3: a control token
    library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return str(library.to_str())


# --- the file -----------------------------------------------------------------------------------------------------


class _Cursor:
    """Reads forward through the bytes of a file, never past their end."""

    def __init__(self, path: Path, data: Array) -> None:
        self.path, self.data, self.position = path, data, 0

    def take(self, count: int) -> Array:
        if count > self.data.size - self.position:
            raise CheckpointError(
                f"{self.path} is truncated or damaged: {count} bytes expected at {self.position}, "
                f"the file has {self.data.size}."
            )
        self.position += count
        return self.data[self.position - count : self.position]

    def integer(self, code: str) -> int:
        return int(struct.unpack(code, self.take(struct.calcsize(code)).tobytes())[0])

    def text(self) -> str:
        data = self.take(self.integer("<Q")).tobytes()
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise CheckpointError(f"{self.path} is damaged: no UTF-8 text before byte {self.position}.") from None

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind])
            return self.take(dtype.itemsize).view(dtype)[0].item()
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array(self.integer("<I"), self.integer("<Q"))
        raise CheckpointError(f"{self.path} is damaged: unknown kind of value {kind} before byte {self.position}.")

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind])
            return list(self.take(count * dtype.itemsize).view(dtype).tolist())
        if kind == _STRING:
            return [self.text() for _ in range(count)]
        raise CheckpointError(f"{self.path}: an array of kind {kind} before byte {self.position} cannot be read.")


def read_gguf(path: str | Path) -> Gguf:
    """A .gguf file of version 2 or 3. Raises CheckpointError where it is missing, truncated or of another kind."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file.")
    if path.stat().st_size < 24:
        raise CheckpointError(f"{path} has {path.stat().st_size} bytes: it is truncated.")
    cursor = _Cursor(path, np.asarray(np.memmap(path, dtype=np.uint8, mode="r")))
    if cursor.take(4).tobytes() != b"GGUF":
        raise CheckpointError(f"{path} does not begin with GGUF: it is another kind of file.")
    version = cursor.integer("<I")
    if version not in (2, 3):
        raise CheckpointError(f"{path} is GGUF version {version}, expected 2 or 3.")
    tensor_count, key_count = cursor.integer("<Q"), cursor.integer("<Q")
    metadata = _read_metadata(cursor, key_count)
    places = [_read_place(cursor) for _ in range(tensor_count)]
    return _placed(cursor, metadata, places)


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.text()
        if key in metadata:
            raise CheckpointError(f"{cursor.path}: the key {key!r} stands twice.")
        metadata[key] = cursor.value(cursor.integer("<I"))
    return metadata


def _read_place(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape (slowest axis first), type and offset of one tensor."""
    name = cursor.text()
    axes = cursor.integer("<I")
    if axes > 8:
        raise CheckpointError(f"{cursor.path}: tensor {name!r} has {axes} axes.")
    shape = tuple(cursor.integer("<Q") for _ in range(axes))[::-1]
    return name, shape, cursor.integer("<I"), cursor.integer("<Q")


def _placed(cursor: _Cursor, metadata: dict[str, Any], places: list[tuple[str, tuple[int, ...], int, int]]) -> Gguf:
    path, alignment = cursor.path, metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise CheckpointError(f"{path}: general.alignment is {alignment!r}, expected a power of two.")
    start = -(-cursor.position // alignment) * alignment
    file = Gguf(path, metadata, {}, {}, {})
    position, before = 0, ""
    for name, shape, kind, offset in sorted(places, key=lambda place: place[3]):
        if name in file.shapes:
            raise CheckpointError(f"{path}: tensor {name!r} is there twice.")
        if offset < position:
            raise CheckpointError(f"{path}: the bytes of {name!r} overlap those of {before!r}.")
        file.types[name], count = _type_and_bytes(path, name, shape, kind)
        cursor.position = start + offset
        file.shapes[name], file.stored[name] = shape, cursor.take(count)
        position, before = offset + count, name
    return file


def _type_and_bytes(path: Path, name: str, shape: tuple[int, ...], kind: int) -> tuple[str, int]:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    known = {member.value: member for member in GGMLQuantizationType}
    word = known[kind].name if kind in known else str(kind)
    if word not in _PLAIN and word not in _QUANTISED:
        raise CheckpointError(
            f"{path}: tensor {name!r} is of type {word}, expected one of {' '.join((*_PLAIN, *_QUANTISED))}."
        )
    if math.prod(max(n, 1) for n in shape) >= 1 << 62:
        raise CheckpointError(f"{path}: tensor {name!r} has shape {shape}, larger than any memory.")
    block, size = GGML_QUANT_SIZES[known[kind]]
    if not shape or shape[-1] % block:
        raise CheckpointError(
            f"{path}: tensor {name!r} has shape {shape}, expected rows of a multiple of {block} values."
        )
    return word, math.prod(shape) // block * size
