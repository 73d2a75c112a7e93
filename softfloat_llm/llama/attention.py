"""Attention as pure functions: rotation, scores, scale, softmax, and the values that they weigh.

Arrays and a SiteSpec in, the site's taps out; each docstring says what is rounded, and when. Shape letters: T query
positions, S key positions, H query heads, G kv heads, R = H/G, C head size.
"""

from __future__ import annotations

import numpy as np

from softfloat_llm.llama.taps import Taps, entered_values, exponential, given_values, terms_left
from softfloat_llm.numerics import ops, reduce
from softfloat_llm.numerics.formats import Array, Float64Array, Format
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import carry, round_sum, round_wide, widen
from softfloat_llm.site_specs import SiteSpec

HIDDEN = float("-inf")  # the score of a key that the query does not see: its exponential is +0


def hidden_in(fmt: Format) -> float:
    """What the tap of a hidden score holds: -inf, or what a format without it has in its place (NaN in e4m3fn)."""
    return float(round_wide(np.array([HIDDEN]), fmt)[0])


def rotate(x: Array, cos: Array, sin: Array, spec: SiteSpec) -> Taps:
    """Half-split rotation: (x1 cos - x2 sin, x2 cos + x1 sin). x (T, H, C); cos, sin (T, C/2); the result (T, H, C).

    **Rounds:** form=each: both products and their sum, to the output; once: the exact value, to the output.
    """
    entered = entered_values(x, spec)
    half = x.shape[-1] // 2
    first, second = widen(entered[..., :half]), widen(entered[..., half:])
    c, s = widen(cos)[:, None, :], widen(sin)[:, None, :]
    with np.errstate(invalid="ignore"):  # inf * 0 is NaN
        pairs = [(first * c, -(second * s)), (second * c, first * s)]  # products of two narrow values: exact in float64
    fmt, rules = spec.output, spec.precision.rules("output")
    if spec.options["form"] == "each":
        pairs = [(round_wide(p, fmt, **rules), round_wide(q, fmt, **rules)) for p, q in pairs]
    halves = [round_sum(p, q, fmt, **rules) for p, q in pairs]
    return Taps(entered, None, carry(np.concatenate(halves, axis=-1), fmt))


def scores(q: Array, k: Array, spec: SiteSpec) -> Taps:
    """q k^T for each head with the keys of its group. q (T, H, C), k (S, G, C); the result (T, H, S).

    Query t stands at S - T + t; the scores of later keys are `HIDDEN`.
    **Rounds:** q and k to the storage; then as `reduce.matmul`.
    """
    spec = spec.shaped(M=q.shape[0], N=k.shape[0], K=q.shape[2], B=q.shape[1])
    taps = _grouped(entered_values(q, spec), entered_values(k, spec).transpose(1, 2, 0), spec)
    assert taps.acc is not None
    acc_format = spec.precision.acc.format or spec.output
    fills = (None, hidden_in(acc_format), hidden_in(spec.output))
    return taps._replace(acc=_masked(taps.acc, acc_format), out=_masked(taps.out, spec.output), fills=fills)


def weighted_values(p: Array, v: Array, spec: SiteSpec, *, factor: Array | None = None) -> Taps:
    """Probabilities times values. p (T, H, S), v (S, G, C); the result (T, H, C).

    A key that a query does not see adds a term of 0, or no term where that would move the sum. `factor` (T, H) is for
    probabilities that are not normalised yet: the reciprocals of their sums.
    **Rounds:** p and v to the storage; then as `reduce.matmul`. The accumulator times a factor is rounded to the
    accumulator's format before the rounding to the output.
    """
    spec = spec.shaped(M=p.shape[0], N=v.shape[2], K=p.shape[2], B=p.shape[1])
    at = spec.precision
    taps = _over_seen_keys(entered_values(p, spec), entered_values(v, spec), spec)._replace(fills=(0.0, None, None))
    if factor is None:
        return taps
    assert taps.acc is not None
    product = widen(taps.acc) * widen(factor)[..., None]
    normalised = round_wide(product, at.acc.format or spec.output, **at.rules("acc"))
    return taps._replace(out=reduce.rounded_output(normalised, at).out)


def _over_seen_keys(left: Array, right: Array, spec: SiteSpec) -> Taps:
    """left (T, H, S) times right (S, G, C). A query whose sum more terms of 0 would change is summed over its own keys.

    That is each query where `_is_moved_by_zeros` or a value is not finite (0 times a later infinity would be NaN), and
    any whose sum is a zero: a fused product below the subnormals leaves -0, which a term of +0 would make +0.
    """
    positions, at = len(left), spec.precision
    if _is_moved_by_zeros(at) or not np.isfinite(right).all():
        alone, padding = np.arange(positions), not _is_moved_by_zeros(at)
        taps = Taps(left, left[:0], left[:0])
    else:
        taps, padding = _grouped(left, right.transpose(1, 0, 2), spec), False
        assert taps.acc is not None
        is_zero = (taps.acc == 0).any(axis=(1, 2)) & at.order.is_shape_free
        alone = np.flatnonzero(is_zero[:-1])  # the last query sees every key
    rows = {int(t): _one_query(left, right, int(t), spec, padding) for t in alone}
    return _with_rows(taps, rows, positions) if rows else taps


def _one_query(left: Array, right: Array, t: int, spec: SiteSpec, padding: bool) -> Taps:
    """Query t of left (T, H, S) over the keys that it sees, right (S, G, C); with `padding`, zeros for the others."""
    seen = right[: len(right) - len(left) + t + 1]
    if padding:
        seen = np.concatenate([seen, np.zeros_like(right[len(seen) :])])
    return _grouped(left[t : t + 1, :, : len(seen)], seen.transpose(1, 0, 2), spec)


