"""Probes: rows of terms whose sum tells how they were added, and the asking of a kernel.

A kernel is a black box that sums. `Subject` asks it: it turns the terms that are wanted into operands of the storage,
and reads the results as whole numbers of units. `found_masks` finds sizes of terms that this kernel can take: a huge
2^big that swallows units of 2^unit, neither of which overflows or vanishes. Start reading at `Subject`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from softfloat_llm.errors import ProbeError
from softfloat_llm.numerics.carriers import carry, widen
from softfloat_llm.numerics.formats import Array, Float64Array, Format
from softfloat_llm.numerics.rounding import round_wide

Takes = Literal["products", "terms"]
Kernel = Callable[..., npt.ArrayLike]
"""kernel(a, b) -> (R,): the sums of a * b over the last axis, a and b (R, n) in the dtype of the storage. One that
takes terms is kernel(x) -> (R,). R rows are R sums of one shape; the results are values of the output's format."""

_AT_ONCE = 1 << 22  # terms in one call: 32 MB of float64
_WIDE = 60  # an exponent that formats with float32's range hold, with room above and below
_TRIPLES = 32  # places where a unit is put between +M and -M, to find the size of M that swallows it
_TOLERANCE = 0.25  # of a unit: what a result that was divided may be off


@dataclass(frozen=True)
class Mask:
    """Terms of +-2^big and 2^unit; `left` is the exponent of every a, where one fits all.

    `bits`: the least q for which 2^q swallows 1 in this kernel: an accumulator of p bits has q = p, or p - 1 where it
    cuts. `most`: how many units can be counted in one row. `modulus`: units that a directed rounding of +-M may add to
    a result, again and again; 0 where none are expected. 1: any result but one unit counts as none.
    """

    big: int
    unit: int
    left: int
    bits: int = 0
    most: int = 1
    modulus: int = 0

    def least(self, n: int) -> Mask:
        """The mask for roundings that move +-M by an ulp when a unit comes to it: M so small that the ulps, multiples
        of `modulus` units, and the units are added exactly.

        M = 2^(bits + L) units, 2^L > n: n units are below an ulp of M, 2^(L + 1) units or 2^L below a power of two.
        """
        length = max(1, n.bit_length())
        return replace(self, big=self.unit + self.bits + length, modulus=1 << length)


