"""Picture 1: a number among the values of formats. Where a rounding goes, and why, can be read off it.

Each value of a format has an interval of numbers that round to it, from one midpoint to the next; a midpoint itself
goes to the even neighbour. Start reading at `number_line_of`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from softfloat_llm.analysis.exact_text import nearly, shown, value_text
from softfloat_llm.analysis.numbers import about, binade
from softfloat_llm.analysis.reading import Number, number_of
from softfloat_llm.errors import WordError
from softfloat_llm.numerics.exact import Real
from softfloat_llm.numerics.formats import Format, format_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.numerics.ulps import ordinal, ulp, value_of_ordinal
from softfloat_llm.report.drawing import SMALL, WIDTH, boxes, colour, sheet, svg_of, upright, write

AROUND = 2  # values of the coarsest format that are shown on each side of the two neighbours
MOST_PLACES = 100  # ticks of a format that can be told apart in 600 units


@dataclass(frozen=True)
class Place:
    """A value of a format, and the numbers that round to it: those between low and high; the ends too where even."""

    value: Fraction
    is_even: bool
    low: Fraction
    high: Fraction


@dataclass(frozen=True)
class Grid:
    """The values of a format in the stretch that is shown; none where they are too many (`count`).

    `rounded`: what the number becomes in the format, to nearest with ties to even; `error_ulp`: that less the number.
    """

    format: Format
    places: tuple[Place, ...]
    count: int
    rounded: float
    error_ulp: Fraction | None


@dataclass(frozen=True)
class NumberLine:
    """A stretch of the real numbers around x, the grids of some formats over it, and further numbers by name."""

    x: Number
    low: Fraction
    high: Fraction
    grids: tuple[Grid, ...]
    marks: tuple[tuple[str, Fraction], ...] = ()


def number_line_of(
    x: str | Real | Number,
    formats: Sequence[str | Format] = ("bf16", "f16"),
    *,
    marks: Mapping[str, Real] | None = None,
) -> NumberLine:
    """The stretch around x with about six values of the coarsest format, and the values of the others in it.

    `marks`: other numbers, by the words that stand at them; those outside of the stretch are left out.
    **Raises** WordError where x is not finite, or beyond the range of all the formats.

    >>> line = number_line_of("257", ["bf16"])
    >>> [(int(place.value), place.is_even) for place in line.grids[0].places][:5]
    [(254, True), (255, False), (256, True), (258, False), (260, True)]
    """
    given, known = number_of(x), [format_of(fmt) for fmt in formats]
    if not given.is_finite:
        raise WordError(f"A number line is drawn around a finite number, not around {given.text}.")
    near = [fmt for fmt in known if math.isfinite(float(round_to(given.value, fmt)))]
    if not near:
        raise WordError(f"{given.text} lies beyond the range of {', '.join(map(str, known))}: it has no neighbours.")
    coarsest = max(near, key=lambda fmt: float(ulp(round_to(given.value, fmt), fmt)))
    shown_places = _around(given.exact, coarsest)
    low, high = shown_places[0].low, shown_places[-1].high
    grids = tuple(_grid(given, fmt, low, high) for fmt in known)
    told = {word: Fraction(value) for word, value in (marks or {}).items()}
    return NumberLine(given, low, high, grids, tuple((w, v) for w, v in told.items() if low <= v <= high))


def _around(x: Fraction, fmt: Format) -> list[Place]:
    """The neighbours of x, and `AROUND` values on each side of them."""
    least, most = _ordinals(x, x, fmt)
    return _places(min(least, most) - AROUND, max(least, most) + AROUND, fmt)


def _ordinals(low: Fraction, high: Fraction, fmt: Format) -> tuple[int, int]:
    """The places of the largest value not above low and of the smallest not below high; within the finite ones."""
    below, above = round_to(low, fmt, "toward_negative"), round_to(high, fmt, "toward_positive")
    largest = int(ordinal(fmt.max, fmt))
    least = -largest if fmt.is_signed else (0 if fmt.has_zero else int(ordinal(fmt.smallest_subnormal, fmt)))
    pair = (
        (least if below < 0 else largest) if not math.isfinite(below) else int(ordinal(below, fmt)),
        (least if above < 0 else largest) if not math.isfinite(above) else int(ordinal(above, fmt)),
    )
    return max(pair[0], least), min(pair[1], largest)


def _places(first: int, last: int, fmt: Format) -> list[Place]:
    """The finite values from one place of the format's order to another, with their intervals."""
    largest = int(ordinal(fmt.max, fmt))
    least = -largest if fmt.is_signed else (0 if fmt.has_zero else int(ordinal(fmt.smallest_subnormal, fmt)))
    numbers = range(max(first, least), min(last, largest) + 1)
    around = [_value(n, fmt, largest) for n in range(numbers.start - 1, numbers.stop + 1)]
    return [
        Place(value, number % 2 == 0, (before + value) / 2, (value + after) / 2)
        for number, before, value, after in zip(numbers, around, around[1:], around[2:], strict=False)
    ]


