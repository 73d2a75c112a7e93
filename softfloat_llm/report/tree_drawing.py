"""Picture 5: the summation tree of an order: what is added to what, and where a partial sum is stored.

Start reading at `tree_drawing_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softfloat_llm.analysis.answers import counted
from softfloat_llm.errors import OrderError
from softfloat_llm.numerics.orders import Order
from softfloat_llm.numerics.trees import Chain, Flat, Node, Rounded, Tree, fold
from softfloat_llm.report.drawing import SMALL, WIDTH, colour, sheet, svg_of, write

MOST_TERMS = 64
_NOTHING = -1
TERM, ENTER, JOIN, TOGETHER, STORED = "term", "enter", "join", "together", "stored"


@dataclass(frozen=True)
class Knot:
    """A place of the drawing: a term, an addition, or a rounding of what lies below.

    `kind`: term; enter (a term enters a running sum); join (two partial sums are added); together (several parts at
    once, in no order); stored (rounded to a format, `words`). `parts`: the numbers of the knots below.
    """

    kind: str
    words: str
    parts: tuple[int, ...]
    x: float
    level: int


@dataclass(frozen=True)
class TreeDrawing:
    """The knots of a tree, the parts of each before it, the sum last; x counts terms from the left."""

    what: str
    n: int
    knots: tuple[Knot, ...]

    @property
    def depth(self) -> int:
        """How many additions and stores a term passes at most."""
        return self.knots[-1].level if self.knots else 0


def tree_drawing_of(order: str | Order | Tree, n: int | None = None) -> TreeDrawing:
    """The drawing of an order's tree of n terms, or of a tree.

    **Raises** OrderError for no term, or more than 64.

    >>> drawing = tree_drawing_of("lanes:2", 4)
    >>> drawing.depth, [knot.kind for knot in drawing.knots if knot.parts]
    (2, ['enter', 'enter', 'join'])
    """
    tree = order if isinstance(order, Tree) else Order(order).tree(0 if n is None else n)
    if not 0 < tree.n <= MOST_TERMS:
        raise OrderError(f"A tree of {tree.n} terms: 1 to {MOST_TERMS} can be drawn. Give a smaller n.")
    maker = _Maker({term: place for place, term in enumerate(tree.leaves)})
    fold(tree.shape, maker.knot)
    what = f"a tree of {tree.n} terms" if isinstance(order, Tree) else f"{Order(order).text} of {tree.n} terms"
    return TreeDrawing(what, tree.n, tuple(maker.knots))


class _Maker:
    """Makes the knots of a tree from its leaves up."""

    def __init__(self, places: dict[int, int]) -> None:
        self.places = places
        self.knots: list[Knot] = []

    def knot(self, node: Node, parts: list[int]) -> int:
        """The number of the knot that stands for a node, its parts being those given; `_NOTHING` for a sum of none."""
        parts = [part for part in parts if part != _NOTHING]
        match node:
            case int():
                return self._add(Knot(TERM, str(node), (), float(self.places[node]), 0))
            case _ if not parts:
                return _NOTHING  # +0, which no sum feels
            case Rounded():
                return self._above(STORED, str(node.format), parts)
            case Flat():
                return self._above(TOGETHER, "", parts)
        total, *others = parts
        for other in others:
            kind = ENTER if isinstance(node, Chain) and self.knots[other].kind == TERM else JOIN
            total = self._above(kind, "", [total, other])
        return total

    def _above(self, kind: str, words: str, parts: Sequence[int]) -> int:
        below = [self.knots[part] for part in parts]
        x = (below[0].x + below[-1].x) / 2
        return self._add(Knot(kind, words, tuple(parts), x, 1 + max(knot.level for knot in below)))

    def _add(self, knot: Knot) -> int:
        self.knots.append(knot)
        return len(self.knots) - 1


def sentences(drawing: TreeDrawing) -> list[str]:
    """How many additions there are, and how many a term passes at most."""
    additions = [knot for knot in drawing.knots if knot.kind in (ENTER, JOIN, TOGETHER)]
    stored = [knot for knot in drawing.knots if knot.kind == STORED]
    kept = f", {counted(len(stored), 'partial sum')} stored" if stored else ""
    return [f"{drawing.what}: {counted(len(additions), 'addition')}{kept}; a term passes at most {drawing.depth}."]


# --- drawn ------------------------------------------------------------------------------------------------------------

_SIDE, _TOP, _FOOT = 40.0, 30.0, 64.0
_LEGEND = {ENTER: "a term enters a running sum", JOIN: "two partial sums are added", TOGETHER: "all at once"}
_MARKERS = {TERM: ".", ENTER: "o", JOIN: "s", TOGETHER: "D", STORED: "^"}


def tree_drawing_svg(drawing: TreeDrawing) -> str:
    """The picture: the terms below, the sum above."""
    rise = max(9.0, min(30.0, 300.0 / max(1, drawing.depth)))
    height = _TOP + rise * max(1, drawing.depth) + _FOOT
    return svg_of(
        lambda figure: _draw(figure, drawing, rise, height),
        name="tree", title=f"Summation tree of {drawing.what}", description=" ".join(sentences(drawing)), height=height,
    )  # fmt: skip


def _draw(figure: Any, drawing: TreeDrawing, rise: float, height: float) -> None:
    axes = sheet(figure, WIDTH, height)
    apart = (WIDTH - 2 * _SIDE) / max(1, drawing.n - 1)
    places = [(_SIDE + apart * knot.x, height - _FOOT - rise * knot.level) for knot in drawing.knots]
    for knot, (x, y) in zip(drawing.knots, places, strict=True):
        for part in knot.parts:
            axes.plot([places[part][0], x], [places[part][1], y], color=colour("quiet"), linewidth=1.1)
    for kind, marker in _MARKERS.items():
        mine = [place for knot, place in zip(drawing.knots, places, strict=True) if knot.kind == kind]
        if mine:
            _draw_knots(axes, mine, kind, marker)
    _draw_words(axes, drawing, places, apart)
    _draw_legend(axes, drawing, height - 14)


def _draw_knots(axes: Any, places: Sequence[tuple[float, float]], kind: str, marker: str) -> None:
    size = {TERM: 5.0, STORED: 8.0}.get(kind, 7.0)
    fill = colour("paper" if kind == ENTER else "flip" if kind == STORED else "run")
    axes.plot(
        [x for x, _ in places], [y for _, y in places], marker=marker, markersize=size, linestyle="none",
        color=fill, markeredgecolor=colour("flip" if kind == STORED else "run"), markeredgewidth=1.4,
    )  # fmt: skip


def _draw_words(axes: Any, drawing: TreeDrawing, places: Sequence[tuple[float, float]], apart: float) -> None:
    """Terms by their numbers, as many as there is room for; and which knot is the sum."""
    every = max(1, -(-22 // max(1, int(apart))))
    for knot, (x, y) in zip(drawing.knots, places, strict=True):
        if knot.kind == TERM and round(knot.x) % every == 0:
            write(axes, x, y + 14, knot.words, size=SMALL, ha="center")
    x, y = places[-1]
    write(axes, x, y - 16, "sum", size=SMALL, ha="center", is_bold=True)


def _draw_legend(axes: Any, drawing: TreeDrawing, y: float) -> None:
    left = _SIDE
    stored = sorted({knot.words for knot in drawing.knots if knot.kind == STORED})
    for kind, told in (_LEGEND | {STORED: f"rounded to {' and '.join(stored)}"}).items():
        if any(knot.kind == kind for knot in drawing.knots):
            _draw_knots(axes, [(left, y)], kind, _MARKERS[kind])
            write(axes, left + 10, y, told, size=SMALL, ink="quiet")
            left += 30 + 6.6 * len(told)
