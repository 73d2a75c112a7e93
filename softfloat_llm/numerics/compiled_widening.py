"""Codes of bf16 and f16 as float32, as machine code: one by one, for the loops that widen on the way, and whole blocks.

After a change here, touch `compiled_loops` too: see `compiled_instructions`. Start reading at `WORDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from softfloat_llm.numerics.compiled_instructions import compiled, float32, inner, named, word32
from softfloat_llm.numerics.formats import Array, bf16, f16


@inner
def _bf16(code: Any) -> Any:
    """The word of the float32 of a code: it is the upper half."""
    return np.uint32(code) << np.uint32(16)


@inner
def _f16(code: Any) -> Any:
    """The word of the float32 of a code: see `operands.from_spread_f16`."""
    magnitude = np.uint32(code & 0x7FFF)
    exact = float32(magnitude << np.uint32(13)) * np.float32(2.0**112)
    word = word32(exact) | (np.uint32(0x7F80_0000) if magnitude >= 0x7C00 else np.uint32(0))
    return word | (np.uint32(code & 0x8000) << np.uint32(16))


WORDS = {bf16.dtype: _bf16, f16.dtype: _f16}


def _widening(word_of: Callable[..., Any]) -> tuple[Callable[..., None], Callable[..., None]]:
    """Two loops to words uint32 (K, n): from codes uint16 (K, n), and from pairs of codes uint32 (K/2, n)."""

    @compiled
    @named(word_of)
    def one_by_one(codes: Array, wide: Array) -> None:
        rows, columns = codes.shape
        for k in range(rows):
            row, words = codes[k], wide[k]
            for n in range(columns):
                words[n] = word_of(row[n])

    @compiled
    @named(word_of)
    def in_pairs(pairs: Array, wide: Array) -> None:
        rows, columns = pairs.shape
        for k in range(rows):
            words, even, odd = pairs[k], wide[2 * k], wide[2 * k + 1]
            for n in range(columns):
                even[n] = word_of(words[n] & np.uint32(0xFFFF))
            for n in range(columns):
                odd[n] = word_of(words[n] >> np.uint32(16))

    return one_by_one, in_pairs


WIDENING = {dtype: _widening(word_of) for dtype, word_of in WORDS.items()}
