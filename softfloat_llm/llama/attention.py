"""Attention as pure functions: rotation, scores, scale, mask, and the values that probabilities weigh.

Arrays and a SiteSpec in, the site's taps out; each docstring says what is rounded, and when. Shape letters: T query
positions, S key positions, H query heads, G kv heads, R = H/G, C head size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from softfloat_llm.llama.hidden import hidden_in, hide, is_hidden, is_seen_finite
from softfloat_llm.llama.products import product
from softfloat_llm.llama.query_blocks import Product, Queries, in_query_blocks, whole
from softfloat_llm.llama.taps import Taps, are_sums_small, entered_values, given_values, terms_left
from softfloat_llm.numerics import ops, reduce
from softfloat_llm.numerics.carriers import carry, widen
from softfloat_llm.numerics.crew import ALONE, Crew
from softfloat_llm.numerics.elementwise import factors, number_in, product_of, sum_of
from softfloat_llm.numerics.extents import is_all_finite
from softfloat_llm.numerics.formats import Array, Float64Array
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import round_held_sum, round_sum, round_wide
from softfloat_llm.site_specs import SiteSpec


class Pending(NamedTuple):
    """What is still to be done to weighted values whose probabilities are not normalised.

    `factor` (T, H): what they are multiplied with, the reciprocals of the sums; with `is_divisor` the sums, which they
    are divided by. Where the keys come in blocks (online=N), `keys` is N, and `corrections` (T, H, blocks) is what the
    output so far is multiplied with before each block.
    """

    factor: Array
    keys: int = 0
    corrections: Float64Array | None = None
    is_divisor: bool = False

    def of_rows(self, rows: slice) -> Pending:
        """The same for some of the queries."""
        corrections = None if self.corrections is None else self.corrections[rows]
        return self._replace(factor=self.factor[rows], corrections=corrections)


def in_pairs(x: Array, spec: SiteSpec) -> Array:
    """Queries or keys (T, H, C) in the order of elements that the rotation takes: as given, or pairs side by side."""
    if spec.options["pairs"] == "half-split":
        return x
    return np.stack(np.split(x, 2, axis=-1), axis=-1).reshape(x.shape)


def rotate(x: Array, cos: Array, sin: Array, spec: SiteSpec) -> Taps:
    """Each pair (x1, x2) becomes (x1 cos - x2 sin, x2 cos + x1 sin).

    x (T, H, C); cos, sin (T, C/2); the result (T, H, C). pairs=half-split: elements i and i + C/2; interleaved: 2i and
    2i + 1.
    **Rounds:** form=each: both products and their sum, to the output; once: the exact value, to the output; fma: the
    products with x2, to the output, then the exact sum with the other one.
    """
    entered = entered_values(x, spec)
    is_placed = spec.precision.is_stochastic  # by an element's place in its half
    is_at_once = spec.options["form"] == "each" and not is_placed
    if is_at_once:
        wide, c, s = factors(entered, cos, sin, fmt=spec.output, rules=spec.precision.rules("output"))
    else:
        wide, c, s = widen(entered), widen(cos), widen(sin)
    rotated = _rotated_at_once if is_at_once else _rotated
    return Taps(entered, None, rotated(*_pair(wide, spec), c[:, None, :], s[:, None, :], spec))


def _rotated_at_once(first: Array, second: Array, c: Array, s: Array, spec: SiteSpec) -> Array:
    """`_rotated` with both elements of the pairs in one array, for form=each, from `factors`."""
    both = np.empty((2, *first.shape[:-1], 2 * first.shape[-1]), first.dtype)
    (own_1, own_2), (other_1, other_2) = (_pair(part, spec) for part in both)
    with np.errstate(all="ignore"):  # inf * 0 is NaN
        np.multiply(first, c, out=own_1)
        np.multiply(first, s, out=own_2)
        np.negative(np.multiply(second, s, out=other_1), out=other_1)
        np.multiply(second, c, out=other_2)
    own, other = given_values(both, spec)
    return sum_of(own, other, spec.output, spec.precision.rules("output"))


def _rotated(first: Array, second: Array, c: Array, s: Array, spec: SiteSpec) -> Array:
    """The pairs (T, H, C/2) rotated by c, s (T, 1, C/2), all float64, as `rotate` says. The result (T, H, C)."""
    with np.errstate(invalid="ignore"):  # inf * 0 is NaN
        pairs = [(first * c, -(second * s)), (first * s, second * c)]  # of two narrow values: exact in float64
    fmt, rules, form = spec.output, spec.precision.rules("output"), spec.options["form"]
    if form != "once":
        pairs = [(p, round_wide(q, fmt, **rules)) for p, q in pairs]
    if form == "each":
        pairs = [(round_wide(p, fmt, **rules), q) for p, q in pairs]
    add = round_held_sum if form == "each" else round_sum
    parts = [carry(add(p, q, fmt, **rules), fmt) for p, q in pairs]
    if spec.options["pairs"] == "half-split":
        return np.concatenate(parts, axis=-1)
    rotated: Array = np.stack(parts, axis=-1).reshape(*first.shape[:-1], -1)
    return rotated


def _pair(x: Array, spec: SiteSpec) -> tuple[Array, Array]:
    """Views of the first and the second element of each pair."""
    half = x.shape[-1] // 2
    if spec.options["pairs"] == "half-split":
        return x[..., :half], x[..., half:]
    return x[..., ::2], x[..., 1::2]


class _Making(NamedTuple):
    """How weighted values are made: by which spec and crew, and what is still to be done to them."""

    spec: SiteSpec
    pending: Pending | None
    crew: Crew


def scores(q: Array, k: Array, spec: SiteSpec, some: Queries | None = None, *, crew: Crew = ALONE) -> Taps:
    """q k^T for each head with the keys of its group. q (T, H, C), k (S, G, C); the result (T, H, S).

    Query t stands at S - T + t; the scores of later keys are `HIDDEN`. With `some` q has those, and k the keys that are
    looked at for them.
    **Rounds:** q and k to the storage (and to a narrower one, where a rule says so); then as `reduce.matmul`.
    queries=flash: block by block (see `query_blocks`).
    """
    some = some or whole(len(q), len(k))
    queries, keys = entered_values(q, spec), entered_values(k, spec)

    def made(part: Product) -> Taps:
        m, n = part.sizes
        at = spec.shaped(M=m, N=n, K=q.shape[2], B=q.shape[1], T=some.positions)
        left, right = entered_values(queries[part.rows], at), entered_values(keys[: part.keys], at)
        taps = _grouped(left, right.transpose(1, 2, 0), at, crew)
        if at.storage == spec.storage:
            return taps
        return taps._replace(enter=carry(widen(taps.enter), spec.storage))  # a tap has one carrier for all shapes

    taps = in_query_blocks(len(q), len(k), some, spec, ("acc", "out"), made)
    assert taps.acc is not None
    acc_format = taps.acc_format or spec.output
    fills = (None, hidden_in(acc_format), hidden_in(spec.output))
    acc, out = hide(taps.acc, acc_format, some), hide(taps.out, spec.output, some)
    return taps.with_out(out, is_finite=taps.is_finite)._replace(acc=acc, fills=fills)  # what is hidden is not seen


def weighted_values(
    p: Array,
    v: Array,
    spec: SiteSpec,
    some: Queries | None = None,
    *,
    pending: Pending | None = None,
    crew: Crew = ALONE,
) -> Taps:
    """Probabilities times values. p (T, H, S), v (S, G, C); the result (T, H, C); of `some` as in `scores`.

    A key that a query does not see adds a term of 0, or no term where that would move the sum. `pending` is for
    probabilities that are not normalised yet.
    **Rounds:** p and v to the storage; then as `reduce.matmul`. The accumulator times a factor (or over a divisor) is
    rounded to the accumulator's format before the rounding to the output. In blocks of keys: before each block the
    accumulator times its correction, to the accumulator's format and to `kept`; each block is added to that, and
    rounded to `kept`.
    queries=flash: block of queries by block (see `query_blocks`).
    """
    some = some or whole(len(p), len(v))
    entered, values = entered_values(p, spec), entered_values(v, spec)

    def made(part: Product) -> Taps:
        m, k = part.sizes
        shaped = spec.shaped(M=m, N=v.shape[2], K=k, B=p.shape[1], T=some.positions)
        left = None if pending is None else pending.of_rows(part.rows)
        by, sees = _Making(shaped, left, crew), some.sees(part.rows.start)
        taps = _over_seen_keys(entered[part.rows, :, : part.keys], values[: part.keys], sees, by)
        return taps if left is None else _normalised(taps, left, shaped)

    return in_query_blocks(len(p), len(v), some, spec, ("enter",), made)._replace(fills=(0.0, None, None))


def _normalised(taps: Taps, pending: Pending, spec: SiteSpec) -> Taps:
    """The taps with the accumulator times the factor, or over the divisor, as what is given."""
    assert taps.acc is not None
    at, wide, factor = spec.precision, widen(taps.acc), widen(pending.factor)[..., None]
    fmt = at.acc.format or spec.output
    if pending.is_divisor:
        normalised = widen(ops.div(wide, factor, fmt, at.rounding.acc, subnormals=at.subnormals.acc))
    else:
        normalised = round_wide(wide * factor, fmt, **at.rules("acc"))
    return taps.with_out(reduce.rounded_output(normalised, at).out)


def _over_seen_keys(left: Array, right: Array, sees: int, by: _Making) -> Taps:
    """left (T, H, S) times right (S, G, C), the first query seeing so many keys, each next one key more.

    A query whose sum more terms of 0 would change is summed over its own keys. That is each query where
    `is_moved_by_zeros` or a value is not finite (0 times a later infinity would be NaN), and any whose sum is a zero: a
    fused product below the subnormals leaves -0, which a term of +0 would make +0.
    """
    positions, at = len(left), by.spec.precision
    if positions == 1 and sees >= len(right):
        return _weighted(left, right, by)
    if is_moved_by_zeros(at) or not is_all_finite(right):
        alone, padding = list(range(positions)), not is_moved_by_zeros(at)
        taps = Taps(left, left[:0], left[:0])
    else:
        taps, padding = _weighted(left, right, by), False
        assert taps.acc is not None
        is_zero = (taps.acc == 0).any(axis=(1, 2)) & at.order.is_shape_free
        alone = [t for t in range(min(positions, len(right) - sees)) if is_zero[t]]  # a later query sees every key
    rows = {t: _one_query(left, right, t, sees + t, by, padding) for t in alone}
    return _with_rows(taps, rows, positions) if rows else taps


def _weighted(left: Array, right: Array, by: _Making) -> Taps:
    """left (T, H, S) times right (S, G, C): all keys at once, or block after block.

    One block is all keys, but for what it is kept in.
    """
    pending = by.pending
    if pending is not None and pending.corrections is not None:
        is_one_block = len(right) <= pending.keys and by.spec.options["kept"] == "acc"
        if not is_one_block:
            return _in_blocks(left, right, by)
    return _grouped(left, right.transpose(1, 0, 2), by.spec, by.crew)


def _in_blocks(left: Array, right: Array, by: _Making) -> Taps:
    """The same block after block: what is there so far times its correction, then the block is added to it."""
    spec, pending, crew = by
    at, fmt = spec.precision, spec.precision.acc.format
    assert pending is not None
    assert pending.corrections is not None
    assert fmt is not None
    total: Array = np.zeros((*left.shape[:2], right.shape[-1]))
    for block, start in enumerate(range(0, len(right), pending.keys)):
        keys = slice(start, start + pending.keys)
        corrected = round_wide(widen(total) * pending.corrections[..., block, None], fmt, **at.rules("acc"))
        added = _grouped(left[..., keys], right[keys].transpose(1, 0, 2), spec, crew, init=_kept(corrected, spec))
        assert added.acc is not None
        total = _kept(widen(added.acc), spec)
    acc, out = reduce.rounded_output(total, at)
    return Taps(left, acc, out, None, acc_format=fmt)


def _kept(total: Float64Array, spec: SiteSpec) -> Float64Array:
    """The output so far as it is kept between blocks. total (...) holds values of the accumulator's format."""
    if spec.options["kept"] == "acc":
        return total
    return round_wide(total, spec.format_of("kept"), **spec.precision.rules("acc"))


