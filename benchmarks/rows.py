"""What a benchmark finds: rows, each a ratio of two things that were timed in turn, some with a goal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Goal:
    """A bound on a row's value."""

    bound: float
    side: Literal["at most", "at least"] = "at most"

    def is_met(self, value: float) -> bool:
        return value <= self.bound if self.side == "at most" else value >= self.bound

    def __str__(self) -> str:
        return f"{self.side} {self.bound:g}"


@dataclass(frozen=True)
class Row:
    """One thing that was timed, as a ratio: `value` of the `unit`; None where it could not be timed (`note` says why).

    `seconds` of one call; `terms`, the products that the call forms; `x`, where the row is a point of a curve;
    `shares`, where a profile says what took which part of the time.
    """

    part: str
    what: str
    value: float | None = None
    unit: str = ""
    backend: str = ""
    workers: int = 1
    seconds: float | None = None
    terms: int | None = None
    goal: Goal | None = None
    note: str = ""
    x: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def ns_a_term(self) -> float | None:
        return self.seconds / self.terms * 1e9 if self.seconds is not None and self.terms else None

    @property
    def verdict(self) -> str:
        """Empty without a goal; with one, `met`, `MISSED`, or `not measured`."""
        if self.goal is None:
            return ""
        if self.value is None:
            return "not measured"
        return "met" if self.goal.is_met(self.value) else "MISSED"

    def to_dict(self) -> dict[str, Any]:
        goal = None if self.goal is None else str(self.goal)
        return asdict(self) | {"goal": goal, "verdict": self.verdict, "ns_a_term": self.ns_a_term}


def significant(value: float | None) -> str:
    """Three significant digits, without an exponent."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:.0f}"
    digits = 2 if abs(value) >= 1 else 3
    return f"{value:.{digits if abs(value) < 10 else 1}f}"


def milliseconds(value: float | None) -> str:
    return "" if value is None else significant(value * 1e3)
