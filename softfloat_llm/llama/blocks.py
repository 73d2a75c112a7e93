"""The blocks of a Llama as pure functions: arrays and a SiteSpec in, the site's taps out.

Each function says in its docstring what is rounded, and when; no format stands here by name. Shape letters: T query
positions, S key positions, D hidden, H query heads, G kv heads, R = H/G, C head size, F mlp size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from softfloat_llm.numerics import functions, ops, reduce
from softfloat_llm.numerics.accumulate import arithmetic_of, terms_of, terms_until_nonfinite
from softfloat_llm.numerics.engine_functions import EXPONENTIALS
from softfloat_llm.numerics.formats import Array, Float64Array, Format
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import carry, round_block, round_sum, round_wide, widen
from softfloat_llm.site_specs import SiteSpec


class Taps(NamedTuple):
    """What a site took, what its sum was before the last rounding (None where it has none), and what it gave.

    `terms` tells after how many terms the sum at an index left the finite range, and of how many. `fills` is for taps
    whose last axis is S: what (enter, acc, out) hold for a key that the query does not see. `enter_format` and
    `acc_format` are given where they are not the site's storage and accumulator.
    """

    enter: Array
    acc: Array | None
    out: Array
    terms: Callable[[tuple[int, ...]], tuple[int, int]] | None = None
    fills: tuple[float | None, float | None, float | None] = (None, None, None)
    enter_format: Format | None = None
    acc_format: Format | None = None


HIDDEN = float("-inf")  # the score of a key that the query does not see: its exponential is +0


def hidden_in(fmt: Format) -> float:
    """What the tap of a hidden score holds: -inf, or what a format without it has in its place (NaN in e4m3fn)."""
    return float(round_wide(np.array([HIDDEN]), fmt)[0])


def stored(x: Array, fmt: Format, at: Precision) -> Array:
    """x (...) as the storage stage keeps it: rounded once to the format where it does not lie in it already."""
    if fmt.has_own_dtype and x.dtype == fmt.dtype:
        return x
    return round_block(x, fmt, **at.rules("storage"))


def _entered(x: Array, spec: SiteSpec) -> Array:
    return stored(x, spec.storage, spec.precision)


def _out(wide: Float64Array, spec: SiteSpec) -> Array:
    """Exact or wider values, rounded once to the site's output."""
    return carry(round_wide(wide, spec.output, **spec.precision.rules("output")), spec.output)


# --- linear layers ----------------------------------------------------------------------------------------------------


def linear(x: Array, weight: Array, spec: SiteSpec, *, bias: Array | None = None, workers: int = 1) -> Taps:
    """x W^T (+ bias). x (T, K); weight (N, K) in the site's storage; the result (T, N).

    **Rounds:** x to the storage; then as `reduce.matmul`. A bias is added to the accumulator, in its format, before the
    rounding to the output; to an exact accumulator it is one more term.
    """
    at = spec.shaped(M=x.shape[0], N=weight.shape[0], K=weight.shape[1]).precision
    entered = _entered(x, spec)
    is_term = bias is not None and at.acc.format is None
    acc, out = reduce.matmul_stages(entered, weight.T, at, init=bias if is_term else None, workers=workers)
    if bias is not None and not is_term:
        acc, out = _with_bias(acc, bias, at)

    def terms(index: tuple[int, ...]) -> tuple[int, int]:
        row, column = index
        return terms_left(entered[row], weight[column], at)

    return Taps(entered, acc, out, terms, acc_format=at.acc.format)


def _with_bias(acc: Array, bias: Array, at: Precision) -> reduce.Stages:
    assert at.acc.format is not None
    total = round_sum(widen(acc), np.broadcast_to(widen(bias), acc.shape), at.acc.format, **at.rules("acc"))
    return reduce.rounded_output(total, at)


def terms_left(a: Array, b: Array, at: Precision) -> tuple[int, int]:
    """After how many terms the sum of a*b (K,) left the finite range (K where only at the end), and K."""
    n = len(a)
    if at.acc.format is None:
        return n, n
    with np.errstate(all="ignore"):
        terms, steps = terms_of(a, b, at), arithmetic_of(at.acc, at)
        return terms_until_nonfinite(at.order.tree(n).program(), terms, steps, n), n


# --- norm -------------------------------------------------------------------------------------------------------------


def rms_norm(x: Array, weight: Array, spec: SiteSpec, eps: float) -> Taps:
    """x / sqrt(mean(x^2) + eps) * weight. x (T, D), weight (D,); the result (T, D).

    **Rounds:** squares to `product`, their sum in `acc` and `order`, then to `compute`: the sum, mean, + eps, the
    reciprocal root (one rounding, or two with root=one-over-sqrt), x times it. Then form=round-then-weight: to the
    output, and again after the weight; weight-then-round: times the weight in `compute`, then once to the output.
    """
    spec = spec.shaped(M=x.shape[0], K=x.shape[1])
    c, at = spec.compute, spec.precision
    entered, scale = _entered(x, spec), _entered(weight, spec)
    inner = at.with_output(c)
    acc, total = reduce.dot_stages(entered, entered, inner)  # (T,)
    acc_format = c if at.acc.format is None else None  # an exact sum stands in the tap as it is first rounded
    mean = ops.div(widen(total), float(x.shape[-1]), c)  # (T,)
    shifted = ops.add(widen(mean), eps_in(eps, c), c)  # (T,)
    if spec.options["root"] == "rsqrt":
        root = functions.rsqrt(shifted, c)  # one rounding: it differs from two on 27.7 % of normal bf16 inputs
    else:
        root = ops.div(1.0, widen(ops.sqrt(shifted, c)), c)
    with np.errstate(invalid="ignore"):  # inf * 0 is NaN
        normal = round_wide(widen(entered) * widen(root)[:, None], c)  # (T, D)
        if spec.options["form"] == "round-then-weight":
            out = _out(widen(_out(normal, spec)) * widen(scale), spec)
        else:
            out = _out(round_wide(normal * widen(scale), c), spec)
    return Taps(entered, acc, out, acc_format=acc_format)


