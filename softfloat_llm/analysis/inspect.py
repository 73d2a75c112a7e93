"""The audit of a checkpoint: what was understood of it, and what its values would lose in f16 and bf16.

Start at `inspect`. Tensors are read in pieces, one after another: a model need not fit into memory. Values of 16 bits
or less are counted by their codes, so that each of them is looked at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from softfloat_llm.analysis.answers import Answer, Table, counted
from softfloat_llm.analysis.numbers import about, jsonable
from softfloat_llm.analysis.rounding_counts import Counts, counts_in, number_of
from softfloat_llm.audit import Understood, understood
from softfloat_llm.io.checkpoint import Model, open_model
from softfloat_llm.io.progress import Progress
from softfloat_llm.numerics.formats import Array, Float64Array, Format, bf16, f16, format_of
from softfloat_llm.sites import SITES

SCHEMA = "softfloat-llm/inspect/1"
SHOWN_NOTES = 2
_SHOWN_LINES = 24
_OTHER_LINES = 8  # heading, the table's, the ending, and empty ones
_PIECE = 1 << 20  # values that are looked at together: 8 MB in f64
_NOTHING = Counts(0, 0, 0, 0)


@dataclass(frozen=True)
class Content:
    """What a tensor (or those of one site) holds. `own`: in the format that it is stored in."""

    name: str
    site: str
    format: str
    shape: tuple[int, ...]
    tensors: int
    size: int
    zeros: int
    subnormal: int
    not_finite: int
    largest: float
    in_f16: Counts
    in_bf16: Counts

    def to_dict(self) -> dict[str, Any]:
        same = {
            key: getattr(self, key) for key in ("name", "site", "format", "size", "zeros", "subnormal", "not_finite")
        }
        counts = {"in_f16": self.in_f16.to_dict(), "in_bf16": self.in_bf16.to_dict()}
        return same | counts | {"shape": list(self.shape), "largest": jsonable(self.largest)}


@dataclass(frozen=True)
class Inspection(Answer):
    """A checkpoint as understood, its tensors by name, and by site over all layers."""

    model: str
    understood: Understood
    tensors: tuple[Content, ...]
    sites: tuple[Content, ...]
    digest: str

    def heading(self) -> list[tuple[str, str]]:
        known = self.understood.config
        heads = f"{known['num_attention_heads']} heads ({known['num_key_value_heads']} of keys) of {known['head_dim']}"
        size = f"hidden {known['hidden_size']}, mlp {known['intermediate_size']}, vocabulary {known['vocab_size']}"
        return [
            ("model", f"{known['model_type']}, {counted(known['num_hidden_layers'], 'layer')}, {heads}, {size}"),
            ("rope", self._rope_words()),
        ]

    def _rope_words(self) -> str:
        rope = self.understood.rope
        kind = "unscaled" if rope.scaling is None else f"{rope.scaling['rope_type']} x{rope.scaling['factor']:g}"
        ends = f"{about(rope.frequencies[0])} to {about(rope.frequencies[-1])}"
        without = f", none in {counted(len(rope.layers_without), 'layer')}" if rope.layers_without else ""
        turned = f"theta {rope.theta:g}, {kind}: {len(rope.frequencies)} frequencies, {ends}"
        return f"{turned}; at most {rope.position_limit} positions{without}"

    def sentences(self) -> list[str]:
        values, formats = sum(one.size for one in self.tensors), sorted({one.format for one in self.tensors})
        head = "tied to the embeddings" if self.understood.is_tied else "its own"
        own = "a" if self.understood.has_tokenizer else "no"
        first = (
            f"{counted(len(self.tensors), 'tensor')}, {values} values in {', '.join(formats)}; the output is {head};"
        )
        lines = [f"{first} {own} tokenizer."]
        bad = sum(one.not_finite for one in self.tensors)
        if bad:
            where = next(one.name for one in self.tensors if one.not_finite)
            lines.append(f"{counted(bad, 'value')} not finite, first in {where}.")
        return [*lines, *(self._fit(fmt) for fmt in (f16, bf16))]

    def _fit(self, fmt: Format) -> str:
        """What rounding all values to a format would do."""
        total = sum((getattr(one, f"in_{fmt}") for one in self.tensors), _NOTHING)
        if not (total.clipped or total.subnormal or total.flushed):
            return f"In {fmt} no value overflows, and none becomes subnormal or zero."
        overflowing = f"{counted(total.clipped, 'value')} would overflow"
        return f"In {fmt} {overflowing}, {total.subnormal} be subnormal, {total.flushed} become zero."

    def remarks(self) -> list[tuple[str, str]]:
        notes = self.understood.notes
        more = len(notes) - SHOWN_NOTES
        last = f" ({counted(more, 'further note')}: -v)" if more > 0 else ""
        shown = notes[:SHOWN_NOTES]
        return [("note", note + (last if note == shown[-1] else "")) for note in shown]

    def tables(self, *, verbose: bool = False) -> list[Table]:
        """The sites; `verbose`: each tensor, the config, the frequencies and all notes."""
        if not verbose:
            left = _SHOWN_LINES - _OTHER_LINES - len(self.sentences()) - len(self.remarks())
            return [_contents(self.sites, "tensors").cut(left)]
        config = tuple((key, _spelled(value)) for key, value in self.understood.config.items())
        turns = tuple((str(i), repr(x)) for i, x in enumerate(self.understood.rope.frequencies))
        return [
            Table(("config", "as understood"), config),
            Table(("note",), tuple((note,) for note in self.understood.notes)),
            Table(("pair", "frequency (f32)"), turns, right=(0, 1)),
            _contents(self.tensors, "tensor"),
        ]

    def ending(self) -> list[tuple[str, str]]:
        return [("digest", f"sha256:{self.digest}  weights")]

    def to_dict(self) -> dict[str, Any]:
        known = asdict(self.understood)
        return {
            "schema": SCHEMA,
            "model": self.model,
            "config": {key: list(v) if isinstance(v, tuple) else v for key, v in known["config"].items()},
            "rope": {key: list(v) if isinstance(v, tuple) else v for key, v in known["rope"].items()},
            "is_tied": self.understood.is_tied,
            "has_tokenizer": self.understood.has_tokenizer,
            "notes": list(self.understood.notes),
            "tensors": [one.to_dict() for one in self.tensors],
            "digest": f"sha256:{self.digest}",
        }


def inspect(model: str | Path | Model, *, progress: Progress | None = None) -> Inspection:
    """The audit of a model: a name, a folder, a .gguf file, or an opened one.

    **Raises** CheckpointError or ConfigError, as opening it does: naming the key or tensor that cannot be used.
    """
    opened = model if isinstance(model, Model) else open_model(model, progress)
    known = understood(opened)
    tensors = []
    for name, tensor in opened.weights.items():
        tensors.append(content_of(name, known.sites[name], tensor))
        if progress is not None:
            progress("inspect", len(tensors), len(opened.weights))
    return Inspection(opened.name, known, tuple(tensors), _by_site(tensors), opened.weights.digest)


def content_of(name: str, site: str, tensor: Array) -> Content:
    """What one tensor (...) holds."""
    fmt = format_of(tensor.dtype)
    zeros = subnormal = bad = 0
    largest, narrow = 0.0, {f16: _NOTHING, bf16: _NOTHING}
    for values, times in _pieces(tensor):
        size, is_finite = np.abs(values), np.isfinite(values)
        zeros += number_of(values == 0, times)
        subnormal += number_of((size > 0) & (size < fmt.smallest_normal), times)
        bad += number_of(~is_finite, times)
        largest = max(largest, float(size[is_finite].max(initial=0.0)))
        narrow = {target: counts + counts_in(values, target, times=times) for target, counts in narrow.items()}
    return Content(
        name, site, str(fmt), tensor.shape, 1, tensor.size, zeros, subnormal, bad, largest, narrow[f16], narrow[bf16]
    )  # fmt: skip


def _pieces(tensor: Array) -> Iterator[tuple[Float64Array, Array | None]]:
    """The values of a tensor in pieces; or, of a narrow format, each value there is, and how often it stands there."""
    flat = tensor.reshape(-1)
    if tensor.dtype.itemsize > 2:
        for start in range(0, flat.size, _PIECE):
            yield flat[start : start + _PIECE].astype(np.float64), None
        return
    kind = np.dtype(f"u{tensor.dtype.itemsize}")
    times = np.zeros(1 << (8 * kind.itemsize), np.int64)
    for start in range(0, flat.size, _PIECE):
        times += np.bincount(flat[start : start + _PIECE].view(kind), minlength=times.size)
    there = np.flatnonzero(times)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        yield np.arange(times.size, dtype=kind)[there].view(tensor.dtype).astype(np.float64), times[there]


def _by_site(tensors: Sequence[Content]) -> tuple[Content, ...]:
    """The tensors of each site and format taken together, in the order of the forward pass."""
    together: dict[tuple[str, str], list[Content]] = {}
    for one in tensors:
        together.setdefault((one.site, one.format), []).append(one)
    order = list(SITES)
    return tuple(_joined(together[key]) for key in sorted(together, key=lambda key: (order.index(key[0]), key[1])))


def _joined(parts: Sequence[Content]) -> Content:
    shapes = [one.shape for one in parts]
    return Content(
        name=str(len(parts)),
        site=parts[0].site,
        format=parts[0].format,
        shape=max(shapes, key=len),
        tensors=len(parts),
        size=sum(one.size for one in parts),
        zeros=sum(one.zeros for one in parts),
        subnormal=sum(one.subnormal for one in parts),
        not_finite=sum(one.not_finite for one in parts),
        largest=max(one.largest for one in parts),
        in_f16=sum((one.in_f16 for one in parts), _NOTHING),
        in_bf16=sum((one.in_bf16 for one in parts), _NOTHING),
    )


def _contents(found: Sequence[Content], what: str) -> Table:
    header = (
        "site",
        what,
        "stored as",
        "largest",
        "zero, subnormal",
        "f16: overflow, subnormal, zero",
        "bf16: the same",
    )
    rows = tuple(
        (
            one.site,
            f"{one.name} x {_spelled(one.shape)}" if what == "tensors" else f"{one.name} {_spelled(one.shape)}",
            one.format,
            about(one.largest),
            f"{one.zeros}, {one.subnormal}",
            _three(one.in_f16),
            _three(one.in_bf16),
        )
        for one in found
    )
    return Table(header, rows, right=(3, 4, 5, 6))


def _three(counts: Counts) -> str:
    return f"{counts.clipped}, {counts.subnormal}, {counts.flushed}"


def _spelled(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(str, value))})"
    if isinstance(value, dict):
        return ", ".join(f"{key} {one}" for key, one in value.items() if one is not None)
    return str(value)
