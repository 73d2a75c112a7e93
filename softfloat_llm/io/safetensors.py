"""Reading and writing .safetensors files, with every claim of the header checked before a byte of data is used.

The file is 8 bytes of header length, a JSON header (name -> dtype, shape, data_offsets), and the data. Start at
`read_header`. Source: the format's description in the `safetensors` repository (README.md, "Format").
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from softfloat_llm.errors import CheckpointError, why
from softfloat_llm.io.atomic import new_file
from softfloat_llm.numerics.formats import Array

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library (safetensors/src/tensor.rs, MAX_HEADER_SIZE)

# Name in the file -> dtype, little-endian as the format says.
DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
NAMED_DTYPES = frozenset(_NAMES)


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: its dtype, its shape, and where its bytes lie, counted from the end of the header."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """What a file says about itself, after every check. `data_start` is the offset of the data in the file."""

    path: Path
    entries: dict[str, Entry]
    metadata: dict[str, str]
    data_start: int


def read_header(path: str | Path) -> Header:
    """The checked header of a .safetensors file.

    Raises CheckpointError: no such file, an LFS pointer, a pickle, a truncated file, or a header that does not fit it.
    """
    path = Path(path)
    size = _size_of(path)
    with open(path, "rb") as file:
        start = file.read(64)
        _refuse_other_kinds(path, start)
        length = _header_length(path, start, size)
        file.seek(8)
        text = file.read(length)
    table = _parse(path, text)
    metadata = _metadata(path, table.pop("__metadata__", {}))
    entries = {name: _entry(path, name, value) for name, value in table.items()}
    _check_layout(path, entries, size - 8 - length)
    return Header(path, entries, metadata, 8 + length)


def open_tensors(path: str | Path) -> dict[str, Array]:
    """Name -> read-only array, memory mapped, in the format that it is stored in."""
    return map_tensors(read_header(path))


def map_tensors(header: Header) -> dict[str, Array]:
    """The arrays that a header describes, memory mapped."""
    data = np.asarray(np.memmap(header.path, dtype=np.uint8, mode="r"))[header.data_start :]
    return {
        name: data[entry.begin : entry.end].view(entry.dtype).reshape(entry.shape)
        for name, entry in header.entries.items()
    }


def storable(array: Array) -> Array:
    """The array, or its codes where a .safetensors file has no name for its dtype."""
    return array if array.dtype in NAMED_DTYPES else array.view(np.uint8)


def write_tensors(path: str | Path, tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
    """Write a .safetensors file in one go: under its name stands the whole file, or what was there before.

    The bytes depend on the tensors and metadata alone: wide formats first, then by name, as the safetensors library
    does; the header is padded with spaces so that the data begins at a multiple of 8.
    """
    arrays = {name: np.asarray(tensor) for name, tensor in tensors.items()}
    kinds = {name: Kind(array.dtype, array.shape) for name, array in arrays.items()}
    write_pieces(path, kinds, lambda name: (arrays[name],), metadata)


class Kind(NamedTuple):
    """What the header says of a tensor."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def write_pieces(
    path: str | Path,
    kinds: Mapping[str, Kind],
    pieces: Callable[[str], Iterable[Array]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """As `write_tensors`, of tensors that need not be there at once: `pieces` gives the elements of one, in C order."""
    order = sorted(kinds, key=lambda name: (-kinds[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    offset = 0
    for name in order:
        dtype, shape = kinds[name]
        end = offset + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _name_of(name, dtype), "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with new_file(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            for piece in pieces(name):
                little = np.ascontiguousarray(piece, dtype=DTYPES[_name_of(name, piece.dtype)])
                file.write(little.reshape(-1).view(np.uint8).data)


def read_json(path: Path, what: str) -> dict[str, Any]:
    """A JSON object from a file in UTF-8, in which no key stands twice."""
    size = _size_of(path)
    if size > MAX_HEADER_BYTES:
        raise CheckpointError(f"{path} has {size} bytes, too many for {what}: at most {MAX_HEADER_BYTES} are read.")
    data = path.read_bytes()
    _refuse_other_kinds(path, data[:64])
    return parse_json(data, f"{path} ({what})")


def parse_json(text: bytes, what: str) -> dict[str, Any]:
    """A JSON object in which no key stands twice. `what` names it in an error."""
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=lambda pairs: _unique(pairs, what))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise CheckpointError(f"{what} is not JSON in UTF-8: {why(error)}.") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} holds a JSON {type(value).__name__}, expected an object.")
    return value


def _unique(pairs: list[tuple[str, Any]], what: str) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise CheckpointError(f"{what}: the key {twice!r} stands twice; which one is meant cannot be known.")
    return entries


# --- the checks, in the order in which a file is read -------------------------------------------------------------


def _size_of(path: Path) -> int:
    if not path.exists():
        raise CheckpointError(f"{path}: no such file.")
    if not path.is_file():
        raise CheckpointError(f"{path} is not a file.")
    return os.stat(path).st_size


def _refuse_other_kinds(path: Path, start: bytes) -> None:
    """Tell apart by their first bytes what people put, or leave, where a checkpoint file should be."""
    if start[4:9] == b"\0\0\0\0{":  # a header of 640 bytes begins like a pickle: 80 02
        return
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f"{path} is a Git LFS pointer, not the file itself. Run `git lfs pull` in that folder, or download it anew."
        )
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        raise CheckpointError(
            f"{path} is a PyTorch pickle, which can run code when opened; only .safetensors is read. "
            "Convert it: safetensors.torch.save_file(torch.load(PATH, weights_only=True), 'model.safetensors')."
        )
    if start.startswith(b"GGUF"):
        raise CheckpointError(f"{path} is a GGUF file under another name. Give it the ending .gguf.")
    if start.lstrip().lower().startswith((b"<!doctype", b"<html")):
        raise CheckpointError(f"{path} is a web page, not a checkpoint: the download failed. Download it anew.")


def _header_length(path: Path, start: bytes, size: int) -> int:
    if size < 8:
        raise CheckpointError(f"{path} has {size} bytes: it is truncated, a .safetensors file has at least 8.")
    length = int(struct.unpack("<Q", start[:8])[0])
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{path}: its first 8 bytes announce a header of {length} bytes, above the limit of {MAX_HEADER_BYTES}: "
            "this is not a .safetensors file."
        )
    if length > size - 8:
        raise CheckpointError(f"{path} is truncated: its header has {length} bytes, the file only {size - 8} after 8.")
    if start[8:9] != b"{":
        raise CheckpointError(f"{path}: the header does not begin with '{{': this is not a .safetensors file.")
    return length


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    return parse_json(text, f"{path}: the header")


