"""Stochastic rounding: up with the probability of the fraction, to r bits, by random words that are counted, not drawn.

The word of an element depends on a seed, the element's index, and the step of its sum, and on nothing else: neither on
the shape of the array, nor on what is rounded before or beside it. Start reading at `Stochastic`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from softfloat_llm.errors import FormatError
from softfloat_llm.numerics.formats import Array, Float64Array

Words = npt.NDArray[np.uint64]
"""32-bit words, each in a uint64, so that their products fit."""

MOST_BITS = 28  # with f32's 24 they fit the 52 bits of which an exact sum rounded to odd keeps each
_WORD = re.compile(r"stochastic(?::([0-9]{1,2})(?::([0-9]{1,20}))?)?")
_LOW = np.uint64(0xFFFF_FFFF)
_HALF = np.uint64(32)
_ROUNDS = 10
# Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3 (SC 2011), table 2 and section 4.2
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))


class Part(NamedTuple):
    """Some rows and columns of a matrix: its first row, its first column, and the columns of the whole."""

    row: int
    column: int
    columns: int


@dataclass(frozen=True)
class Stochastic:
    """Rounding up with probability floor(2^bits * fraction) / 2^bits, by the words of a seed.

    As a word: `stochastic`, `stochastic:BITS` or `stochastic:BITS:SEED` (16 bits, seed 0). `step` counts the roundings
    of one element. `first` is the index of an array's first element, where it is a piece of another in C order; `part`
    says so of a matrix.
    """

    bits: int = 16
    seed: int = 0
    step: int = 0
    first: int = 0
    part: Part | None = None

    def __str__(self) -> str:
        return f"stochastic:{self.bits}:{self.seed}"

    def at_step(self, step: int) -> Stochastic:
        """The words of another rounding of the same elements."""
        return replace(self, step=step)

    def from_index(self, first: int) -> Stochastic:
        """The words of a piece of a larger array, whose first element has this index there."""
        return replace(self, first=self.first + first)

    def for_part(self, part: Part) -> Stochastic:
        """The words of a part of a matrix."""
        return replace(self, part=part)

    def named(self, name: str) -> Stochastic:
        """The words of another seed: that which this seed and a name give."""
        digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        return replace(self, seed=int.from_bytes(digest[:8], "little"))

    def random(self, shape: tuple[int, ...]) -> Float64Array:
        """A random integer below 2^bits for each element of an array of this shape."""
        index = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64)
        if self.part is not None:
            row, column = np.divmod(index, np.uint64(max(1, shape[-1])))
            index = (
                (row + np.uint64(self.part.row)) * np.uint64(self.part.columns) + np.uint64(self.part.column) + column
            )
        index += np.uint64(self.first)
        word = philox(index & _LOW, index >> _HALF, self.step, self.seed)
        return (word >> np.uint64(32 - self.bits)).astype(np.float64).reshape(shape)

    def to_integer(self, y: Float64Array) -> Float64Array:
        """y rounded to an integer, away from zero where the random integer and floor(2^bits * fraction) reach 2^bits.

        A zero keeps the sign of y. |y| below 2^53, or y already an integer; the fraction's bits beyond 2^bits are not
        looked at, so that a y that was rounded to odd serves for the exact one.
        """
        below = np.trunc(y)
        fraction = np.floor(np.abs(y - below) * 2.0**self.bits)
        goes_away = fraction + self.random(y.shape) >= 2.0**self.bits
        away: Float64Array = np.copysign(np.abs(below) + goes_away, y)
        return away


@lru_cache(maxsize=256)
def _parsed(word: str) -> Stochastic | None:
    match = _WORD.fullmatch(word)
    if match is None:
        return None
    bits, seed = int(match[1] or 16), int(match[2] or 0)
    if not 1 <= bits <= MOST_BITS or seed >= 1 << 64:
        raise FormatError(
            f"Rounding mode {word!r}: expected stochastic:BITS:SEED with 1 to {MOST_BITS} bits and a seed below 2^64."
        )
    return Stochastic(bits, seed)


def stochastic_of(mode: str | Stochastic) -> Stochastic | None:
    """The rule that a mode's word spells, or None for the other modes. Raises FormatError for bits out of range."""
    if isinstance(mode, Stochastic):
        return mode
    return _parsed(mode) if isinstance(mode, str) else None


def philox(low: Words, high: Words, step: int, seed: int) -> Words:
    """The first word of Philox4x32-10 for the counters (low, high, step), under the key `seed`. low, high (n,).

    Source: Salmon, Moraes, Dror and Shaw (SC 2011); checked against the known answers of Random123 in the tests.
    """
    return philox_block((low, high, _word(step), _word(step >> 32)), seed)[0]


def philox_block(counter: tuple[Any, Any, Any, Any], seed: int) -> tuple[Array, Array, Array, Array]:
    """All four words of a block, each 32 bits in a uint64."""
    a, b, c, d = (np.asarray(word, np.uint64) for word in counter)
    keys = [_word(seed), _word(seed >> 32)]
    with np.errstate(over="ignore"):
        for _ in range(_ROUNDS):
            left, right = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
            a, b, c, d = (right >> _HALF) ^ b ^ keys[0], right & _LOW, (left >> _HALF) ^ d ^ keys[1], left & _LOW
            keys = [(key + weyl) & _LOW for key, weyl in zip(keys, _WEYL, strict=True)]
    return a, b, c, d


def _word(value: int) -> np.uint64:
    return np.uint64(value & 0xFFFF_FFFF)
