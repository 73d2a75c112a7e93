"""Arrays from files of several kinds: .npy, .npz, .safetensors. No pickle is ever read.

Start reading at `read_arrays`. What NumPy writes of a bf16 array is two bytes without a name; such are read as bf16.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from softfloat_llm.errors import ArrayError, CheckpointError, nearest
from softfloat_llm.io.safetensors import open_tensors
from softfloat_llm.numerics.formats import Array

KINDS = (".npy", ".npz", ".safetensors")
ALONE = "values"
"""The name of the one array of a .npy file."""


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
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, MemoryError, OverflowError, SyntaxError) as error:
        told = str(error).split("\n", maxsplit=1)[0] or type(error).__name__
        raise ArrayError(f"Reading {path}: {told}.") from None
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


def _load(path: Path) -> dict[str, Array]:
    loaded: Any = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return {ALONE: loaded}
    with loaded as archive:
        return {name: archive[name] for name in archive.files}


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
