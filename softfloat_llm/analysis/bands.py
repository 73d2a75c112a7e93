"""The band of legal results: the same terms summed in many orders, and how far the results lie apart.

No engine promises an order, so every result in the band is right, and a test that allows less than the band's width
fails on right results. Beside it stands what can be derived (`bounds`). Start reading at `sum_band`; `logit_bands` is
about a whole model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from softfloat_llm.analysis.answers import Answer, Table, counted
from softfloat_llm.analysis.bounds import SumBounds, sum_bounds
from softfloat_llm.analysis.numbers import about, decimal, distance, jsonable
from softfloat_llm.errors import PrecisionError
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.formats import Float64Array, Format
from softfloat_llm.numerics.precision import Precision, precision_of

SCHEMA = "softfloat-llm/bound/1"
SEEDED = 8


def orders_of(asked: int | Sequence[str]) -> tuple[str, ...]:
    """The orders of a band: so many seeded permutations, or those named. Raises PrecisionError where there are none."""
    orders = tuple(f"perm:{seed}" for seed in range(asked)) if isinstance(asked, int) else tuple(asked)
    if not orders:
        raise PrecisionError("A band needs at least one other order: a number of seeded ones, or their names.")
    return orders


@dataclass(frozen=True)
class Element:
    """One sum: its value in the recipe's order, the least and the most that the orders gave, and the bounds.

    Bounds are on |computed - exact|; None where no formula is about such a sum.
    """

    index: tuple[int, ...]
    value: float
    low: float
    high: float
    results: int
    """How many different results the orders gave, that of the recipe's own among them."""
    a_priori: float | None
    running: float | None

    @property
    def width(self) -> float:
        return self.high - self.low

    def to_dict(self) -> dict[str, Any]:
        """JSON: plain numbers, strings, lists."""
        return {
            "index": list(self.index),
            "value": jsonable(self.value),
            "low": jsonable(self.low),
            "high": jsonable(self.high),
            "width": jsonable(self.width),
            "results": self.results,
            "a_priori": None if self.a_priori is None else jsonable(self.a_priori),
            "running": None if self.running is None else jsonable(self.running),
        }


@dataclass(frozen=True)
class SumBand(Answer):
    """The band of sums of the same terms. `widest` is the element whose results lie furthest apart.

    `seen` is that distance: the least that a test of such sums may allow. `safe` is twice the largest a-priori bound:
    what no two orders can exceed (None where no formula is about such sums).
    """

    what: str
    precision: Precision
    orders: tuple[str, ...]
    shape: tuple[int, ...]
    terms: int
    moved: int
    """Elements that some order changes."""
    widest: Element
    seen: float
    safe: float | None
    gamma: float | None

    @property
    def format(self) -> Format:
        return self.precision.output

    def heading(self) -> list[tuple[str, str]]:
        return [("sums", self.what), ("precision", f" {self.precision}")]

    def sentences(self) -> list[str]:
        one, total = self.widest, counted(math.prod(self.shape), "sum")
        lines = [
            f"{counted(len(self.orders), 'other order')} of {self.terms} terms; moved by some: {self.moved} of {total}."
        ]
        if self.seen:
            lines.append(
                f"The widest band is {distance(one.width, one.value, self.format)}: a test must allow at least that, or"
                " it fails on right results."
            )
        if self.safe is None:
            return [*lines, "No bound is derived: the formulas are about plain accumulators (see --acc, --order)."]
        if math.isinf(self.safe):
            return [*lines, f"Derived: nothing. With K = {self.terms} terms K u reaches 1, or a sum may overflow."]
        told = f"twice gamma_{self.terms} S and the last rounding"
        return [*lines, f"Derived: no two orders of one of these sums lie more than {about(self.safe)} apart ({told})."]

    def tables(self, *, verbose: bool = False) -> list[Table]:
        one = self.widest
        fmt = self.format
        header = ("element", "its order", "least", "most", "results", "a-priori bound", "running bound")
        bounds = ["none" if x is None else about(x) for x in (one.a_priori, one.running)]
        cells = [decimal(x, fmt) for x in (one.value, one.low, one.high)]
        return [Table(header, ((str(list(one.index)), *cells, str(one.results), *bounds),), right=(1, 2, 3, 4, 5, 6))]

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "kind": "sums",
            "what": self.what,
            "precision": str(self.precision),
            "orders": list(self.orders),
            "shape": list(self.shape),
            "terms": self.terms,
            "moved": self.moved,
            "widest": self.widest.to_dict(),
            "seen": jsonable(self.seen),
            "safe": None if self.safe is None else jsonable(self.safe),
            "gamma": None if self.gamma is None else jsonable(self.gamma),
            "ulp_format": str(self.format),
        }