def _value(number: int, fmt: Format, largest: int) -> Fraction:
    """A value by its place; next to the largest stands what would come if the exponents went on."""
    if abs(number) <= largest:
        return Fraction(float(value_of_ordinal(number, fmt)))
    beyond = Fraction(fmt.max) + Fraction(float(ulp(fmt.max, fmt)))
    return beyond if number > 0 else -beyond


def _grid(x: Number, fmt: Format, low: Fraction, high: Fraction) -> Grid:
    first, last = _ordinals(low, high, fmt)
    places = [p for p in _places(first, last, fmt) if low <= p.value <= high] if last - first <= 3 * MOST_PLACES else []
    count = len(places) if places else max(0, last - first - 1)
    rounded = float(round_to(x.value, fmt))
    error = (Fraction(rounded) - x.exact) / Fraction(float(ulp(rounded, fmt))) if math.isfinite(rounded) else None
    return Grid(fmt, tuple(places) if count <= MOST_PLACES else (), count, rounded, error)


# --- in words ---------------------------------------------------------------------------------------------------------


def sentences(line: NumberLine) -> list[str]:
    """What each format makes of the number."""
    return [f"{shown_number(line.x)} in {grid.format}: {rounding_words(line, grid)}." for grid in line.grids]


def shown_number(x: Number) -> str:
    """The number as it was written, where that is short."""
    return x.text if len(x.text) <= 24 else shown(x.exact, digits=9)


def rounding_words(line: NumberLine, grid: Grid) -> str:
    """`22.25, an error of ~-0.22 ulp (one ulp is 0.125 in [16, 32))`."""
    if grid.error_ulp is None:
        return f"{about(grid.rounded)}: the largest value is {value_text(grid.format.max, grid.format)}"
    unit = f"one ulp is {about(float(ulp(grid.rounded, grid.format)))} in {binade(grid.rounded, grid.format)}"
    error = "exactly" if grid.error_ulp == 0 else f"an error of {nearly(grid.error_ulp)} ulp"
    return f"{value_text(grid.rounded, grid.format)}, {error} ({unit})"


# --- drawn ------------------------------------------------------------------------------------------------------------

_LEFT, _RIGHT = 28, WIDTH - 28
_LEVEL, _ROW, _FOOT = 18, 112, 30
_BASE = 60  # of a row: where its values stand
_BAR = 16  # height of a rounding interval
_LEGEND = (
    "Filled: even, hollow: odd (the last bit). Bars: what rounds to a value; the ends of a bar go to the even one."
)


def number_line_svg(line: NumberLine) -> str:
    """The picture: one row for each format, with its ticks, its intervals, and where x goes."""
    labels = _labels(line)
    top = 14 + _LEVEL * (1 + max(label.level for label in labels))
    height = top + _ROW * len(line.grids) + _FOOT
    title = f"{shown_number(line.x)} among the values of {' and '.join(str(grid.format) for grid in line.grids)}"
    return svg_of(
        lambda figure: _draw(figure, line, labels, top, height),
        name="number-line", title=title, description=" ".join(sentences(line)), height=height,
    )  # fmt: skip


def _x(line: NumberLine, value: Fraction) -> float:
    share = (value - line.low) / (line.high - line.low)
    return _LEFT + float(share) * (_RIGHT - _LEFT)


@dataclass(frozen=True)
class _Label:
    """The words of a number above the rows: where the number is, where the middle of its words, in which line."""

    words: str
    ink: str
    x: float
    middle: float
    level: int = 0

    @property
    def half(self) -> float:
        return 3.8 * len(self.words)

    def meets(self, other: _Label) -> bool:
        return abs(other.middle - self.middle) < self.half + other.half + 14


def _labels(line: NumberLine) -> list[_Label]:
    """x and the marks. Two whose words would meet stand to the left and the right; more have lines of their own."""
    numbers = [(shown_number(line.x), line.x.exact, "flip"), *((w, v, "reference") for w, v in line.marks)]
    labels: list[_Label] = []
    for words, value, ink in sorted(numbers, key=lambda one: one[1]):
        x, half = _x(line, value), 3.8 * len(words)
        labels.append(_Label(words, ink, x, min(max(x, _LEFT + half), _RIGHT - half)))
    if len(labels) == 2 and labels[0].meets(labels[1]):
        left, right = labels
        apart = replace(left, middle=left.x - left.half - 6), replace(right, middle=right.x + right.half + 6)
        if apart[0].middle - left.half >= 0 and apart[1].middle + right.half <= WIDTH:
            return list(apart)
    placed: list[_Label] = []
    for label in labels:
        met = {other.level for other in placed if label.meets(other)}
        placed.append(replace(label, level=min(set(range(len(labels))) - met)))
    return placed


