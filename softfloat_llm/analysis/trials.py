"""Trials: sums of other terms than those of the probes, on which a claim about a kernel is held against it, in bits.

They are of all sizes: near one another so that roundings differ, far apart, cancelling, and near the subnormals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from softfloat_llm.analysis.probes import Subject
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.carriers import carry, widen
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.formats import Array, Float64Array, Format
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import round_to, round_wide
from softfloat_llm.numerics.trees import Tree

_ROWS = 48  # of each kind
_KINDS = ("near", "far", "cancelling", "residue", "masked", "tiny", "subnormal")
_TIMES = 3  # that the same rows are asked, to see whether they stay the same
_SLOW_ROWS = 4  # of each kind where fractions do the sums

Finish = Callable[[Float64Array], Any]
"""What a kernel does to its sums (R,), as the accumulator held them, before it gives them: the division of a mean."""


@dataclass(frozen=True)
class Trial:
    """Sums of one kind: the operands (R, n), b None where the kernel takes terms; and what the kernel made of them."""

    kind: str
    a: Float64Array
    b: Float64Array | None
    results: Float64Array


def trials(subject: Subject) -> list[Trial]:
    """Sums of every kind, asked of the kernel. The a of products is one row a kind: a matrix product takes it once."""
    rng = np.random.default_rng(subject.n)
    held = []
    for kind in _KINDS:
        b = _terms(subject, kind, _ROWS, rng)
        a = None if subject.takes == "terms" else np.repeat(_partner(subject, kind, rng), _ROWS, axis=0)
        held.append(Trial(kind, b, None, _asked(subject, b, None)) if a is None else _trial(subject, kind, a, b))
    return held


def _trial(subject: Subject, kind: str, a: Float64Array, b: Float64Array) -> Trial:
    return Trial(kind, a, b, _asked(subject, a, b))


def _asked(subject: Subject, a: Float64Array, b: Float64Array | None) -> Float64Array:
    with np.errstate(all="ignore"):
        return subject.ask(a) if b is None else subject.ask_operands(a, b)


def sensitive_sums(subject: Subject, count: int) -> tuple[Float64Array, Float64Array]:
    """Operands a, b (count, n) of sums that another order would round otherwise; b are the terms where those are taken.

    Most of them cancel down to what was rounded away.
    """
    rng = np.random.default_rng(subject.n)
    kinds = [("masked", "near", "residue", "masked")[place % 4] for place in range(count)]
    a = np.concatenate([_partner(subject, kind, rng) for kind in kinds])
    return a, np.concatenate([_terms(subject, kind, 1, rng) for kind in kinds])


def _terms(subject: Subject, kind: str, rows: int, rng: np.random.Generator) -> Float64Array:
    fmt, shape = subject.storage, (rows, subject.n)
    low, high = _exponents(subject, kind)
    values = np.ldexp(rng.uniform(-2, 2, shape), rng.integers(low, high, shape, endpoint=True))
    if kind == "cancelling":  # the second half takes away most of the first
        half = subject.n // 2
        values[:, subject.n - half :] = -values[:, :half] * (1 + rng.normal(size=(rows, half)) * 2.0**-6)
    values = widen(round_to(values, fmt, overflow="saturate"))
    if kind == "masked" and subject.n > 2:
        for row in values:
            row[rng.permutation(subject.n)[:2]] = np.array([1.0, -1.0]) * 2.0 ** _mask_exponent(fmt)
    if kind == "residue":
        first, second = _pairs(subject.n)
        values[:, second] = -values[:, first]
        values[:, np.setdiff1d(np.arange(subject.n), [*first, *second])] = 0.0  # an odd one would hide what is left
    return values


def _exponents(subject: Subject, kind: str) -> tuple[int, int]:
    """The least and the largest exponent of the operands of a kind."""
    fmt = subject.storage
    reach = min(20, fmt.emax // 2)
    match kind:
        case "near":
            return -2, 2
        case "far":
            return -reach, reach // 2
        case "cancelling":
            return -3, 3
        case "residue":
            return -reach // 2, reach // 2
        case "masked":  # beside terms of which float32 swallows some
            lowest = fmt.emin - fmt.trailing_bits
            return max(_mask_exponent(fmt) - 27, lowest), max(_mask_exponent(fmt) - 21, lowest)
        case "subnormal":
            return fmt.emin - fmt.trailing_bits, fmt.emin + 2
    return (fmt.emin // 2 - 3, fmt.emin // 2 + 3) if subject.takes == "products" else (fmt.emin - 1, fmt.emin + 2)


def _mask_exponent(fmt: Format) -> int:
    """Of the two terms that cancel in a masked row."""
    return min(20, fmt.emax - 1)


def _pairs(n: int) -> Array:
    """Places (2, n // 2) of terms that cancel: what is left of a sum of such pairs is what was rounded away."""
    return np.random.default_rng(n).permutation(n)[: n // 2 * 2].reshape(2, -1)


def _partner(subject: Subject, kind: str, rng: np.random.Generator) -> Float64Array:
    """One row of a: of the size of b, but large where b is subnormal; alike where terms shall cancel."""
    if kind in ("cancelling", "masked"):
        return np.ones((1, subject.n))
    if kind == "residue":
        row = _terms(subject, "near", 1, rng)
        first, second = _pairs(subject.n)
        row[:, second] = row[:, first]
        return row
    if kind == "subnormal":
        return widen(
            round_to(rng.uniform(1, 2, (1, subject.n)) * 2.0 ** min(20, subject.storage.emax // 2), subject.storage)
        )
    return _terms(subject, kind, 1, rng)


def is_steady(subject: Subject, tried: list[Trial]) -> bool:
    """True where the same rows, asked again and in another sequence, give the same bits."""
    for _ in range(_TIMES - 1):
        for trial in tried:
            again = _asked(subject, trial.a[::-1], None if trial.b is None else trial.b[::-1])[::-1]
            if differing(again, trial.results).any():
                return False
    return True


def differing(x: Float64Array, y: Float64Array) -> Array:
    """Where two results are not the same value, sign of zero included; NaN is NaN."""
    is_same: Array = ((x == y) & (np.signbit(x) == np.signbit(y))) | (np.isnan(x) & np.isnan(y))
    return ~is_same


# --- what a claim gives ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tally:
    """Sums compared with those of a claim, and how many differ: in any bit, and in more than the sign of a zero."""

    checked: int = 0
    different: int = 0
    unequal: int = 0

    @property
    def is_clean(self) -> bool:
        return self.checked > 0 and not self.different


def compared(subject: Subject, tried: list[Trial], at: Precision, finish: Finish | None) -> Tally:
    """A kernel's sums beside those of a precision. `finish` gets them as the accumulator held them."""
    return _tally([(sums_of(subject, trial.a, trial.b, at, finish), trial.results) for trial in tried])


def sums_of(
    subject: Subject, a: Float64Array, b: Float64Array | None, at: Precision, finish: Finish | None
) -> Float64Array:
    """What a precision makes of the terms that a kernel got."""
    if finish is not None and at.acc.format is not None:
        at = at.with_output(at.acc.format)
    left = carry(a, subject.storage)
    sums = widen(reduce.sum(left, at) if b is None else reduce.dot(left, carry(b, subject.storage), at))
    return sums if finish is None else widen(np.asarray(finish(sums)))


def compared_exactly(subject: Subject, tried: list[Trial], tree: Tree, fmt: Format) -> Tally:
    """The same for fused products in a format whose products float64 does not hold: by fractions, few sums."""
    pairs = []
    for trial in tried:
        assert trial.b is not None
        rows = zip(trial.a[:_SLOW_ROWS], trial.b[:_SLOW_ROWS], strict=True)
        products = ([Fraction(x) * Fraction(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)] for a, b in rows)
        sums = np.array([_exact_sum(tree, terms, fmt) for terms in products])
        pairs.append(
            (round_wide(sums, subject.output) + 0.0, trial.results[:_SLOW_ROWS] + 0.0)
        )  # without signs of zeros
    return _tally(pairs)


def _tally(pairs: list[tuple[Float64Array, Float64Array]]) -> Tally:
    given, results = (np.concatenate(column) for column in zip(*pairs, strict=True))
    different = differing(given, results)
    return Tally(len(given), int(np.count_nonzero(different)), int(np.count_nonzero(different & (given != results))))


def _exact_sum(tree: Tree, terms: list[Fraction], fmt: Format) -> float:
    """A tree followed in exact numbers, each partial sum rounded to the format (f64). A zero's sign is not kept."""
    stack: list[Fraction] = []

    def rounded(value: Fraction) -> Fraction:
        return Fraction(round_exact(value, fmt))

    for name, argument in tree.program():
        match name:
            case "init" | "zero":
                stack.append(Fraction(0))
            case "term":
                stack.append(rounded(terms[argument]))
            case "enter":
                for k in argument:
                    stack[-1] = rounded(stack[-1] + terms[k])
            case "add":
                last = stack.pop()
                stack[-1] = rounded(stack[-1] + last)
            case _:
                raise AssertionError(name)
    return float(stack[-1])
