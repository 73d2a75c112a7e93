"""Where two runs part, in the order of the forward pass: at all, and by more than a rounding explains.

Between two formats the first difference is nearly always the first value that the narrower one cannot hold. What tells
more is the first tap that is off by more than one ulp of the largest value of its position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softfloat_llm.analysis.distances import Difference, Pair
from softfloat_llm.analysis.taps import Tap, tap_of
from softfloat_llm.numerics.formats import Format


@dataclass(frozen=True)
class Divergence:
    """The first element, in the order of the forward pass, at which the two runs hold different values."""

    tap: Tap
    at: Pair
    format: Format
    reference_format: Format
    is_rounding: bool = False
    """True where every value of the tap is the reference's, rounded to the run's format."""

    def to_dict(self) -> dict[str, Any]:
        formats = {"format": str(self.format), "reference_format": str(self.reference_format)}
        return self.tap.to_dict() | self.at.to_dict() | formats | {"is_rounding": self.is_rounding}


def first_divergence(taps: Sequence[Difference]) -> Divergence | None:
    """The first different element of taps that stand in the order of the forward pass."""
    for tap in taps:
        if tap.first is not None:
            return Divergence(tap_of(tap.tap), tap.first, tap.format, tap.reference_format, tap.is_rounding)
    return None


def first_beyond(taps: Sequence[Difference], fmt: Format) -> Difference | None:
    """The first tap, in that order, of which a value is off by over one ulp of `fmt` at the largest of its position."""
    return next((tap for tap in taps if tap.row_ulps(fmt) > 1), None)