def _metadata(path: Path, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise CheckpointError(f"{path}: __metadata__ is not an object of strings.")
    return value


def _entry(path: Path, name: str, value: Any) -> Entry:
    where = f"{path}: tensor {name!r}"
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where} is described by {_short(value)}, expected dtype, shape and data_offsets.")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(f"{where} has dtype {dtype!r}, expected one of {' '.join(DTYPES)}.")
    if not _are_sizes(shape):
        raise CheckpointError(f"{where} has shape {_short(shape)}, expected whole numbers of 0 or more.")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where} has data_offsets {_short(offsets)}, expected [begin, end], 0 <= begin <= end.")
    entry = Entry(DTYPES[dtype], tuple(shape), offsets[0], offsets[1])
    expected = math.prod(shape) * entry.dtype.itemsize
    if expected != entry.end - entry.begin:
        raise CheckpointError(
            f"{where} spans {entry.end - entry.begin} bytes, but {dtype} {_short(shape)} takes {expected}."
        )
    if math.prod(max(1, size) for size in shape) * entry.dtype.itemsize >= 1 << 63:
        raise CheckpointError(f"{where} has shape {_short(shape)}, larger than any memory.")
    return entry


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value) and len(value) <= 32


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _check_layout(path: Path, entries: Mapping[str, Entry], available: int) -> None:
    """The tensors' bytes follow one another without gap or overlap and end where the file ends."""
    position, before = 0, ""
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin < position:
            raise CheckpointError(f"{path}: the bytes of {name!r} overlap those of {before!r}.")
        if entry.begin > position:
            raise CheckpointError(f"{path}: {entry.begin - position} bytes before {name!r} belong to no tensor.")
        position, before = entry.end, name
    if position > available:
        raise CheckpointError(
            f"{path} is truncated: its tensors take {position} bytes, {available} are there. Download it anew."
        )
    if position < available:
        raise CheckpointError(f"{path}: {available - position} bytes after the last tensor belong to no tensor.")


def _name_of(name: str, dtype: np.dtype[Any]) -> str:
    found = _NAMES.get(dtype.newbyteorder("<") if dtype.kind in "fiub" else dtype)
    if found is None:
        raise CheckpointError(f"Writing {name!r}: dtype {dtype} has no name in a .safetensors file.")
    return found
