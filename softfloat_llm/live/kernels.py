"""Kernels of an engine at one shape, as `reveal` asks them: many sums at once, of which each place may have its order.

A `Product` makes B*M*N sums of K products, a `Reduction` R sums of K terms. `alike` finds which places of the result
add alike: given the same operands they give the same bits. Start reading at `reveal_places`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Protocol

import numpy as np
import numpy.typing as npt

from softfloat_llm.analysis.probes import Kernel, Subject, Takes
from softfloat_llm.analysis.reveal import Revealed, reveal
from softfloat_llm.analysis.trials import Finish, differing, sensitive_sums, sums_of
from softfloat_llm.conditions import Condition
from softfloat_llm.errors import LiveError
from softfloat_llm.numerics.carriers import carry, widen
from softfloat_llm.numerics.formats import Array, Float64Array, Format
from softfloat_llm.numerics.precision import Precision

Places = npt.NDArray[np.int64]
"""(P, 3): head, row and column of elements of a result; a reduction has rows alone."""

_TRIALS, _LEAST_TRIALS = 48, 8  # sums by which places are told apart
_LEAST_TERMS = 129
_MOST_PRODUCTS = 500_000_000


class LiveKernel(Protocol):
    """What `reveal_places` asks of a kernel of an engine."""

    @property
    def what(self) -> str: ...

    @property
    def storage(self) -> Format: ...

    @property
    def output(self) -> Format: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def takes(self) -> Takes: ...

    @property
    def terms(self) -> int: ...

    @property
    def factor(self) -> float: ...

    @property
    def finish(self) -> Finish | None: ...

    def everywhere(self, a: Array, b: Array) -> Array: ...

    def at(self, places: Places) -> Kernel: ...

    def places(self, mask: Array) -> Places: ...


@dataclass(frozen=True)
class Product:
    """x (B, M, K) times the rows of w (B, N, K): B*M*N sums of K products.

    `multiply` is the engine's: it gets both in the storage's dtype, lays them out as its caller would, and gives
    (B, M, N). `scale`: what every sum is multiplied with on its way.
    """

    what: str
    storage: Format
    output: Format
    shape: tuple[int, int, int, int]
    multiply: Callable[[Array, Array], Array]
    factor: float = 1.0
    finish: Finish | None = None
    takes: Takes = field(default="products", init=False)

    @property
    def terms(self) -> int:
        return self.shape[3]

    def everywhere(self, a: Array, b: Array) -> Array:
        """The sum of a * b (K,) at every place: (B, M, N)."""
        heads, rows, columns, length = self.shape
        return self.multiply(np.broadcast_to(a, (heads, rows, length)), np.broadcast_to(b, (heads, columns, length)))

    def places(self, mask: Array) -> Places:
        return np.argwhere(mask)

    def at(self, places: Places) -> Kernel:
        """The kernel of the sums at these places, those of the row that has most of them.

        One product makes as many sums with the same a as the row has places; elsewhere w is zero.
        """
        heads, rows, columns, length = self.shape
        row = int(np.bincount(places[:, 1]).argmax())
        slots = places[places[:, 1] == row][:, (0, 2)]

        def sums(a: Array, b: Array) -> Array:
            out = np.empty(len(a), self.output.dtype)
            for group in same_rows(a, len(slots)):
                w = np.zeros((heads, columns, length), b.dtype)
                taken = slots[: len(group)]
                w[taken[:, 0], taken[:, 1]] = b[group]
                product = self.multiply(np.tile(a[group[0]], (heads, rows, 1)), w)
                out[group] = product[taken[:, 0], row, taken[:, 1]]
            return out

        return sums


@dataclass(frozen=True)
class Reduction:
    """The sums over the last axis of x (R, K). `add` is the engine's: it gives (R,)."""

    what: str
    storage: Format
    output: Format
    shape: tuple[int, int]
    add: Callable[[Array], Array]
    factor: float = 1.0
    finish: Finish | None = None
    takes: Takes = field(default="terms", init=False)

    @property
    def terms(self) -> int:
        return self.shape[1]

    def everywhere(self, a: Array, b: Array) -> Array:
        """The sum of the terms b (K,) in every row: (R,)."""
        return self.add(np.tile(b, (self.shape[0], 1)))

    def places(self, mask: Array) -> Places:
        rows = np.flatnonzero(mask)
        return np.stack([np.zeros_like(rows), rows, np.zeros_like(rows)], axis=1)

    def at(self, places: Places) -> Kernel:
        """The kernel of the sums in these rows; the other rows are zero."""
        rows = places[:, 1]

        def sums(x: Array) -> Array:
            out = np.empty(len(x), self.output.dtype)
            for start in range(0, len(x), len(rows)):
                part = x[start : start + len(rows)]
                whole = np.zeros(self.shape, x.dtype)
                whole[rows[: len(part)]] = part
                out[start : start + len(part)] = self.add(whole)[rows[: len(part)]]
            return out

        return sums


