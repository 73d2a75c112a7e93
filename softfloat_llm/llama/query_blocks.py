"""Queries in blocks, as flash attention takes them: each block is a product of its own, over the keys that it can see.

Whether they come in blocks is a site's option `queries`; what a rule such as `order if M == 2` calls M is then the rows
of a block. Shape letters: T query positions, S key positions, H heads, N columns.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import numpy as np

from softfloat_llm.llama.taps import Taps
from softfloat_llm.numerics.formats import Array
from softfloat_llm.site_specs import SiteSpec


def block_rows(positions: int, spec: SiteSpec) -> int:
    """How many queries are one product.

    **Source:** PyTorch 2.13, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp, flash_attention_kernel_impl.
    """
    if spec.options["queries"] == "all":
        return positions
    return 256 if positions >= 768 else 64 if positions >= 192 else 32


def in_query_blocks(positions: int, length: int, spec: SiteSpec, make: Callable[[slice, int], Taps]) -> Taps:
    """The taps of all queries, `make(rows, keys)` giving those of some rows over the first `keys` of S keys.

    Where the last axis is S, a block's taps are as wide as it has keys; what is missing is filled with 0.
    """
    rows = block_rows(positions, spec)
    if positions <= rows:
        return make(slice(0, positions), length)
    ends = [min(start + rows, positions) for start in range(0, positions, rows)]
    parts = [make(slice(end - (end - 1) % rows - 1, end), length - positions + end) for end in ends]
    return _stacked(parts)


def _stacked(parts: list[Taps]) -> Taps:
    """The taps of blocks of queries one after another."""
    starts = [0, *accumulate(len(part.out) for part in parts)]

    def terms(index: tuple[int, ...]) -> tuple[int, int]:
        block = int(np.searchsorted(starts, index[0], side="right")) - 1
        tell = parts[block].terms
        assert tell is not None
        return tell((index[0] - starts[block], *index[1:]))

    def stage(name: str) -> Array:
        return _as_wide([getattr(part, name) for part in parts])

    told = terms if all(part.terms is not None for part in parts) else None
    return parts[-1]._replace(enter=stage("enter"), acc=stage("acc"), out=stage("out"), terms=told)


def _as_wide(arrays: list[Array]) -> Array:
    """Arrays (T, H, N) of several widths one after another."""
    width = max(array.shape[-1] for array in arrays)
    whole = [np.pad(array, ((0, 0), (0, 0), (0, width - array.shape[-1]))) for array in arrays]
    joined: Array = np.concatenate(whole)
    return joined
