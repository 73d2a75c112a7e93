"""Picture 6: what a sweep came to on two axes of its grid, a number and a colour for each pair of labels.

Colours go by the share of steps where something is counted, else by the power of ten. Start at `sweep_picture`.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softfloat_llm.io.atomic import new_file
from softfloat_llm.report.drawing import LARGE, SMALL, WIDTH, boxes, sheet, svg_of, write
from softfloat_llm.report.heat_map import LEVELS, ink_on
from softfloat_llm.report.page import check_page
from softfloat_llm.sweeps.sweep_map import Spot, SweepMap, label

_LETTER = 6.6  # units across of a letter of size 11, in the wider fonts that a reader may have
_LINE, _ROW, _EDGE = 14.0, 30.0, 16.0
_ROW_LETTERS, _COLUMN_LETTERS, _LINES = 40, 22, 5
_NARROWEST = 64.0


def sweep_picture(found: SweepMap) -> str:
    """The picture as SVG: a row and a column for each label of the two axes. Needs the extra `report`."""
    plan = _Plan(found)
    return svg_of(
        lambda figure: _draw(figure, found, plan),
        name="sweep",
        title=f"{found.about()}, by {found.rows_by} and {found.columns_by}".capitalize(),
        description=_described(found),
        height=plan.height,
        width=plan.width,
    )


def save_sweep_picture(found: SweepMap, path: Path, *, replace: bool = False) -> None:
    """Write the picture. Raises ReportError where it cannot be drawn, or the file is there and not to be replaced."""
    check_page(path, replace=replace)
    picture = sweep_picture(found)
    with new_file(path) as file:
        file.write(picture.encode())


class _Plan:
    """Where everything stands: labels in lines that fit their places, and the picture as large as they need."""

    def __init__(self, found: SweepMap) -> None:
        self.rows = [_lines(label(name, found.rows_by), _ROW_LETTERS) for name in found.rows]
        self.columns = [_lines(label(name, found.columns_by), _COLUMN_LETTERS) for name in found.columns]
        self.left = _EDGE + max(_across(lines) for lines in [[found.rows_by], *self.rows]) + 10
        words = [spot.word(found.is_counted) for spot in found.spots.values()]
        self.cell = max(_NARROWEST, *(_across(lines) + 12 for lines in [*self.columns, words]))
        self.tall = max(_ROW, *(_LINE * len(lines) + 8 for lines in self.rows))
        self.top = 64 + _LINE * max(len(lines) for lines in self.columns) + 8
        self.below = self.top + self.tall * len(self.rows)
        self.height = self.below + 84
        self.width = max(float(WIDTH), self.left + self.cell * len(self.columns) + _EDGE)


def _lines(text: str, letters: int) -> list[str]:
    """A label in a few lines, broken at spaces and after commas; the rest is cut."""
    spaced = " ".join(text.replace("\n", " ").split()).replace(",", ", ")
    lines = textwrap.wrap(spaced, letters, max_lines=_LINES, placeholder=" …") or [""]
    return [line.replace(", ", ",") for line in lines]


def _across(lines: Sequence[str]) -> float:
    return _LETTER * max(len(line) for line in lines)


def _draw(figure: Any, found: SweepMap, plan: _Plan) -> None:
    axes = sheet(figure, plan.width, plan.height)
    write(axes, _EDGE, 24, found.about().capitalize(), size=LARGE, is_bold=True)
    write(axes, plan.left, 48, found.columns_by, size=SMALL, ink="quiet")
    write(axes, plan.left - 10, plan.top - 14, found.rows_by, size=SMALL, ink="quiet", ha="right")
    for column, lines in enumerate(plan.columns):
        x = plan.left + plan.cell * (column + 0.5) - 0.75
        _write_lines(axes, x, plan.top - 8 - _LINE * len(lines) / 2, lines, "center")
    for row, lines in enumerate(plan.rows):
        _write_lines(axes, plan.left - 10, plan.top + plan.tall * (row + 0.5), lines, "right")
    scale = _Scale(found)
    for row, name in enumerate(found.rows):
        for column, other in enumerate(found.columns):
            if (spot := found.spots.get((name, other))) is not None:
                _draw_spot(axes, spot, scale, (plan.left + plan.cell * column, plan.top + plan.tall * row), plan)
    _draw_scale(axes, scale, plan)


def _write_lines(axes: Any, x: float, y: float, lines: Sequence[str], ha: str) -> None:
    for place, line in enumerate(lines):
        write(axes, x, y + _LINE * (place - (len(lines) - 1) / 2), line, size=SMALL, ha=ha)


def _draw_spot(axes: Any, spot: Spot, scale: _Scale, corner: tuple[float, float], plan: _Plan) -> None:
    x, y = corner
    shade = None if spot.value is None else scale.level(spot)
    fill, ink = ("error", "error-edge") if shade is None else (f"heat-{shade}", ink_on(shade))
    boxes(axes, [(x, y, plan.cell - 1.5, plan.tall - 1.5)], fill)
    word = spot.word(scale.is_counted)
    write(axes, x + plan.cell / 2 - 0.75, y + plan.tall / 2 - 0.75, word, size=SMALL, ink=ink, ha="center")


class _Scale:
    """From a number to one of the colours, and what each colour means."""

    def __init__(self, found: SweepMap) -> None:
        self.is_counted = found.is_counted
        values = [spot.value for spot in found.spots.values() if spot.value and math.isfinite(spot.value)]
        powers = [math.floor(math.log10(abs(value))) for value in values] or [0]
        self._top = max(powers)
        self.lowest = max(1, LEVELS - (max(powers) - min(powers)))

    def level(self, spot: Spot) -> int:
        """0 for 0; then by eighths of the steps, or by powers of ten, the darkest being the largest."""
        assert spot.value is not None
        if spot.value == 0 or math.isnan(spot.value):
            return 0
        if self.is_counted:
            return math.ceil(LEVELS * spot.value / spot.steps)
        if math.isinf(spot.value):
            return LEVELS
        return max(1, LEVELS - (self._top - math.floor(math.log10(abs(spot.value)))))

    def legend(self) -> list[tuple[int, str]]:
        """(level, words) of each colour that there can be."""
        if self.is_counted:
            return [(0, "none"), *((n, f"to {100 * n / LEVELS:g} %") for n in (2, 4, 6, 8))]
        told = [(0, "0")]
        for n in range(self.lowest, LEVELS + 1):
            power = self._top - LEVELS + n
            told.append((n, f"below 1e{power + 1}" if n == 1 else f"from 1e{power}"))
        return told


def _draw_scale(axes: Any, scale: _Scale, plan: _Plan) -> None:
    legend, wide = scale.legend(), 74.0
    for place, (shade, words) in enumerate(legend):
        x, y = _EDGE + wide * place, plan.below + 22
        boxes(axes, [(x, y, wide - 2, 20)], f"heat-{shade}")
        write(axes, x + wide / 2 - 1, y + 10, words, size=SMALL, ink=ink_on(shade), ha="center")
    foot = "Each number is of all cells with the two labels together. !: some of them ended in an error."
    write(axes, _EDGE, plan.height - 20, foot, size=SMALL, ink="quiet")


def _described(found: SweepMap) -> str:
    """The numbers, to be read aloud; of a large map its size alone."""
    if len(found.spots) > 64:
        return f"{len(found.rows)} by {len(found.columns)} numbers."
    told = (f"{row}, {column}: {spot.word(found.is_counted)}" for (row, column), spot in found.spots.items())
    return f"{'; '.join(told)}."
