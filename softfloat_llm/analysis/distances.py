"""How far two arrays of values lie apart, element by element: absolute, in ulps of a named format, in whole steps.

Start reading at `difference`. Values of two formats are compared as the real numbers that they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from softfloat_llm.analysis.numbers import about, binade, jsonable
from softfloat_llm.numerics.carriers import bits_of
from softfloat_llm.numerics.extents import is_all_finite
from softfloat_llm.numerics.formats import Array, Float64Array, Format
from softfloat_llm.numerics.rounding import round_block, round_to
from softfloat_llm.numerics.ulps import ulp, ulp_distance

Index = tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """One element of both arrays."""

    index: Index
    run: float
    reference: float

    def to_dict(self) -> dict[str, Any]:
        return {"index": list(self.index), "run": jsonable(self.run), "reference": jsonable(self.reference)}


@dataclass(frozen=True)
class Difference:
    """How a tap of the run differs from that of the reference.

    `max_abs` is the largest |run - reference| (inf where only one of them is finite), `max_ulp` the largest in ulps of
    the run's format, each in the binade of the reference value (so beside a 0 it is large), and `max_row_ulp` the
    largest in ulps at the reference's largest value of the same position, `row_top`. `max_steps` is the most values of
    the run's format that lie between the run's value and the reference's, rounded to that format (None where one is not
    finite).
    """

    tap: str
    format: Format
    reference_format: Format
    shape: tuple[int, ...]
    count: int
    """Elements whose bits differ: -0 is not +0, all NaN are one."""
    first: Pair | None
    max_abs: float
    max_abs_at: Pair | None
    max_ulp: float
    max_ulp_at: Pair | None
    max_row_ulp: float
    max_row_ulp_at: Pair | None
    row_top: float
    """The largest |value| of the reference at the position of `max_row_ulp_at`."""
    max_steps: int | None

    @property
    def size(self) -> int:
        """How many elements were compared."""
        return math.prod(self.shape)

    @property
    def row_apart(self) -> float:
        """|run - reference| of the element that `max_row_ulp` is of."""
        return self.max_row_ulp * float(ulp(self.row_top, self.format)) if self.count else 0.0

    def row_ulps(self, fmt: Format) -> float:
        """`max_row_ulp` in ulps of another format."""
        unit = float(ulp(self.row_top, self.format)) / float(ulp(self.row_top, fmt))
        return self.max_row_ulp * unit

    @property
    def is_rounding(self) -> bool:
        """True where each value of the run is the reference's, rounded to the run's format."""
        return self.max_steps == 0 and self.format != self.reference_format

    @property
    def is_identical(self) -> bool:
        """The same values in the same format."""
        return self.count == 0 and self.format == self.reference_format

    def __str__(self) -> str:
        if self.is_identical:
            return "identical"
        if self.count == 0:
            return f"same values ({self.format} against {self.reference_format})"
        at = self.max_ulp_at.reference if self.max_ulp_at else math.nan
        where = f" in {binade(at, self.format)}" if math.isfinite(self.max_ulp) else ""
        return f"differs: {about(self.max_ulp)} {self.format} ulp{where}"

    def to_dict(self) -> dict[str, Any]:
        """JSON: plain numbers, strings, lists."""
        return {
            "tap": self.tap,
            "format": str(self.format),
            "reference_format": str(self.reference_format),
            "shape": list(self.shape),
            "differing": self.count,
            "first": self.first and self.first.to_dict(),
            "max_abs": jsonable(self.max_abs),
            "max_abs_at": self.max_abs_at and self.max_abs_at.to_dict(),
            "max_ulp": jsonable(self.max_ulp),
            "max_ulp_at": self.max_ulp_at and self.max_ulp_at.to_dict(),
            "max_row_ulp": jsonable(self.max_row_ulp),
            "max_row_ulp_at": self.max_row_ulp_at and self.max_row_ulp_at.to_dict(),
            "row_top": jsonable(self.row_top),
            "max_steps": self.max_steps,
            "ulp_format": str(self.format),
        }


AT_ONCE = 1 << 16
"""Elements that are compared at once: a dozen float64 temporaries of half a MiB, which stay in the caches."""


def difference(tap: str, run: Array, reference: Array, fmt: Format, reference_fmt: Format) -> Difference:
    """The difference of two arrays of one shape (T, ...), holding values of `fmt` and of `reference_fmt`."""
    run, reference = np.asarray(run), np.asarray(reference)
    assert run.shape == reference.shape, (tap, run.shape, reference.shape)
    rows = max(1, AT_ONCE // max(1, math.prod(run.shape[1:])))
    starts = range(0, max(1, len(run)), rows)
    parts = [_part(run[start : start + rows], reference[start : start + rows], start, fmt) for start in starts]
    count = sum(part.differing for part in parts)
    apart, in_ulp, in_row = (max((getattr(p, name) for p in parts), key=_value) for name in ("apart", "ulp", "row"))
    steps = [part.steps for part in parts]
    return Difference(
        tap=tap,
        format=fmt,
        reference_format=reference_fmt,
        shape=run.shape,
        count=count,
        first=next((part.first for part in parts if part.first is not None), None),
        max_abs=apart.value,
        max_abs_at=apart.at if count else None,
        max_ulp=in_ulp.value,
        max_ulp_at=in_ulp.at if count else None,
        max_row_ulp=in_row.value,
        max_row_ulp_at=in_row.at if count else None,
        row_top=in_row.row_top if count else max(part.top for part in parts),
        max_steps=None if None in steps else max(step for step in steps if step is not None),
    )


class _Largest(NamedTuple):
    """The largest of some distances, where the first of them is, and the largest reference value of its position."""

    value: float
    at: Pair | None
    row_top: float


def _value(found: _Largest) -> float:
    return found.value


class _Part(NamedTuple):
    """What `difference` looks for, in some rows. `top` is the largest |value| of the reference."""

    differing: int
    first: Pair | None
    apart: _Largest
    ulp: _Largest
    row: _Largest
    top: float
    steps: int | None


def _part(run: Array, reference: Array, start: int, fmt: Format) -> _Part:
    """The rows from `start` on, run and reference (n, ...)."""
    x, y = run.astype(np.float64), reference.astype(np.float64)
    is_other = differs(x, y)
    apart, tops = absolute(x, y, is_other), row_tops(y)

    def largest(values: Float64Array) -> _Largest:
        if not values.size:
            return _Largest(0.0, None, 0.0)
        place = int(np.argmax(values))
        top = tops.reshape(-1)[place // x[0].size]
        return _Largest(float(values.reshape(-1)[place]), _pair(x, y, place, start), float(top))

    count = int(np.count_nonzero(is_other))
    return _Part(
        differing=count,
        first=_pair(x, y, int(np.argmax(is_other)), start) if count else None,
        apart=largest(apart),
        ulp=largest(ulps(apart, y, fmt)),
        row=largest(ulps(apart, tops, fmt)),
        top=float(tops.max()) if tops.size else 0.0,
        steps=_steps(run[is_other], reference[is_other], fmt, float(tops.max())) if count else 0,
    )


def _pair(x: Float64Array, y: Float64Array, place: int, start: int) -> Pair:
    """The element at a place of the rows (n, ...) from `start` on."""
    index = tuple(int(i) for i in np.unravel_index(place, x.shape))
    return Pair((start + index[0], *index[1:]) if index else index, float(x[index]), float(y[index]))


def differs(x: Float64Array, y: Float64Array) -> Array:
    """Where the values are not the same: -0 differs from +0, NaN is the same as NaN."""
    is_other: Array = bits_of(x) != bits_of(y)
    is_nan = np.isnan(x)
    return is_other & ~(is_nan & np.isnan(y)) if is_nan.any() else is_other


def absolute(x: Float64Array, y: Float64Array, is_other: Array) -> Float64Array:
    """|x - y|; inf where they differ and one of them is not finite. `is_other`: where they differ."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(x - y)
    if np.isfinite(apart.max(initial=0.0)):  # then all of x and y are finite, and what is the same is 0 apart
        return apart
    apart = np.where(np.isfinite(x) & np.isfinite(y), apart, np.inf)
    return np.where(is_other, apart, 0.0)


