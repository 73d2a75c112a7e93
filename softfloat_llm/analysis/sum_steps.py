"""A sum step by step along the tree of its order: what stood there, what came, what was lost.

`follow_steps` runs an order's program as `accumulate.follow` does, one sum at a time, and keeps every addition with its
exact result beside it. The arithmetic is `accumulate`'s own; only the record is made here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, cast

import numpy as np

from softfloat_llm.numerics.accumulate import Plain, Terms, arithmetic_of
from softfloat_llm.numerics.formats import Float64Array, Format
from softfloat_llm.numerics.fused import Pairs
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import round_wide
from softfloat_llm.numerics.trees import Instruction


@dataclass(frozen=True)
class Step:
    """One rounding of a running sum: `before` + `operand` = `exact`, which became `after`.

    `action`: `enter` a term into a chain, `start` with a term alone, `join` two partial sums, `round` a partial sum to
    a narrower format, `fuse` several terms at once. `terms` are those that `operand` stands for. `exact` is None where
    a value is not finite.
    """

    number: int
    action: str
    terms: tuple[int, ...]
    before: float
    operand: Fraction | float
    exact: Fraction | None
    after: float
    format: Format

    @property
    def error(self) -> Fraction:
        """after - exact; 0 where one of them is not finite."""
        if self.exact is None or not math.isfinite(self.after):
            return Fraction(0)
        return Fraction(self.after) - self.exact

    @property
    def is_swallowed(self) -> bool:
        """True where something came and nothing changed."""
        came = self.exact is not None and self.operand != 0
        return came and self.action in ("enter", "join", "fuse") and self.after == self.before

    @property
    def left_range(self) -> bool:
        """True where a finite sum became something that is not."""
        return self.exact is not None and not math.isfinite(self.after)


@dataclass
class _Partial:
    """A partial sum on the stack: the state of its accumulator, and its terms so far."""

    state: Any
    terms: list[int] = field(default_factory=list)


class Recorder:
    """The stack machine of `accumulate.follow`, with a Step for each rounding."""

    def __init__(self, terms: Terms, at: Precision, init: float | None) -> None:
        assert at.acc.format is not None
        self.terms, self.format = terms, at.acc.format
        self.arithmetic: Plain = arithmetic_of(at.acc, at)
        self.init = init
        self.stack: list[_Partial] = []
        self.steps: list[Step] = []

    def run(self, program: Sequence[Instruction]) -> float:
        """Follow the program; the sum as the accumulator holds it."""
        starts_at_init = program[0][0] == "init"
        with np.errstate(all="ignore"):
            for name, argument in program:
                getattr(self, f"_{name}")(argument)
            total = self._value(self.stack.pop().state)
            if not starts_at_init and self.init is not None:
                after = float(self.arithmetic.add(np.array(self.init), np.array(total)))
                self._keep("join", (), self.init, total, after)
                return after
        return total

    def _init(self, _: object) -> None:
        self.stack.append(_Partial(self.arithmetic.start(np.array(self.init or 0.0))))

    def _zero(self, _: object) -> None:
        self.stack.append(_Partial(self.arithmetic.start(np.array(0.0))))

    def _term(self, k: int) -> None:
        term = self._of(k)
        state = self.arithmetic.start(self.arithmetic.rounded(term))
        self.stack.append(_Partial(state, [k]))
        self._keep("start", (k,), 0.0, float(term), self._value(state))

    def _enter(self, ks: tuple[int, ...]) -> None:
        top = self.stack[-1]
        for k in ks:
            term, before = self._of(k), self._value(top.state)
            top.state = self.arithmetic.enter(top.state, term)
            top.terms.append(k)
            self._keep("enter", (k,), before, float(term), self._value(top.state))

    def _add(self, _: object) -> None:
        other, top = self.stack.pop(), self.stack[-1]
        before = self._value(top.state)
        top.state = self.arithmetic.join(top.state, other.state)
        top.terms += other.terms
        self._keep("join", tuple(other.terms), before, self._value(other.state), self._value(top.state))

    def _fuse(self, ks: tuple[int, ...]) -> None:
        top, pairs = self.stack[-1], cast(Pairs, self.terms)
        before = self._value(top.state)
        after = float(pairs.fuse(np.full((1,), before), ks)[0])
        products = [float(self._of(k)) for k in ks]
        came = sum(map(Fraction, products), Fraction(0)) if all(map(math.isfinite, products)) else sum(products)
        top.state = self.arithmetic.start(np.array(after))
        top.terms += ks
        self._keep("fuse", ks, before, came, after)

    def _round(self, fmt: Format) -> None:
        top = self.stack[-1]
        before = self._value(top.state)
        after = float(round_wide(np.array(before), fmt, self.arithmetic.mode))
        top.state = self.arithmetic.start(np.array(after))
        self._keep("round", tuple(top.terms), before, 0.0, after, fmt)

    def _of(self, k: int) -> Float64Array:
        """Term k, 0-dimensional. A multi-operand adder has its sums in one dimension."""
        return np.asarray(self.terms(k), np.float64).reshape(())

    def _value(self, state: Any) -> float:
        return float(np.asarray(self.arithmetic.value(state)))

    def _keep(
        self, action: str, ks: tuple[int, ...], before: float, operand: Fraction | float, after: float,
        fmt: Format | None = None,
    ) -> None:  # fmt: skip
        is_finite = math.isfinite(before) and (isinstance(operand, Fraction) or math.isfinite(operand))
        exact = Fraction(before) + Fraction(operand) if is_finite else None
        number = len(self.steps) + 1
        self.steps.append(Step(number, action, tuple(ks), before, operand, exact, after, fmt or self.format))


def follow_steps(
    program: Sequence[Instruction], terms: Terms, at: Precision, init: float | None = None
) -> tuple[float, tuple[Step, ...]]:
    """The sum in the accumulator that an order's program makes of the terms (each one number), and its steps.

    The sum is that of `accumulate.follow`, bit for bit. `at.acc` is a format, plain or compensated.
    """
    recorder = Recorder(terms, at, init)
    return recorder.run(program), tuple(recorder.steps)
