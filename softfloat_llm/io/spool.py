"""Taps written to disk as they come, and put together into one .safetensors file at the end: a trace's keeper.

Each tap has a file of its own, to which rows are appended; at the end the files become `path`, one after the other, and
go. Never more than a piece of one tap is in memory. Start reading at `Spool`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from softfloat_llm.io.safetensors import NAMED_DTYPES, Kind, open_tensors, storable, write_pieces
from softfloat_llm.numerics.formats import Array
from softfloat_llm.trace import filled, joined_shape


@dataclass
class _Tap:
    """One tap: its file, and the shapes of the pieces in it."""

    path: Path
    dtype: np.dtype[Any]
    fill: float | None
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        return joined_shape(self.shapes, self.fill)

    def pieces(self) -> Iterator[Array]:
        """The rows in the order of their coming, each as wide as the widest. The file is gone after the last."""
        width = self.shape[-1] if self.fill is not None else 0
        with open(self.path, "rb") as file:
            for shape in self.shapes:
                count = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
                piece = np.frombuffer(file.read(count), self.dtype).reshape(shape)
                yield storable(piece if self.fill is None else filled(piece, width, self.fill))
        self.path.unlink()


class Spool:
    """Keeps taps in files of `folder`, which it makes, until they are asked for: then in `path`, memory mapped."""

    def __init__(self, folder: Path, path: Path) -> None:
        folder.mkdir()
        self._folder, self._path = folder, path
        self._taps: dict[str, _Tap] = {}

    def append(self, name: str, array: Array, fill: float | None) -> None:
        if name not in self._taps:
            self._taps[name] = _Tap(self._folder / f"{len(self._taps)}", array.dtype, fill)
        tap = self._taps[name]
        tap.shapes.append(array.shape)
        with open(tap.path, "ab") as file:
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def arrays(self) -> dict[str, Array]:
        """Name -> all rows, as a .safetensors file has them (`storable`). No more rows can come after that."""
        if self._folder.is_dir():
            kinds = {name: _kind(tap) for name, tap in self._taps.items()}
            write_pieces(self._path, kinds, lambda name: self._taps[name].pieces())
            self._folder.rmdir()
        found = open_tensors(self._path)
        return {name: _of_codes(found[name], tap.dtype) for name, tap in self._taps.items()}


def _kind(tap: _Tap) -> Kind:
    """What the file says of a tap: the array, or its codes."""
    codes = storable(np.empty(0, tap.dtype))
    return Kind(codes.dtype, tap.shape)


def _of_codes(stored: Array, dtype: np.dtype[Any]) -> Array:
    return stored if dtype in NAMED_DTYPES else stored.view(dtype)
