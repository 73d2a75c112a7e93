"""ranges(run, format): how large and how small the values of a run are, and what a format would make of them.

For each tap its largest and smallest magnitude, the headroom up to the format's largest value, and how many values
would overflow it, become subnormal or be flushed to zero. Squares are looked at where a norm sums them. Start reading
at `ranges`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from softfloat_llm.analysis.answers import Answer, Table, counted, prompt_of, shown_prompt
from softfloat_llm.analysis.compare import opened
from softfloat_llm.analysis.kv_scales import KVScale, kv_scales, kv_table, kv_words
from softfloat_llm.analysis.numbers import about, jsonable
from softfloat_llm.analysis.rounding_counts import Counts, counts_in
from softfloat_llm.analysis.taps import Tap, forward_order, visible
from softfloat_llm.analysis.what_if import WhatIf
from softfloat_llm.analysis.wording import recipe_line
from softfloat_llm.errors import FormatError
from softfloat_llm.numerics.formats import Float64Array, Format, format_of
from softfloat_llm.recipe import Recipe
from softfloat_llm.sites import SITES

if TYPE_CHECKING:
    from softfloat_llm.runs import Run

SCHEMA = "softfloat-llm/ranges/1"
SQUARE = "square"
SHOWN_SITES = 12


@dataclass(frozen=True)
class Range:
    """The magnitudes of one tap, or of one site's taps of a stage together; zeros and non-finite values apart.

    `place` is the tap's name, or `layers.*.SITE.STAGE`; `largest_at` the tap and index of the largest magnitude.
    """

    place: str
    site: str
    stage: str
    layers: int
    size: int
    zeros: int
    not_finite: int
    largest: float
    largest_at: tuple[str, tuple[int, ...]] | None
    smallest: float
    counts: Counts

    @property
    def is_inner(self) -> bool:
        """True for a sum before its last rounding, and for squares: a format of storage does not hold these."""
        return self.stage in ("acc", SQUARE)

    def headroom(self, fmt: Format) -> float:
        """How many times the largest magnitude fits into the format's largest value; inf where all are zero."""
        return math.inf if self.largest == 0 else fmt.max / self.largest

    def to_dict(self, fmt: Format) -> dict[str, Any]:
        """JSON: plain numbers, strings, lists."""
        at = self.largest_at
        return {
            "place": self.place,
            "site": self.site,
            "stage": self.stage,
            "layers": self.layers,
            "size": self.size,
            "zeros": self.zeros,
            "not_finite": self.not_finite,
            "largest": jsonable(self.largest),
            "largest_at": None if at is None else {"tap": at[0], "index": list(at[1])},
            "smallest": jsonable(self.smallest),
            "headroom": jsonable(self.headroom(fmt)),
            "counts": self.counts.to_dict(),
        }


