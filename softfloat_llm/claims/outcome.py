"""What a claim comes to: lines, each with what is expected and what is obtained, and whether they agree.

A line that cannot be judged on the model at hand is shown without a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from softfloat_llm.analysis.numbers import about

Verdict = Literal["holds", "fails", "shown"]


@dataclass(frozen=True)
class Line:
    """One number or fact of a claim."""

    what: str
    expected: str
    obtained: str
    verdict: Verdict

    def to_dict(self) -> dict[str, Any]:
        return {"what": self.what, "expected": self.expected, "obtained": self.obtained, "verdict": self.verdict}


@dataclass(frozen=True)
class Outcome:
    """A claim by its id, and its lines."""

    id: str
    claim: str
    lines: tuple[Line, ...]

    @property
    def verdict(self) -> Verdict:
        """`fails` where a line does, `shown` where none is judged."""
        verdicts = {line.verdict for line in self.lines}
        return "fails" if "fails" in verdicts else "holds" if "holds" in verdicts else "shown"

    def to_dict(self) -> dict[str, Any]:
        lines = [line.to_dict() for line in self.lines]
        return {"id": self.id, "claim": self.claim, "verdict": self.verdict, "lines": lines}


# --- lines of each kind -----------------------------------------------------------------------------------------------


def equal(what: str, expected: Any, obtained: Any) -> Line:
    """The very value that is expected."""
    return Line(what, word(expected), word(obtained), _judged(bool(expected == obtained)))


def holds(what: str, expected: str, obtained: Any, *, if_: bool) -> Line:
    """A condition that is said in words."""
    return Line(what, expected, word(obtained), _judged(bool(if_)))


def between(what: str, low: float, high: float, obtained: float | Sequence[float]) -> Line:
    """One number, or all of several, in a range."""
    values = [obtained] if isinstance(obtained, (int, float)) else list(obtained)
    told = f"{about(min(values))} to {about(max(values))}" if len(values) > 1 else about(values[0])
    return Line(what, f"{word(low)} to {word(high)}", told, _judged(low <= min(values) and max(values) <= high))


def of_size(what: str, expected: float | Sequence[float], obtained: float) -> Line:
    """As large as what was measured on another machine, whose sums have other orders: within a factor of 2."""
    values = [expected] if isinstance(expected, (int, float)) else list(expected)
    is_near = min(values) / 2 <= obtained <= max(values) * 2
    told = f"{' to '.join(about(x) for x in values)}, or of that size"
    return Line(what, told, about(obtained), _judged(is_near))


def shown(what: str, obtained: Any, expected: Any = "") -> Line:
    """A number without a verdict."""
    return Line(what, word(expected), word(obtained), "shown")


def _judged(is_so: bool) -> Verdict:
    return "holds" if is_so else "fails"


def word(value: Any) -> str:
    """A value as a table has it: whole numbers without a point, lists with commas."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, (list, tuple)):
        return ", ".join(word(part) for part in value) or "none"
    return str(value)
