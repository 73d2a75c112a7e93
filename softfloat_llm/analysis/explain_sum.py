"""explain_sum(x, at) and explain_dot(a, b, at): a running sum step by step, and where it lost what.

Every step has its exact result beside it, so the losses add up: products, steps and the output rounding together are
the error of the result, exactly. Start reading at `explain_dot`; `explain_sum_text` has the words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from softfloat_llm.analysis import explain_sum_text as told
from softfloat_llm.analysis.alignment import Alignment, alignments
from softfloat_llm.analysis.answers import Answer, Table
from softfloat_llm.analysis.explain_round import SCHEMA
from softfloat_llm.analysis.numbers import jsonable
from softfloat_llm.analysis.reading import Number, number_of
from softfloat_llm.analysis.sum_steps import Step, follow_steps
from softfloat_llm.errors import PrecisionError
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.accumulate import terms_of
from softfloat_llm.numerics.carriers import widen
from softfloat_llm.numerics.exact import Real
from softfloat_llm.numerics.formats import Array, Float64Array, Format
from softfloat_llm.numerics.fused import Pairs
from softfloat_llm.numerics.operands import check_held, rounded_product
from softfloat_llm.numerics.precision import Precision, precision_of
from softfloat_llm.numerics.reduce import PrecisionLike
from softfloat_llm.numerics.rounding import round_to

MOST_TERMS = 100_000  # each is a step that is kept: some seconds
Values = Array | Sequence[str | Real | Number]


@dataclass(frozen=True)
class Summation(Answer):
    """One sum, and what each of its roundings did.

    `left` and `right` are the operands as the storage holds them (`right` is None for a plain sum), `changed` says how
    many that were given lay between its values. `products` are the terms as the product stage leaves them. `acc` is
    the sum before the output rounding, `result` after it; `exact` the sum of the exact products, None where it is not
    finite.
    """

    at: Precision
    left: tuple[float, ...]
    right: tuple[float, ...] | None
    init: float | None
    changed: int
    products: tuple[float, ...]
    steps: tuple[Step, ...]
    acc: float
    result: float
    exact: Fraction | None
    alignments: dict[int, tuple[Alignment, ...]]
    """Step number -> what its multi-operand adder cut."""

    @property
    def what(self) -> str:
        return "sum" if self.right is None else "dot"

    @property
    def acc_format(self) -> Format:
        """The format that the running sum is kept in (an exact one: the output's)."""
        return self.at.acc.format or self.at.output

    @property
    def error(self) -> Fraction | None:
        """result - exact."""
        if self.exact is None or not math.isfinite(self.result):
            return None
        return Fraction(self.result) - self.exact

    @property
    def product_error(self) -> Fraction:
        """What the rounding of products did, in all."""
        if self.right is None or self.at.product is None or self.exact is None:
            return Fraction(0)
        pairs = zip(self.products, self.left, self.right, strict=True)
        return sum((Fraction(p) - Fraction(x) * Fraction(y) for p, x, y in pairs if math.isfinite(p)), Fraction(0))

    @property
    def step_error(self) -> Fraction:
        """What the additions did, in all."""
        return sum((step.error for step in self.steps), Fraction(0))

    @property
    def output_error(self) -> Fraction:
        """What the last rounding did."""
        is_finite = math.isfinite(self.acc) and math.isfinite(self.result)
        return Fraction(self.result) - Fraction(self.acc) if is_finite and self.at.acc.format else Fraction(0)

    @property
    def worst(self) -> Step | None:
        """The step that lost most, the first of several; None where none lost anything."""
        losing = [step for step in self.steps if step.error != 0]
        return max(losing, key=lambda step: abs(step.error), default=None)

    @property
    def swallowed(self) -> tuple[Step, ...]:
        """The steps at which something came and nothing changed."""
        return tuple(step for step in self.steps if step.is_swallowed)

    @property
    def overflow(self) -> Step | None:
        """The step at which a finite sum left the range."""
        return next((step for step in self.steps if step.left_range), None)

    def heading(self) -> list[tuple[str, str]]:
        tree = told.tree_text(self)
        return [(self.what, told.asked(self)), ("at", str(self.at)), *([("tree", tree)] if tree else [])]

    def sentences(self) -> list[str]:
        return told.sentences(self)

    def tables(self, *, verbose: bool = False) -> list[Table]:
        return told.tables(self, verbose=verbose)

    def to_dict(self) -> dict[str, Any]:
        """The story as JSON has it: exact numbers as fractions in strings, non-finite ones as strings."""
        worst, overflow, error = self.worst, self.overflow, self.error
        return {
            "schema": SCHEMA,
            "what": self.what,
            "precision": dict(self.at.items()),
            "terms": len(self.left),
            "changed_by_storage": self.changed,
            "result": jsonable(self.result),
            "acc": jsonable(self.acc),
            "exact": None if self.exact is None else str(self.exact),
            "error": None if error is None else str(error),
            "error_of_products": str(self.product_error),
            "error_of_steps": str(self.step_error),
            "error_of_output": str(self.output_error),
            "ulp_format": str(self.acc_format),
            "steps": [_step_facts(step) for step in self.steps],
            "swallowed": [step.number for step in self.swallowed],
            "worst_step": None if worst is None else worst.number,
            "overflow_step": None if overflow is None else overflow.number,
            "alignments": {str(n): [a.to_dict() for a in found] for n, found in self.alignments.items()},
        }


def _step_facts(step: Step) -> dict[str, Any]:
    operand = str(step.operand) if isinstance(step.operand, Fraction) else jsonable(step.operand)
    return {
        "step": step.number,
        "action": step.action,
        "terms": list(step.terms),
        "before": jsonable(step.before),
        "operand": operand,
        "exact": None if step.exact is None else str(step.exact),
        "after": jsonable(step.after),
        "error": str(step.error),
        "format": str(step.format),
        "is_swallowed": step.is_swallowed,
    }


def explain_sum(x: Values, at: PrecisionLike, *, init: str | Real | None = None) -> Summation:
    """The sum of x step by step, in the order and accumulator of `at`.

    x (K,): numbers or their texts, taken exactly and then stored: rounded once to `at.storage`. `init`: where the
    accumulator starts. The result is that of `reduce.sum` of the stored values.
    **Raises** PrecisionError for no list of numbers or more than 100,000, WordError for what is no number.

    >>> story = explain_sum([256, 1, 1], "storage=bf16,acc=bf16")
    >>> story.result, story.exact, [step.is_swallowed for step in story.steps]
    (256.0, Fraction(258, 1), [False, True, True])
    """
    return _explained(x, None, precision_of(at), init)


def explain_dot(a: Values, b: Values, at: PrecisionLike, *, init: str | Real | None = None) -> Summation:
    """The sum of a*b step by step, in the order and accumulator of `at`; otherwise as `explain_sum`.

    a (K,), b (K,). The result is that of `reduce.dot` of the stored values.
    """
    return _explained(a, b, precision_of(at), init)


def _explained(a: Values, b: Values | None, at: Precision, init: str | Real | None) -> Summation:
    left, changed = _stored(a, "x" if b is None else "a", at)
    right, changed_too = (np.ones_like(left), 0) if b is None else _stored(b, "b", at)
    if len(left) != len(right):
        raise PrecisionError(f"dot of two lists: a has {len(left)} numbers, b has {len(right)}. They must pair up.")
    start = None if init is None else _start(init, at)
    products = left if b is None and at.order.adder is None else rounded_product(left, right, at)
    stages = _stages(left, None if b is None else right, at, start)
    acc, steps, cut = _steps(left, right, products, at, start)
    operands = np.concatenate([left, right, [0.0 if start is None else start]])
    return Summation(
        at=at,
        left=tuple(left.tolist()),
        right=None if b is None else tuple(right.tolist()),
        init=start,
        changed=changed + changed_too,
        products=tuple(products.tolist()),
        steps=steps,
        acc=float(widen(stages.acc)) if acc is None else acc,
        result=float(widen(stages.out)),
        exact=_exact_total(left, right, start) if np.isfinite(operands).all() else None,
        alignments=cut,
    )


def _stages(left: Float64Array, right: Float64Array | None, at: Precision, init: float | None) -> reduce.Stages:
    if right is None:
        return reduce.sum_stages(left, at, init=init)
    return reduce.dot_stages(left, right, at, init=init)


def _exact_total(left: Float64Array, right: Float64Array, init: float | None) -> Fraction:
    pairs = zip(left.tolist(), right.tolist(), strict=True)
    return sum((Fraction(x) * Fraction(y) for x, y in pairs), Fraction(init or 0))


def _steps(
    left: Float64Array, right: Float64Array, products: Float64Array, at: Precision, init: float | None
) -> tuple[float | None, tuple[Step, ...], dict[int, tuple[Alignment, ...]]]:
    """The sum in the accumulator, its steps, and what was cut at each; none of it for an exact accumulator."""
    if at.acc.format is None:
        return None, (), {}
    program = at.order.tree(len(left)).program()
    if at.order.adder is None:
        return (*follow_steps(program, products.__getitem__, at, init), {})
    pairs = terms_of(left[:, None], right[:, None], at)
    assert isinstance(pairs, Pairs)
    acc, steps = follow_steps(program, pairs, at, init)
    cut = {step.number: alignments(pairs, step.before, step.terms) for step in steps if step.action == "fuse"}
    return acc, steps, {number: found for number, found in cut.items() if found}


def _stored(x: Values, name: str, at: Precision) -> tuple[Float64Array, int]:
    """The numbers as the storage holds them, and how many that changed."""
    given = _listed(x, name)
    if len(given) > MOST_TERMS:
        raise PrecisionError(f"{name} has {len(given)} terms: at most {MOST_TERMS} are told step by step.")
    wide = widen(round_to(given, at.storage, **at.rules("storage")))
    pairs = zip(given.tolist(), wide.tolist(), strict=True)
    return wide, len([v for v, w in pairs if v != w and not math.isnan(w)])


def _listed(x: Values, name: str) -> Array:
    """The numbers, in one dimension: an array of floats as it is, or objects that are exact."""
    if isinstance(x, np.ndarray):
        if x.ndim != 1 or x.dtype.kind in "cSUmMO":
            raise PrecisionError(f"{name} is one list of real numbers; found an array of {x.dtype} {x.shape}.")
        return x
    numbers = [number_of(one) for one in x]
    listed = np.empty(len(numbers), object)
    listed[:] = [number.value for number in numbers]
    return listed


def _start(init: str | Real, at: Precision) -> float:
    value = float(round_to(number_of(init).value, "f64"))
    if at.acc.format is not None:
        check_held(np.array(value), "init", at.acc.format, "acc")
    return value
