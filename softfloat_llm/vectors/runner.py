"""Running vectors against a callable, and reading those of Berkeley TestFloat. Start reading at `run_cases`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from softfloat_llm.analysis.answers import Answer, Table, counted
from softfloat_llm.errors import VectorError
from softfloat_llm.numerics import ops
from softfloat_llm.numerics.formats import Format, decode, format_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.vectors.cases import FLAGS, OPERANDS, Case, hex_of

SCHEMA = "softfloat-llm/vectors/1"
SHOWN = 8
Subject = Callable[[str, Format, str, tuple[float, ...]], float]
"""subject(operation, format, mode, operands) -> result: what is tested."""


@dataclass(frozen=True)
class Conformance(Answer):
    """How a callable did: how many cases, and those in which it gave something else."""

    subject: str
    total: int
    wrong: tuple[tuple[Case, float], ...]
    skipped: int = 0

    def heading(self) -> list[tuple[str, str]]:
        return [("subject", self.subject)]

    def sentences(self) -> list[str]:
        skipped = f" {counted(self.skipped, 'case')} it cannot do." if self.skipped else ""
        if not self.wrong:
            return [f"All {self.total} cases agree.{skipped}"]
        return [f"{len(self.wrong)} of {self.total} cases differ.{skipped}"]

    def tables(self, *, verbose: bool = False) -> list[Table]:
        rows = tuple((str(case), hex_of(found)) for case, found in self.wrong)
        table = Table(("case", "found"), rows)
        return [table if verbose else table.cut(SHOWN)]

    def to_dict(self) -> dict[str, Any]:
        wrong = [{"case": str(case), "found": hex_of(found)} for case, found in self.wrong]
        return {"schema": SCHEMA, "subject": self.subject, "total": self.total, "skipped": self.skipped, "wrong": wrong}


def run_cases(
    cases: Iterable[Case], subject: Subject | None = None, *, name: str = "softfloat_llm.numerics"
) -> Conformance:
    """Hold a callable against the cases: the same value, the sign of a zero too; any NaN is a NaN.

    subject: by default our own operations. One that raises NotImplementedError cannot do the case, which is counted.
    """
    total, skipped, wrong = 0, 0, []
    for case in cases:
        try:
            found = float((subject or ours)(case.operation, case.format, case.mode, case.operands))
        except NotImplementedError:
            skipped += 1
            continue
        total += 1
        if not is_same(found, case.result):
            wrong.append((case, found))
    return Conformance(name, total, tuple(wrong), skipped)


def is_same(x: float, y: float) -> bool:
    """True for one value with one sign, or two NaN."""
    if math.isnan(x) or math.isnan(y):
        return math.isnan(x) and math.isnan(y)
    return x == y and math.copysign(1, x) == math.copysign(1, y)


def ours(operation: str, fmt: Format, mode: str, operands: tuple[float, ...]) -> float:
    """The operations of this package."""
    if operation == "round":
        return float(round_to(operands[0], fmt, mode))
    return float(getattr(ops, operation)(*operands, fmt, mode=mode))


# --- TestFloat --------------------------------------------------------------------------------------------------------

_TESTFLOAT_NAMES = {"add": "add", "sub": "sub", "mul": "mul", "div": "div", "sqrt": "sqrt", "mulAdd": "fma"}
_TESTFLOAT_FLAGS = {16: "invalid", 8: "divide_by_zero", 4: "overflow", 2: "underflow", 1: "inexact"}


def read_testfloat(lines: Iterable[str], function: str, mode: str = "ties_to_even") -> Iterator[Case]:
    """The cases of `testfloat_gen FUNCTION` (such as f16_mulAdd): codes of operands and result, flags, in hexadecimal.

    **Raises** VectorError, with the line's number, for a function or a line that is none.
    **Source:** Berkeley TestFloat 3e, testfloat_gen.html.
    """
    word, _, what = function.partition("_")
    if what not in _TESTFLOAT_NAMES:
        raise VectorError(
            f"TestFloat function {function!r}: known are FORMAT_ and one of {', '.join(_TESTFLOAT_NAMES)}."
        )
    fmt, operation = format_of(word), _TESTFLOAT_NAMES[what]
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words:
            continue
        if len(words) != OPERANDS[operation] + 2:
            raise VectorError(
                f"TestFloat, line {number}: expected {OPERANDS[operation] + 2} words, found {line.strip()!r}."
            )
        try:
            *codes, flags = (int(w, 16) for w in words)
        except ValueError:
            raise VectorError(f"TestFloat, line {number}: {line.strip()!r} is not hexadecimal.") from None
        if any(code >> fmt.bits for code in codes):
            raise VectorError(f"TestFloat, line {number}: a code of more than {fmt.bits} bits in {line.strip()!r}.")
        *operands, result = (float(x) for x in decode(np.array(codes), fmt))
        raised = frozenset(name for bit, name in _TESTFLOAT_FLAGS.items() if flags & bit)
        assert raised <= set(FLAGS)
        yield Case(operation, fmt, mode, tuple(operands), result, raised)
