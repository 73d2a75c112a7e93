"""Arrays that lie in files: where, so that another process can map them, how they get there, and are given back."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from softfloat_llm.numerics.formats import Array

_SAMPLES = 8  # along each axis
_ALIGNED = 64  # bytes: a cache line
_SHARED_MEMORY = Path("/dev/shm")


class Mapped(NamedTuple):
    """Where an array lies in a file, so that another process can map it.

    `file` tells that file from another one that gets its path later.
    """

    path: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    file: tuple[int, ...] = ()

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
    """Where an array lies in a file that is mapped for reading; None where it does not, or the file is gone."""
    root = _root(array)
    if root is None:
        return None
    offset = root.offset + array.ctypes.data - root.ctypes.data
    try:
        found = os.stat(root.filename)
    except OSError:
        return None
    file = found.st_dev, found.st_ino, found.st_mtime_ns
    return Mapped(os.fspath(root.filename), offset, array.shape, array.strides, array.dtype, file)


class Storage:
    """Arrays in memory which other processes can map, until they are removed.

    Under Linux they lie in one file without a name: however the processes end that have it, nothing is left of it, and
    it may be larger than /dev/shm, which is small in a container. Elsewhere each lies in a temporary file.
    """

    def __init__(self) -> None:
        self.paths: list[str] = []
        """Of temporary files."""
        self._nameless: int | None = None  # its descriptor
        self._length = 0  # of what is written to it
        self.size = 0
        """Bytes of what is laid out."""

    def lay_out(self, array: Array) -> Mapped:
        """A copy of an array, laid out as the array is where it is a transposed one. Raises OSError without room."""
        is_turned = array.T.flags.c_contiguous
        flat = array.T if is_turned else np.ascontiguousarray(array)
        strides = flat.strides[::-1] if is_turned else flat.strides
        path, offset = self._written(flat.view(np.uint8).data if flat.size else memoryview(b"\0"))
        self.size += flat.nbytes
        return Mapped(path, offset, array.shape, strides, array.dtype)

    def _written(self, data: memoryview) -> tuple[str, int]:
        """Where the bytes lie: the path, and from which byte on."""
        path = self._path_of_nameless()
        if path is None:
            folder = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
            with tempfile.NamedTemporaryFile(dir=folder, prefix="softfloat-llm-", delete=False) as named:
                self.paths.append(named.name)
                named.write(data)
            return self.paths[-1], 0
        assert self._nameless is not None
        start = self._length
        with open(self._nameless, "wb", closefd=False) as file:
            file.seek(start)
            file.write(data)
        self._length += -(-data.nbytes // _ALIGNED) * _ALIGNED
        return path, start

    def _path_of_nameless(self) -> str | None:
        """Where others of this user find the file without a name; None where there is none."""
        if self._nameless is None and hasattr(os, "memfd_create"):
            with suppress(OSError):  # a kernel may lack what the C library has
                self._nameless, self._length = os.memfd_create("softfloat-llm"), 0
        path = f"/proc/{os.getpid()}/fd/{self._nameless}"
        return path if os.access(path, os.R_OK) else None

    def remove(self) -> None:
        """What others have mapped they keep."""
        while self.paths:
            with suppress(OSError):
                os.unlink(self.paths.pop())
        self.let_go()

    def let_go(self) -> None:
        """Begin anew, and leave what is laid out to another process, which this one is a fork of."""
        self.paths.clear()
        if self._nameless is not None:
            os.close(self._nameless)
            self._nameless = None
        self.size = 0


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
    """The read-only memory map that an array is a view of, or None. A view of it is a np.memmap too, of its offset."""
    for owner in _owners(array):
        if isinstance(owner, np.memmap) and isinstance(owner.base, mmap.mmap):
            return owner if owner.mode == "r" and owner.filename is not None else None
    return None


def _owners(array: Array) -> Iterator[Any]:
    owner: Any = array
    while owner is not None:
        yield owner
        owner = getattr(owner, "base", None)
