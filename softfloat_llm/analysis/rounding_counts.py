"""What rounding an array to a format would do to it: how many values it clips, makes subnormal, or flushes to zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from softfloat_llm.numerics.formats import Array, Float64Array, Format
from softfloat_llm.numerics.ulps import ulp


@dataclass(frozen=True)
class Counts:
    """What rounding to a format makes of values: of `values` that are finite and not zero, how many ..."""

    values: int
    clipped: int
    """round to more than the format's largest value: infinite there, or its largest value, or NaN"""
    subnormal: int
    """lie below the smallest normal value: they keep fewer bits"""
    flushed: int
    """round to zero"""

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.values + other.values,
            self.clipped + other.clipped,
            self.subnormal + other.subnormal,
            self.flushed + other.flushed,
        )

    def to_dict(self) -> dict[str, int]:
        return {"values": self.values, "clipped": self.clipped, "subnormal": self.subnormal, "flushed": self.flushed}


def counts_in(x: Array, fmt: Format, *, times: Array | None = None) -> Counts:
    """What rounding x (...) once to the format, ties to even, would clip, make subnormal, or flush.

    `times`, of the shape of x: how often each value counts.

    >>> from softfloat_llm.numerics.formats import f16
    >>> counts_in(np.array([65519.0, 65520.0, 1.0, 6e-5, 2e-8, 0.0, np.inf]), f16)
    Counts(values=5, clipped=1, subnormal=1, flushed=1)
    """
    wide = np.abs(x.astype(np.float64))
    is_some = np.isfinite(wide) & (wide != 0)
    wide, times = wide[is_some], None if times is None else times[is_some]
    unit: Float64Array = ulp(wide, fmt)
    rounded = np.rint(wide / unit) * unit  # to the format's precision and smallest step, whatever its largest value
    return Counts(
        values=number_of(wide > 0, times),
        clipped=number_of(rounded > fmt.max, times),
        subnormal=number_of((rounded > 0) & (rounded < fmt.smallest_normal), times),
        flushed=number_of(rounded == 0, times),
    )


def number_of(which: Array, times: Array | None = None) -> int:
    """How many are true, each as often as `times` says."""
    return int(np.count_nonzero(which)) if times is None else sum(times[which].tolist())
