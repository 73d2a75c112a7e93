"""What a check against golden outputs found: the first different value of each run, and all that is no value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from softfloat_llm.analysis.markup import html_text
from softfloat_llm.analysis.numbers import about, code, decimal, jsonable
from softfloat_llm.numerics.formats import Format
from softfloat_llm.numerics.ulps import ulp, ulp_distance

SHOWN_PROBLEMS = 8


@dataclass(frozen=True)
class Mismatch:
    """The first element of the first tap, in forward order, that is not what the golden folder holds."""

    run: str
    tap: str
    index: tuple[int, ...]
    found: float
    golden: float
    format: Format
    differing: int
    before: str
    """The tap before it in forward order, which is identical; empty where there is none."""

    @property
    def steps(self) -> int | None:
        """How many values of the format lie between the two; None where one is NaN."""
        if np.isnan(self.found) or np.isnan(self.golden):
            return None
        return int(ulp_distance(self.found, self.golden, self.format))

    @property
    def ulps(self) -> float:
        """The difference in ulps of the format, in the golden value's binade; inf where one is not finite."""
        if not (np.isfinite(self.found) and np.isfinite(self.golden)):
            return float("inf")
        return abs(self.found - self.golden) / float(ulp(self.golden, self.format))

    def __str__(self) -> str:
        head = f"{self.run}: {self.tap}{list(self.index)} differs (with {self.differing} values of that tap)"
        lines = [f"{head}, by {about(self.ulps)} {self.format} ulp"]
        for word, value in (("found", self.found), ("golden", self.golden)):
            lines.append(f"  {word:<7}{decimal(value, self.format)}   {code(value, self.format)}")
        before = f"{self.before} is identical" if self.before else "there is none"
        return "\n".join([*lines, f"  the tap before it: {before}"])

    def to_dict(self) -> dict[str, Any]:
        """JSON: plain numbers, strings, lists."""
        return {
            "run": self.run,
            "tap": self.tap,
            "index": list(self.index),
            "found": jsonable(self.found),
            "golden": jsonable(self.golden),
            "found_code": code(self.found, self.format),
            "golden_code": code(self.golden, self.format),
            "steps": self.steps,
            "ulps": jsonable(self.ulps),
            "ulp_format": str(self.format),
            "differing": self.differing,
            "before": self.before,
        }


@dataclass(frozen=True)
class GoldenReport:
    """What a check found. `problems` are failures that are no values: files, taps, shapes, another question asked."""

    made_by: str
    checked_by: str
    compared: int
    """Tensors that were compared."""
    mismatches: tuple[Mismatch, ...]
    problems: tuple[str, ...]

    @property
    def is_passed(self) -> bool:
        return not self.mismatches and not self.problems

    def __str__(self) -> str:
        origin = f"made by: {self.made_by}\nchecked by: {self.checked_by}"
        if self.is_passed:
            return f"golden: {self.compared} tensors are identical\n{origin}"
        failures = [str(mismatch) for mismatch in self.mismatches]
        failures += self.problems[:SHOWN_PROBLEMS]
        if len(self.problems) > SHOWN_PROBLEMS:
            failures.append(f"... and {len(self.problems) - SHOWN_PROBLEMS} more; --json has them all")
        count = len(self.mismatches) + len(self.problems)
        return "\n".join([f"golden: {count} failure{'s' * (count > 1)}", *failures, origin])

    def _repr_html_(self) -> str:
        return html_text(str(self))

    def to_dict(self) -> dict[str, Any]:
        """JSON: plain numbers, strings, lists."""
        return {
            "schema": "softfloat-llm/golden-check/1",
            "made_by": self.made_by,
            "checked_by": self.checked_by,
            "passed": self.is_passed,
            "compared": self.compared,
            "mismatches": [mismatch.to_dict() for mismatch in self.mismatches],
            "problems": list(self.problems),
        }
