"""Named taps: intermediate values of a pass, kept by name, and the first value that left the finite range.

A trace knows no model. It is given (name, array) pairs as they arise; arrays of later calls under the same name are
appended along the first axis, the positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

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


@dataclass
class Trace:
    """What a pass leaves behind. `patterns` (shell-style, over `SITE.STAGE` names) choose the taps that are kept."""

    patterns: Sequence[str] = ("*.out",)
    arrays: dict[str, Array] = field(default_factory=dict)
    formats: dict[str, Format] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    lost: dict[str, Counts] = field(default_factory=dict)
    """By site: what its scaled storage clipped, flushed or made NaN."""

    def wants(self, name: str) -> bool:
        """True where the name fits one of the patterns."""
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def keep(self, name: str, array: Array, fmt: Format, *, fill: float | None = None) -> None:
        """Keep an array (T, ...) of values of a format, after those that the name has already.

        `fill` is for taps whose last axis grows with the context (scores): earlier rows are filled up with it.
        """
        if not self.wants(name):
            return
        self.formats[name] = fmt
        before = self.arrays.get(name)
        if before is not None and fill is not None:
            width = max(before.shape[-1], array.shape[-1])
            before, array = _filled(before, width, fill), _filled(array, width, fill)
        self.arrays[name] = array.copy() if before is None else np.concatenate([before, array])

    def count(self, site: str, lost: Counts | None) -> None:
        """Add to what a site's scaled storage lost."""
        if lost is not None:
            self.lost[site] = self.lost[site].plus(lost) if site in self.lost else lost

    def note(self, event: Event) -> None:
        """Keep an event, the first of each tap."""
        if all(known.tap != event.tap for known in self.events):
            self.events.append(event)


def _filled(array: Array, width: int, fill: float) -> Array:
    """The array with its last axis made this wide."""
    wide = np.full((*array.shape[:-1], width), fill, array.dtype)
    wide[..., : array.shape[-1]] = array
    return wide
