"""The first four pictures as plain text, for a terminal, a commit message, or whoever has the page read to them.

They show the same data as the drawn ones, and need nothing installed. Start reading at `number_line_text`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from softfloat_llm.analysis.exact_text import value_text
from softfloat_llm.analysis.numbers import about
from softfloat_llm.report import accumulation_path, heat_map, margin_ladder, number_line
from softfloat_llm.report.accumulation_path import AccumulationPath, Path
from softfloat_llm.report.heat_map import HeatMap
from softfloat_llm.report.margin_ladder import MarginLadder, Rung
from softfloat_llm.report.number_line import Grid, NumberLine

WIDTH = 73  # characters of a scale
SHOWN_RUNGS, SHOWN_STEPS = 40, 12

# --- 1: a number among the values of formats --------------------------------------------------------------------------


def number_line_text(line: NumberLine) -> str:
    """E: a value whose last bit is even, o: odd, |: a midpoint, where what a number rounds to changes.

    >>> print(number_line_text(number_line.number_line_of("257", ["bf16"])))
    257 in bf16: 256, an error of -0.5 ulp (one ulp is 2 in [256, 512)).
                                 ^ 257
    bf16
    ----E---|---o---|----E-------|-------o--------|-------E--------|-------o--------
        254     255      256             258              260              262
    E even, o odd, | midpoint (it goes to the even value)
    """
    rows = [*number_line.sentences(line), _pointer(line, number_line.shown_number(line.x), line.x.exact)]
    rows += [_pointer(line, words, value) for words, value in line.marks]
    for grid in line.grids:
        rows += [str(grid.format), *_grid_rows(line, grid)]
    return "\n".join([*rows, "E even, o odd, | midpoint (it goes to the even value)"])


def _column(line: NumberLine, value: Fraction, width: int = 80) -> int:
    share = (value - line.low) / (line.high - line.low)
    return min(width - 1, int(share * width))


def _pointer(line: NumberLine, words: str, value: Fraction) -> str:
    column = _column(line, value)
    if column + len(words) + 2 > 80:
        return f"{words} ^".rjust(column + 1)
    return f"{' ' * column}^ {words}"


def _grid_rows(line: NumberLine, grid: Grid) -> list[str]:
    """The values on their line, and below them in decimal where there is room."""
    if not grid.places or len(grid.places) > 60:
        return [f"{'-' * 80}", f"   {grid.count or 'no'} values in this stretch"]
    row = ["-"] * 80
    if len(grid.places) <= 20:
        for place in grid.places:
            for bound in (place.low, place.high):
                if line.low < bound < line.high:
                    row[_column(line, bound)] = "|"
    labels = ""
    for place in grid.places:
        column, text = _column(line, place.value), value_text(float(place.value), grid.format)
        row[column] = "E" if place.is_even else "o"
        is_shown = len(grid.places) <= 8 or float(place.value) == grid.rounded
        if is_shown and len(labels) < column:
            labels = labels.ljust(column) + text
    return ["".join(row), labels]


# --- 2: margins -------------------------------------------------------------------------------------------------------


def margin_ladder_text(ladder: MarginLadder) -> str:
    """A line for each step (the smallest margins where there are many): o the margin, X of a flip, e the error.

    ':' is below one ulp, '.' between that and the error of the row.
    """
    low, high = margin_ladder.bounds(ladder)
    shown = _smallest(ladder.rungs)
    places = margin_ladder.scale_places(low, high, 5)
    head = [" "] * (WIDTH + 8)
    for place in places:
        word = about(place)
        head[_log(place, low, high) : _log(place, low, high) + len(word)] = word
    lines = [f"{'':5} {''.join(head).rstrip()}   ({ladder.format} ulp)"]
    lines += [f"{rung.step:>4}  {_rung_row(rung, ladder, low, high)}  {rung.words}" for rung in shown]
    left = len(ladder.rungs) - len(shown)
    return "\n".join([*lines, *([f"({left} wider margins are not shown)"] if left else []), *_legend(ladder)])


def _legend(ladder: MarginLadder) -> list[str]:
    error = "; e: largest error of the row, . below it" if ladder.has_errors else ""
    return [f"o: margin, X: margin of a flip; : below one ulp{error}", *margin_ladder.sentences(ladder)]


def _smallest(rungs: Sequence[Rung]) -> list[Rung]:
    ranked = sorted(rungs, key=lambda rung: (not rung.is_flip, -1.0 if rung.margin is None else rung.margin))
    return sorted(ranked[:SHOWN_RUNGS], key=lambda rung: rung.step)


def _log(value: float, low: float, high: float) -> int:
    share = (math.log2(min(max(value, low), high)) - math.log2(low)) / (math.log2(high) - math.log2(low))
    return round(share * (WIDTH - 1))


def _rung_row(rung: Rung, ladder: MarginLadder, low: float, high: float) -> str:
    one = _log(1.0, low, high)
    error = _log(rung.error, low, high) if rung.error else -1
    row = [":" if i < one else "." if i < error else " " for i in range(WIDTH)]
    row[one] = "|"
    if error >= 0:
        row[error] = "e"
    if rung.margin is None:
        return "no margin: NaN".ljust(WIDTH)
    row[_log(rung.margin, low, high) if rung.margin else 0] = "X" if rung.is_flip else "o"
    return "".join(row)


# --- 3: what a running sum has lost -----------------------------------------------------------------------------------


def accumulation_path_text(found: AccumulationPath) -> str:
    """For each accumulator the running error after some of its steps, the worst of them marked."""
    return "\n\n".join([*([found.what] if found.what else []), *("\n".join(_path_rows(path)) for path in found.paths)])


def _path_rows(path: Path) -> list[str]:
    """Bars from a middle line that stands for no error."""
    steps = accumulation_path.chosen_steps(path, SHOWN_STEPS)
    errors = [path.in_ulp(path.errors[step]) for step in steps]
    most = max([abs(error) for error in errors] + [0.5])
    rows = [f"{path.name}: {accumulation_path.words_of(path)}"]
    for step, error in zip(steps, errors, strict=True):
        worst = "   <- lost most here" if step == path.worst else ""
        rows.append(f"{step + 1:>6}  {_bar(error / most)}  {about(error)}{worst}")
    return [*rows, f"   end  {accumulation_path.end_words(path)}"]


def _bar(share: float, half: int = 24) -> str:
    length = round(abs(share) * half)
    left, right = (length, 0) if share < 0 else (0, length)
    return f"{'=' * left:>{half}}|{'=' * right:<{half}}"


# --- 4: error by layer and site ---------------------------------------------------------------------------------------


def heat_map_text(found: HeatMap) -> str:
    """log2(1 + ulp) as whole numbers: a row for each site, a column for each layer."""
    parts = [f"{part} error, log2(1 + ulp)\n" + "\n".join(_part_rows(found, part)) for part in found.parts]
    legend = f".: identical, -: outside of the layers; {found.format} ulp of the largest value of the same position"
    return "\n\n".join(parts) + "\n" + "\n".join([legend, *heat_map.sentences(found)])


def _part_rows(found: HeatMap, part: str) -> list[str]:
    name, digits = max(len(site) for site in found.sites), int(len(found.layers) <= 12)
    wide = 4 + digits
    rows = [" " * name + "".join(f"{heat_map.layer_word(layer):>{wide}}" for layer in found.layers)]
    for site in found.sites:
        words = [heat_map.cell_word(found.heat(part, site, layer), digits) for layer in found.layers]
        rows.append((f"{site:>{name}}" + "".join(f"{word:>{wide}}" for word in words)).rstrip())
    return rows
