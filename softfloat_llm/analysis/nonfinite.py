"""Where NaN or an infinity first arose in a run: reported before any distance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from softfloat_llm.analysis.numbers import about
from softfloat_llm.analysis.taps import Tap, are_seen, forward_order, is_over_keys, tap_of
from softfloat_llm.numerics.extents import is_all_finite
from softfloat_llm.numerics.formats import Array
from softfloat_llm.numerics.mapped import give_back
from softfloat_llm.trace import Event

AT_ONCE = 1 << 22
"""Elements that are looked at at once."""


@dataclass(frozen=True)
class Before:
    """What came before: the tap that the site took, or the last one that was kept, and its largest |value| there."""

    tap: str
    largest: float

    def to_dict(self) -> dict[str, Any]:
        return {"tap": self.tap, "largest": self.largest}


@dataclass(frozen=True)
class NonFinite:
    """The first value of a run that is not finite. `story` says from what it arose, where the run recorded that."""

    whose: str
    tap: Tap
    index: tuple[int, ...]
    value: float
    story: str = ""
    before: Before | None = None

    @property
    def position(self) -> int:
        return self.index[0]

    def __str__(self) -> str:
        place = f"{self.tap.name}, position {self.position}, element {list(self.index[1:])}"
        told = f" ({self.story})" if self.story else ""
        given = f"; {self.before.tap} reaches {about(self.before.largest)} there" if self.before else ""
        return f"{_word(self.value)} in the {self.whose}, first at {place}{told}{given}"

    def to_dict(self) -> dict[str, Any]:
        """JSON: plain numbers, strings, lists."""
        where = {"position": self.position, "index": list(self.index)}
        told = {"in": self.whose, "value": str(self.value), "story": self.story}
        return told | {"before": self.before and self.before.to_dict()} | where | self.tap.to_dict()


def _word(value: float) -> str:
    return "NaN" if np.isnan(value) else str(value)


def first_nonfinite(whose: str, arrays: Mapping[str, Array], events: tuple[Event, ...]) -> NonFinite | None:
    """The earliest non-finite value, of the events that the run recorded and of the taps that it kept; or None.

    Scores of keys after their query mean nothing and do not count.
    """
    found = [_of_event(whose, event) for event in events[:1]]
    for tap in forward_order(arrays):
        if (place := _first_place(tap, arrays[tap.name])) is not None:
            found.append(NonFinite(whose, tap, place, float(arrays[tap.name][place])))
            break
        give_back(arrays[tap.name])
    first = min(found, key=lambda one: one.tap.order, default=None)
    return first and replace(first, before=_before(first, arrays))


def _before(found: NonFinite, arrays: Mapping[str, Array]) -> Before | None:
    """What the site took at that position; without that tap, the last tap before it that was kept."""
    earlier = [tap for tap in forward_order(arrays) if tap.order < found.tap.order]
    taken = [tap for tap in earlier if (tap.layer, tap.site, tap.stage) == (found.tap.layer, found.tap.site, "in")]
    for tap in [*taken, *reversed(earlier)]:
        array = arrays[tap.name]
        if len(array) > found.position:
            row = np.abs(array[found.position].astype(np.float64))
            row = row[np.isfinite(row)]
            return Before(tap.name, float(row.max())) if row.size else None
    return None


def _of_event(whose: str, event: Event) -> NonFinite:
    return NonFinite(whose, tap_of(event.tap), event.index, event.value, _story(event))


def _story(event: Event) -> str:
    if event.terms is None:
        return f"its operands were finite; output {event.format}"
    return f"its {event.format} sum left the range after {event.terms} of {event.of_terms} terms"


def _first_place(tap: Tap, array: Array) -> tuple[int, ...] | None:
    """Some rows after the others: those of a long context are large."""
    rows = max(1, AT_ONCE // max(1, math.prod(array.shape[1:])))
    for start in range(0, len(array), rows):
        part = array[start : start + rows]
        if is_all_finite(part):
            continue
        is_bad = ~np.isfinite(part)
        if is_over_keys(tap, array):
            is_bad &= are_seen(start, part)
        if is_bad.any():
            place = tuple(int(i) for i in np.argwhere(is_bad)[0])
            return start + place[0], *place[1:]
    return None
