"""From a matplotlib figure to the text of an SVG: the same bytes each time, for light and for dark pages.

Text stays text (it can be searched, copied and read aloud), in the reader's own fonts, so places keep some room.
Colours are CSS variables that the picture itself defines, for a light and for a dark page, with a ground of its own.
Matplotlib is imported where a picture is drawn, and nowhere else. Start reading at `svg_of`.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from xml.sax.saxutils import escape

from softfloat_llm.errors import ReportError

WIDTH = 720
"""Units of a picture across; one is a CSS pixel where the picture is shown at its own size."""
SMALL, PLAIN, LARGE = 11, 12, 14  # heights of letters

PALETTE = {
    "paper": ("#ffffff", "#14171c"),
    "ink": ("#1b1f24", "#e6e9ee"),
    "quiet": ("#57606a", "#a3acb8"),
    "line": ("#d0d7de", "#3b434d"),
    "run": ("#0550ae", "#79b8ff"),
    "reference": ("#6639ba", "#c9a6ff"),
    "flip": ("#b3001b", "#ff9492"),
    "floor": ("#dbe9f9", "#1f3350"),
    "error": ("#f6dfc4", "#4a3416"),
    "error-edge": ("#953800", "#ffab70"),
    "even": ("#dbe9f9", "#1f3350"),
    "odd": ("#eceff2", "#262b33"),
    "heat-0": ("#f6f8fa", "#1b2027"),
    "heat-1": ("#e3eefb", "#172a45"),
    "heat-2": ("#c9dff7", "#183a66"),
    "heat-3": ("#a5c9f0", "#1b4c87"),
    "heat-4": ("#7fb0e6", "#2261ab"),
    "heat-5": ("#2f74c0", "#5b9be0"),
    "heat-6": ("#1f5da3", "#7db4ee"),
    "heat-7": ("#144780", "#a3cbf5"),
    "heat-8": ("#0b325c", "#c9e1fa"),
    "on-pale": ("#1b1f24", "#e6e9ee"),
    "on-strong": ("#ffffff", "#0d1117"),
}
"""name -> its colour on a light page, and on a dark one. Text has a contrast of 4.5 and more against its ground."""

_MARK = "#5f01"  # with two further digits: what stands for a colour until the picture is text
_FONTS = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"
_RULES = {
    "svg.fonttype": "none", "text.parse_math": False, "text.usetex": False, "font.family": ["DejaVu Sans"],
    "font.size": PLAIN, "path.simplify": False, "axes.unicode_minus": False, "figure.dpi": 72, "savefig.dpi": 72,
}  # fmt: skip

Draw = Callable[[Any], None]
"""Draws on a matplotlib Figure."""


def colour(name: str) -> str:
    """What matplotlib is given for a colour of the palette."""
    return f"{_MARK}{list(PALETTE).index(name):02x}"


def svg_of(draw: Draw, *, name: str, title: str, description: str, height: float, width: float = WIDTH) -> str:
    """The SVG of what `draw` puts on a figure of width x height units.

    `name` is a word that no other kind of picture has; `title` and `description` are what is read aloud.
    Raises ReportError where matplotlib is not installed.
    """
    matplotlib = _matplotlib()
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that DejaVu has not: the reader's fonts show them
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RULES | {"svg.hashsalt": f"softfloat-llm {name} {title}"})
        figure = Figure(figsize=(width / 72, height / 72), facecolor=colour("paper"))
        FigureCanvasSVG(figure)
        draw(figure)
        file = io.StringIO()
        figure.savefig(file, format="svg", facecolor=colour("paper"), metadata={"Date": None, "Creator": None})
    return _finished(file.getvalue(), name, title, description, width, height)


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise ReportError(
            "Drawing a picture: matplotlib is not installed here.\n"
            "  Install what reports need: pip install '.[report]'\n"
            "  The text pictures (softfloat_llm.report.text_pictures) need nothing."
        ) from None
    return matplotlib


def sheet(figure: Any, width: float, height: float) -> Any:
    """Axes without lines, in units of the picture: x to the right, y downwards from the upper left corner."""
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    return axes


def write(
    axes: Any, x: float, y: float, text: str, *, size: float = PLAIN, ink: str = "ink", ha: str = "left",
    va: str = "center", is_bold: bool = False,
) -> None:  # fmt: skip
    """A line of text at a place of a sheet. Nothing in it is mathematics or markup."""
    weight = "bold" if is_bold else "normal"
    axes.text(x, y, text, fontsize=size, color=colour(ink), ha=ha, va=va, fontweight=weight)


Box = tuple[float, float, float, float]
"""Left, top, width, height."""


def boxes(axes: Any, places: Sequence[Box], fill: str, **how: Any) -> None:
    """Filled boxes, all as one path."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    corners = [
        corner
        for x, y, width, height in places
        for corner in ((x, y), (x + width, y), (x + width, y + height), (x, y + height), (x, y))
    ]
    if corners:
        codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(places)
        axes.add_patch(PathPatch(Path(corners, codes), facecolor=colour(fill), linewidth=0, **how))