def same_rows(a: Array, most: int) -> Iterator[Array]:
    """Places of rows of a that are equal, at most so many together."""
    _, kinds = np.unique(a.view(np.dtype((np.void, a.strides[0]))).ravel(), return_inverse=True)
    for kind in range(kinds.max(initial=-1) + 1):
        rows = np.flatnonzero(kinds == kind)
        yield from (rows[start : start + most] for start in range(0, len(rows), most))


# --- where sums are alike -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alike:
    """Places (P, 3) of a result whose sums agree on every trial, and what those came to."""

    places: Places
    results: Float64Array


@dataclass(frozen=True)
class Found:
    """Places of a kernel that add alike, and how: the precision that gave all their trials, or None where none did.

    `revealed` is None where a precision that was known before gave them.
    """

    places: Places
    precision: Precision | None
    revealed: Revealed | None = None


def reveal_places(kernel: LiveKernel, known: Sequence[Precision] = ()) -> list[Found]:
    """What a kernel does, for each set of places of its result that add alike; the largest set first.

    `known`: precisions to try before the kernel is asked about its order; the trials decide, in bits. Not for sums so
    short that two orders may agree on them.
    Raises LiveError where places that are given the same operands give other bits when asked again.
    """
    a, b, sets = alike(kernel)
    return [_found(kernel, a, b, each, known) for each in sets]


def _found(kernel: LiveKernel, a: Float64Array, b: Float64Array, each: Alike, known: Sequence[Precision]) -> Found:
    subject = _subject(kernel)
    fitting = [at for at in known if (at.storage, at.output) == (kernel.storage, kernel.output)]
    for precision in fitting if kernel.terms >= _LEAST_TERMS else ():  # short sums are asked, not guessed
        left, right = (b, None) if kernel.takes == "terms" else (a, b)
        sums = sums_of(subject, left, right, precision, kernel.finish)
        if not differing(sums, each.results).any():
            return Found(each.places, precision)
    revealed = reveal(
        kernel.at(each.places), kernel.terms, storage=kernel.storage, output=kernel.output, takes=kernel.takes,
        factor=kernel.factor, finish=kernel.finish,
    )  # fmt: skip
    return Found(each.places, revealed.precision if revealed.is_confirmed else None, revealed)


def alike(kernel: LiveKernel) -> tuple[Float64Array, Float64Array, list[Alike]]:
    """Operands of trials (T, K), and the places of the result that give the same bits for the same operands.

    Raises LiveError where that is not so twice.
    """
    a, b = sensitive_sums(_subject(kernel), _trials(kernel))
    held = [[carry(x, kernel.storage) for x in pair] for pair in zip(a, b, strict=True)]
    results, again = ([widen(kernel.everywhere(x, y)) for x, y in held] for _ in range(2))
    if not all(np.array_equal(x, y, equal_nan=True) for x, y in zip(results, again, strict=True)):
        raise LiveError(f"Revealing {kernel.what}: the same operands, given again, give other bits. It has no order.")
    told = np.stack([x.ravel() for x in results], axis=1)
    _, firsts, kinds = np.unique(told, axis=0, return_index=True, return_inverse=True)
    kinds = kinds.reshape(results[0].shape)
    order = np.argsort(-np.bincount(kinds.ravel()), kind="stable")
    return a, b, [Alike(kernel.places(kinds == kind), told[firsts[kind]]) for kind in order]


def _trials(kernel: LiveKernel) -> int:
    """Fewer where each takes long."""
    return int(np.clip(_MOST_PRODUCTS // max(1, prod(kernel.shape)), _LEAST_TRIALS, _TRIALS))


def _subject(kernel: LiveKernel) -> Subject:
    return Subject(
        lambda *_: np.zeros(0), kernel.terms, kernel.storage, kernel.output, takes=kernel.takes, factor=kernel.factor
    )


def place_conditions(sets: Sequence[Places], shape: Sequence[int]) -> list[str]:
    """Words for each set of places but the first, which has none: `n >= 12`, `m < 2`. sets: the largest first.

    Of the words that hold at a place, those of the smallest set count. shape: the rows and columns there are.
    Raises LiveError where no such words are known.
    """
    return ["", *(_condition(sets[place], sets[:place], shape) for place in range(1, len(sets)))]


def _condition(places: Places, larger: Sequence[Places], shape: Sequence[int]) -> str:
    """Words that hold for places and for none of the larger sets."""
    rows, columns = (_range_words(letter, places[:, axis], shape[axis - 1]) for letter, axis in (("m", 1), ("n", 2)))
    for words in (columns, rows, [*rows, *columns]):
        if words and not any(_holds(words, others).any() for others in larger):
            return " and ".join(words)
    raise LiveError("These rows and columns lie among others that add otherwise: no rule can speak of them.")


def _range_words(letter: str, held: Array, size: int) -> list[str]:
    low, high = int(held.min()), int(held.max())
    if low == high:
        return [f"{letter} == {low}"]
    return [f"{letter} >= {low}"] * (low > 0) + [f"{letter} < {high + 1}"] * (high + 1 < size)


def _holds(words: Sequence[str], places: Places) -> Array:
    condition = Condition(" and ".join(words)) if words else None
    return np.array(
        [condition is None or condition.holds_at({"M": 0, "N": 0}, m, n) for _, m, n in places.tolist()], bool
    )