class Subject:
    """A kernel under question, with the number of its terms and the formats that it takes and gives.

    `factor`: what the kernel multiplies its sum with (a mean: 1/n), when results are read to the nearest unit.
    """

    def __init__(
        self, kernel: Kernel, n: int, storage: Format, output: Format, *, takes: Takes = "products", factor: float = 1.0
    ) -> None:
        self.kernel, self.n, self.storage, self.output = kernel, n, storage, output
        self.takes, self.factor = takes, factor
        self.rows = 0

    def ask(self, values: Float64Array, left: int | None = None) -> Float64Array:
        """The kernel's results (R,) for rows of terms (R, n), as products: every a is 2^left where the storage holds
        each b then; else, and without `left`, a and b share the exponent of their product.
        """
        pieces = [self._asked(values[at : at + step], left) for at, step in self._steps(len(values))]
        return np.concatenate(pieces) if pieces else np.zeros(0)

    def ask_operands(self, a: Float64Array, b: Float64Array) -> Float64Array:
        """The kernel's results (R,) for the sums of a * b, a and b (R, n) values of the storage."""
        pieces = [self._given(a[at : at + step], b[at : at + step]) for at, step in self._steps(len(b))]
        return np.concatenate(pieces) if pieces else np.zeros(0)

    def counts(self, values: Float64Array, mask: Mask) -> Float64Array:
        """`ask`, in units of 2^mask.unit: whole numbers, or NaN where a result is none."""
        with np.errstate(invalid="ignore"):
            units = self.ask(values, mask.left) / (self.factor * 2.0**mask.unit)
            whole = np.rint(units)
        is_whole = units == whole if self.factor == 1.0 else np.abs(units - whole) <= _TOLERANCE
        if mask.modulus == 1:
            return np.where(units == 1, 1.0, 0.0)
        left = np.mod(whole, mask.modulus) if mask.modulus else whole
        return np.where(is_whole, left, np.nan)

    def _steps(self, rows: int) -> Iterator[tuple[int, int]]:
        step = max(1, _AT_ONCE // max(1, self.n))
        return ((at, step) for at in range(0, rows, step))

    def _asked(self, values: Float64Array, left: int | None) -> Float64Array:
        if self.takes == "terms":
            return self._given(values, None)
        if left is not None:
            a, b = np.full_like(values, 2.0**left), values * 2.0**-left
            if np.array_equal(round_wide(b, self.storage), b):
                return self._given(a, b)
        a = np.where(values == 0, 1.0, np.ldexp(1.0, np.frexp(values)[1] // 2))
        return self._given(a, values / a)

    def _given(self, a: Float64Array, b: Float64Array | None) -> Float64Array:
        self.rows += len(a)
        operands = [self._held(x) for x in (a, b) if x is not None]
        results = np.asarray(self.kernel(*operands))
        if results.shape != (len(a),):
            raise ProbeError(
                f"Asking a kernel for {len(a)} sums of {self.n} terms: it gave an array of shape {results.shape},"
                f" expected ({len(a)},), one result a row. For a kernel of one sum, wrap it in `each_row`."
            )
        return widen(results)

    def _held(self, x: Float64Array) -> Array:
        held = carry(x, self.storage)
        assert np.array_equal(round_wide(x, self.storage), x, equal_nan=True), "a probe that the storage cannot hold"
        return held


def each_row(kernel: Kernel) -> Kernel:
    """A kernel of rows, from one of a single sum.

    >>> each_row(lambda x: x[0] + x[1])(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [3.0, 7.0]
    """

    def of_rows(*operands: Array) -> Any:
        return np.array([kernel(*row) for row in zip(*operands, strict=True)])

    return of_rows


# --- the sizes of the terms -----------------------------------------------------------------------------------------


def found_masks(subject: Subject) -> Iterator[Mask]:
    """Sizes of terms that this kernel can take, so that the large swallow the small; none where nothing is swallowed.

    First the one to use: the first that can count every term in one row, else the one that can count most. Then the one
    of the widest range, for kernels that keep more bits at some places than at others.
    Raises ProbeError where the kernel takes none of them.
    """
    is_clean, best = False, None
    for mask in _candidates(subject):
        if not _is_clean(subject, mask):
            continue
        is_clean = True
        bits = _swallowing_bits(subject, mask)
        if bits is None:
            continue
        countable, swallowed = _countable(subject, mask), 2 ** max(0, mask.big - mask.unit - bits - 1)
        found = replace(mask, bits=bits, most=min(countable, swallowed))
        best = found if best is None or found.most > best.most else best
        if swallowed >= countable:
            break
    if not is_clean:
        raise ProbeError(
            f"Probing a kernel of {subject.n} terms in {subject.storage}, results in {subject.output}: no size of terms"
            " came through. +M, -M and zeros must give 0, and a single small term itself; is it a sum, and is `factor`"
            " right?"
        )
    if best is not None:
        yield best
        for mask in sorted(_candidates(subject), key=lambda mask: mask.unit - mask.big):
            if mask.big - mask.unit > best.big - best.unit and _is_clean(subject, mask):
                yield replace(mask, bits=best.bits, most=best.most)
                break


def _candidates(subject: Subject) -> Iterator[Mask]:
    """Masks to try: the widest first, those with one exponent for every a before others, normal numbers last."""
    fmt, out = subject.storage, subject.output
    lows = [fmt.emin - fmt.trailing_bits, fmt.emin]
    if fmt.emax > _WIDE:
        lows, high = [-20, -24, -14], _WIDE
        yield from (Mask(big, low, 0) for low in lows for big in (high, 15) if low >= out.emin - out.trailing_bits)
        return
    high, lowest = fmt.emax, out.emin - out.trailing_bits
    lefts = {0} if subject.takes == "terms" else {0, *(out.emin - low for low in lows)}
    masks = [Mask(high + left, low + left, left) for left in lefts for low in lows if fmt.emin <= left <= high]
    if subject.takes == "products":
        masks += [
            Mask(big, max(2 * low + 2, least), 0)
            for low in lows
            for least in (out.emin, lowest)
            for big in (2 * high, min(2 * high, 15))
        ]
    visible = [mask for mask in masks if mask.unit >= lowest and mask.big > mask.unit]
    yield from sorted(dict.fromkeys(visible), key=lambda m: (m.big > high + m.left, m.unit - m.big, -m.unit))


def _is_clean(subject: Subject, mask: Mask) -> bool:
    """True where +M and -M cancel at every place, and a lone unit comes through from every place."""
    n = subject.n
    singles = np.eye(n) * 2.0**mask.unit
    pairs = -np.eye(n)[1:] * 2.0**mask.big
    pairs[:, 0] = 2.0**mask.big
    with np.errstate(all="ignore"):
        counted = subject.counts(np.concatenate([singles, pairs]), mask)
    return np.array_equal(counted, np.r_[np.ones(n), np.zeros(n - 1)])


def _swallowing_bits(subject: Subject, mask: Mask) -> int | None:
    """The least q for which +2^q units, one unit and -2^q units, somewhere among the terms, come to less than one."""
    places = _triples(subject.n)

    def swallows(q: int) -> bool:
        rows = np.zeros((len(places), subject.n))
        at = np.arange(len(places))
        rows[at, places[:, 0]] = 2.0 ** (mask.unit + q)
        rows[at, places[:, 1]] = -(2.0 ** (mask.unit + q))
        rows[at, places[:, 2]] = 2.0**mask.unit
        return bool((subject.counts(rows, mask) != 1).any())

    low, high = 0, mask.big - mask.unit
    if subject.n < 3 or not swallows(high):
        return None
    while high - low > 1:  # 2^low does not swallow a unit, 2^high does
        middle = (low + high) // 2
        low, high = (low, middle) if swallows(middle) else (middle, high)
    return high


def _triples(n: int) -> npt.NDArray[np.int64]:
    """Three different places, many times: +M, -M and the unit between and around them."""
    if n < 3:
        return np.zeros((0, 3), np.int64)
    rng = np.random.default_rng(n)
    random = np.array([rng.permutation(n)[:3] for _ in range(_TRIPLES)])
    near = [[0, n - 1, 1], [n - 1, 0, n - 2], [0, 2, 1], [0, n - 1, n // 2 or 1], [0, n // 2 + 1, 1], [0, 1, 2]]
    return np.concatenate([random, [row for row in near if len(set(row)) == 3]])


def _countable(subject: Subject, mask: Mask) -> int:
    """How many units come out as that many: 2^k, where 2^k + 1 units do not; n where all do."""
    powers = [1 << k for k in range(subject.n.bit_length()) if (1 << k) + 1 <= subject.n]
    places = np.arange(subject.n)
    ends = [places <= power for power in powers] + [places >= subject.n - power - 1 for power in powers]
    if not ends:
        return subject.n
    rows = np.where(np.array(ends), 2.0**mask.unit, 0.0)
    is_right = subject.counts(rows, mask).reshape(2, -1) == np.array(powers) + 1
    wrong = [power for power, right in zip(powers, is_right.all(axis=0), strict=True) if not right]
    return min(wrong, default=subject.n)