def _draw(figure: Any, line: NumberLine, labels: Sequence[_Label], top: float, height: float) -> None:
    axes = sheet(figure, WIDTH, height)
    bases = [top + _ROW * row + _BASE for row in range(len(line.grids))]
    for label in labels:
        y = top - 8 - _LEVEL * label.level
        write(axes, label.middle, y, label.words, ink=label.ink, ha="center", is_bold=True)
        stretches = [(y + 9, top + 2), *((base - 34, base + 7) for base in bases)]
        for start, end in stretches:
            axes.plot([label.x, label.x], [start, end], color=colour(label.ink), linewidth=1.2, linestyle=(0, (4, 2)))
    for grid, base in zip(line.grids, bases, strict=True):
        _draw_grid(axes, line, grid, base)
    write(axes, _LEFT, height - 14, _LEGEND, size=SMALL, ink="quiet")


def _draw_grid(axes: Any, line: NumberLine, grid: Grid, base: float) -> None:
    write(axes, _LEFT, base - 46, f"{grid.format}: {rounding_words(line, grid)}", size=SMALL)
    axes.plot([_LEFT, _RIGHT], [base, base], color=colour("quiet"), linewidth=1)
    if not grid.places:
        words = (
            f"{grid.count} values in this stretch: too close to be drawn" if grid.count else "no value in this stretch"
        )
        write(axes, WIDTH / 2, base + 18, words, size=SMALL, ink="quiet", ha="center")
        return
    _draw_intervals(axes, line, grid, base)
    _draw_ticks(axes, line, grid, base)
    _draw_labels(axes, line, grid, base)


def _draw_intervals(axes: Any, line: NumberLine, grid: Grid, base: float) -> None:
    """What rounds to each value: bars that meet at the midpoints."""
    ends = [(_x(line, max(p.low, line.low)), _x(line, min(p.high, line.high))) for p in grid.places]
    for is_even, fill in ((True, "even"), (False, "odd")):
        mine = [pair for pair, place in zip(ends, grid.places, strict=True) if place.is_even == is_even]
        boxes(axes, [(left, base - _BAR, right - left, _BAR) for left, right in mine], fill)
    middles = list(dict.fromkeys(end for pair in ends for end in pair))
    upright(axes, middles, (base - _BAR, base), "quiet", linewidth=0.6)


def _draw_ticks(axes: Any, line: NumberLine, grid: Grid, base: float) -> None:
    """A tick and a disc for each value, hollow where it is odd; larger for the one that x becomes."""
    size = 7 if len(grid.places) <= 12 else 4.5
    upright(axes, [_x(line, p.value) for p in grid.places], (base, base + 7), "ink", linewidth=1)
    for is_even in (True, False):
        for is_result in (False, True):
            xs = [
                _x(line, p.value)
                for p in grid.places
                if p.is_even == is_even and (float(p.value) == grid.rounded) == is_result
            ]
            ink = colour("flip" if is_result else "ink")
            axes.plot(
                xs, [base] * len(xs), marker="o", markersize=size + 3 * is_result, color=ink, markeredgewidth=1.2,
                markerfacecolor=ink if is_even else colour("paper"), linestyle="none",
            )  # fmt: skip


def _draw_labels(axes: Any, line: NumberLine, grid: Grid, base: float) -> None:
    """Every value where there are few; of many, that which x becomes and the two ends."""
    places = list(grid.places)
    if len(places) > 8:
        chosen = [p for p in places if float(p.value) == grid.rounded]
        places = [p for p in (places[0], *chosen, places[-1]) if p in chosen or not _is_near(line, p, chosen)]
    for place in dict.fromkeys(places):
        text = value_text(float(place.value), grid.format)
        half = 3.4 * len(text)
        middle = min(max(_x(line, place.value), _LEFT + half), _RIGHT - half)
        write(axes, middle, base + 18, text, size=SMALL, ha="center", is_bold=float(place.value) == grid.rounded)
        if len(grid.places) <= 8:
            write(axes, middle, base + 32, "even" if place.is_even else "odd", size=SMALL, ink="quiet", ha="center")


def _is_near(line: NumberLine, place: Place, chosen: Sequence[Place]) -> bool:
    return any(abs(_x(line, place.value) - _x(line, other.value)) < 110 for other in chosen)
