"""Weights that stay as they are stored while their sums are made, and are widened a few rows at a time.

Widened whole, a tile of them goes out to the third-level cache and back. Start reading at `StoredRows`.
"""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate, pairwise
from typing import Self

import numpy as np
import numpy.typing as npt

from softfloat_llm.numerics.extents import Stored
from softfloat_llm.numerics.formats import Array, bf16, f16
from softfloat_llm.numerics.operands import from_spread_f16, needs_check, widened
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.side_by_side import joined

Rows = slice | npt.NDArray[np.intp]


class StoredRows:
    """One side of a tile, (K, n): blocks (K, n1), (K, n2), ... of bf16 or f16 side by side.

    It stands for `extents.Operands` where rows are enough: see `stay_stored`.
    """

    def __init__(self, blocks: tuple[Array, ...], stored: Stored) -> None:
        self.blocks, self.stored = blocks, stored
        self._is_cast = blocks[0].dtype == bf16.dtype
        self._sources = blocks if self._is_cast else tuple(block.view(np.int16) for block in blocks)

    @property
    def shape(self) -> tuple[int, int]:
        """(K, n)."""
        return len(self.blocks[0]), sum(block.shape[1] for block in self.blocks)

    @cached_property
    def wide(self) -> Array:
        """All of them (K, n) in float32, for the forms that look at them one by one."""
        return widened(joined(self.blocks) if len(self.blocks) > 1 else self.blocks[0], np.dtype(np.float32))

    @cached_property
    def _columns(self) -> list[slice]:
        ends = accumulate((block.shape[1] for block in self.blocks), initial=0)
        return [slice(first, stop) for first, stop in pairwise(ends)]

    def __getitem__(self, ks: Rows) -> Self:
        return type(self)(tuple(block[ks] for block in self.blocks), self.stored)

    def widen(self, here: slice, out: Array, words: npt.NDArray[np.int32]) -> None:
        """out (count, n), float64 or float32, = the values of some rows, exactly. words: room of that shape.

        All values are finite.
        """
        if self._is_cast:
            self._copy(here, out)
            return
        self._copy(here, words)  # copies of the sign come in
        np.left_shift(words, 13, out=words)
        np.copyto(out, from_spread_f16(words, is_finite=True))

    def _copy(self, here: slice, out: Array) -> None:
        if len(self._sources) == 1:
            np.copyto(out, self._sources[0][here])
            return
        for source, columns in zip(self._sources, self._columns, strict=True):
            np.copyto(out[:, columns], source[here])


def stay_stored(blocks: tuple[Array, ...], at: Precision) -> bool:
    """True where blocks (K, n) need not be widened before their rows are asked for: no check, no flush."""
    dtype = blocks[0].dtype
    if dtype not in (bf16.dtype, f16.dtype) or any(block.dtype != dtype for block in blocks):
        return False
    has_rows = all(block.strides[1] == block.itemsize or block.shape[1] == 1 for block in blocks)
    return has_rows and not needs_check(dtype, at.storage) and "daz" not in at.subnormals.storage
