"""The pictures of lessons: text where text is shown, an SVG where a notebook shows it. The data are those of `report`.

Each function takes what its namesake in `report.pictures` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from softfloat_llm.analysis.comparison import Comparison
from softfloat_llm.analysis.explain_sum import Summation
from softfloat_llm.analysis.margins import Margins
from softfloat_llm.errors import ReportError
from softfloat_llm.numerics.exact import Real
from softfloat_llm.report import accumulation_path as path_picture
from softfloat_llm.report import heat_map as heat_picture
from softfloat_llm.report import margin_ladder as ladder_picture
from softfloat_llm.report import number_line as line_picture
from softfloat_llm.report import text_pictures, tree_drawing
from softfloat_llm.report.tree_drawing import Knot


@dataclass(frozen=True)
class Drawn:
    """A picture as text, and what draws it as an SVG (with matplotlib, the extra `report`)."""

    text: str
    draw: Callable[[], str]

    def __repr__(self) -> str:
        return self.text

    def _repr_svg_(self) -> str | None:
        """What a notebook shows; None where matplotlib is missing, so that it shows the text."""
        try:
            return self.draw()
        except ReportError:
            return None


def number_line(x: str | Real, formats: Sequence[str], *, marks: Mapping[str, Real] | None = None) -> Drawn:
    """1: a number among the values of formats."""
    line = line_picture.number_line_of(x, formats, marks=marks)
    return Drawn(text_pictures.number_line_text(line), lambda: line_picture.number_line_svg(line))


def margin_ladder(found: Comparison | Margins) -> Drawn:
    """2: the margin of each step over one ulp and the error."""
    ladder = ladder_picture.margin_ladder_of(found)
    return Drawn(text_pictures.margin_ladder_text(ladder), lambda: ladder_picture.margin_ladder_svg(ladder))


def accumulation_path(sums: Sequence[Summation], *, what: str = "", names: Sequence[str] = ()) -> Drawn:
    """3: what a running sum has lost, step by step."""
    path = path_picture.accumulation_path_of(sums, what=what, names=names)
    return Drawn(text_pictures.accumulation_path_text(path), lambda: path_picture.accumulation_path_svg(path))


def heat_map(found: Comparison) -> Drawn:
    """4: the error by layer and site."""
    heat = heat_picture.heat_map_of(found)
    return Drawn(text_pictures.heat_map_text(heat), lambda: heat_picture.heat_map_svg(heat))


def summation_tree(order: str, n: int) -> Drawn:
    """5: what an order adds to what."""
    drawing = tree_drawing.tree_drawing_of(order, n)
    rows = "\n".join(_branches(drawing.knots, len(drawing.knots) - 1, "", ""))
    text = f"{tree_drawing.sentences(drawing)[0]}\n{rows}"
    return Drawn(text, lambda: tree_drawing.tree_drawing_svg(drawing))


def _branches(knots: Sequence[Knot], number: int, head: str, indent: str) -> list[str]:
    """A knot and, indented, what it adds. A run of terms that enter one sum stands on one line."""
    run = _run_of_terms(knots, number)
    if run is not None:
        return [f"{head}{' + '.join(run)}"]
    knot = knots[number]
    rows = [f"{head}{'rounded to ' + knot.words if knot.words else '+'}"]
    for place, part in enumerate(knot.parts):
        is_last = place == len(knot.parts) - 1
        rows += _branches(
            knots, part, f"{indent}{'`-- ' if is_last else '|-- '}", f"{indent}{'    ' if is_last else '|   '}"
        )
    return rows


def _run_of_terms(knots: Sequence[Knot], number: int) -> list[str] | None:
    """The terms that are added one after another up to this knot; None where partial sums join in it."""
    words: list[str] = []
    while knots[number].kind == tree_drawing.ENTER:
        number, term = knots[number].parts
        words.insert(0, f"term {knots[term].words}")
    return [f"term {knots[number].words}", *words] if knots[number].kind == tree_drawing.TERM else None
