"""Arrays that lie in files: where, so that another process can map them, and how their memory is given back."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from softfloat_llm.numerics.formats import Array

_SAMPLES = 8  # along each axis


class Mapped(NamedTuple):
    """Where an array lies in a file, so that another process can map it."""

    path: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    def open(self) -> Array:
        """The array, read-only."""
        whole = np.memmap(self.path, np.uint8, "r")
        return np.ndarray(self.shape, self.dtype, whole, self.offset, self.strides)

    def still_holds(self, array: Array) -> bool:
        """False where the file is gone, or another one has its place since the array was mapped: a sample differs."""
        sample = np.ix_(*(np.unique(np.linspace(0, n - 1, _SAMPLES).astype(int)) for n in self.shape if n))
        try:
            return array.size == 0 or self.open()[sample].tobytes() == array[sample].tobytes()
        except (OSError, ValueError, TypeError):  # no file, an empty one, one that is too short
            return False


def place_in_file(array: Array) -> Mapped | None:
    """Where an array lies in a file that is mapped for reading; None where it does not."""
    root = _root(array)
    if root is None:
        return None
    offset = root.offset + array.ctypes.data - root.ctypes.data
    return Mapped(os.fspath(root.filename), offset, array.shape, array.strides, array.dtype)


def give_back(array: Array) -> None:
    """Let the system have the memory of an array that lies in a file; it is read again when it is looked at again.

    Whole pages inside the array only. Nothing happens to an array that lies in no file, or where a system cannot.
    """
    root, page = _root(array), mmap.PAGESIZE
    if (
        root is None
        or not hasattr(mmap, "MADV_DONTNEED")
        or not (array.flags.c_contiguous or array.T.flags.c_contiguous)
    ):
        return
    mapping: mmap.mmap = root._mmap
    ahead = len(mapping) - root.nbytes  # np.memmap maps from the start of a page on
    start = ahead + array.ctypes.data - root.ctypes.data
    first, last = -(-start // page) * page, (start + array.nbytes) // page * page
    if first < last:
        mapping.madvise(mmap.MADV_DONTNEED, first, last - first)


def _root(array: Array) -> Any:
    """The read-only memory map that an array is a view of, or None."""
    for owner in _owners(array):
        if isinstance(owner, np.memmap) and owner.mode == "r" and owner.filename is not None:
            return owner
    return None


def _owners(array: Array) -> Iterator[Any]:
    owner: Any = array
    while owner is not None:
        yield owner
        owner = getattr(owner, "base", None)