def ulps(apart: Float64Array, y: Float64Array, fmt: Format) -> Float64Array:
    """Distances in ulps of the format, each in the binade of y; inf stays inf."""
    is_finite = np.isfinite(y)
    finite = y if is_finite.all() else np.where(is_finite, y, 1.0)
    in_ulp: Float64Array = apart / np.asarray(ulp(finite, fmt))
    return in_ulp


def row_tops(y: Float64Array) -> Float64Array:
    """The largest finite |value| at each position of y (T, ...), as (T, 1, ...)."""
    size: Float64Array = np.abs(y)
    if not size.size:
        return size
    axes = tuple(range(1, y.ndim))
    tops: Float64Array = size.max(axis=axes, keepdims=True)
    if not np.isfinite(tops).all():
        tops = np.where(np.isfinite(y), size, 0.0).max(axis=axes, keepdims=True)
    return tops


def _steps(x: Array, y: Array, fmt: Format, top: float) -> int | None:
    """The most values of the format between x and y (n,), y rounded to it first. x holds values of the format.

    `top`: no finite |y| is larger. Where the format reaches it, nothing overflows: `round_block` may cast.
    """
    if not (is_all_finite(x) and is_all_finite(y)):
        return None
    rounded = round_block(y, fmt) if top <= fmt.max else round_to(y, fmt, overflow="saturate")
    return int(ulp_distance(x, rounded, fmt).max())