def upright(axes: Any, xs: Sequence[float], span: tuple[float, float], ink: str, **how: Any) -> None:
    """Upright lines of one height, all as one path."""
    points = [(x, y) for x in xs for y in (*span, math.nan)]
    axes.plot([x for x, _ in points], [y for _, y in points], color=colour(ink), **how)


def plain_axes(figure: Any, box: tuple[float, float, float, float], width: float, height: float) -> Any:
    """Axes in a box (left, top, right, bottom) of a sheet, with quiet lines at the left and the bottom."""
    left, top, right, bottom = box
    axes = figure.add_axes((left / width, 1 - bottom / height, (right - left) / width, (bottom - top) / height))
    axes.set_facecolor(colour("paper"))
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(colour("quiet"))
    axes.tick_params(colors=colour("quiet"), labelcolor=colour("ink"), labelsize=SMALL)
    axes.set_axisbelow(True)
    return axes


def ticks(axes: Any, which: str, places: Sequence[float], labels: Sequence[str]) -> None:
    """Ticks of the x or y axis at these places and no others, so labelled; y ticks with a pale line across."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(FixedLocator(list(places)))
    axis.set_major_formatter(FixedFormatter(list(labels)))
    axis.set_minor_locator(NullLocator())
    if which == "y":
        axes.grid(axis="y", color=colour("line"), linewidth=0.8)


# --- the text of it ---------------------------------------------------------------------------------------------------


def _finished(svg: str, name: str, title: str, description: str, width: float, height: float) -> str:
    """Matplotlib's text without what it says of itself, with our head, ids, fonts and colours."""
    body = svg[svg.index("<g ") :] if "<metadata>" not in svg else svg[svg.index("</metadata>") + len("</metadata>") :]
    body = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", body, flags=re.S)
    body = re.sub(r'<(g|path|use|image|text|rect) id="[a-zA-Z_0-9.]+"', _without_group_id, body)
    body = re.sub(r" font-family: [^;\"]+;", "", body)
    body = re.sub(r"(font: (?:[a-z]+ )*[0-9.]+px) [^;\"]+", r"\1 var(--sf-font)", body)
    body = re.sub(rf"{_MARK}([0-9a-f]{{2}})", lambda found: f"var(--sf-{list(PALETTE)[int(found[1], 16)]})", body)
    body = re.sub(r"<[^>]+>", _short, body).replace("</svg>", "").strip()
    words = f"<title>{escape(title)}</title>\n<desc>{escape(description)}</desc>"
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    head = f'<svg {spaces} class="sf-picture sf-{name}" {size} role="img">'
    lines = "\n".join(line.strip() for line in body.splitlines() if line.strip())
    return f"{head}\n{words}\n{STYLE}\n{lines}\n</svg>\n"


def _without_group_id(found: re.Match[str]) -> str:
    """Ids of groups are counters, which two pictures of one page would share; nothing refers to them."""
    return f"<{found[1]}" if found[1] in ("g", "text") else found[0]


def _short(tag: re.Match[str]) -> str:
    """A tag on one line, its places to hundredths of a unit, without turns by nothing."""
    text = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", re.sub(r"\s+", " ", tag[0]))
    return re.sub(r"-?[0-9]+\.[0-9]{3,}", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), text)


def variables(place: int) -> str:
    """The palette as CSS: that of light pages (0), or of dark ones (1)."""
    return "".join(f"--sf-{name}:{pair[place]};" for name, pair in PALETTE.items())


STYLE = (
    f"<style>.sf-picture{{{variables(0)}--sf-font:{_FONTS};font-family:var(--sf-font);background:var(--sf-paper)}}"
    f"@media (prefers-color-scheme:dark){{.sf-picture{{{variables(1)}}}}}"
    ".sf-picture *{stroke-linejoin:round;stroke-linecap:butt}</style>"
)
"""What every picture brings; a page that has several says it once (`without_style`)."""


def without_style(svg: str) -> str:
    """A picture for a page that has `STYLE` in its head."""
    return svg.replace(f"{STYLE}\n", "")
