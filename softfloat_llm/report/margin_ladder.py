"""Picture 2: the margin of each step, on a logarithmic scale, over a floor of one ulp and of the measured error.

A margin below one ulp can be lost in one rounding of the logits; one below the error of its row can be lost in the
run. Start reading at `margin_ladder_of`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softfloat_llm.analysis.answers import counted
from softfloat_llm.analysis.comparison import Comparison
from softfloat_llm.analysis.margins import Margins
from softfloat_llm.analysis.numbers import about
from softfloat_llm.errors import ReportError
from softfloat_llm.numerics.formats import Format
from softfloat_llm.report.drawing import PLAIN, SMALL, WIDTH, boxes, colour, plain_axes, sheet, svg_of, ticks, write

MOST_RUNGS, SHOWN_FLIPS = 1000, 20
MOST_NAMED = 17  # steps whose margin of 0, or row of NaN, has room for a word
LEAST, MOST = 2.0**-20, 2.0**40  # ulps that the scale shows at most; what lies beyond stands at its ends


@dataclass(frozen=True)
class Rung:
    """One step: its margin and the largest error of its row, in ulps; None where there is no number to draw."""

    step: int
    margin: float | None
    error: float | None
    is_flip: bool
    words: str


@dataclass(frozen=True)
class MarginLadder:
    """The steps of a run. `has_errors` is False where there is no reference that they could be errors against."""

    format: Format
    rungs: tuple[Rung, ...]
    has_errors: bool

    @property
    def flips(self) -> tuple[Rung, ...]:
        return tuple(rung for rung in self.rungs if rung.is_flip)


def margin_ladder_of(found: Comparison | Margins) -> MarginLadder:
    """The ladder of a comparison (the reference's margins, the run's errors), or of a run's margins alone.

    **Raises** ReportError where there is no step, or more than 1000.
    """
    if isinstance(found, Comparison):
        rungs = [Rung(s.step, _finite(s.margin_ulp), _finite(s.error_ulp), s.is_flip, s.words) for s in found.steps]
    else:
        steps = sorted(found.steps, key=lambda step: step.position)
        rungs = [
            Rung(s.position if s.step is None else s.step, _finite(s.margin_ulp), None, False, s.ranking) for s in steps
        ]
    if not 0 < len(rungs) <= MOST_RUNGS:
        raise ReportError(f"A ladder of margins has 1 to {MOST_RUNGS} steps; here are {len(rungs)}.")
    return MarginLadder(found.format, tuple(rungs), isinstance(found, Comparison))


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def sentences(ladder: MarginLadder) -> list[str]:
    """How many margins lie under the floors, and which steps flip."""
    unit, total = f"{ladder.format} ulp", counted(len(ladder.rungs), "step")
    known = [(rung.margin, rung.error) for rung in ladder.rungs if rung.margin is not None]
    lines = [f"At {len([margin for margin, _ in known if margin < 1])} of {total} the margin is below one {unit}."]
    if ladder.has_errors:
        met = [margin for margin, error in known if error is not None and margin <= error]
        flips = ", ".join(str(rung.step) for rung in ladder.flips[:SHOWN_FLIPS])
        more = ", ..." if len(ladder.flips) > SHOWN_FLIPS else ""
        lines.append(f"At {len(met)} it does not exceed the largest error of the row.")
        lines.append(f"Flips: {f'step {flips}{more}' if flips else 'none'}.")
    return lines


def bounds(ladder: MarginLadder) -> tuple[float, float]:
    """The powers of two between which the scale goes; one ulp is always within."""
    values = [v for rung in ladder.rungs for v in (rung.margin, rung.error) if v is not None and v > 0]
    least, most = min([*values, 0.5], default=0.5), max([*values, 2.0], default=2.0)
    return (
        2.0 ** max(math.floor(math.log2(least)), math.log2(LEAST)),
        2.0 ** min(math.ceil(math.log2(most * 1.01)), math.log2(MOST)),
    )


def scale_places(low: float, high: float, most: int = 8) -> list[float]:
    """Powers of two from low to high, one ulp among them, at most so many."""
    first, last = round(math.log2(low)), round(math.log2(high))
    step = next(step for step in (1, 2, 3, 4, 5, 8, 10, 16) if (last - first) // step < most)
    return [2.0**power for power in range(first, last + 1) if power % step == 0]


# --- drawn ------------------------------------------------------------------------------------------------------------

_HEIGHT = 330
_BOX = (70.0, 34.0, WIDTH - 150.0, _HEIGHT - 62.0)


def margin_ladder_svg(ladder: MarginLadder) -> str:
    """The picture: a mark for each step, and the two floors."""
    return svg_of(
        lambda figure: _draw(figure, ladder),
        name="margin-ladder",
        title=f"Margin of each step in {ladder.format} ulp",
        description=" ".join(sentences(ladder)),
        height=_HEIGHT,
    )


def _draw(figure: Any, ladder: MarginLadder) -> None:
    low, high = bounds(ladder)
    axes = plain_axes(figure, _BOX, WIDTH, _HEIGHT)
    steps = [rung.step for rung in ladder.rungs]
    axes.set_xlim(steps[0] - 0.6, steps[-1] + 0.6)
    axes.set_yscale("log", base=2)
    axes.set_ylim(low, high)
    places = scale_places(low, high)
    ticks(axes, "y", places, [about(place, 3) for place in places])
    every = max(1, -(-len(steps) // 16))
    ticks(axes, "x", steps[::every], [str(step) for step in steps[::every]])
    _draw_floors(axes, ladder, low)
    _draw_rungs(axes, ladder, low, high)
    _draw_words(figure, ladder, low, high)


def _draw_floors(axes: Any, ladder: MarginLadder, low: float) -> None:
    left, right = axes.get_xlim()
    axes.fill_between([left, right], [low, low], [1, 1], color=colour("floor"), linewidth=0)
    axes.plot([left, right], [1, 1], color=colour("run"), linewidth=1.2)
    errors = [(rung.step, rung.error) for rung in ladder.rungs if rung.error is not None and rung.error > low]
    boxes(axes, [(step - 0.5, low, 1, error - low) for step, error in errors], "error", alpha=0.75)
    xs = [x for step, _ in errors for x in (step - 0.5, step + 0.5, math.nan)]
    ys = [y for _, error in errors for y in (error, error, math.nan)]
    axes.plot(xs, ys, color=colour("error-edge"), linewidth=1.6)


def _draw_rungs(axes: Any, ladder: MarginLadder, low: float, high: float) -> None:
    """A dot for a step that stays, a cross for one that flips; at the end of the scale where it lies beyond."""
    size = 6.5 if len(ladder.rungs) <= 60 else 4
    for is_flip, marker, ink in ((False, "o", "ink"), (True, "X", "flip")):
        chosen = [rung for rung in ladder.rungs if rung.is_flip == is_flip and rung.margin is not None]
        xs = [rung.step for rung in chosen]
        ys = [min(max(rung.margin or 0.0, low), high) for rung in chosen]
        axes.plot(
            xs, ys, marker=marker, linestyle="none", markersize=size + 3 * is_flip, color=colour(ink), clip_on=False,
            markeredgecolor=colour("paper"), markeredgewidth=0.7,
        )  # fmt: skip
    _draw_others(axes, ladder, low, high)


def _draw_others(axes: Any, ladder: MarginLadder, low: float, high: float) -> None:
    """What has no place on the scale: margins of 0 are called so at its foot, rows of NaN are pale columns."""
    lost = [rung.step for rung in ladder.rungs if rung.margin is None]
    boxes(axes, [(step - 0.5, low, 1, high - low) for step in lost], "line", alpha=0.6)
    if len(ladder.rungs) > MOST_NAMED:
        return
    for rung in ladder.rungs:
        if not rung.margin:
            axes.annotate(
                "NaN" if rung.margin is None else "0", (rung.step, low), xytext=(0, 8), textcoords="offset points",
                ha="center", color=colour("flip" if rung.is_flip else "ink"), fontsize=SMALL,
            )  # fmt: skip


def _draw_words(figure: Any, ladder: MarginLadder, low: float, high: float) -> None:
    """What the parts are, beside them; and the legend."""
    axes = sheet(figure, WIDTH, _HEIGHT)
    axes.patch.set_alpha(0)
    left, top, right, bottom = _BOX

    def y(value: float) -> float:
        share = (math.log2(value) - math.log2(low)) / (math.log2(high) - math.log2(low))
        return bottom - share * (bottom - top)

    write(axes, 8, 16, f"margin in {ladder.format} ulp", size=PLAIN, is_bold=True)
    write(axes, (left + right) / 2, bottom + 34, "step", size=SMALL, ha="center", ink="quiet")
    last = ladder.rungs[-1].error
    write(axes, right + 10, y(1.0), f"one {ladder.format} ulp", size=SMALL, ink="run")
    if last is not None and last > low:
        place = y(min(last, high))
        place += 15 * (1 if place >= y(1.0) else -1) if abs(place - y(1.0)) < 15 else 0
        write(axes, right + 10, min(place, bottom - 16), "largest error", size=SMALL, ink="error-edge")
    if any(rung.margin is not None and rung.margin < low for rung in ladder.rungs):
        write(axes, right + 10, bottom, "0", size=SMALL)
    legend = _HEIGHT - 12
    axes.plot([left + 6], [legend], marker="o", markersize=6.5, color=colour("ink"), linestyle="none")
    write(axes, left + 16, legend, "same token", size=SMALL)
    if ladder.has_errors:
        axes.plot([left + 116], [legend], marker="X", markersize=8.5, color=colour("flip"), linestyle="none")
        write(axes, left + 126, legend, f"flip ({len(ladder.flips)})", size=SMALL)
        write(axes, left + 196, legend, "shaded: one ulp, and the largest error of the row", size=SMALL, ink="quiet")
    if any(rung.margin is None for rung in ladder.rungs):
        boxes(axes, [(left + 484, legend - 6, 12, 12)], "line", alpha=0.6)
        write(axes, left + 502, legend, "NaN", size=SMALL)


def evenly(count: int, most: int) -> Sequence[int]:
    """At most so many of the numbers 0 to count - 1, evenly, the first and the last among them."""
    if count <= most:
        return range(count)
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
