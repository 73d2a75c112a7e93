"""Picture 4: how far each site of each layer lies from the reference, as log2(1 + ulp).

**Inherited** error is what a run shows: all that came before is in it. **Local** error is what a site adds itself, fed
the reference's inputs; it stands beside the other where it is known. Start reading at `heat_map_of`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from softfloat_llm.analysis.comparison import Comparison
from softfloat_llm.analysis.distances import Difference
from softfloat_llm.analysis.numbers import about
from softfloat_llm.analysis.taps import tap_of
from softfloat_llm.errors import ReportError
from softfloat_llm.numerics.formats import Format
from softfloat_llm.report.drawing import PLAIN, SMALL, WIDTH, boxes, sheet, svg_of, write
from softfloat_llm.sites import SITES

LEVELS = 8  # colours beside that of 0; each stands for 1 on the scale of log2(1 + ulp)
MOST_LAYERS = 80
INHERITED, LOCAL = "inherited", "local"


@dataclass(frozen=True)
class HeatMap:
    """The largest error of each tap's `out`, in ulps of one `format` for all. Layer None: outside the layers.

    Ulps are those at the largest value of a position: near a 0 an error of any size is many ulps of the value itself.

    `parts` has the maps by name, `inherited` and perhaps `local`; each from (site, layer) to ulps, inf where a value of
    one of the two is not finite.
    """

    format: Format
    sites: tuple[str, ...]
    layers: tuple[int | None, ...]
    parts: Mapping[str, Mapping[tuple[str, int | None], float]]

    def heat(self, part: str, site: str, layer: int | None) -> float | None:
        """log2(1 + ulp); None where there is no such tap."""
        ulps = self.parts[part].get((site, layer))
        return None if ulps is None else heat_of(ulps)


def heat_of(ulps: float) -> float:
    """log2(1 + ulp): 0 where nothing differs, 1 at one ulp, inf where something is not finite.

    >>> heat_of(0.0), heat_of(1.0), heat_of(7.0)
    (0.0, 1.0, 3.0)
    """
    return math.log2(1 + ulps) if math.isfinite(ulps) else math.inf


def heat_map_of(found: Comparison, *, local: Sequence[Difference] | None = None) -> HeatMap:
    """The map of a comparison's taps (those named `.out`), and of its local errors where they are known or given.

    Ulps are of the format of the run's logits, also where a site gives values of another one.

    **Raises** ReportError where no such tap was compared, or there are more than 80 layers.
    """
    told = {INHERITED: found.taps, LOCAL: found.local if local is None else local}
    parts = {name: _cells(part or (), found.format) for name, part in told.items()}
    places = {place for part in parts.values() for place in part}
    order = {site: place for place, site in enumerate(SITES)}
    sites = sorted({site for site, _ in places}, key=lambda site: (order.get(site, len(order)), site))
    layers = sorted({layer for _, layer in places}, key=lambda layer: -1 if layer is None else layer)
    if not sites:
        raise ReportError(
            "A heat map needs taps named '*.out' that both runs keep: simulate --taps '*.out' --save RUN."
        )
    if (count := len([layer for layer in layers if layer is not None])) > MOST_LAYERS:
        raise ReportError(f"A heat map shows at most {MOST_LAYERS} layers; here are {count}.")
    return HeatMap(found.format, tuple(sites), tuple(layers), {name: part for name, part in parts.items() if part})


def _cells(taps: Sequence[Difference], fmt: Format) -> dict[tuple[str, int | None], float]:
    named = [(tap_of(found.tap), found.row_ulps(fmt) if found.count else 0.0) for found in taps]
    return {(tap.site, tap.layer): ulps for tap, ulps in named if tap.stage == "out"}


def sentences(found: HeatMap) -> list[str]:
    """Where each map is largest."""
    return [_about(part, cells, found.format) for part, cells in found.parts.items()]


def _about(part: str, cells: Mapping[tuple[str, int | None], float], fmt: Format) -> str:
    (site, layer), ulps = max(cells.items(), key=lambda cell: cell[1])
    if not ulps:
        return f"No site has any {part} error."
    where = site if layer is None else f"layer {layer} {site}"
    same = f"{len([one for one in cells.values() if one == 0])} of {len(cells)} sites are identical"
    return f"The largest {part} error is {about(ulps)} {fmt} ulp, at {where}; {same}."


def cell_word(heat: float | None, digits: int = 0) -> str:
    """What stands in a cell: the number, `.` where nothing differs, `inf`; nothing where there is no tap.

    >>> cell_word(0.0), cell_word(0.01), cell_word(2.6), cell_word(2.6, 1), cell_word(math.inf)
    ('.', '<1', '3', '2.6', 'inf')
    """
    if heat is None or heat == 0:
        return "" if heat is None else "."
    least = 0.5 if digits == 0 else 0.05
    return "inf" if math.isinf(heat) else f"{heat:.{digits}f}" if heat >= least else "<1" if digits == 0 else "<.1"


def layer_word(layer: int | None) -> str:
    return "-" if layer is None else str(layer)


def level(heat: float) -> int:
    """The colour of a heat: 0 for 0, then one for each unit."""
    return 0 if heat == 0 else LEVELS if math.isinf(heat) else min(LEVELS, 1 + int(heat))


# --- drawn ------------------------------------------------------------------------------------------------------------

_NAMES, _RIGHT, _ROW, _TOP, _FOOT = 140.0, 12.0, 18.0, 48.0, 52.0
_BESIDE = 12  # layers up to which two maps stand side by side


def heat_map_svg(found: HeatMap) -> str:
    """The picture: a row for each site, a column for each layer; both maps side by side, or below each other."""
    is_beside = len(found.parts) > 1 and len(found.layers) <= _BESIDE
    block = _TOP + _ROW * len(found.sites) + 16
    height = block * (1 if is_beside else len(found.parts)) + _FOOT
    return svg_of(
        lambda figure: _draw(figure, found, is_beside, block, height),
        name="heat-map",
        title="Error of each site in each layer, as log2(1 + ulp)",
        description=" ".join(sentences(found)),
        height=height,
    )


def _draw(figure: Any, found: HeatMap, is_beside: bool, block: float, height: float) -> None:
    axes = sheet(figure, WIDTH, height)
    width = (WIDTH - _NAMES - _RIGHT - (24 if is_beside else 0)) / (len(found.parts) if is_beside else 1)
    for place, part in enumerate(found.parts):
        left = _NAMES + (width + 24) * place * is_beside
        top = _TOP + block * place * (not is_beside)
        _draw_part(axes, found, part, (left, top), min(46.0, width / len(found.layers)))
        if place == 0 or not is_beside:
            for row, site in enumerate(found.sites):
                write(axes, _NAMES - 8, top + _ROW * (row + 0.5), site, size=SMALL, ha="right")
    _draw_scale(axes, found.format, height)


def _draw_part(axes: Any, found: HeatMap, part: str, corner: tuple[float, float], wide: float) -> None:
    left, top = corner
    write(axes, left, top - 34, f"{part} error", size=PLAIN, is_bold=True)
    every = max(1, math.ceil(18 / wide))
    for column, layer in enumerate(found.layers):
        if column % every == 0:
            write(axes, left + wide * (column + 0.5), top - 12, layer_word(layer), size=SMALL, ink="quiet", ha="center")
    cells = [
        (heat, left + wide * column, top + _ROW * row)
        for row, site in enumerate(found.sites)
        for column, layer in enumerate(found.layers)
        if (heat := found.heat(part, site, layer)) is not None
    ]
    for shade in range(LEVELS + 1):
        places = [(x, y, wide - 1.5, _ROW - 1.5) for heat, x, y in cells if level(heat) == shade]
        boxes(axes, places, f"heat-{shade}")
    if wide >= 14:
        for heat, x, y in cells:
            ink, size = ink_on(level(heat)), 9 if wide < 20 else 10.5
            word = cell_word(heat, int(wide >= 32))
            write(axes, x + wide / 2 - 0.75, y + _ROW / 2 - 0.75, word, size=size, ink=ink, ha="center")


def ink_on(shade: int) -> str:
    """The ink that can be read on a colour of the scale."""
    return "on-strong" if shade >= 5 else "on-pale"


def _draw_scale(axes: Any, fmt: Format, height: float) -> None:
    top = height - 40
    write(axes, _NAMES - 8, top + 9, "log2(1 + ulp)", size=SMALL, ha="right")
    for shade in range(LEVELS + 1):
        left = _NAMES + 52 * shade
        boxes(axes, [(left, top, 50 if shade < LEVELS else 80, 18)], f"heat-{shade}")
        word = "0" if shade == 0 else f"{shade - 1} to {shade}" if shade < LEVELS else f"{shade - 1} and more"
        write(axes, left + (25 if shade < LEVELS else 40), top + 9, word, size=10, ink=ink_on(shade), ha="center")
    foot = f"Columns: layers (-: outside of them). '.': identical. {fmt} ulp of the largest value of the same position."
    write(axes, _NAMES, height - 10, foot, size=SMALL, ink="quiet")
