"""The blocks of a Llama but for attention, as pure functions: arrays and a SiteSpec in, the site's taps out.

Each function says in its docstring what is rounded, and when; no format stands here by name. Shape letters: T query
positions, D hidden, F mlp size, N columns, K summed.
"""

from __future__ import annotations

import numpy as np

from softfloat_llm.llama.taps import Taps, entered_values, exponential, given_values, terms_left
from softfloat_llm.numerics import functions, ops, reduce
from softfloat_llm.numerics.formats import Array, Format
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import carry, round_sum, round_wide, widen
from softfloat_llm.site_specs import SiteSpec

# --- linear layers ----------------------------------------------------------------------------------------------------


def linear(x: Array, weight: Array, spec: SiteSpec, *, bias: Array | None = None, workers: int = 1) -> Taps:
    """x W^T (+ bias). x (T, K); weight (N, K) in the site's storage; the result (T, N).

    **Rounds:** x to the storage; then as `reduce.matmul`. A bias is added to the accumulator, in its format, before the
    rounding to the output; to an exact accumulator it is one more term.
    """
    at = spec.shaped(M=x.shape[0], N=weight.shape[0], K=weight.shape[1]).precision
    entered = entered_values(x, spec)
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


# --- norm -------------------------------------------------------------------------------------------------------------


def rms_norm(x: Array, weight: Array, spec: SiteSpec, eps: float) -> Taps:
    """x / sqrt(mean(x^2) + eps) * weight. x (T, D), weight (D,); the result (T, D).

    **Rounds:** squares to `product`, their sum in `acc` and `order`, then to `compute`: the sum, mean, + eps, the
    reciprocal root (one rounding, or two with root=one-over-sqrt), x times it. Then form=round-then-weight: to the
    output, and again after the weight; weight-then-round: times the weight in `compute`, then once to the output.
    """
    spec = spec.shaped(M=x.shape[0], K=x.shape[1])
    c, at = spec.compute, spec.precision
    entered, scale = entered_values(x, spec), entered_values(weight, spec)
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
            out = given_values(widen(given_values(normal, spec)) * widen(scale), spec)
        else:
            out = given_values(round_wide(normal * widen(scale), c), spec)
    return Taps(entered, acc, out, acc_format=acc_format)


def eps_in(eps: float, compute: Format) -> float:
    """eps as the format of the norm's steps holds it (in f16, 1e-8 is 0)."""
    return float(round_wide(np.array([eps]), compute)[0])


# --- elementwise ------------------------------------------------------------------------------------------------------


def silu(gate: Array, spec: SiteSpec) -> Taps:
    """gate / (1 + exp(-gate)). gate (T, F); the result (T, F).

    **Rounds:** to `compute`: the exponential (exp=correct: correctly rounded), 1 + it, the quotient; then once to the
    output.
    """
    c = spec.compute
    entered = entered_values(gate, spec)
    wide = widen(entered)
    denominator = ops.add(1.0, exponential(-wide, spec), c)
    return Taps(entered, None, given_values(widen(ops.div(wide, widen(denominator), c)), spec))


def multiply(x: Array, y: Array, spec: SiteSpec) -> Taps:
    """x times y, both (T, F) stored first. **Rounds:** once, to the output."""
    entered = entered_values(x, spec)
    with np.errstate(invalid="ignore"):
        return Taps(entered, None, given_values(widen(entered) * widen(entered_values(y, spec)), spec))


def residual(stream: Array, x: Array, spec: SiteSpec) -> Taps:
    """stream + x, both (T, D) stored first. **Rounds:** once, to the output."""
    entered = entered_values(x, spec)
    total = round_sum(
        widen(entered_values(stream, spec)), widen(entered), spec.output, **spec.precision.rules("output")
    )
    return Taps(entered, None, carry(total, spec.output))


def embedding(rows: Array, spec: SiteSpec) -> Taps:
    """Gathered rows (T, D). **Rounds:** to the storage, then to the output (usually the same format)."""
    entered = entered_values(rows, spec)
    return Taps(entered, None, given_values(widen(entered), spec))