def _one_query(left: Array, right: Array, t: int, sees: int, by: _Making, padding: bool) -> Taps:
    """Query t of left (T, H, S) over the keys that it sees, right (S, G, C); with `padding`, zeros for the others."""
    seen = right[:sees]
    if padding:
        seen = np.concatenate([seen, np.zeros_like(right[len(seen) :])])
    pending = None if by.pending is None else by.pending.of_rows(slice(t, t + 1))
    return _weighted(left[t : t + 1, :, : len(seen)], seen, by._replace(pending=pending))


def _with_rows(taps: Taps, rows: dict[int, Taps], positions: int) -> Taps:
    """The taps with the given queries in place of their own."""

    def stacked(stage: str) -> Array:
        whole: Array = getattr(taps, stage)
        return np.concatenate([getattr(rows[t], stage) if t in rows else whole[t : t + 1] for t in range(positions)])

    def terms(index: tuple[int, ...]) -> tuple[int, int]:
        tell = rows[index[0]].terms if index[0] in rows else taps.terms
        assert tell is not None
        return tell((0, *index[1:]) if index[0] in rows else index)

    one = next(iter(rows.values()))
    told = terms if one.terms is not None else None
    return taps.with_out(stacked("out"))._replace(acc=stacked("acc"), terms=told, acc_format=one.acc_format)