def eps_in(eps: float, compute: Format) -> float:
    """eps as the format of the norm's steps holds it (in f16, 1e-8 is 0)."""
    return float(round_wide(np.array([eps]), compute)[0])


# --- rotary positions -------------------------------------------------------------------------------------------------


def rotate(x: Array, cos: Array, sin: Array, spec: SiteSpec) -> Taps:
    """Half-split rotation: (x1 cos - x2 sin, x2 cos + x1 sin). x (T, H, C); cos, sin (T, C/2); the result (T, H, C).

    **Rounds:** form=each: both products and their sum, to the output; once: the exact value, to the output.
    """
    entered = _entered(x, spec)
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


# --- attention --------------------------------------------------------------------------------------------------------


def scores(q: Array, k: Array, spec: SiteSpec) -> Taps:
    """q k^T for each head with the keys of its group. q (T, H, C), k (S, G, C); the result (T, H, S).

    Query t stands at S - T + t; the scores of later keys are `HIDDEN`.
    **Rounds:** q and k to the storage; then as `reduce.matmul`.
    """
    spec = spec.shaped(M=q.shape[0], N=k.shape[0], K=q.shape[2], B=q.shape[1])
    taps = _grouped(_entered(q, spec), _entered(k, spec).transpose(1, 2, 0), spec)
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
    taps = _over_seen_keys(_entered(p, spec), _entered(v, spec), spec)._replace(fills=(0.0, None, None))
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
    entered = _masked(_entered(x, spec), spec.storage)
    out = _masked(_out(widen(entered) * held, spec), spec.output)
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
    entered = _masked(_entered(x, spec), spec.storage)
    wide = np.where(is_hidden(x.shape[0], x.shape[-1]), HIDDEN, widen(entered))
    with np.errstate(invalid="ignore"):
        lowered = round_wide(wide - wide.max(axis=-1, keepdims=True), c)
    terms = exponential(lowered, spec)
    acc, total = _sums_of_seen(_as_terms(terms, at), at.with_storage(at.product or c).with_output(c))
    acc_format = at.acc.format or c
    taps = Taps(entered, acc, entered, fills=(hidden_in(spec.storage), None, 0.0), acc_format=acc_format)
    if spec.options["normalise"] == "after":
        return taps._replace(out=_out(terms, spec)), ops.div(1.0, widen(total), c)
    denominator = widen(total)[..., None]
    if spec.options["form"] == "reciprocal":
        quotient = round_wide(terms * widen(ops.div(1.0, denominator, c)), c)
    else:
        quotient = widen(ops.div(terms, denominator, c))
    return taps._replace(out=_out(quotient, spec)), None


def exponential(x: Float64Array, spec: SiteSpec) -> Float64Array:
    """e^x (...) in `compute`: correctly rounded, or as the engine that the option `exp` names has it."""
    name = spec.options["exp"]
    return functions.exp_wide(x, spec.compute) if name == "correct" else EXPONENTIALS[name](x)


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


# --- elementwise ------------------------------------------------------------------------------------------------------


def silu(gate: Array, spec: SiteSpec) -> Taps:
    """gate / (1 + exp(-gate)). gate (T, F); the result (T, F).

    **Rounds:** to `compute`: the exponential (exp=correct: correctly rounded), 1 + it, the quotient; then once to the
    output.
    """
    c = spec.compute
    entered = _entered(gate, spec)
    wide = widen(entered)
    denominator = ops.add(1.0, exponential(-wide, spec), c)
    return Taps(entered, None, _out(widen(ops.div(wide, widen(denominator), c)), spec))


def multiply(x: Array, y: Array, spec: SiteSpec) -> Taps:
    """x times y, both (T, F) stored first. **Rounds:** once, to the output."""
    entered = _entered(x, spec)
    with np.errstate(invalid="ignore"):
        return Taps(entered, None, _out(widen(entered) * widen(_entered(y, spec)), spec))


def residual(stream: Array, x: Array, spec: SiteSpec) -> Taps:
    """stream + x, both (T, D) stored first. **Rounds:** once, to the output."""
    entered = _entered(x, spec)
    total = round_sum(widen(_entered(stream, spec)), widen(entered), spec.output, **spec.precision.rules("output"))
    return Taps(entered, None, carry(total, spec.output))


def embedding(rows: Array, spec: SiteSpec) -> Taps:
    """Gathered rows (T, D). **Rounds:** to the storage, then to the output (usually the same format)."""
    entered = _entered(rows, spec)
    return Taps(entered, None, _out(widen(entered), spec))
