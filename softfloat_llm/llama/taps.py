"""What a block of the model gives, and the roundings with which each block begins and ends.

Shape letters as in `blocks`. Start reading at `Taps`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from softfloat_llm.numerics import functions
from softfloat_llm.numerics.accumulate import arithmetic_of, terms_of, terms_until_nonfinite
from softfloat_llm.numerics.elementwise import number_in
from softfloat_llm.numerics.engine_functions import EXPONENTIALS, OF_ONE
from softfloat_llm.numerics.extents import is_all_finite, is_below
from softfloat_llm.numerics.formats import Array, Float64Array, Format, f16
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import round_block, round_carried
from softfloat_llm.numerics.scaled import Counts, quantise
from softfloat_llm.site_specs import SiteSpec

IN_VECTORS = ("flash-u20", "vector-u20", "ggml")
"""Exponentials that an engine takes in whole vectors (of keys, in a softmax), another way for what is left over."""


class Taps(NamedTuple):
    """What a site took, what its sum was before the last rounding (None where it has none), and what it gave.

    `terms` tells after how many terms the sum at an index left the finite range, and of how many. `fills` is for taps
    whose last axis is S: what (enter, acc, out) hold for a key that the query does not see. `enter_format` and
    `acc_format` are given where they are not the site's storage and accumulator. `lost` counts what scaled storage
    clipped, flushed or made NaN. `is_finite`: all that it made is known to be, but for keys that are not seen.
    """

    enter: Array
    acc: Array | None
    out: Array
    terms: Callable[[tuple[int, ...]], tuple[int, int]] | None = None
    fills: tuple[float | None, float | None, float | None] = (None, None, None)
    enter_format: Format | None = None
    acc_format: Format | None = None
    lost: Counts | None = None
    is_finite: bool = False

    def with_out(self, out: Array, *, is_finite: bool = False) -> Taps:
        """The same with another `out`, of which no more is known than what is said here."""
        return self._replace(out=out, is_finite=is_finite)


def as_scaled(x: Array, word: str) -> tuple[Array, Counts | None]:
    """x (...) as a scaled format stores it, decoded to f32, and how many values that cost; `plain`: x itself."""
    if word == "plain":
        return x, None
    made = quantise(x, word)
    return made.decoded, made.counts


def stored(x: Array, fmt: Format, at: Precision) -> Array:
    """x (...) as the storage stage keeps it: rounded once to the format where it does not lie in it already."""
    if fmt.has_own_dtype and x.dtype == fmt.dtype:
        return x
    return round_block(x, fmt, **at.rules("storage"))


def entered_values(x: Array, spec: SiteSpec) -> Array:
    """x (...) as the site stores it: rounded once where it does not lie in the storage format already."""
    return stored(x, spec.storage, spec.precision)


def are_sums_small(acc: Array, fmt: Format) -> bool:
    """True only where sums (...), and what they are when rounded to the format, are known to be finite."""
    is_like_ieee = fmt.has_infinity and fmt.is_signed and fmt.has_zero
    if acc.dtype == np.float16 and fmt.max >= f16.max:
        return is_like_ieee and is_all_finite(acc)
    return is_like_ieee and is_below(acc, fmt.max)


def given_values(wide: Array, spec: SiteSpec) -> Array:
    """Exact or wider values, in float64 or a carrier dtype, rounded once to the site's output."""
    return round_carried(wide, spec.output, **spec.precision.rules("output"))


def held_in(number: float, fmt: Format) -> float:
    """A number of a config as a format holds it (in f16, an epsilon of 1e-8 is 0)."""
    return float(number_in(number, fmt))


def exponential(x: Float64Array, spec: SiteSpec, *, alone: bool = False) -> Float64Array:
    """e^x (...) in `compute`: correctly rounded, or as the engine that the option `exp` names has it.

    `alone`: each x by itself (..., 1), not as part of a vector.
    """
    name = spec.options["exp"]
    if name == "correct":
        return functions.exp_wide(x, spec.compute)
    return (OF_ONE if alone else EXPONENTIALS)[name](x)


def terms_left(a: Array, b: Array, at: Precision) -> tuple[int, int]:
    """After how many terms the sum of a*b (K,) left the finite range (K where only at the end), and K."""
    n = len(a)
    if at.acc.format is None:
        return n, n
    with np.errstate(all="ignore"):
        terms, steps = terms_of(a, b, at), arithmetic_of(at.acc, at)
        return terms_until_nonfinite(at.order.tree(n).program(), terms, steps, n), n