@dataclass(frozen=True)
class Ranges(Answer):
    """The magnitudes of a run's taps, held against a format: `taps` in forward order, `sites` over all layers."""

    model: str
    prompt: str
    recipe: Recipe
    digest: str
    format: Format
    taps: tuple[Range, ...]
    sites: tuple[Range, ...]
    kv: tuple[KVScale, ...] = ()
    what_if: WhatIf | None = None

    @property
    def first_overflow(self) -> Range | None:
        """The first tap, in the order of the forward pass, with a value that the format clips; None where none has.

        Sums and squares are no stored values, and do not count here: see `first_inner_overflow`.
        """
        return next((one for one in self.taps if one.counts.clipped and not one.is_inner), None)

    @property
    def first_inner_overflow(self) -> Range | None:
        """The first sum (`.acc`), or square of what a norm takes, that the format could not hold."""
        return next((one for one in self.taps if one.counts.clipped and one.is_inner), None)

    def heading(self) -> list[tuple[str, str]]:
        return [("prompt", shown_prompt(self.prompt)), ("recipe", recipe_line(self.recipe))]

    def sentences(self) -> list[str]:
        if not self.taps:
            return ["No tap was kept: there is nothing to measure."]
        lines = [self._about(is_inner=False), self._about(is_inner=True), *self._about_small()]
        lines += kv_words(self.kv)
        return [line for line in lines if line] + (self.what_if.sentences() if self.what_if is not None else [])

    def _about(self, *, is_inner: bool) -> str:
        """What of the stored values, or of the sums and squares, would overflow."""
        mine = [one for one in self.sites if one.is_inner == is_inner]
        if not mine:
            return ""
        first = self.first_inner_overflow if is_inner else self.first_overflow
        most, limit = max(mine, key=lambda one: one.largest), f"{self.format}'s {about(self.format.max, 5)}"
        size = f"{about(most.largest)} at {most.place}"
        if first is None:
            kind = "sum or square" if is_inner else "stored value"
            return f"No {kind} exceeds {limit}: the largest is {size}, headroom {about(most.headroom(self.format))}."
        total = sum(one.counts.clipped for one in mine)
        kind = "sum or square" if is_inner else "stored value"
        kinds = kind if total == 1 else ("sums and squares" if is_inner else "stored values")
        return f"{total} {kinds} would overflow {limit}, first {first.place}; the largest is {size}."

    def _about_small(self) -> list[str]:
        total = sum((one.counts for one in self.taps if not one.is_inner), Counts(0, 0, 0, 0))
        bad = sum(one.not_finite for one in self.taps)
        lines = [f"{counted(bad, 'value')} of the run are not finite."] if bad else []
        if total.subnormal or total.flushed:
            lines.append(
                f"Of {total.values} stored values other than zero {total.subnormal} would be subnormal, {total.flushed}"
                f" flushed to zero in {self.format}."
            )
        return lines

    def tables(self, *, verbose: bool = False) -> list[Table]:
        """The sites by headroom; with a dry run or the cache's scales, those instead; `verbose`: all, and each tap."""
        sites = _ranges_table(self.sites, self.format, by_room=True)
        if verbose:
            own = [_ranges_table(self.taps, self.format, by_room=False), sites]
            return [*own, kv_table(self.kv), *(self.what_if.tables(verbose=True) if self.what_if else [])]
        if self.what_if is not None:
            return self.what_if.tables()
        return [kv_table(self.kv).cut(SHOWN_SITES)] if self.kv else [sites.cut(SHOWN_SITES)]

    def ending(self) -> list[tuple[str, str]]:
        return [("digest", self.digest)]

    def to_dict(self) -> dict[str, Any]:
        first, inner = self.first_overflow, self.first_inner_overflow
        return {
            "schema": SCHEMA,
            "model": self.model,
            "prompt": self.prompt,
            "recipe": {"name": self.recipe.name, "site": self.recipe.words()},
            "digest": self.digest,
            "format": str(self.format),
            "largest_of_format": jsonable(self.format.max),
            "first_overflow": first and first.place,
            "first_inner_overflow": inner and inner.place,
            "taps": [one.to_dict(self.format) for one in self.taps],
            "sites": [one.to_dict(self.format) for one in self.sites],
            "kv": [one.to_dict() for one in self.kv],
            "what_if": self.what_if and self.what_if.to_dict(),
        }


def ranges(
    run: Run | str | Path,
    *,
    format: str | Format = "f16",
    kv_format: str | Format | None = None,
    what_if: WhatIf | None = None,
) -> Ranges:
    """The magnitudes of the taps that a run kept (or the folder that it was saved in), held against a format.

    `kv_format`: also the scales that a key and value cache in that format needs. `what_if`: a dry run to tell beside
    it (`what_if.what_if`). Of taps over keys, what a query does not see does not count.
    **Raises** FormatError for an unknown or unsigned format.
    """
    run, fmt = opened(run), format_of(format)
    if not fmt.is_signed:
        raise FormatError(f"{fmt} has no negative values: a range is told of a signed format, such as f16.")
    taps = [one for tap in forward_order(run.arrays) for one in _of_tap(tap, run, fmt)]
    return Ranges(
        model=run.model,
        prompt=prompt_of(run),
        recipe=run.recipe,
        digest=run.digest,
        format=fmt,
        taps=tuple(taps),
        sites=_by_site(taps),
        kv=() if kv_format is None else kv_scales(run, format_of(kv_format)),
        what_if=what_if,
    )


