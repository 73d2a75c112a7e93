"""The pictures of a report: each with its title, what to see in it, and the same as text.

Start reading at `figures_of`. A picture for which there is nothing to draw is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from softfloat_llm.analysis.numbers import decimal
from softfloat_llm.analysis.partings import Divergence
from softfloat_llm.analysis.reading import Number
from softfloat_llm.errors import OrderError, ReportError, WordError
from softfloat_llm.numerics.formats import bf16, f16
from softfloat_llm.report import accumulation_path, heat_map, margin_ladder, number_line, text_pictures, tree_drawing
from softfloat_llm.report.findings import Findings

LADDER, LINE, HEAT, PATH, TREE = "margin-ladder", "number-line", "heat-map", "accumulation-path", "tree"
_FEW_TERMS, _SOME_TERMS = 16, 32


@dataclass(frozen=True)
class Figure:
    """A picture with its words. `text` is its twin in plain text; empty for the tree, which has its sentence."""

    name: str
    svg: str
    title: str
    caption: str
    text: str


def figures_of(found: Findings) -> dict[str, Figure]:
    """The pictures by name."""
    return {figure.name: figure for figure in _figures(found)}


def _figures(found: Findings) -> Iterator[Figure]:
    for make in (_ladder, _line, _heat, _path, _tree):
        try:
            figure = make(found)
        except (OrderError, WordError):  # an order whose tree has another number of terms; a value beyond all formats
            continue
        if figure is not None:
            yield figure


def _ladder(found: Findings) -> Figure | None:
    if not 0 < len(found.comparison.steps) <= margin_ladder.MOST_RUNGS:
        return None
    ladder = margin_ladder.margin_ladder_of(found.comparison)
    caption = (
        "How far the reference's best logit leads the second one, against what one rounding of a logit and the errors"
        " of the run can do. A token can flip where the lead is not larger than twice the largest error of the row."
    )
    svg, text = margin_ladder.margin_ladder_svg(ladder), text_pictures.margin_ladder_text(ladder)
    return Figure(LADDER, svg, f"Margin of each step in {ladder.format} ulp", caption, text)


def _line(found: Findings) -> Figure | None:
    part = found.comparison.first_divergence
    if part is None or not math.isfinite(part.at.run) or not math.isfinite(part.at.reference):
        return None
    line = _line_of(part)
    caption = (
        f"The reference's value at {part.tap.name}, among the values that formats have there. "
        + ("The run holds what it rounds to." if part.is_rounding else "The run holds another value.")
        + ("" if line.marks else " The run's value lies outside of the stretch that is shown.")
    )
    svg, text = number_line.number_line_svg(line), text_pictures.number_line_text(line)
    return Figure(LINE, svg, "The first value that differs", caption, text)


def _line_of(part: Divergence) -> number_line.NumberLine:
    """The reference's value as x, the run's as a mark, in the run's format, and f16 and bf16 where that is narrow."""
    x = Number(f"reference {decimal(part.at.reference, part.reference_format)}", Fraction(part.at.reference))
    others = (bf16, f16) if part.format.precision <= f16.precision else ()
    formats = [part.format, *(fmt for fmt in others if fmt != part.format)]
    return number_line.number_line_of(x, formats, marks={f"run {decimal(part.at.run, part.format)}": part.at.run})


def _heat(found: Findings) -> Figure | None:
    try:
        heats = heat_map.heat_map_of(found.comparison)
    except ReportError:
        return None
    caption = (
        "How far each site lies from the reference: inherited error is that of the run, all that came before included"
        + (
            "; local error is what the site makes of the reference's own values. "
            if heat_map.LOCAL in heats.parts
            else ". "
        )
        + "Each number is log2(1 + ulp): 1 is one ulp, 10 is a thousand."
    )
    svg, text = heat_map.heat_map_svg(heats), text_pictures.heat_map_text(heats)
    return Figure(HEAT, svg, "Error by site and layer", caption, text)


def _path(found: Findings) -> Figure | None:
    if not found.sums or found.story is None:
        return None
    names = [one.name for one in found.sums]
    what = f"the sums of lm_head at step {found.story.step}"
    paths = accumulation_path.accumulation_path_of([one.found for one in found.sums], what=what, names=names)
    ends = "; ".join(f"{path.name}: {accumulation_path.end_words(path)}" for path in paths.paths)
    caption = (
        "What each running sum has lost so far; the first two gave the run's logits, the others are the first one in"
        f" another accumulator. The errors of the results, in the same ulps: {ends}."
    )
    svg, text = accumulation_path.accumulation_path_svg(paths), text_pictures.accumulation_path_text(paths)
    return Figure(PATH, svg, f"Running error of {what}", caption, text)


def _tree(found: Findings) -> Figure | None:
    if not found.sums:
        return None
    first = found.sums[0].found
    terms, order = len(first.left), first.at.order
    most = max((level.size for level in order.levels if level.head != "perm"), default=0)
    n = min(terms, _FEW_TERMS if most <= _FEW_TERMS // 2 else _SOME_TERMS)
    drawing = tree_drawing.tree_drawing_of(order, n)
    cut = f", drawn for the first {n} of {terms} terms as if there were no others" if n < terms else ""
    caption = f"The order in which lm_head adds its products{cut}. {' '.join(tree_drawing.sentences(drawing))}"
    return Figure(TREE, tree_drawing.tree_drawing_svg(drawing), f"Order of the sums: {order.text}", caption, "")
