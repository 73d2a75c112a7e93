"""Did the token change? One verdict a step, with the reference's margin and the run's error on one grid.

A row of logits chooses its largest value, among equals the lowest index or the last, as its recipe says. The margin is
top1 - top2 of the reference, measured in ulps of the run's format at top1: below one ulp, the two may round to the
same value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from softfloat_llm.analysis.distances import absolute, differs
from softfloat_llm.analysis.numbers import jsonable
from softfloat_llm.numerics.formats import Array, Float64Array, Format
from softfloat_llm.numerics.reduce import argmax
from softfloat_llm.numerics.ulps import ulp

TIED = 16
"""Of more ids than these that share a logit only the count is told."""


@dataclass(frozen=True)
class Choice:
    """What a row of logits chooses; `ties` counts the ids that share the largest value, of which `rule` says which.

    A row with NaN chooses nothing.
    """

    token: int | None
    logit: float
    ties: int = 1
    piece: str = ""
    rule: str = "lowest"

    def to_dict(self) -> dict[str, Any]:
        return {"token": self.token, "logit": jsonable(self.logit), "ties": self.ties, "piece": self.piece}


@dataclass(frozen=True)
class Verdict:
    """One step: what the reference and the run choose. `margin` and `error` are absolute; the ulps are of `format`."""

    step: int
    position: int
    reference: Choice
    run: Choice
    margin: float
    margin_ulp: float
    error: float
    """The largest |run - reference| of the row."""
    error_ulp: float
    format: Format
    tied: tuple[Choice, ...] = ()
    """The ids that share the run's largest logit, the lowest first, where there are several (at most TIED of them)."""
    reference_tied: tuple[Choice, ...] = ()

    @property
    def is_flip(self) -> bool:
        """True where the run does not choose the reference's token (a row with NaN chooses none)."""
        return self.run.token is None or self.reference.token != self.run.token

    @property
    def words(self) -> str:
        """`same` or `flip`, with the tie that decided it; or whose row holds NaN."""
        if self.run.token is None or self.reference.token is None:
            return f"no token: NaN in the {'run' if self.run.token is None else 'reference'}"
        word = "flip" if self.is_flip else "same"
        return f"{word} (tie, {self.run.rule} id {self.run.token} wins)" if self.run.ties > 1 else word

    def to_dict(self) -> dict[str, Any]:
        """JSON: plain numbers, strings, lists."""
        return {
            "step": self.step,
            "position": self.position,
            "reference": self.reference.to_dict(),
            "run": self.run.to_dict(),
            "margin": jsonable(self.margin),
            "margin_ulp": jsonable(self.margin_ulp),
            "error": jsonable(self.error),
            "error_ulp": jsonable(self.error_ulp),
            "ulp_format": str(self.format),
            "is_flip": self.is_flip,
            "tied": [one.to_dict() for one in self.tied],
            "reference_tied": [one.to_dict() for one in self.reference_tied],
            "verdict": self.words,
        }


def choice(row: Array, ties: str = "lowest") -> Choice:
    """What a row (V,) chooses; `ties`: a recipe's rule."""
    wide = row.astype(np.float64)
    if np.isnan(wide).any():
        return Choice(None, float("nan"))
    top = float(wide.max())
    return Choice(argmax(wide, ties), top, int(np.count_nonzero(wide == top)), rule=ties)


def tied(row: Array, ties: str = "lowest") -> tuple[Choice, ...]:
    """The ids that share the largest value of a row (V,), the lowest first; none where it is alone, or NaN is there."""
    found = choice(row, ties)
    if found.token is None or found.ties < 2:
        return ()
    places = np.flatnonzero(row.astype(np.float64) == found.logit)[:TIED]
    return tuple(replace(found, token=int(place)) for place in places)


def margin(row: Array) -> float:
    """top1 - top2 of a row (V,), NaN where it holds NaN or has one value; 0 where the top is shared."""
    wide: Float64Array = row.astype(np.float64)
    if len(wide) < 2 or np.isnan(wide).any():
        return float("nan")
    second, first = np.partition(wide, -2)[-2:]
    with np.errstate(invalid="ignore"):
        return 0.0 if first == second else float(first - second)


def verdict(
    step: int, position: int, run: Array, reference: Array, fmt: Format, ties: tuple[str, str] = ("lowest", "lowest")
) -> Verdict:
    """The verdict on one step. run, reference: rows (V,); `fmt` is the run's format, `ties` the rules of both."""
    wanted, got = choice(reference, ties[1]), choice(run, ties[0])
    x, y = run.astype(np.float64), reference.astype(np.float64)
    unit = float(ulp(wanted.logit, fmt))  # NaN where the reference's top is not finite
    apart, error = margin(reference), float(absolute(x, y, differs(x, y)).max())
    shared = tied(run, ties[0]), tied(reference, ties[1])
    return Verdict(step, position, wanted, got, apart, apart / unit, error, error / unit, fmt, *shared)