def _of_tap(tap: Tap, run: Run, fmt: Format) -> list[Range]:
    """The range of a tap; of what a norm takes, that of its squares too."""
    values = visible(tap, run.arrays[tap.name], len(run.fed)).astype(np.float64)
    found = [range_of(tap.name, tap.site, tap.stage, values, fmt)]
    if tap.site.startswith("norm.") and tap.stage == "in":
        name = tap.name.removesuffix("in") + SQUARE
        found.append(range_of(name, tap.site, SQUARE, values * values, fmt))
    return found


def range_of(place: str, site: str, stage: str, x: Float64Array, fmt: Format) -> Range:
    """The range of an array (...)."""
    is_finite = np.isfinite(x)
    magnitude = np.where(is_finite, np.abs(x), 0.0)
    some = magnitude[magnitude > 0]
    at = None
    if some.size:
        at = place, tuple(int(i) for i in np.unravel_index(int(np.argmax(magnitude)), x.shape))
    return Range(
        place=place,
        site=site,
        stage=stage,
        layers=1,
        size=x.size,
        zeros=int(np.count_nonzero(x == 0)),
        not_finite=int(np.count_nonzero(~is_finite)),
        largest=float(some.max()) if some.size else 0.0,
        largest_at=at,
        smallest=float(some.min()) if some.size else 0.0,
        counts=counts_in(x, fmt),
    )


def _by_site(taps: Sequence[Range]) -> tuple[Range, ...]:
    """The taps of one site and stage taken together, over all layers, in the order of the forward pass."""
    together: dict[tuple[str, str], list[Range]] = {}
    for one in taps:
        together.setdefault((one.site, one.stage), []).append(one)
    order = {site: place for place, site in enumerate(SITES)}
    keys = sorted(together, key=lambda key: order.get(key[0], len(order)))
    return tuple(_joined(together[key]) for key in keys)


def _joined(parts: Sequence[Range]) -> Range:
    if len(parts) == 1:
        return parts[0]
    most = max(parts, key=lambda one: one.largest)
    some = [one.smallest for one in parts if one.smallest > 0]
    return Range(
        place=f"layers.*.{most.site}.{most.stage}",
        site=most.site,
        stage=most.stage,
        layers=len(parts),
        size=sum(one.size for one in parts),
        zeros=sum(one.zeros for one in parts),
        not_finite=sum(one.not_finite for one in parts),
        largest=most.largest,
        largest_at=most.largest_at,
        smallest=min(some, default=0.0),
        counts=sum((one.counts for one in parts[1:]), parts[0].counts),
    )


def _ranges_table(found: Sequence[Range], fmt: Format, *, by_room: bool) -> Table:
    header = (
        "values",
        "largest",
        "at",
        f"headroom to {about(fmt.max, 5)}",
        "smallest",
        "overflow",
        "subnormal, flushed",
    )
    ranked = sorted(found, key=lambda one: one.headroom(fmt)) if by_room else found
    rows = tuple(
        (
            one.place,
            about(one.largest),
            _place(one),
            ("x " if one.counts.clipped else "") + about(one.headroom(fmt)),
            about(one.smallest),
            str(one.counts.clipped),
            f"{one.counts.subnormal}, {one.counts.flushed}",
        )
        for one in ranked
    )
    return Table(header, rows, right=(1, 3, 4, 5, 6))


def _place(one: Range) -> str:
    """Where the largest value lies: the layer where that is not in the name, and the index."""
    if one.largest_at is None:
        return "-"
    name, index = one.largest_at
    layer = f"layer {name.split('.')[1]} " if one.layers > 1 else ""
    return f"{layer}{list(index)}"
