"""The partial sums that an order makes on its way: the largest, and all of their magnitudes together.

A sum can leave a format's range although its result does not: its largest partial sum says by how much. And each
addition is off by at most one rounding of its result, so the magnitudes of all results, added up, bound the error of
the sum (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, equation 4.3). Start at `partial_sums`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from softfloat_llm.errors import PrecisionError
from softfloat_llm.numerics.accumulate import Plain, arithmetic_of, follow, terms_of
from softfloat_llm.numerics.formats import Array, Float64Array
from softfloat_llm.numerics.operands import operand
from softfloat_llm.numerics.precision import Precision, precision_of
from softfloat_llm.numerics.trees import Instruction

_TILE = 1 << 14  # sums at a time: four float64 arrays of so many stay in a 1 MiB cache


class Partials(NamedTuple):
    """Of each sum (M, N), in float64: what it comes to in the accumulator, and what it went through."""

    total: Float64Array
    largest: Float64Array
    """The largest magnitude of a partial sum, the total and terms that were rounded among them."""
    magnitudes: Float64Array
    """The magnitudes of the results of all roundings in the accumulator's format, added up in float64."""
    roundings: int
    """How many such roundings each sum has."""


def partial_sums(a: npt.ArrayLike, b: npt.ArrayLike, at: Any) -> Partials:
    """The partial sums of the matrix product a b, in the order and accumulator of `at`.

    a (M, K), b (K, N) hold values of `at.storage`; each result (M, N).
    **Rounds:** as `reduce.matmul`, up to the accumulator; `magnitudes` is added in float64, in the order of the steps.
    **Raises** PrecisionError for an exact or compensated accumulator, which has no partial sums of its format, and for
    shapes that do not fit; FormatError where a or b has a value that `at.storage` cannot hold.

    >>> found = partial_sums([[300.0, -300.0, 1.0]], [[1.0], [1.0], [1.0]], "storage=f16,acc=f16")
    >>> found.total.item(), found.largest.item(), found.magnitudes.item(), found.roundings
    (1.0, 300.0, 301.0, 3)
    """
    at = precision_of(at)
    if at.acc.format is None or at.acc.method != "plain":
        raise PrecisionError(f"acc={at.acc} has no partial sums in a format: choose a plain format, such as acc=f32.")
    left, right = operand(a, "a", at), operand(b, "b", at)
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
        raise PrecisionError(f"partial_sums takes a (M, K) and b (K, N): a has {left.shape}, b has {right.shape}.")
    program = at.order.tree(left.shape[1]).program()
    shape = (left.shape[0], right.shape[1])
    found = [np.empty(shape) for _ in range(3)]
    for columns in _tiles(*shape):
        for place, values in enumerate(_of_tile(left, right[:, columns], at, program)):
            found[place][:, columns] = values
    return Partials(found[0], found[1], found[2], roundings_of(program))


def _tiles(rows: int, columns: int) -> Iterator[slice]:
    width = max(1, _TILE // max(1, rows))
    return (slice(start, start + width) for start in range(0, columns, width))


def _of_tile(
    left: Float64Array, right: Float64Array, at: Precision, program: tuple[Instruction, ...]
) -> tuple[Float64Array, Float64Array, Float64Array]:
    shape = (left.shape[0], right.shape[1])
    if at.order.adder is None:
        steps = _Recording(arithmetic_of(at.acc, at), shape)
        return follow(program, _Products(left, right, at), steps, shape, None), steps.largest, steps.magnitudes
    pairs = np.broadcast_arrays(left.T[:, :, None], right[:, None, :])  # (K, M, N) each: an adder looks at both
    flat = [np.ascontiguousarray(part).reshape(len(part), -1) for part in pairs]
    steps = _Recording(arithmetic_of(at.acc, at), flat[0].shape[1:])
    total = follow(program, terms_of(flat[0], flat[1], at), steps, flat[0].shape[1:], None)
    return total.reshape(shape), steps.largest.reshape(shape), steps.magnitudes.reshape(shape)


class _Products:
    """Term k of every sum: a column of a times a row of b, as the product stage leaves it."""

    def __init__(self, left: Float64Array, right: Float64Array, at: Precision) -> None:
        self._left, self._right, self._at = left, right, at

    def __call__(self, k: int) -> Float64Array:
        return terms_of(self._left[None, :, k, None], self._right[None, k, None, :], self._at)(0)


class _Recording(Plain):
    """An accumulator that remembers the largest magnitude it held, and adds up the magnitudes."""

    def __init__(self, steps: Plain, shape: tuple[int, ...]) -> None:
        super().__init__(
            steps.format, steps.mode, steps.options["overflow"], steps.options["subnormals"], steps.is_fused
        )
        self.largest, self.magnitudes = np.zeros(shape), np.zeros(shape)

    def start(self, value: Float64Array) -> Any:
        return self._seen(super().start(value))

    def enter(self, state: Any, term: Float64Array) -> Any:
        return self._seen(super().enter(state, term))

    def enter_all(self, state: Any, terms: Iterable[Float64Array]) -> Any:
        for term in terms:
            state = self.enter(state, term)
        return state

    def _seen(self, state: Array) -> Array:
        magnitude = np.abs(state)
        np.maximum(self.largest, magnitude, out=self.largest)
        self.magnitudes += magnitude
        return state


def roundings_of(program: tuple[Instruction, ...]) -> int:
    """How many times a program rounds to the accumulator's format: terms that enter or start, and joins."""
    counted = {"term": 1, "add": 1, "round": 1, "fuse": 1}
    return sum(len(argument) if name == "enter" else counted.get(name, 0) for name, argument in program)
