"""Arrays from files of several kinds: .npy, .npz, .safetensors. No pickle is ever read.

Start reading at `read_arrays`. What NumPy writes of a bf16 array is two bytes without a name; such are read as bf16.
What a header says of an array's size is held against the bytes that are there before anything is made of that size.

**Source** of .npy: numpy/lib/_format_impl.py of NumPy 2 (its docstring is the format); .npz is a ZIP file of those.
"""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import ml_dtypes
import numpy as np

from softfloat_llm.errors import ArrayError, CheckpointError, nearest, why
from softfloat_llm.io.safetensors import open_tensors
from softfloat_llm.numerics.formats import Array

KINDS = (".npy", ".npz", ".safetensors")
ALONE = "values"
"""The name of the one array of a .npy file."""
MOST_UNPACKED, MOST_RATIO = 1 << 30, 20
"""What the packed arrays of a .npz file may unpack to: 2^30 bytes, or 20 times the file where that is more.

Deflate packs zeros a thousand times, so a small file could ask for any memory. Activations pack less than twice.
"""


_DAMAGES = (
    OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, MemoryError, OverflowError, SyntaxError,
    RuntimeError,  # an encrypted member; NotImplementedError: an unknown way to pack
)  # fmt: skip


def read_arrays(path: str | Path) -> dict[str, Array]:
    """Name -> array of numbers, of a .npz or .safetensors file; of a .npy file one array, `values`.

    Raises ArrayError: no such file, another kind, damaged, or what is no array of real numbers.
    """
    path = Path(path)
    if path.suffix not in KINDS:
        raise ArrayError(f"Reading {path}: expected a file of the kind {', '.join(KINDS)}.")
    try:
        found = open_tensors(path) if path.suffix == ".safetensors" else _load(path)
    except CheckpointError as error:
        raise ArrayError(f"Reading {path}: {error}") from None
    except _DAMAGES as error:
        raise ArrayError(f"Reading {path}: {why(error)}.") from None
    return {name: _numbers(array, name, path) for name, array in found.items()}


def read_array(text: str) -> Array:
    """The array that `FILE`, `FILE:NAME`, `FILE[2]` or `FILE:NAME[2,5]` means; an index takes one row (of a row).

    Raises ArrayError where the file has several arrays and none is named, or has not what is asked for.
    """
    place, index = _index(text)
    path, name = _named(place)
    arrays = read_arrays(path)
    if name is None:
        if len(arrays) != 1:
            raise ArrayError(f"{path} holds {', '.join(arrays) or 'nothing'}: say which, as in {path}:NAME.")
        name = next(iter(arrays))
    if name not in arrays:
        raise ArrayError(f"{path} has no array {name!r}.{nearest(name, arrays)} It holds {', '.join(arrays)}.")
    try:
        return np.asarray(arrays[name][index])
    except IndexError:
        raise ArrayError(f"{text}: the array has the shape {arrays[name].shape}.") from None


def _index(text: str) -> tuple[str, tuple[int, ...]]:
    place, bracket, rest = text.partition("[")
    if not bracket:
        return text, ()
    words = rest.removesuffix("]").split(",")
    if not rest.endswith("]") or not all(word.strip().removeprefix("-").isdecimal() for word in words):
        raise ArrayError(f"{text}: expected an index such as [2] or [2,5] behind the file.")
    return place, tuple(int(word) for word in words)


def _named(place: str) -> tuple[Path, str | None]:
    """The file, and the name of the array in it."""
    path, colon, name = place.rpartition(":")
    return (Path(path), name) if colon and Path(path).suffix in KINDS else (Path(place), None)


def read_tensors(path: str | Path) -> dict[str, Array]:
    """The arrays of a file, or of all files of a folder: those of a .npy file there under the name of the file.

    Raises ArrayError as `read_arrays`; for a folder without such files, and for a name that stands in two of them.
    """
    path = Path(path)
    if not path.is_dir():
        return read_arrays(path)
    files = sorted(file for file in path.iterdir() if file.suffix in KINDS)
    if not files:
        raise ArrayError(f"Reading {path}: the folder holds no file of the kind {', '.join(KINDS)}.")
    found: dict[str, Array] = {}
    for file in files:
        arrays = read_arrays(file)
        if file.suffix == ".npy":
            arrays = {file.stem: arrays[ALONE]}
        if twice := sorted(set(arrays) & set(found)):
            raise ArrayError(f"Reading {path}: {twice[0]!r} stands in {file.name} and in a file before it.")
        found |= arrays
    return found


