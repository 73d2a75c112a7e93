"""Softmax over the keys that a query sees: all at once, or block after block as flash attention makes it.

Shape letters as in `attention`. Start reading at `softmax`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from softfloat_llm.llama.attention import Pending, is_moved_by_zeros
from softfloat_llm.llama.hidden import HIDDEN, hidden_in, hide
from softfloat_llm.llama.query_blocks import Queries, whole
from softfloat_llm.llama.taps import Taps, entered_values, exponential, given_values
from softfloat_llm.numerics import functions, ops, reduce
from softfloat_llm.numerics.carriers import carry, widen
from softfloat_llm.numerics.elementwise import difference_of, in_float32, number_in, product_of, quotient_of
from softfloat_llm.numerics.formats import Array, Float64Array, Format, f32
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import round_carried, round_sum, round_wide
from softfloat_llm.site_specs import SiteSpec


def score_factor(size: int, scale: SiteSpec, softmax: SiteSpec, *, multiplier: float | None = None) -> float:
    """What scores are scaled by: C^(-1/2) or a multiplier in its place, times log2(e) where the softmax raises 2.

    q and k each by its root.
    """
    factor = float(size**-0.5) if multiplier is None else multiplier
    if softmax.options["base"] == "2":
        factor *= _LOG2E
    return math.sqrt(factor) if scale.options["on"] == "both" else factor


_LOG2E = 1.4426950408889634  # log2(e) rounded to float64


def softmax(x: Array, spec: SiteSpec, some: Queries | None = None) -> tuple[Taps, Pending | None]:
    """exp(x - max) / sum of it, over the last axis. x (T, H, S), `HIDDEN` where not seen; the result (T, H, S).

    With `some` of the queries, x has those, over the keys that are looked at for them.

    With normalise=after the result is not divided yet: then the second value says what is left to do, else it is None.
    **Rounds:** to `compute`: x - max, its exponential (exp=correct: correctly rounded; base=2: 2 to it), the sum, and
    the division (or, with form=reciprocal, 1/sum and the product with it). Terms (sum_of=rounded: as rounded to the
    output) enter the sum as rounded to `product`; the sum is made in `acc` and `order`. Last, to the output. With
    online=N: as `_online`.
    """
    some = some or whole(x.shape[0], x.shape[2])
    spec = spec.shaped(M=some.positions, N=x.shape[1], K=some.length)
    c, at = spec.compute, spec.precision
    entered = hide(entered_values(x, spec), spec.storage, some)
    wide = hide(in_float32(entered), f32, some)
    taps = Taps(entered, None, entered, fills=(hidden_in(spec.storage), None, 0.0), acc_format=at.acc.format or c)
    if int(spec.options["online"]):
        return _online(wide, taps, spec)
    terms = carry(_powers(wide, wide.max(axis=-1, keepdims=True), spec), c)
    acc, total = _sums_of_seen(_as_terms(terms, spec), some, _summing(at, c))
    taps = taps._replace(acc=acc)
    if spec.options["normalise"] == "after":
        return taps.with_out(given_values(terms, spec)), _pending(total, spec)
    if spec.options["form"] == "reciprocal":
        quotient = product_of(terms, quotient_of(number_in(1.0, c), total[..., None], c), c)
    else:
        quotient = quotient_of(terms, total[..., None], c)
    return taps.with_out(given_values(quotient, spec)), None


def _online(wide: Array, taps: Taps, spec: SiteSpec) -> tuple[Taps, Pending]:
    """Blocks of N keys, each against the largest score so far. wide (T, H, S), -inf where not seen.

    **Rounds:** in each block as `softmax` does; exp(old largest - new) to `compute`, the correction; then the sum so
    far times it plus that of the block, once, to `acc`. Where `acc` is f64, the sum so far is kept in `compute`: it is
    rounded to it after the product, and after the sum of the block, as `acc` has it, is added.
    """
    keys, at = int(spec.options["online"]), _summing(spec.precision, spec.compute)
    wider = at.acc.format is not None and at.acc.format.precision > 24
    kept = spec.compute if wider else at.acc.format
    assert kept is not None
    top, total = np.full((*wide.shape[:2], 1), HIDDEN), np.zeros(wide.shape[:2])
    parts, corrections = [], []
    for start in range(0, wide.shape[-1], keys):
        block = wide[..., start : start + keys]
        largest = np.maximum(top, block.max(axis=-1, keepdims=True))
        parts.append(_powers(block, largest, spec))
        corrections.append(_powers(top, largest, spec, alone=True))
        own = widen(reduce.sum_stages(_as_terms(parts[-1], spec), at).acc)
        corrected = total * corrections[-1][..., 0]
        if wider:
            corrected = round_wide(corrected, kept)
        total = round_sum(corrected, own, kept, **at.rules("acc"))
        top = largest
    acc, out = reduce.rounded_output(total, at)
    taps = taps.with_out(given_values(np.concatenate(parts, axis=-1), spec))._replace(acc=acc)
    return taps, _pending(out, spec)._replace(keys=keys, corrections=np.concatenate(corrections, axis=-1))


def _pending(total: Array, spec: SiteSpec) -> Pending:
    """What the weighted values are divided by, or with form=reciprocal multiplied with: sums (T, H) in `compute`."""
    if spec.options["form"] == "divide":
        return Pending(total, is_divisor=True)
    return Pending(ops.div_wide(1.0, widen(total), spec.compute))


def _powers(x: Array, largest: Array, spec: SiteSpec, *, alone: bool = False) -> Float64Array:
    """e or 2 to x - largest, both steps rounded to `compute`."""
    lowered = widen(difference_of(x, largest, spec.compute))
    if spec.options["base"] == "2":
        return functions.function_wide("pow", (np.full_like(lowered, 2.0), lowered), spec.compute)
    return exponential(lowered, spec, alone=alone)


@lru_cache(maxsize=64)
def _summing(at: Precision, compute: Format) -> Precision:
    """The stages of the sum: its terms are values of `product`, its result one of `compute`."""
    return at.with_storage(at.product or compute).with_output(compute)


def _sums_of_seen(terms: Array, some: Queries, at: Precision) -> reduce.Stages:
    """The sums over the last axis of terms (T, H, S), +0 at the keys that are not seen, which are left out at need."""
    if not is_moved_by_zeros(at):
        return reduce.term_stages(terms, at)
    parts = [reduce.sum_stages(row[:, : some.sees(t)], at) for t, row in enumerate(terms)]
    return reduce.Stages(*(np.stack([part[i] for part in parts]) for i in range(2)))


def _as_terms(terms: Array, spec: SiteSpec) -> Array:
    """What the sum is of, as it enters it."""
    at = spec.precision
    given = given_values(terms, spec) if spec.options["sum_of"] == "rounded" else terms
    return given if at.product is None else round_carried(given, at.product, **at.rules("product"))