def sum_band(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    at: str | Precision,
    *,
    orders: int | Sequence[str] = SEEDED,
    what: str | None = None,
) -> SumBand:
    """The band of the matrix product a b (or of one dot product): in the order of `at`, and in others.

    a (M, K), b (K, N), or both (K,), hold values of `at.storage`. `orders`: so many seeded permutations summed one
    after another, or the names of orders.
    **Rounds:** as `reduce.matmul`, once for each order. **Raises** as that, and PrecisionError for no orders.
    """
    at, names = precision_of(at), orders_of(orders)
    left, right = _matrices(a, b)
    own = reduce.matmul_stages(left, right, at).out.astype(np.float64)
    others = [_in_order(left, right, at, name) for name in names]
    every = np.stack([own, *others])
    low, high = every.min(axis=0), every.max(axis=0)
    with np.errstate(invalid="ignore"):
        widths = np.where(high == low, 0.0, high - low)
    place = int(np.argmax(np.where(np.isnan(widths), np.inf, widths)))
    index = tuple(int(i) for i in np.unravel_index(place, widths.shape))
    bounds = _bounds(left, right, at)
    return SumBand(
        what=what or _named(left.shape, right.shape),
        precision=at,
        orders=names,
        shape=widths.shape,
        terms=left.shape[1],
        moved=int(np.count_nonzero(widths != 0)),
        widest=_element(index, every, bounds),
        seen=float(widths[index]),
        safe=None if bounds is None else 2 * float(bounds.a_priori.max()),
        gamma=None if bounds is None else bounds.gamma,
    )


def _matrices(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    left, right = np.asarray(a), np.asarray(b)
    if left.ndim == right.ndim == 1:
        left, right = left[None], right[:, None]
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0] or not left.size or not right.size:
        raise PrecisionError(
            f"A band takes a (M, K) and b (K, N), or two rows of K: found {left.shape}, {right.shape}."
        )
    return left, right


def _named(left: tuple[int, ...], right: tuple[int, ...]) -> str:
    if (left[0], right[1]) == (1, 1):
        return f"one dot product of {counted(left[1], 'term')}"
    return f"({left[0]}, {left[1]}) times ({right[0]}, {right[1]})"


def _in_order(left: npt.NDArray[Any], right: npt.NDArray[Any], at: Precision, order: str) -> Float64Array:
    """The product in another order; where a matrix unit adds, its terms in another order."""
    text = f"{order} > {at.order}" if at.order.adder is not None and order.startswith("perm:") else order
    words = {key: word for key, word in at.items() if key != "order"} | {"order": text}
    found: Float64Array = reduce.matmul_stages(left, right, precision_of(words)).out.astype(np.float64)
    return found


def _bounds(left: npt.NDArray[Any], right: npt.NDArray[Any], at: Precision) -> SumBounds | None:
    try:
        return sum_bounds(left, right, at)
    except PrecisionError:
        return None


def _element(index: tuple[int, ...], every: Float64Array, bounds: SumBounds | None) -> Element:
    results = every.reshape(len(every), -1)[:, int(np.ravel_multi_index(index, every.shape[1:]))]
    return Element(
        index=index,
        value=float(results[0]),
        low=float(results.min()),
        high=float(results.max()),
        results=len({float(x) for x in results}),
        a_priori=None if bounds is None else float(bounds.a_priori[index]),
        running=None if bounds is None or bounds.running is None else float(bounds.running[index]),
    )
