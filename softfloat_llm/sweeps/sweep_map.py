"""Two axes of a grid and one number: what the cells with a pair of labels came to. Start reading at `sweep_map_of`.

`Sweep.tables` shows it as text, `report.sweep_picture` draws it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from softfloat_llm.analysis.numbers import about
from softfloat_llm.errors import ReportError, nearest
from softfloat_llm.sweeps.cell import Row
from softfloat_llm.sweeps.grid import AXES, NOTHING, Place

VALUES: dict[str, tuple[str, Callable[[Iterable[float]], float]]] = {
    "flips": ("steps that flip", sum),
    "ties": ("steps that tie", sum),
    "max_abs": ("largest error of a logit", max),
    "mean_abs": ("largest mean error of the logits", max),
    "max_ulp": ("largest error of a logit in ulps of its format", max),
    "max_kl": ("largest divergence of a step in nats", max),
    "mean_kl": ("largest mean divergence in nats", max),
    "least_margin": ("least margin of the reference", min),
}
"""Column of the rows -> what it says, and how several cells become one number."""
COUNTED = ("flips", "ties")
_PREFERRED = ("recipe", "order", "storage", "acc", "rounding", "prompt", "model", "seed")
MOST_LABELS = 64


@dataclass(frozen=True)
class Spot:
    """The cells at a pair of labels: their number together (None where all failed), of how many steps, how many
    cells they are and how many of them failed."""

    value: float | None
    steps: int
    cells: int
    failed: int

    def word(self, is_counted: bool) -> str:
        """`3/8` for what is counted, else the number; `error` where nothing came of any cell."""
        if self.value is None:
            return "error"
        text = f"{self.value:.0f}/{self.steps}" if is_counted else about(self.value, 2)
        return f"{text} !" if self.failed else text


@dataclass(frozen=True)
class SweepMap:
    """`spots` has what there is of (label of the row's axis, label of the column's axis)."""

    rows_by: str
    columns_by: str
    value: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    spots: Mapping[tuple[str, str], Spot]

    @property
    def is_counted(self) -> bool:
        return self.value in COUNTED

    def title(self) -> str:
        return f"{self.value} by {self.rows_by}, {self.columns_by}"

    def about(self) -> str:
        """What the numbers are."""
        return VALUES[self.value][0]

    def words(self, row: str) -> tuple[str, ...]:
        """A row of the map as text: a bar where something is counted, then the number."""
        return tuple(self._word(self.spots.get((row, column))) for column in self.columns)

    def _word(self, spot: Spot | None) -> str:
        if spot is None:
            return ""
        if not self.is_counted or spot.value is None:
            return spot.word(self.is_counted)
        bar = "#" * math.ceil(5 * spot.value / spot.steps)
        return f"{bar:5} {spot.word(True)}"


def varied(places: Sequence[Place]) -> list[str]:
    """The axes on which the cells differ, those first that a map shows before others."""
    return [axis for axis in _PREFERRED if len({place[axis] for place in places}) > 1]


def has_map(places: Sequence[Place]) -> bool:
    return len(varied(places)) > 1


def sweep_map_of(
    rows: Sequence[Row],
    places: Sequence[Place],
    rows_by: str | None = None,
    columns_by: str | None = None,
    value: str = "flips",
) -> SweepMap:
    """The map of two axes; those left out are the first on which the cells differ.

    **Raises** ReportError for an unknown axis or value, twice the same axis, or more than 64 labels on one.
    """
    if value not in VALUES:
        raise ReportError(f"A map of {value!r} is unknown.{nearest(value, VALUES)} Known: {', '.join(VALUES)}.")
    for axis in (rows_by, columns_by):
        if axis is not None and axis not in AXES:
            raise ReportError(f"The axis {axis!r} is unknown.{nearest(axis, AXES)} Known: {', '.join(AXES)}.")
    if rows_by is not None and rows_by == columns_by:
        raise ReportError(f"A map has two axes; {rows_by} is given for both.")
    free = [axis for axis in [*varied(places), *_PREFERRED] if axis not in (rows_by, columns_by)]
    rows_by = rows_by or free.pop(0)
    columns_by = columns_by or next(axis for axis in free if axis != rows_by)
    found = {row["cell"]: row for row in rows}
    groups: dict[tuple[str, str], dict[str, Row]] = {}
    for place in places:
        if place.cell in found:
            groups.setdefault((place[rows_by], place[columns_by]), {})[place.cell] = found[place.cell]
    labels = [tuple(dict.fromkeys(place[axis] for place in places)) for axis in (rows_by, columns_by)]
    for axis, names in zip((rows_by, columns_by), labels, strict=True):
        if len(names) > MOST_LABELS:
            raise ReportError(
                f"A map shows at most {MOST_LABELS} labels; {axis} has {len(names)}. Choose another axis."
            )
    spots = {pair: _spot(list(group.values()), value) for pair, group in groups.items()}
    return SweepMap(rows_by, columns_by, value, labels[0], labels[1], spots)


def _spot(rows: Sequence[Row], value: str) -> Spot:
    done = [row for row in rows if row["error"] is None]
    join: Any = VALUES[value][1]
    number = float(join(row[value] for row in done)) if done else None
    return Spot(number, sum(row["steps"] for row in done), len(rows), len(rows) - len(done))


def label(name: str, axis: str) -> str:
    """A label as a picture has it: what stands for nothing is said in words."""
    return {"order": "the recipe's own", "seed": "none"}.get(axis, "none") if name == NOTHING else name
