"""Which scale a key and value cache needs: the largest magnitude of each tensor, held against a narrow format.

A cache in e4m3fn holds at most 448; keys are often larger than values. With a scale s the cache holds x / s, and
attention reads that times s: s = largest / 448 uses the whole range. Start reading at `kv_scales`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from softfloat_llm.analysis.answers import Table
from softfloat_llm.analysis.numbers import about, decimal, jsonable
from softfloat_llm.analysis.rounding_counts import Counts, counts_in
from softfloat_llm.analysis.taps import forward_order
from softfloat_llm.errors import RunError
from softfloat_llm.numerics.formats import Format, f32
from softfloat_llm.numerics.rounding import round_to

if TYPE_CHECKING:
    from softfloat_llm.runs import Run


@dataclass(frozen=True)
class KVScale:
    """One tensor of the cache: keys or values of one layer.

    `scale` is its largest magnitude over the format's largest value, rounded to f32 away from zero; `as_is` and
    `scaled` are what rounding to the format makes of x and of x / scale.
    """

    layer: int
    which: str
    format: Format
    largest: float
    scale: float
    as_is: Counts
    scaled: Counts

    def to_dict(self) -> dict[str, Any]:
        """JSON: plain numbers, strings, lists."""
        return {
            "layer": self.layer,
            "which": self.which,
            "format": str(self.format),
            "largest": jsonable(self.largest),
            "scale": jsonable(self.scale),
            "as_is": self.as_is.to_dict(),
            "scaled": self.scaled.to_dict(),
        }


def kv_scales(run: Run, fmt: Format) -> tuple[KVScale, ...]:
    """The scales that the cache of a run would need in a format, for each layer's keys and values.

    The run keeps the taps `*.kv.*.in`: keys after rotation, and values, before they are stored.
    **Rounds:** scale to f32, toward positive, so that no quotient exceeds the format's largest value by more than the
    last rounding takes back. **Raises** RunError where the run did not keep these taps.
    """
    taps = [tap for tap in forward_order(run.arrays) if tap.site.startswith("kv.") and tap.stage == "in"]
    if not taps:
        raise RunError(
            "Scales of the cache: the run does not keep what enters it. Run it with --taps '*.kv.*.in' (and save it)."
        )
    found = []
    for tap in taps:
        x = run.arrays[tap.name].astype(np.float64)
        finite = np.abs(x[np.isfinite(x)])
        largest = float(finite.max()) if finite.size else 0.0
        scale = float(round_to(largest / fmt.max, f32, "toward_positive")) if largest else 1.0
        found.append(
            KVScale(tap.layer or 0, tap.site[-1], fmt, largest, scale, counts_in(x, fmt), counts_in(x / scale, fmt))
        )
    return tuple(found)


def kv_words(found: Sequence[KVScale]) -> list[str]:
    """The answer in sentences: what is lost without a scale, and with the needed ones."""
    lines = []
    for which, name in (("k", "keys"), ("v", "values")):
        own = [one for one in found if one.which == which]
        if own:
            most = max(own, key=lambda one: one.largest)
            as_is, scaled = (_summed([getattr(one, word) for one in own]) for word in ("as_is", "scaled"))
            lines.append(
                f"A cache in {most.format}, {name}: largest {about(most.largest)} (layer {most.layer}), scale"
                f" {about(most.scale)}; {as_is.clipped} clipped and {as_is.flushed} flushed unscaled, {scaled.clipped}"
                f" and {scaled.flushed} scaled."
            )
    return lines


def _summed(parts: Sequence[Counts]) -> Counts:
    return sum(parts[1:], parts[0])


def kv_table(found: Sequence[KVScale]) -> Table:
    """Each tensor of the cache."""
    small = "subnormal, flushed"
    header = ("cache", "largest", "needs scale", "clipped at 1", f"{small} at 1", "clipped scaled", f"{small} scaled")
    rows = tuple(
        (
            f"layer {one.layer} {one.which}",
            about(one.largest),
            decimal(one.scale, f32),
            str(one.as_is.clipped),
            f"{one.as_is.subnormal}, {one.as_is.flushed}",
            str(one.scaled.clipped),
            f"{one.scaled.subnormal}, {one.scaled.flushed}",
        )
        for one in found
    )
    return Table(header, rows, right=(1, 2, 3, 4, 5, 6))
