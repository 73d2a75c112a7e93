"""The tensors of a Llama checkpoint, checked against its config: each there, each of the right shape, none quantised.

Start at `tensor_shapes`, the table of names, and `Weights`, the mapping that a forward pass reads.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from softfloat_llm.errors import CheckpointError, FormatError
from softfloat_llm.llama.config import Config
from softfloat_llm.llama.rope import inverse_frequencies
from softfloat_llm.numerics.formats import Array, f32, format_of
from softfloat_llm.numerics.mapped import give_back

EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"

_META_NAMES = re.compile(r"tok_embeddings\.weight|layers\.\d+\.(attention\.w[qkvo]|feed_forward\.w[123])\.weight")
_QUANTISED = re.compile(r"qweight|qzeros|\.g_idx$|absmax|quant_map|quant_state|weight_packed|_scale|\.scales?$")
_LAYER_NORM = re.compile(r"layers\.(\d{1,9})\..*norm\w*\.weight$")
_INV_FREQ = re.compile(r"rotary_emb\.inv_freq$")


def tensor_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor that the config asks for; `lm_head.weight` only where it is not tied.

    Linear weights are (rows out, columns in). D hidden, F mlp, V vocabulary, H*C query rows, G*C key and value rows.
    """
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (vocab, hidden)}
    for layer in range(config.num_hidden_layers):
        for name, shape in _layer_shapes(config).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes[LM_HEAD] = (vocab, hidden)
    return shapes


def _layer_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    hidden, mlp = config.hidden_size, config.intermediate_size
    query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    attention = {"q_proj": (query, hidden), "k_proj": (key, hidden), "v_proj": (key, hidden), "o_proj": (hidden, query)}
    gated = {"gate_proj": (mlp, hidden), "up_proj": (mlp, hidden), "down_proj": (hidden, mlp)}
    if config.qk_norm:
        shapes |= {f"self_attn.{name}.weight": (config.head_dim,) for name in ("q_norm", "k_norm")}
    for block, linear, biased in (
        ("self_attn", attention, _with_bias(config)),
        ("mlp", gated, tuple(gated) if config.mlp_bias else ()),
    ):
        for name, shape in linear.items():
            shapes[f"{block}.{name}.weight"] = shape
            if name in biased:
                shapes[f"{block}.{name}.bias"] = shape[:1]
    return shapes


def _with_bias(config: Config) -> tuple[str, ...]:
    """The projections of attention that have a bias."""
    if config.attention_bias:
        return "q_proj", "k_proj", "v_proj", "o_proj"
    return ("q_proj", "k_proj", "v_proj") if config.qkv_bias else ()


_LARGE = 1 << 30  # bytes


