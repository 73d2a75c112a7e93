"""Picture 3: what a running sum has lost so far, step by step, for one dot product in several accumulators.

The running error is the sum of what every rounding lost: products as their terms come in, additions, partial sums that
are stored. It is exact (fractions), and with what the output rounding does it ends at the error of the result. Start
reading at `accumulation_path_of`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from softfloat_llm.analysis.answers import counted
from softfloat_llm.analysis.exact_text import nearly
from softfloat_llm.analysis.explain_sum import Summation
from softfloat_llm.analysis.numbers import about, binade
from softfloat_llm.analysis.sum_steps import Step
from softfloat_llm.errors import ReportError
from softfloat_llm.numerics.formats import Format
from softfloat_llm.numerics.ulps import ulp
from softfloat_llm.report.drawing import PLAIN, SMALL, WIDTH, colour, plain_axes, sheet, svg_of, ticks, write
from softfloat_llm.report.margin_ladder import evenly

MOST_PANELS = 4
MOST_POINTS = 1200  # of a path that is drawn; of longer ones, evenly chosen steps and the worst


@dataclass(frozen=True)
class Path:
    """The running error of one sum. `errors[i]` is what is lost after step i, exactly; `worst` the step losing most.

    `unit` is one ulp of `format`, the accumulator's, at the largest magnitude that it held: so one rounding to
    nearest loses at most half of it. `end` is the error of the result, the output rounding included; None where that
    is not finite.
    """

    name: str
    format: Format
    largest: float
    unit: float
    errors: tuple[Fraction, ...]
    worst: int | None
    swallowed: tuple[int, ...]
    end: Fraction | None
    result: float

    def in_ulp(self, error: Fraction) -> float:
        return float(error / Fraction(self.unit))

    @property
    def grid(self) -> str:
        """`bf16 ulp in [256, 512)`: what the errors are counted in."""
        return f"{self.format} ulp in {binade(self.largest, self.format)}"


@dataclass(frozen=True)
class AccumulationPath:
    """One dot product in several accumulators; `what` says which."""

    what: str
    paths: tuple[Path, ...]


def accumulation_path_of(sums: Sequence[Summation], *, what: str = "", names: Sequence[str] = ()) -> AccumulationPath:
    """The paths of sums of the same terms; `names` in place of their accumulators' own.

    **Raises** ReportError for no sum, more than four, or one without steps (an exact accumulator has none).

    >>> from softfloat_llm.analysis.explain_sum import explain_sum
    >>> found = accumulation_path_of([explain_sum([256, 1, 1], "storage=bf16,acc=bf16")])
    >>> [str(error) for error in found.paths[0].errors], found.paths[0].grid
    (['0', '-1', '-2'], 'bf16 ulp in [256, 512)')
    """
    if not 0 < len(sums) <= MOST_PANELS:
        raise ReportError(f"An accumulation path is drawn for 1 to {MOST_PANELS} sums; here are {len(sums)}.")
    told = list(names) or [str(one.at.acc) for one in sums]
    return AccumulationPath(what, tuple(_path(one, name) for one, name in zip(sums, told, strict=True)))


def _path(found: Summation, name: str) -> Path:
    if not found.steps:
        raise ReportError(f"The sum in {found.at} has no steps: an exact accumulator loses nothing on its way.")
    total, errors = Fraction(0), []
    for step in found.steps:
        total += step.error + _product_error(found, step)
        errors.append(total)
    held = [abs(step.after) for step in found.steps if math.isfinite(step.after)]
    largest = max(held, default=0.0)
    return Path(
        name=name,
        format=found.acc_format,
        largest=largest,
        unit=float(ulp(largest, found.acc_format)),
        errors=tuple(errors),
        worst=None if found.worst is None else found.worst.number - 1,
        swallowed=tuple(step.number - 1 for step in found.swallowed),
        end=found.error,
        result=found.result,
    )


def _product_error(found: Summation, step: Step) -> Fraction:
    """What the product stage lost of the terms that come in at this step."""
    if found.right is None or found.at.product is None or step.action not in ("enter", "start", "fuse"):
        return Fraction(0)
    pairs = [(found.products[k], Fraction(found.left[k]) * Fraction(found.right[k])) for k in step.terms]
    return sum((Fraction(p) - exact for p, exact in pairs if math.isfinite(p)), Fraction(0))


def sentences(found: AccumulationPath) -> list[str]:
    """How far each path goes, and where it ends."""
    return [f"{path.name}: {words_of(path)}" for path in found.paths]


def words_of(path: Path) -> str:
    """`-1 bf16 ulp in [256, 512) after 3 steps, at most 1 on the way; 2 steps changed nothing.`"""
    last, most = path.in_ulp(path.errors[-1]), max(abs(path.in_ulp(error)) for error in path.errors)
    told = f"{about(last)} {path.grid} after {counted(len(path.errors), 'step')}, at most {about(most)} on the way"
    return f"{told}; {counted(len(path.swallowed), 'step')} changed nothing." if path.swallowed else f"{told}."


def chosen_steps(path: Path, most: int) -> list[int]:
    """At most so many steps, evenly, and the one that lost most."""
    worst = [] if path.worst is None else [path.worst]
    return sorted({*evenly(len(path.errors), most), *worst})


# --- drawn ------------------------------------------------------------------------------------------------------------

_PANEL, _TOP, _FOOT = 148, 30, 34
_LEFT, _RIGHT = 76.0, WIDTH - 20.0


def accumulation_path_svg(found: AccumulationPath) -> str:
    """The picture: a panel for each accumulator, in its own ulps, over a band of half an ulp to each side."""
    height = _TOP + _PANEL * len(found.paths) + _FOOT
    return svg_of(
        lambda figure: _draw(figure, found, height),
        name="accumulation-path",
        title=f"Running error of {found.what or 'one sum'}, in ulps of each accumulator",
        description=" ".join(sentences(found)),
        height=height,
    )


def _draw(figure: Any, found: AccumulationPath, height: float) -> None:
    words = sheet(figure, WIDTH, height)
    write(words, 8, 14, "running error, in ulps of the accumulator", size=PLAIN, is_bold=True)
    for place, path in enumerate(found.paths):
        top = _TOP + _PANEL * place
        box = (_LEFT, top + 40.0, _RIGHT, top + _PANEL - 16.0)
        _draw_path(plain_axes(figure, box, WIDTH, height), path, is_last=place == len(found.paths) - 1)
        write(words, _LEFT, top + 12, path.name, size=SMALL, is_bold=True)
        write(words, _LEFT, top + 28, words_of(path), size=SMALL)
    foot = (
        "step of the sum. Band: half an ulp to each side, what one rounding to nearest loses at most. Ring: worst step."
    )
    write(words, (_LEFT + _RIGHT) / 2, height - 10, foot, size=SMALL, ink="quiet", ha="center")


def _draw_path(axes: Any, path: Path, *, is_last: bool) -> None:
    steps = chosen_steps(path, MOST_POINTS)
    errors = [path.in_ulp(path.errors[step]) for step in steps]
    low, high = min([*errors, -0.6]), max([*errors, 0.6])
    room = 0.12 * (high - low)
    count = len(path.errors)
    axes.set_xlim(0, count + 0.02 * count)
    axes.set_ylim(low - room, high + room)
    places = value_places(low, high)
    ticks(axes, "y", places, [f"{place:g}" for place in places])
    numbers = [step + 1 for step in evenly(count, 9)]
    ticks(axes, "x", numbers, [str(number) for number in numbers] if is_last else [""] * len(numbers))
    axes.fill_between([0, count * 1.02], [-0.5] * 2, [0.5] * 2, color=colour("floor"), linewidth=0)
    axes.plot([0, count * 1.02], [0, 0], color=colour("quiet"), linewidth=0.8)
    xs, ys = [0, *(step + 1 for step in steps)], [0.0, *errors]
    axes.plot(xs, ys, drawstyle="steps-post", color=colour("run"), linewidth=1.5)
    if count <= 40:
        axes.plot(xs[1:], ys[1:], marker="o", markersize=4, linestyle="none", color=colour("run"))
    if path.worst is not None:
        worst = path.in_ulp(path.errors[path.worst])
        axes.plot(
            [path.worst + 1], [worst], marker="o", markersize=10, linestyle="none", markerfacecolor="none",
            markeredgecolor=colour("flip"), markeredgewidth=1.6,
        )  # fmt: skip


def value_places(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between low and high, 0 among them, at most so many."""
    power = 10.0 ** math.floor(math.log10(max(high - low, 1e-300)) - 1)
    step = next(power * m for m in (1, 2, 5, 10, 20, 50, 100) if (high - low) / (power * m) < most)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def end_words(path: Path) -> str:
    """What the output rounding makes of it."""
    return "not finite" if path.end is None else f"{nearly(path.end / Fraction(path.unit))} with the output rounding"
