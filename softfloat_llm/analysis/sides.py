"""The two sides of a comparison: a run of ours, or tensors that another tool dumped; named taps in their formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from softfloat_llm.analysis.taps import Tap, over_seen_keys
from softfloat_llm.numerics.formats import Array, Format
from softfloat_llm.recipe import Recipe
from softfloat_llm.sites import LOGITS
from softfloat_llm.trace import Event

if TYPE_CHECKING:
    from softfloat_llm.runs import Run


@dataclass(frozen=True)
class Side:
    """What is compared, whatever made it: taps by name, and the recipe and the digest where they are known."""

    name: str
    arrays: Mapping[str, Array]
    formats: Mapping[str, Format]
    recipe: Recipe | None = None
    digest: str | None = None
    events: tuple[Event, ...] = ()
    pieces: Mapping[int, str] = field(default_factory=dict)

    @property
    def has_logits(self) -> bool:
        return LOGITS in self.arrays

    @property
    def ties(self) -> str:
        """Which of equal logits is taken: as the recipe says; the lowest id where there is none."""
        return "lowest" if self.recipe is None else self.recipe.ties

    def format_of_tap(self, name: str) -> Format:
        """The format whose values a tap holds."""
        return self.formats[name]

    def is_over_keys(self, tap: Tap) -> bool:
        """True where the last axis of a tap is the key position; scaled queries have their elements there."""
        recipe = self.recipe
        is_query = recipe is not None and tap.site == "attn.scale" and recipe.at(tap.site).options["on"] != "scores"
        return tap.is_over_keys and not is_query

    def values(self, tap: Tap, positions: int) -> Array:
        """The first positions of a tap (T, ...), with zeros at the keys that lie after the query."""
        array = self.arrays[tap.name]
        return over_seen_keys(array, positions) if self.is_over_keys(tap) else array[:positions]


def side_of(run: Run) -> Side:
    """A run as a side of a comparison."""
    return Side(run.recipe.name, run.arrays, run.formats, run.recipe, run.digest, run.events, run.pieces)
