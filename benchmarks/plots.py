"""Pictures of the rows: SVG with few marks, for light and dark pages (softfloat_llm.report.drawing). Writes nothing.

Filled marks: one worker; hollow ones: all cores. Blue: numpy; violet: numba; a red stroke: a goal. Start reading at
`pictures`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.regions import REGIONS
from benchmarks.rows import Row, significant
from softfloat_llm.report.drawing import SMALL, WIDTH, colour, plain_axes, sheet, svg_of, ticks, write

INK = {"numpy": "run", "numba": "reference"}
MARK = {"numpy": "o", "numba": "s"}
FILLS = {
    "products": "heat-7", "widening": "heat-5", "checks": "heat-3", "rounding": "heat-1", "norms": "error-edge",
    "attention": "reference", "functions": "flip", "bookkeeping": "line",
}  # fmt: skip
_LINE = 20.0  # units of height of a line of marks
_LABELS = 330.0  # units of width of what stands before them
_DECADES = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)


def pictures(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """(file name, SVG) of each part that has rows to draw."""
    kernels = [row for row in rows if row.part == "matmul" and ", up [" in row.what and row.what.endswith("]")]
    peers = [row for row in rows if row.part == "peers" and row.value is not None]
    growth = [row for row in rows if row.x is not None]
    profiles = [row for row in rows if row.shares]
    if kernels:
        unit = "passes a product (float32 or float64, as the row says): further left is faster"
        yield "matmul.svg", _strip(kernels, "matmul", "Every form of matmul, in passes a product", unit)
    if peers:
        unit = "times as fast as the peer: right of 1, this package is faster"
        yield "peers.svg", _strip(peers, "peers", "Against other packages", unit)
    if growth:
        yield "growth.svg", _growth(growth)
    if profiles:
        yield "profile.svg", _profile(profiles)


def _legend(axes: Any, y: float, *, has_several: bool) -> None:
    """What the marks mean, on one line."""
    x = 14.0
    items = [("o", "run", "run", "numpy"), ("s", "reference", "reference", "numba")]
    items += [("o", "paper", "run", "all cores")] if has_several else []
    for mark, fill, edge, text in (*items, ("|", "flip", "flip", "goal")):
        axes.plot([x], [y], mark, markersize=7, color=colour(fill), markeredgecolor=colour(edge), markeredgewidth=1.5)
        write(axes, x + 9, y, text, size=SMALL)
        x += 26 + 7 * len(text)


def _strip(rows: Sequence[Row], name: str, title: str, unit: str) -> str:
    """One line a thing, its marks on a logarithmic axis."""
    whats = list(dict.fromkeys(map(_label, rows)))
    height = 76 + _LINE * len(whats) + 46

    def draw(figure: Any) -> None:
        page = sheet(figure, WIDTH, height)
        write(page, 14, 20, title, size=14, is_bold=True)
        write(page, 14, height - 12, unit, size=SMALL, ink="quiet")
        _legend(page, 46, has_several=any(row.workers > 1 for row in rows))
        axes = plain_axes(figure, (_LABELS, 66, WIDTH - 20, height - 46), WIDTH, height)
        axes.set_xscale("log")
        axes.set_ylim(len(whats) - 0.4, -0.6)
        ticks(axes, "y", range(len(whats)), whats)
        for row in rows:
            _mark(axes, row, whats.index(_label(row)))
        _decades(axes, "x")

    told = "; ".join(f"{_label(row)}, {row.backend}, {row.workers} workers: {significant(row.value)}" for row in rows)
    return svg_of(draw, name=name, title=title, description=f"{unit}. {told}.", height=height)


def _label(row: Row) -> str:
    """The name without its shape; in passes of float64 where it is counted in those."""
    name = row.what.split(" [")[0].removesuffix(", up")
    return f"{name} ({row.unit.split(' ')[0]})" if "passes" in row.unit else name


def _mark(axes: Any, row: Row, y: float) -> None:
    y += {"numpy": -0.14, "numba": 0.14}.get(row.backend, 0.0)
    ink = INK.get(row.backend, "ink")
    fill = colour(ink) if row.workers == 1 else colour("paper")
    axes.plot(
        [row.value], [y], MARK.get(row.backend, "o"), markersize=6, color=fill, markeredgecolor=colour(ink),
        markeredgewidth=1.5,
    )  # fmt: skip
    if row.goal is not None:
        axes.plot([row.goal.bound], [y], "|", markersize=11, color=colour("flip"), markeredgewidth=1.8)


def _decades(axes: Any, which: str) -> None:
    """Ticks at 1, 3, 10 and so on, within what is drawn."""
    low, high = getattr(axes, f"get_{which}lim")()
    places = [tick for tick in _DECADES if min(low, high) <= tick <= max(low, high)]
    ticks(axes, which, places, [f"{tick:g}" for tick in places])


def _growth(rows: Sequence[Row]) -> str:
    """A panel a letter; solid lines for f32 accumulators, dashed ones for f16."""
    subjects = list(dict.fromkeys(_subject(row) for row in rows))
    panel, columns = (WIDTH / 2, 210.0), 2
    height = 64 + panel[1] * -(-len(subjects) // columns) + 30

    def draw(figure: Any) -> None:
        page = sheet(figure, WIDTH, height)
        write(page, 14, 20, "How the time of one product grows", size=14, is_bold=True)
        words = (
            "blue numpy, violet numba; solid f32 accumulator, dashed f16; y: passes a product (workers: times as fast)"
        )
        write(page, 14, 42, words, size=SMALL, ink="quiet")
        for i, subject in enumerate(subjects):
            left, top = panel[0] * (i % columns), 58 + panel[1] * (i // columns)
            write(page, left + 48, top + 12, subject, size=SMALL, is_bold=True)
            box = (left + 48, top + 26, left + panel[0] - 18, top + panel[1] - 26)
            _panel(figure, box, height, [row for row in rows if _subject(row) == subject])

    told = "; ".join(f"{r.what}, {r.backend}, {r.x:g}: {significant(r.value)}" for r in rows)
    return svg_of(draw, name="growth", title="Growth", description=f"Ratios by size. {told}.", height=height)


def _subject(row: Row) -> str:
    letter, _, rest = row.what.partition(": ")
    names = {
        "T": "rows (T) of [T,576]x[576,1536]",
        "K": "terms (K) of [5,K]x[K,1536]",
        "N": "columns (N) of [5,576]x[576,N]",
    }
    return f"{letter}, {rest.split(',')[0]}" if "tokens" in letter else names.get(letter, letter)


def _panel(figure: Any, box: tuple[float, float, float, float], height: float, rows: Sequence[Row]) -> None:
    axes = plain_axes(figure, box, WIDTH, height)
    is_workers = rows[0].what.startswith("workers")
    if rows[0].what.partition(":")[0] != "workers":
        axes.set_xscale("log")
    if not is_workers:
        axes.set_yscale("log")
    for key in dict.fromkeys((row.what, row.backend) for row in rows):
        mine = [row for row in rows if (row.what, row.backend) == key]
        dash = "--" if "f16 fma" in key[0] or "f16 accumulator" in key[0] else "-"
        how = {"color": colour(INK[key[1]]), "linestyle": dash, "marker": MARK[key[1]], "markersize": 3.5}
        axes.plot([row.x for row in mine], [row.value for row in mine], linewidth=1.5, **how)
    xs = sorted({row.x for row in rows if row.x is not None})
    axes.set_ylim(*((0, None) if is_workers else _room(rows)))
    ticks(axes, "x", xs, [f"{x:g}" for x in xs])
    if not is_workers:
        _decades(axes, "y")


def _room(rows: Sequence[Row]) -> tuple[float, float]:
    values = [row.value for row in rows if row.value]
    return min(values) / 1.6, max(values) * 1.6


def _profile(rows: Sequence[Row]) -> str:
    """A bar a pass, its regions from left to right in the order of the key."""
    height = 100 + 26.0 * len(rows) + 44

    def draw(figure: Any) -> None:
        page = sheet(figure, WIDTH, height)
        write(page, 14, 20, "Where a forward pass spends its time", size=14, is_bold=True)
        for i, region in enumerate(REGIONS):
            x, y = 14 + 176 * (i % 4), 46 + 20 * (i // 4)
            page.plot([x + 4], [y], "s", markersize=9, color=colour(FILLS[region]))
            write(page, x + 16, y, region, size=SMALL)
        axes = plain_axes(figure, (_LABELS, 84, WIDTH - 60, height - 40), WIDTH, height)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0, 100)
        ticks(axes, "y", range(len(rows)), [f"{row.what}, {row.backend}" for row in rows])
        ticks(axes, "x", (0, 25, 50, 75, 100), ("0", "25", "50", "75", "100 %"))
        for y, row in enumerate(rows):
            start = 0.0
            for region in REGIONS:
                share = 100 * row.shares.get(region, 0.0)
                axes.barh(y, share, left=start, height=0.7, color=colour(FILLS[region]), linewidth=0)
                start += share
            write(axes, 102, y, f"{significant((row.seconds or 0) * 1e3)} ms", size=SMALL)

    told = "; ".join(
        f"{r.what}, {r.backend}: " + ", ".join(f"{k} {100 * v:.0f} %" for k, v in r.shares.items()) for r in rows
    )
    return svg_of(draw, name="profile", title="Where the time goes", description=f"{told}.", height=height)