# --- .npy and .npz ----------------------------------------------------------------------------------------------------


def _load(path: Path) -> dict[str, Array]:
    if path.suffix == ".npy":
        with open(path, "rb") as file:
            return {ALONE: _read_npy(file, os.stat(path).st_size, str(path))}
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        _check_entries(path, entries, os.stat(path).st_size)
        arrays = {}
        for entry in entries:
            with archive.open(entry) as member:
                name = entry.filename.removesuffix(".npy")
                arrays[name] = _read_npy(member, entry.file_size, f"{path}: {name!r}")
        return arrays


def _check_entries(path: Path, entries: Sequence[zipfile.ZipInfo], size: int) -> None:
    """Raises ArrayError for an archive that is none of NumPy's, or would unpack to far more than it holds."""
    names = Counter(entry.filename for entry in entries)
    if names and (twice := names.most_common(1)[0])[1] > 1:
        raise ArrayError(f"Reading {path}: {twice[0]!r} stands in it {twice[1]} times.")
    for entry in entries:
        if not entry.filename.endswith(".npy") or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ArrayError(f"Reading {path}: {entry.filename!r} is no array as numpy.savez writes them.")
        if entry.compress_type == zipfile.ZIP_STORED and entry.file_size != entry.compress_size:
            raise ArrayError(
                f"Reading {path}: {entry.filename!r} is stored in {entry.compress_size} bytes, not as said."
            )
    held = sum(entry.compress_size for entry in entries)
    unpacked = sum(entry.file_size for entry in entries if entry.compress_type == zipfile.ZIP_DEFLATED)
    if held > size:
        raise ArrayError(f"Reading {path}: its arrays lie over one another ({held} bytes in a file of {size}).")
    if unpacked > max(MOST_UNPACKED, MOST_RATIO * size):
        raise ArrayError(
            f"Reading {path}: {size} bytes would unpack to {unpacked}. Write it unpacked (numpy.savez), or as a"
            " .safetensors file."
        )


class _Said(NamedTuple):
    """What the header of a .npy says of its array."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]


def _read_npy(file: IO[bytes], size: int, where: str) -> Array:
    """The array of a .npy of so many bytes. Raises ArrayError where its header says another size, or objects."""
    said = _header(file, where)
    if said.dtype.hasobject:
        raise ArrayError(f"Reading {where}: it holds Python objects, which would be a pickle. Write numbers.")
    wanted, there = math.prod(said.shape) * said.dtype.itemsize, size - file.tell()
    if wanted != there or any(n < 0 for n in said.shape):
        raise ArrayError(
            f"Reading {where}: {said.dtype} {said.shape} takes {wanted} bytes, {there} are there. It is damaged."
        )
    data = file.read(wanted)
    if len(data) != wanted:
        raise ArrayError(f"Reading {where}: {len(data)} of {wanted} bytes are there. It is truncated.")
    flat = np.frombuffer(data, said.dtype) if wanted else np.zeros(0, said.dtype)
    return flat.reshape(said.shape[::-1]).T if said.is_fortran else flat.reshape(said.shape)


def _header(file: IO[bytes], where: str) -> _Said:
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read is None:  # 3.0 is for the names of fields, which an array of numbers has not
        raise ArrayError(f"Reading {where}: version {version[0]}.{version[1]} of .npy; expected 1.0 or 2.0.")
    return _Said(*read(file))


def _numbers(array: Array, name: str, path: Path) -> Array:
    """The array in a dtype of this package. Raises ArrayError for what is no array of real numbers."""
    array = np.asarray(array, array.dtype.newbyteorder("=")) if array.dtype.kind in "fiu" else array
    if array.dtype == np.dtype("V2"):
        return array.view(ml_dtypes.bfloat16)
    if array.dtype == np.dtype("V1"):
        raise ArrayError(
            f"Reading {path}: {name!r} has bytes without a format, as NumPy writes 8-bit floats. Write a .safetensors"
            " file, or the values as float32."
        )
    if array.dtype.kind in "cOSUmMV" and not hasattr(ml_dtypes, array.dtype.name):
        raise ArrayError(f"Reading {path}: {name!r} is {array.dtype}, not an array of real numbers.")
    return array