class Weights(Mapping[str, Array]):
    """Checkpoint name -> array in its stored format. Complete and of the right shapes once it exists.

    `source` says in words where the tensors come from; `notes` what was ignored on the way. Names without the
    `model.` prefix are taken with it.

    Raises CheckpointError for tensors that are missing, misshapen, quantised, or named as another program names them.
    """

    def __init__(
        self, config: Config, tensors: Mapping[str, Array], source: str = "memory", notes: Iterable[str] = ()
    ) -> None:
        self.config = config
        self.source = source
        shapes = tensor_shapes(config)
        _refuse_foreign(tensors, source)
        named = _with_prefix(tensors, shapes, source)
        _check_missing(named, shapes, config, source)
        _check_shapes(named, shapes, config, source)
        _check_formats({name: named[name] for name in shapes}, source)
        self.notes = (*notes, *_extra_notes(named, shapes, config, source))
        self.tensors: dict[str, Array] = {name: named[name] for name in shapes}

    def __getitem__(self, name: str) -> Array:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        return f"Weights({len(self)} tensors, {self.config.num_hidden_layers} layers, from {self.source})"

    @property
    def lm_head(self) -> Array:
        """(V, D): `lm_head.weight`, or the embeddings where the two are tied."""
        return self.tensors[EMBEDDING if self.config.tie_word_embeddings else LM_HEAD]

    @cached_property
    def formats(self) -> tuple[str, ...]:
        """Names of the formats that the tensors are stored in, sorted."""
        return tuple(sorted({format_of(tensor.dtype).name for tensor in self.tensors.values()}))

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the sorted (name, format, shape, bytes): the same however the checkpoint is cut into files."""
        total = hashlib.sha256()
        for name in sorted(self.tensors):
            tensor = self.tensors[name]
            shape = ",".join(map(str, tensor.shape))
            total.update(f"{name} {format_of(tensor.dtype)} ({shape})\n".encode())
            total.update(tensor_bytes(tensor))
            if self.is_large:
                give_back(tensor)
        return total.hexdigest()

    @cached_property
    def is_large(self) -> bool:
        """True for a checkpoint of more than a gigabyte: what was read of it is given back to the system."""
        return sum(tensor.nbytes for tensor in self.tensors.values()) > _LARGE


def tensor_bytes(tensor: Array) -> memoryview:
    """The bytes of a tensor in C order, without a copy where it lies so already."""
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data


# --- the checks, each one cause ----------------------------------------------------------------------------------


def _refuse_foreign(tensors: Mapping[str, Array], source: str) -> None:
    meta = sorted(name for name in tensors if _META_NAMES.search(name))
    if meta:
        raise CheckpointError(
            f"{source}: found {meta[0]!r}, a name of Meta's own format; expected names such as {EMBEDDING!r}. "
            "Convert it with transformers' convert_llama_weights_to_hf.py (q and k rows are in another order there)."
        )
    quantised = sorted(name for name in tensors if _QUANTISED.search(name))
    if quantised:
        raise CheckpointError(
            f"{source}: found {quantised[0]!r}, part of a quantised weight; expected plain f32, f16 or bf16 tensors. "
            "Dequantise the checkpoint first."
        )


def _with_prefix(tensors: Mapping[str, Array], shapes: Mapping[str, Any], source: str) -> dict[str, Array]:
    named: dict[str, Array] = {}
    for name, tensor in tensors.items():
        full = name if name == LM_HEAD or name.startswith("model.") else f"model.{name}"
        target = full if full in shapes or _INV_FREQ.search(full) or full.endswith(".bias") else name
        if target in named:
            raise CheckpointError(f"{source}: {target!r} is there twice, with and without the prefix 'model.'.")
        named[target] = tensor
    return named


def _check_missing(named: Mapping[str, Array], shapes: Mapping[str, Any], config: Config, source: str) -> None:
    missing = [name for name in shapes if name not in named]
    if not missing:
        return
    if missing == [LM_HEAD]:
        hint = "tie_word_embeddings is false in the config: set it to true if the output shares the embeddings."
    else:
        hint = f"The config asks for {len(shapes)} tensors in {config.num_hidden_layers} layers."
    words = ", ".join(map(repr, missing[:3])) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    raise CheckpointError(f"{source}: {words} not found among {len(named)} tensors. {hint}")


def _check_shapes(
    named: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]], config: Config, source: str
) -> None:
    for name, shape in shapes.items():
        found = named[name].shape
        if found == shape:
            continue
        if name in (EMBEDDING, LM_HEAD) and found[1:] == shape[1:]:
            raise CheckpointError(
                f"{source}: vocab_size is {config.vocab_size} in the config, but {name} has {found[0]} rows."
            )
        raise CheckpointError(f"{source}: {name} has shape {found}, expected {shape} from the config.")


def _check_formats(named: Mapping[str, Array], source: str) -> None:
    for name, tensor in named.items():
        try:
            format_of(tensor.dtype)
        except FormatError:
            raise CheckpointError(
                f"{source}: {name} is stored as {tensor.dtype}, expected a floating-point format: "
                "quantised or packed weights are not read."
            ) from None


def _extra_notes(named: Mapping[str, Array], shapes: Mapping[str, Any], config: Config, source: str) -> list[str]:
    """What lies there beside the table: refused where it contradicts the config, else ignored with a note."""
    notes, extra = [], []
    for name in sorted(set(named) - set(shapes)):
        if name.endswith(".bias"):
            key = "attention_bias" if ".self_attn." in name else "mlp_bias" if ".mlp." in name else "no such bias"
            state = " false" if key.endswith("_bias") else ""
            raise CheckpointError(f"{source}: found {name!r}, but the config has {key}{state}: a bias is not ignored.")
        norm = _LAYER_NORM.search(name)
        if norm is not None and int(norm[1]) < config.num_hidden_layers:
            raise CheckpointError(
                f"{source}: found {name!r}, but a {config.model_type} has no such norm: it is not ignored."
                " Is model_type in the config right?"
            )
        if name == LM_HEAD:
            _check_tied(named, source)
            notes.append(f"{LM_HEAD} is ignored: it equals the embeddings, which are tied")
        elif _INV_FREQ.search(name):
            notes.append(f"{name} is ignored: {_compare_inv_freq(named[name], config)}")
        else:
            extra.append(name)
    if extra:
        more = f" and {len(extra) - 3} more" if len(extra) > 3 else ""
        notes.append(f"ignored, not part of this Llama: {', '.join(extra[:3])}{more}")
    return notes


def _check_tied(named: Mapping[str, Array], source: str) -> None:
    head, embedding = named[LM_HEAD], named[EMBEDDING]
    if head.dtype != embedding.dtype or head.shape != embedding.shape or tensor_bytes(head) != tensor_bytes(embedding):
        raise CheckpointError(
            f"{source}: tie_word_embeddings is true, but {LM_HEAD} is there and differs from {EMBEDDING}: "
            "set it to false to use it, or remove the tensor."
        )


def _compare_inv_freq(stored: Array, config: Config) -> str:
    """In words, how a stored buffer of rotary frequencies compares with those of the config, its scaling applied."""
    computed = inverse_frequencies(config, f32)
    if stored.shape != computed.shape:
        return f"it has shape {stored.shape}, the computed frequencies {computed.shape}"
    try:
        step = format_of(stored.dtype)
    except FormatError:
        return f"it is stored as {stored.dtype}"
    error = np.abs(stored.astype(np.float64) - computed)
    # 4 eps: float32 powers are off by a few units, and a buffer may have been rounded once more to its format
    bound = np.maximum(4 * step.eps * computed, step.smallest_subnormal)
    if bool(np.all(error <= bound)):
        return f"it agrees with the computed frequencies within {step} rounding"
    worst = int(np.argmax(np.nan_to_num(error / computed, nan=np.inf)))
    pair = f"{float(stored[worst]):.6g} against {computed[worst]:.6g}"
    return f"it differs from the computed frequencies, most at {worst}: {pair}"
