"""The five pictures: from a value or a result to the text of an SVG. They need the extra `report` (matplotlib).

The same data give the same bytes, for light and for dark pages. `text_pictures` shows the first four as plain text.
Each picture has a module of its own, where its data can be had; start reading at `number_line`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from softfloat_llm.analysis.comparison import Comparison
from softfloat_llm.analysis.distances import Difference
from softfloat_llm.analysis.explain_sum import Summation
from softfloat_llm.analysis.margins import Margins
from softfloat_llm.analysis.reading import Number
from softfloat_llm.numerics.exact import Real
from softfloat_llm.numerics.formats import Format
from softfloat_llm.numerics.orders import Order
from softfloat_llm.numerics.trees import Tree
from softfloat_llm.report.accumulation_path import accumulation_path_of, accumulation_path_svg
from softfloat_llm.report.heat_map import heat_map_of, heat_map_svg
from softfloat_llm.report.margin_ladder import margin_ladder_of, margin_ladder_svg
from softfloat_llm.report.number_line import number_line_of, number_line_svg
from softfloat_llm.report.tree_drawing import tree_drawing_of, tree_drawing_svg


def number_line(
    x: str | Real | Number,
    formats: Sequence[str | Format] = ("bf16", "f16"),
    *,
    marks: Mapping[str, Real] | None = None,
) -> str:
    """1: a number among the values of formats, with what rounds to each, and the even and odd ones."""
    return number_line_svg(number_line_of(x, formats, marks=marks))


def margin_ladder(found: Comparison | Margins) -> str:
    """2: the margin of each step on a logarithmic scale, over a floor of one ulp and of the error; flips marked."""
    return margin_ladder_svg(margin_ladder_of(found))


def accumulation_path(sums: Sequence[Summation], *, what: str = "", names: Sequence[str] = ()) -> str:
    """3: the running error of a sum in ulps of its accumulator, for each of some accumulators (`explain_dot`)."""
    return accumulation_path_svg(accumulation_path_of(sums, what=what, names=names))


def heat_map(found: Comparison, *, local: Sequence[Difference] | None = None) -> str:
    """4: log2(1 + ulp) of each site of each layer: the inherited error, and the local one where it is given."""
    return heat_map_svg(heat_map_of(found, local=local))


def summation_tree(order: str | Order | Tree, n: int | None = None) -> str:
    """5: what an order adds to what, for n terms."""
    return tree_drawing_svg(tree_drawing_of(order, n))
