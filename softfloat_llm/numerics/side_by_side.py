"""Matrices side by side, taken as one: layers of one input whose sums are made alike cost the calls of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from softfloat_llm.numerics.formats import Array


@dataclass(frozen=True, eq=False)
class SideBySide:
    """Matrices (K, n1), (K, n2), ... as one (K, n1 + n2 + ...). Nothing is copied.

    `whole` is the array whose columns they are, where they lie side by side in memory: then nothing need be joined.
    """

    parts: tuple[Array, ...]
    whole: Array | None = None

    def __post_init__(self) -> None:
        if self.whole is not None:  # a vector, as a bias is, lies there as one of one dimension
            width = sum(part.shape[-1] for part in self.parts)
            assert self.whole.shape == (*self.parts[0].shape[:-1], width)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """(K, N)."""
        return self.parts[0].shape[0], sum(part.shape[1] for part in self.parts)

    @cached_property
    def place(self) -> tuple[tuple[Any, ...], ...]:
        """Where it lies in memory, and how: of two that are there, those are equal that are one."""
        return tuple((block.ctypes.data, block.shape, block.strides, block.dtype) for block in self.filled())

    def columns(self, wanted: slice) -> SideBySide:
        """Some columns, of the parts that have them."""
        if self.whole is not None:
            return side_by_side(self.whole[:, wanted])
        return SideBySide(tuple(part[:, here] for part, here in zip(self.parts, self._places(wanted), strict=True)))

    def split(self, whole: Array) -> list[Array]:
        """A result (M, N) in the columns of each part."""
        return [whole[:, start:stop] for start, stop in pairwise(self._starts())]

    def places(self) -> Iterator[tuple[slice, Array]]:
        """Each part, and which columns of the whole it has."""
        for (start, stop), part in zip(pairwise(self._starts()), self.parts, strict=True):
            yield slice(start, stop), part

    def _starts(self) -> list[int]:
        return list(accumulate((part.shape[1] for part in self.parts), initial=0))

    def _places(self, wanted: slice) -> Iterator[slice]:
        for start, stop in pairwise(self._starts()):
            first = min(max(wanted.start - start, 0), stop - start)
            yield slice(first, max(first, min(wanted.stop, stop) - start))

    def filled(self) -> tuple[Array, ...]:
        """The arrays that have the columns, at least one: the whole, or the parts that are not empty."""
        if self.whole is not None:
            return (self.whole,)
        return tuple(part for part in self.parts if part.shape[1]) or self.parts[:1]


def side_by_side(b: Array | SideBySide) -> SideBySide:
    """b itself, or as its only part."""
    return b if isinstance(b, SideBySide) else as_one((b,))


def as_one(blocks: tuple[Array, ...]) -> SideBySide:
    """Blocks (K, n) that lie anywhere; a single one is the whole."""
    return SideBySide(blocks, blocks[0] if len(blocks) == 1 else None)


def joined(blocks: tuple[Array, ...]) -> Array:
    """Blocks (K, n) side by side in one array, laid out as they are, columns after columns or row by row."""
    dtypes = {block.dtype for block in blocks}
    dtype = dtypes.pop() if len(dtypes) == 1 else np.dtype(np.float64)
    codes = [block.astype(dtype, copy=False).view(f"u{dtype.itemsize}") for block in blocks]
    if all(block.T.flags.c_contiguous for block in codes):
        return np.concatenate([block.T for block in codes]).view(dtype).T
    return np.concatenate(codes, axis=1).view(dtype)