def is_moved_by_zeros(at: Precision) -> bool:
    """True where a further term of 0 can change a sum: Kahan's correction enters with it; +0 + -0 is -0 downward."""
    return at.acc.method == "kahan" or at.rounding.acc == "toward_negative"


def _grouped(left: Array, right: Array, spec: SiteSpec, crew: Crew, *, init: Float64Array | None = None) -> Taps:
    """left (T, H, K) times right (G, K, N), the R heads of a group as further rows: (T, H, N), added to init."""
    positions, share = left.shape[0], left.shape[1] // right.shape[0]
    is_small = left.size * right.shape[0] * right.shape[2] <= _MADE_TOGETHER
    if init is None and is_small and not spec.rules and not spec.precision.is_stochastic:
        acc, out = reduce.grouped_stages(left, right, spec.precision) or _of_all_groups(left, right, spec, crew)
    else:
        acc, out = _group_by_group(left, right, spec, crew, init)

    def terms(index: tuple[int, ...]) -> tuple[int, int]:
        position, head, column = index
        at = spec.precision_at({"M": positions, "N": acc.shape[-1]}, position, column)
        return terms_left(left[position, head], right[head // share][:, column], at)

    is_finite = are_sums_small(acc, spec.output)
    return Taps(left, acc, out, terms, acc_format=spec.precision.acc.format, is_finite=is_finite)


_MADE_TOGETHER = 1 << 18
"""Products of all heads with all groups up to which one matrix product costs less than one for each group.

Measured with 9, 8 and 32 heads of 3, 2 and 4 groups, f32 and f16 accumulators: 1.4 to 2.4 times less up to there, more
from 2^20.5 on.
"""


def _of_all_groups(left: Array, right: Array, spec: SiteSpec, crew: Crew) -> reduce.Stages:
    """Each head with all groups in one product, of which those with its own are taken. As `_group_by_group`."""
    (positions, heads, k), (groups, _, columns) = left.shape, right.shape
    stages = product(left.reshape(-1, k), right.transpose(1, 0, 2).reshape(k, -1), spec, crew=crew)
    every = [stage.reshape(positions, groups, heads // groups, groups, columns) for stage in stages]
    own = [stage.diagonal(axis1=1, axis2=3).transpose(0, 3, 1, 2) for stage in every]
    return reduce.Stages(*(stage.reshape(positions, heads, columns) for stage in own))


def _group_by_group(left: Array, right: Array, spec: SiteSpec, crew: Crew, init: Float64Array | None) -> reduce.Stages:
    """The accumulators and the results (T, H, N), a product for each group."""
    positions, groups, share = left.shape[0], right.shape[0], left.shape[1] // right.shape[0]

    def rows(x: Array, g: int) -> Array:
        return x[:, g * share : (g + 1) * share].reshape(-1, x.shape[-1])

    stages = [
        product(rows(left, g), right[g], spec, share=share, init=None if init is None else rows(init, g), crew=crew)
        for g in range(groups)
    ]
    parts = [[part[i].reshape(positions, share, -1) for part in stages] for i in range(2)]
    return reduce.Stages(*(np.concatenate(part, axis=1) for part in parts))


def scale(x: Array, factor: float, spec: SiteSpec, some: Queries | None = None) -> Taps:
    """Scores times a positive factor. x (T, H, S), of `some` as in `scores`.

    **Rounds:** the factor and the product to `compute`, then to the output. (Of a product that lies near the middle of
    two bf16 values that is another one than rounding once: PyTorch's, by transformers' Granite, tests/live.)
    """
    taps = scaled(x, factor, spec)
    fills = (hidden_in(spec.storage), None, hidden_in(spec.output))
    enter, out = hide(taps.enter, spec.storage, some), hide(taps.out, spec.output, some)
    return Taps(enter, None, out, fills=fills, is_finite=is_seen_finite(out, some))


def scaled(x: Array, factor: float, spec: SiteSpec) -> Taps:
    """The same for queries or keys, x (T, H, C)."""
    entered = entered_values(x, spec)
    product = product_of(entered, number_in(factor, spec.compute), spec.compute)
    return Taps(entered, None, given_values(product, spec))


def mask(x: Array, spec: SiteSpec, some: Queries | None = None, *, sees_none: bool = False) -> Taps:
    """Scores with the lowest number of the output at each key that its query does not see. x (T, H, S).

    value=set-lowest puts it there, add-lowest adds it to the score (and 0 to the others). The scores of unseen keys are
    not followed where a query sees a key too: their exponentials are 0 either way. With `sees_none` all are unseen.
    **Rounds:** x to the storage; the sum to the output.
    """
    entered = entered_values(x, spec)
    lowest = -spec.output.max
    hidden = is_hidden(x.shape[0], x.shape[-1], some)
    unseen = np.ones(x.shape, bool) if sees_none else np.broadcast_to(hidden, x.shape)
    moved = np.where(unseen, lowest, 0.0)
    if spec.options["value"] == "set-lowest":
        total = np.where(unseen, lowest, widen(entered))
    else:
        total = round_sum(widen(entered), moved, spec.output, **spec.precision.rules("output"))
        total = total if sees_none else np.where(unseen, lowest, total)
    fills = (hidden_in(spec.storage), None, lowest)
    return Taps(entered, None, given_values(total, spec), fills=fills)
