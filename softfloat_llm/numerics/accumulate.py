"""How a running sum moves: the arithmetic of an accumulator, and the stack machine that follows an order's program.

`Plain` is the evident form: `follow` takes the terms one at a time, on whole float64 arrays, and every addition is an
exact pair rounded once. `NativeF32`, and `native_sums` by it, are float32's own additions where those do the same;
`kernels` holds the fast forms on tiles. The tests hold all of them against `Plain`. Start reading at `follow`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, cast

import numpy as np

from softfloat_llm.numerics.carriers import widen
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.formats import Array, Float64Array, Format, f32, f64
from softfloat_llm.numerics.fused import Pairs
from softfloat_llm.numerics.modes import USUAL
from softfloat_llm.numerics.operands import rounded_product, rule_of
from softfloat_llm.numerics.precision import Accumulator, Precision
from softfloat_llm.numerics.rounding import flush, round_pair, round_sum, round_wide, unsigned_nan
from softfloat_llm.numerics.stochastic import Part, Stochastic
from softfloat_llm.numerics.trees import Instruction

Terms = Callable[[int], Float64Array]
"""Term k as float64 (...): a product as the product stage leaves it, or a summand. `Pairs` for multi-operand adders."""


class Plain:
    """acc = R(acc + term). A stochastic R takes the random words of the next step each time.

    A state is whatever an accumulator keeps; `value` is the sum that it stands for.
    """

    def __init__(self, fmt: Format, mode: str | Stochastic, overflow: str, subnormals: str, is_fused: bool) -> None:
        self.format, self._mode, self._steps = fmt, mode, 0
        self.options = {"overflow": overflow, "subnormals": subnormals}
        self.is_daz = "daz" in subnormals
        self.is_fused = is_fused  # a term is an exact product, which no instruction sees as an operand

    @property
    def mode(self) -> str | Stochastic:
        """How the next result is rounded."""
        if isinstance(self._mode, str):
            return self._mode
        self._steps += 1
        return self._mode.at_step(self._steps)

    def add(self, x: Float64Array, y: Float64Array) -> Float64Array:
        """R(x + y)."""
        if self.is_daz:
            x, y = flush(x, self.format), flush(y, self.format)
        return round_sum(x, y, self.format, self.mode, **self.options)

    def start(self, value: Float64Array) -> Any:
        return value

    def zeros(self, shape: tuple[int, ...]) -> Any:
        """The state of sums that have no terms yet."""
        return self.start(np.zeros(shape))

    def enter(self, state: Any, term: Float64Array) -> Any:
        if not (self.is_daz and self.is_fused):
            return self.add(state, term)
        return round_sum(flush(state, self.format), term, self.format, self.mode, **self.options)

    def enter_all(self, state: Any, terms: Iterable[Float64Array]) -> Any:
        """The state after each term in turn."""
        for term in terms:
            state = self.enter(state, term)
        return state

    def join(self, state: Any, other: Any) -> Any:
        """The state after the value of another partial sum is added to it."""
        value = self.value(other)
        return self.enter(state, flush(value, self.format) if self.is_daz else value)

    def value(self, state: Any) -> Float64Array:
        wide: Float64Array = state
        return wide

    def rounded(self, term: Float64Array) -> Float64Array:
        """R(term)."""
        return round_wide(term, self.format, self.mode, **self.options)


class NativeF32(Plain):
    """float32's own addition: acc = R(acc + term) in one instruction, for terms that are float32 values.

    Exact twin of `Plain` for a plain f32 accumulator with ties to even, nothing flushed and nothing saturated: IEEE 754
    hardware adds two float32 with that one rounding, and a product that is a float32 value is fused by being added. A
    run of terms is `np.add.accumulate`, which adds one after another by definition (unlike `np.add.reduce`).
    """

    @staticmethod
    def is_exact_for(at: Precision, terms: Float64Array) -> bool:
        """True where this arithmetic gives the bits of `Plain`: the usual f32 rules, and every term a float32.

        A term is a value of the storage, or a product of two as the product stage leaves it.
        """
        if not is_plain_f32(at):
            return False
        if at.product is f32 and at.storage.precision <= 24:
            return True
        with np.errstate(over="ignore"):
            return np.array_equal(terms.astype(np.float32), terms, equal_nan=True)

    def add(self, x: Float64Array, y: Float64Array) -> Float64Array:
        total: Float64Array = self.enter(x.astype(np.float32), y)
        return total

    def start(self, value: Float64Array) -> Any:
        return value.astype(np.float32)

    def zeros(self, shape: tuple[int, ...]) -> Any:
        return np.zeros(shape, np.float32)

    def enter(self, state: Any, term: Float64Array) -> Any:
        return state + term.astype(np.float32)

    def enter_all(self, state: Any, terms: Iterable[Float64Array]) -> Any:
        rest = terms if isinstance(terms, np.ndarray) else np.stack([state, *terms])[1:]
        rows = np.concatenate([state[None], rest], dtype=np.float32, casting="same_kind")
        return np.add.accumulate(rows, axis=0, out=rows)[-1]

    def join(self, state: Any, other: Any) -> Any:
        return state + other

    def value(self, state: Any) -> Float64Array:
        return widen(state)

    def rounded(self, term: Float64Array) -> Float64Array:
        return term


class Kahan(Plain):
    """s with a running compensation c: y = R(x - c), t = R(s + y), c = R(R(t - s) - y), s = t.

    A term is rounded to the accumulator's format before it enters, as the algorithm is one of floats.
    Source: Kahan, Further remarks on reducing truncation errors, CACM 8(1), 1965.
    """

    def start(self, value: Float64Array) -> Any:
        return value, np.zeros_like(value)

    def enter(self, state: Any, term: Float64Array) -> Any:
        s, c = state
        y = self.add(self.rounded(term), -c)
        t = self.add(s, y)
        return t, self.add(self.add(t, -s), -y)

    def value(self, state: Any) -> Float64Array:
        wide: Float64Array = state[0]
        return wide


class Neumaier(Kahan):
    """s with the errors gathered in c: t = R(s + x), c = R(c + R(R(larger - t) + smaller)); the sum is R(s + c).

    Source: Neumaier, Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen, ZAMM 54, 1974.
    """

    def enter(self, state: Any, term: Float64Array) -> Any:
        s, c = state
        x = self.rounded(term)
        t = self.add(s, x)
        is_s_larger = np.abs(s) >= np.abs(x)
        larger, smaller = np.where(is_s_larger, s, x), np.where(is_s_larger, x, s)
        return t, self.add(c, self.add(self.add(larger, -t), smaller))

    def value(self, state: Any) -> Float64Array:
        return self.add(*state)


_F32 = Accumulator(f32)
_METHODS = {"plain": Plain, "kahan": Kahan, "neumaier": Neumaier}


def is_plain_f32(at: Precision) -> bool:
    return at.acc == _F32 and at.rules("acc") == USUAL


def arithmetic_of(
    acc: Accumulator, at: Precision, terms: Float64Array | None = None, *, part: Part | None = None
) -> Plain:
    """The steps of the accumulator of a precision (not of the exact one, which has no steps).

    Where all its `terms` are given, and the hardware's own addition does the same, that. `part`: which sums of a larger
    array these are, for random words.
    """
    assert acc.format is not None
    is_fused = at.product is None
    kind: type[Plain] = NativeF32 if terms is not None and NativeF32.is_exact_for(at, terms) else _METHODS[acc.method]
    return kind(acc.format, rule_of(at, "acc", part), at.overflow.acc, at.subnormals.acc, is_fused)


def terms_of(left: Array, right: Array, at: Precision) -> Terms:
    """The terms of sums of left * right, both (K, ...) in any dtype, over the first axis. A lone sum has shape (1,)."""
    if at.order.adder is not None:
        left, right = (np.atleast_2d(x.astype(np.float64, copy=False).T).T for x in (left, right))
        return Pairs(left, right, at.order.adder, at)
    products = rounded_product(widen(left), widen(right), at)
    return lambda k: products[k]


def follow(
    program: Sequence[Instruction], terms: Terms, arithmetic: Plain, shape: tuple[int, ...], init: Float64Array | None
) -> Float64Array:
    """Run an order's program over the terms; the result (...) holds values of the accumulator's format.

    **Rounds:** once per term as it enters a chain, once per join. `init` is where the outermost chain starts, or what
    the result of any other order is added to.
    """
    stack: list[Any] = []
    starts_at_init = program[0][0] == "init"
    with np.errstate(all="ignore"):
        for name, argument in program:
            match name:
                case "init":
                    stack.append(arithmetic.zeros(shape) if init is None else arithmetic.start(init))
                case "zero":
                    stack.append(arithmetic.zeros(shape))
                case "term":
                    stack.append(arithmetic.start(arithmetic.rounded(terms(argument))))
                case "enter":
                    stack[-1] = arithmetic.enter_all(stack[-1], _taken(terms, argument))
                case "add":
                    other = stack.pop()
                    stack[-1] = arithmetic.join(stack[-1], other)
                case "fuse":
                    stack.append(arithmetic.start(cast(Pairs, terms).fuse(arithmetic.value(stack.pop()), argument)))
                case "round":
                    partial = arithmetic.value(stack.pop())
                    stack.append(arithmetic.start(stored_partial(partial, argument, arithmetic.mode)))
        total = arithmetic.value(stack.pop())
        return total if starts_at_init or init is None else arithmetic.add(init, total)


def stored_partial(partial: Float64Array, fmt: Format, mode: str | Stochastic) -> Float64Array:
    """A partial sum (...) rounded to the format in which it is stored."""
    return round_wide(partial if fmt.has_nan else unsigned_nan(partial), fmt, mode)


def _taken(terms: Terms, ks: Sequence[int]) -> Iterable[Float64Array]:
    """The terms of these k: one array where they lie in one, whose `__getitem__` gives them."""
    array = getattr(terms, "__self__", None)
    if isinstance(array, np.ndarray) and terms.__name__ == "__getitem__":
        return cast(Array, array[_index_of(tuple(ks))])
    return (terms(k) for k in ks)


@lru_cache(maxsize=256)
def _index_of(ks: tuple[int, ...]) -> slice | list[int]:
    """What takes these k of an array: a slice, of which NumPy makes a view, where they are evenly spaced."""
    step = ks[1] - ks[0] if len(ks) > 1 else 1
    if step > 0 and ks == tuple(range(ks[0], ks[-1] + 1, step)):
        return slice(ks[0], ks[-1] + 1, step)
    return list(ks)


def exact_sum(terms: Float64Array, at: Precision) -> Float64Array:
    """The exact sum over the last axis, rounded once to the output. terms (..., K) float64; the result (...) float64.

    `math.fsum` gives the sum rounded to float64 once; what it left over is the fsum of the terms and the negative of
    it, exactly signed. The pair is then rounded as every other. The sum starts at +0, so a zero is +0 (-0
    toward_negative, unless all terms are +0). With NaN or infinities among the terms: what IEEE addition makes of them.
    """
    rows = terms.reshape(math.prod(terms.shape[:-1]), terms.shape[-1])
    pairs = np.array([_fsum_pair(row) for row in rows], np.float64).reshape(-1, 2)
    rounded = round_pair(pairs[:, 0].copy(), pairs[:, 1].copy(), at.output, **at.rules("output"))
    if at.rounding.output == "toward_negative" and at.output.has_negative_zero:
        has_cancelled = (pairs[:, 0] == 0) & ((rows != 0) | np.signbit(rows)).any(-1)
        rounded = np.where(has_cancelled, -0.0, rounded)
    return rounded.reshape(terms.shape[:-1])


def _fsum_pair(row: Float64Array) -> tuple[float, float]:
    if not np.isfinite(row).all():
        with np.errstate(invalid="ignore"):
            return float(np.add.reduce(row[~np.isfinite(row)])), 0.0
    try:
        total = math.fsum(row)
    except OverflowError:  # a partial sum beyond float64, of values that only f64 holds
        exact = sum(map(Fraction, row.tolist()), Fraction(0))
        total = round_exact(exact, f64)
        return total, float(exact - Fraction(total)) if math.isfinite(total) else 0.0
    return total, math.fsum([*row.tolist(), -total])


class _LeftRangeError(Exception):
    """A partial sum is not finite."""


class _Watching:
    """An arithmetic that stops at the first value that is not finite."""

    def __init__(self, arithmetic: Plain) -> None:
        self._inner = arithmetic

    def __getattr__(self, name: str) -> Any:
        step = getattr(self._inner, name)
        return (lambda *arguments: self._seen(step(*arguments))) if name in ("start", "enter") else step

    def enter_all(self, state: Any, terms: Iterable[Float64Array]) -> Any:
        """Each term in turn, so that the first that is too much is noticed."""
        for term in terms:
            state = self.enter(state, term)
        return state

    def _seen(self, state: Any) -> Any:
        if not np.isfinite(self._inner.value(state)).all():
            raise _LeftRangeError
        return state


class _Counted:
    """Terms that are counted as they are taken; a multi-operand adder takes those of an instruction at once."""

    def __init__(self, terms: Terms) -> None:
        self._terms, self.taken = terms, 0

    def __call__(self, k: int) -> Float64Array:
        self.taken += 1
        return np.asarray(self._terms(k))

    def fuse(self, c: Float64Array, ks: tuple[int, ...]) -> Float64Array:
        self.taken += len(ks)
        return cast(Pairs, self._terms).fuse(c, ks)


def terms_until_nonfinite(program: Sequence[Instruction], terms: Terms, arithmetic: Plain, n: int) -> int:
    """How many of n terms had been taken when a partial sum first was not finite; n where none was.

    terms (): one sum at a time.
    """
    counted = _Counted(terms)
    try:
        follow(program, counted, _Watching(arithmetic), (), None)  # type: ignore[arg-type]
    except _LeftRangeError:
        return counted.taken
    return n