def _with_rows(taps: Taps, rows: dict[int, Taps], positions: int) -> Taps:
    """The taps with the given queries in place of their own."""

    def stacked(stage: str) -> Array:
        whole: Array = getattr(taps, stage)
        return np.concatenate([getattr(rows[t], stage) if t in rows else whole[t : t + 1] for t in range(positions)])

    def terms(index: tuple[int, ...]) -> tuple[int, int]:
        tell = rows[index[0]].terms if index[0] in rows else taps.terms
        assert tell is not None
        return tell((0, *index[1:]) if index[0] in rows else index)

    formats = {row.acc_format for row in rows.values()}
    return taps._replace(acc=stacked("acc"), out=stacked("out"), terms=terms, acc_format=formats.pop())


def _is_moved_by_zeros(at: Precision) -> bool:
    """True where a further term of 0 can change a sum: Kahan's correction enters with it; +0 + -0 is -0 downward."""
    return at.acc.method == "kahan" or at.rounding.acc == "toward_negative"


def _grouped(left: Array, right: Array, spec: SiteSpec) -> Taps:
    """left (T, H, K) times right (G, K, N), the R heads of a group as further rows: (T, H, N)."""
    at = spec.precision
    positions, _, length = left.shape
    groups, share = right.shape[0], left.shape[1] // right.shape[0]
    stages = [
        reduce.matmul_stages(left[:, g * share : (g + 1) * share].reshape(-1, length), right[g], at)
        for g in range(groups)
    ]
    acc, out = (np.concatenate([part[i].reshape(positions, share, -1) for part in stages], axis=1) for i in range(2))

    def terms(index: tuple[int, ...]) -> tuple[int, int]:
        position, head, column = index
        return terms_left(left[position, head], right[head // share][:, column], at)

    return Taps(left, acc, out, terms, acc_format=at.acc.format)


def scale(x: Array, factor: float, spec: SiteSpec) -> Taps:
    """Scores times a positive factor. x (T, H, S); the factor is held in `compute`. **Rounds:** once, to the output."""
    held = round_wide(np.array([factor]), spec.compute)
    entered = _masked(entered_values(x, spec), spec.storage)
    out = _masked(given_values(widen(entered) * held, spec), spec.output)
    return Taps(entered, None, out, fills=(hidden_in(spec.storage), None, hidden_in(spec.output)))


def is_hidden(positions: int, length: int) -> Array:
    """(T, 1, S): True where a key lies after its query."""
    hidden: Array = np.arange(length)[None, :] > (np.arange(positions) + length - positions)[:, None]
    return hidden[:, None, :]


def _masked(x: Array, fmt: Format) -> Array:
    return np.where(is_hidden(x.shape[0], x.shape[-1]), np.array(hidden_in(fmt), x.dtype), x)


def softmax(x: Array, spec: SiteSpec) -> tuple[Taps, Array | None]:
    """exp(x - max) / sum of it, over the last axis. x (T, H, S), `HIDDEN` where not seen; the result (T, H, S).

    With normalise=after the result is not divided yet: then the second value is 1/sum (T, H), else None.
    **Rounds:** to `compute`: x - max, its exponential (exp=correct: correctly rounded), the sum, and the division (or,
    with form=reciprocal, 1/sum and the product with it). Terms enter the sum as rounded to `product`; the sum is made
    in `acc` and `order`. Last, to the output.
    """
    spec = spec.shaped(M=x.shape[0], N=x.shape[1], K=x.shape[2])
    c, at = spec.compute, spec.precision
    entered = _masked(entered_values(x, spec), spec.storage)
    wide = np.where(is_hidden(x.shape[0], x.shape[-1]), HIDDEN, widen(entered))
    with np.errstate(invalid="ignore"):
        lowered = round_wide(wide - wide.max(axis=-1, keepdims=True), c)
    terms = exponential(lowered, spec)
    acc, total = _sums_of_seen(_as_terms(terms, at), at.with_storage(at.product or c).with_output(c))
    acc_format = at.acc.format or c
    taps = Taps(entered, acc, entered, fills=(hidden_in(spec.storage), None, 0.0), acc_format=acc_format)
    if spec.options["normalise"] == "after":
        return taps._replace(out=given_values(terms, spec)), ops.div(1.0, widen(total), c)
    denominator = widen(total)[..., None]
    if spec.options["form"] == "reciprocal":
        quotient = round_wide(terms * widen(ops.div(1.0, denominator, c)), c)
    else:
        quotient = widen(ops.div(terms, denominator, c))
    return taps._replace(out=given_values(quotient, spec)), None


def _sums_of_seen(terms: Array, at: Precision) -> reduce.Stages:
    """The sums over the last axis of terms (T, H, S), +0 at the keys that are not seen, which are left out at need."""
    if not _is_moved_by_zeros(at):
        return reduce.sum_stages(terms, at)
    positions, length = terms.shape[0], terms.shape[-1]
    parts = [reduce.sum_stages(terms[t, :, : length - positions + t + 1], at) for t in range(positions)]
    return reduce.Stages(*(np.stack([part[i] for part in parts]) for i in range(2)))


def _as_terms(terms: Float64Array, at: Precision) -> Array:
    if at.product is None:
        return terms
    return carry(round_wide(terms, at.product, **at.rules("product")), at.product)
