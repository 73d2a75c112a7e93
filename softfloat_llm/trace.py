"""Named taps: intermediate values of a pass, kept by name, and the first value that left the finite range.

A trace knows no model. It is given (name, array) pairs as they arise; arrays of later calls under the same name are
appended along the first axis, the positions. Where they go is a `Keeper`: `InMemory`, or a file (`io.spool`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Protocol

import numpy as np

from softfloat_llm.numerics.formats import Array, Format
from softfloat_llm.numerics.scaled import Counts


@dataclass(frozen=True)
class Event:
    """A value that is not finite although what it was made from was.

    `index` is its place in the tap (position first); `terms` how many terms had been added, where a sum left its range.
    """

    tap: str
    index: tuple[int, ...]
    value: float
    format: str
    terms: int | None = None
    of_terms: int | None = None

    def __str__(self) -> str:
        place = f"{self.tap} at position {self.index[0]}, element {list(self.index[1:])}"
        if self.terms is None:
            return f"{place} became {self.value} in {self.format}"
        return f"{place} became {self.value}: its {self.format} sum after {self.terms} of {self.of_terms} terms"


class Keeper(Protocol):
    """Where the values of taps go as they come."""

    def append(self, name: str, array: Array, fill: float | None) -> None:
        """Put rows (T, ...) behind those of the name. `fill`: what earlier rows get where the last axis has grown."""

    def arrays(self) -> dict[str, Array]:
        """Name -> all rows, in the order of the names' first coming."""


class InMemory:
    """A keeper of arrays, which are joined when they are asked for."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Array]] = {}
        self._fills: dict[str, float | None] = {}

    def append(self, name: str, array: Array, fill: float | None) -> None:
        self._parts.setdefault(name, []).append(array.copy())
        self._fills[name] = fill

    def arrays(self) -> dict[str, Array]:
        for name, parts in self._parts.items():
            if len(parts) > 1:
                parts[:] = [_joined(parts, self._fills[name])]
        return {name: parts[0] for name, parts in self._parts.items()}


@dataclass
class Trace:
    """What a pass leaves behind. `patterns` (shell-style, over `SITE.STAGE` names) choose the taps that are kept."""

    patterns: Sequence[str] = ("*.out",)
    keeper: Keeper = field(default_factory=InMemory)
    formats: dict[str, Format] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    lost: dict[str, Counts] = field(default_factory=dict)
    """By site: what its scaled storage clipped, flushed or made NaN."""

    @property
    def arrays(self) -> dict[str, Array]:
        """The taps that were kept, in the order of the forward pass."""
        return self.keeper.arrays()

    def wants(self, name: str) -> bool:
        """True where the name fits one of the patterns."""
        return _fits(name, tuple(self.patterns))

    def keep(self, name: str, array: Array, fmt: Format, *, fill: float | None = None) -> None:
        """Keep an array (T, ...) of values of a format, after those that the name has already.

        `fill` is for taps whose last axis grows with the context (scores): earlier rows are filled up with it.
        """
        if not self.wants(name):
            return
        self.formats[name] = fmt
        self.keeper.append(name, array, fill)

    def count(self, site: str, lost: Counts | None) -> None:
        """Add to what a site's scaled storage lost."""
        if lost is not None:
            self.lost[site] = self.lost[site].plus(lost) if site in self.lost else lost

    def note(self, event: Event) -> None:
        """Keep an event, the first of each tap."""
        if all(known.tap != event.tap for known in self.events):
            self.events.append(event)


@lru_cache(maxsize=1 << 13)
def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    """Kept: each pass asks for the same names."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def joined_shape(shapes: Sequence[tuple[int, ...]], fill: float | None) -> tuple[int, ...]:
    """The shape of all rows of these shapes together: the last axis as wide as the widest, where there is a fill."""
    inner = list(shapes[-1][1:])
    if fill is not None:
        inner[-1] = max(shape[-1] for shape in shapes)
    return sum(shape[0] for shape in shapes), *inner


def filled(array: Array, width: int, fill: float) -> Array:
    """The array with its last axis made this wide."""
    if array.shape[-1] == width:
        return array
    wide = np.full((*array.shape[:-1], width), fill, array.dtype)
    wide[..., : array.shape[-1]] = array
    return wide


def _joined(parts: list[Array], fill: float | None) -> Array:
    """Rows behind rows. Empties the list as it goes, so that no two of a large tap are there."""
    whole = np.empty(joined_shape([part.shape for part in parts], fill), parts[0].dtype)
    start = 0
    while parts:
        part = parts.pop(0)
        whole[start : start + len(part)] = part if fill is None else filled(part, whole.shape[-1], fill)
        start += len(part)
    return whole
