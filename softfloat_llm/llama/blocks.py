"""The blocks of a Llama but for attention, as pure functions: arrays and a SiteSpec in, the site's taps out.

Each function says in its docstring what is rounded, and when; no format stands here by name. Shape letters: T query
positions, D hidden, F mlp size, N columns, K summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from softfloat_llm.llama.by_code import by_code
from softfloat_llm.llama.products import product, products
from softfloat_llm.llama.taps import (
    Taps,
    are_sums_small,
    as_scaled,
    entered_values,
    exponential,
    given_values,
    held_in,
    terms_left,
)
from softfloat_llm.numerics import functions, ops, reduce
from softfloat_llm.numerics.carriers import carry, widen
from softfloat_llm.numerics.crew import ALONE, Crew
from softfloat_llm.numerics.elementwise import number_in, product_of, quotient_of, sum_of
from softfloat_llm.numerics.formats import Array, Float64Array, Format, f32
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import round_carried, round_held_sum, round_sum, round_wide
from softfloat_llm.numerics.scaled import Counts
from softfloat_llm.numerics.side_by_side import SideBySide
from softfloat_llm.site_specs import SiteSpec

# --- linear layers ----------------------------------------------------------------------------------------------------


class Layer(NamedTuple):
    """A linear layer: weight (N, K) and bias (N,) in the site's storage."""

    weight: Array
    spec: SiteSpec
    bias: Array | None = None

    def shaped(self, x: Array) -> Layer:
        """The same with what applies to this input (T, K)."""
        if not self.spec.rules:
            return self
        return self._replace(spec=self.spec.shaped(M=x.shape[0], N=self.weight.shape[0], K=self.weight.shape[1]))


def linear(
    x: Array,
    weight: Array,
    spec: SiteSpec,
    *,
    bias: Array | None = None,
    turned: SideBySide | None = None,
    crew: Crew = ALONE,
) -> Taps:
    """x W^T (+ bias). x (T, K); weight (N, K) in the site's storage, `turned` its W^T; the result (T, N).

    **Rounds:** x as the option `activations` says, then to the storage; then as `reduce.matmul`. A bias is added to the
    accumulator, in its format, before the rounding to the output; to an exact accumulator it is one more term.
    """
    layer = Layer(weight, spec, bias).shaped(x)
    scaled, lost = as_scaled(x, spec.options["activations"])
    entered = entered_values(scaled, layer.spec)
    init = bias if layer.spec.precision.acc.format is None else None
    stages = product(entered, turned or weight.T, layer.spec, init=init, crew=crew)
    return _taps_of(layer, entered, stages, lost)


def linears(x: Array, layers: Sequence[Layer], *, turned: SideBySide | None = None, crew: Crew = ALONE) -> list[Taps]:
    """Several layers of one input, as `linear` makes each of them. `turned`: their weights W^T."""
    shaped = [layer.shaped(x) for layer in layers]
    specs = [layer.spec for layer in shaped]
    if not _take_alike(tuple((spec.options["activations"], spec.precision) for spec in specs)):
        return [linear(x, layer.weight, layer.spec, bias=layer.bias, crew=crew) for layer in layers]
    scaled, lost = as_scaled(x, specs[0].options["activations"])
    entered = entered_values(scaled, specs[0])
    weights = turned or SideBySide(tuple(layer.weight.T for layer in shaped))
    made = products(entered, weights, specs, crew=crew)
    return [_taps_of(layer, entered, stages, lost) for layer, stages in zip(shaped, made, strict=True)]


@lru_cache(maxsize=64)
def _take_alike(layers: tuple[tuple[str, Precision], ...]) -> bool:
    """True where layers, by `activations` and stages, store one input alike, and none has an exact accumulator."""
    takes = {(word, at.storage, *at.rules("storage").values()) for word, at in layers}
    return len(takes) == 1 and all(at.acc.format is not None for _, at in layers)


def _taps_of(layer: Layer, entered: Array, stages: reduce.Stages, lost: Counts | None) -> Taps:
    """The taps of a layer whose spec is `shaped`. entered (T, K)."""
    weight, spec, bias = layer
    at = spec.precision
    acc, out = stages if bias is None or at.acc.format is None else _with_bias(stages.acc, bias, at)

    def terms(index: tuple[int, ...]) -> tuple[int, int]:
        (row, column), sizes = index, {"M": entered.shape[0], "N": weight.shape[0]}
        return terms_left(entered[row], weight[column], spec.precision_at(sizes, row, column))

    is_finite = are_sums_small(acc, at.output)
    return Taps(entered, acc, out, terms, acc_format=at.acc.format, lost=lost, is_finite=is_finite)


def _with_bias(acc: Array, bias: Array, at: Precision) -> reduce.Stages:
    assert at.acc.format is not None
    total = round_sum(widen(acc), np.broadcast_to(widen(bias), acc.shape), at.acc.format, **at.rules("acc"))
    return reduce.rounded_output(total, at)


# --- norm -------------------------------------------------------------------------------------------------------------


def rms_norm(x: Array, weight: Array, spec: SiteSpec, eps: float, *, unrounded: Array | None = None) -> Taps:
    """x / sqrt(mean(x^2) + eps) * weight. x (T, D), weight (D,); the result (T, D).

    `unrounded` (T, D) is the stream before it was rounded to be stored, for takes=unrounded (used in place of x) and
    takes=unrounded-statistics (in the mean only).
    **Rounds:** squares to `product`, their sum in `acc` and `order`, then to `compute`: the sum, mean, + eps, and the
    root (see `_root`). Then form=round-then-weight: x times it to `compute` and to the output, and again after the
    weight; weight-then-round: x times it and times the weight, each to `compute`, then once to the output;
    weight-first: the same, the weight before the root.
    """
    spec = spec.shaped(M=x.shape[0], K=x.shape[1])
    takes, c = spec.options.get("takes", "stored"), spec.compute
    measured = entered = entered_values(x, spec)
    if takes != "stored":
        measured = _in_compute(x if unrounded is None else unrounded, c)
    if takes == "unrounded":
        entered = measured
    acc, root = _root(measured, spec, eps)
    out = _weighted(entered, entered_values(weight, spec), root[:, None], spec)
    acc_format = c if spec.precision.acc.format is None else None  # an exact sum stands in the tap as first rounded
    return Taps(entered, acc, out, acc_format=acc_format, enter_format=c if takes == "unrounded" else None)


def _in_compute(x: Array, c: Format) -> Array:
    """x as the format of the norm's steps holds it: itself, where that is the format of the residual's sum."""
    return x if c.has_own_dtype and x.dtype == c.dtype else round_carried(widen(x), c)


def _root(x: Array, spec: SiteSpec, eps: float) -> tuple[Array, Array]:
    """The sum of squares in its accumulator, and what x is to be multiplied with (divided by, root=divide). Both (T,).

    **Rounds:** root=rsqrt: once to `compute`; one-over-sqrt: the root and 1 over it; divide: the root. Then to
    `root_format`.
    """
    c = spec.compute
    at = spec.precision.with_output(c)
    taken = at if spec.options.get("takes", "stored") == "stored" else at.with_storage(c)
    sums = reduce.square_stages(x, taken)  # (T,)
    shifted = widen(sum_of(_mean(sums, x.shape[-1], spec), number_in(eps, c), c))  # (T,)
    if spec.options["root"] == "rsqrt":
        root = functions.rsqrt_wide(shifted, c)  # one rounding: it differs from two on 27.7 % of normal bf16 inputs
    else:
        root = ops.sqrt_wide(shifted, c)
    if spec.options["root"] == "one-over-sqrt":
        root = ops.div_wide(1.0, root, c)
    kept = spec.format_of("root_format")
    return sums.acc, carry(root, c) if kept is c else round_carried(root, kept)


def _mean(sums: reduce.Stages, n: int, spec: SiteSpec) -> Array:
    """The mean of n terms from their sums (T,). **Rounds:** as the option `mean` says."""
    c, acc = spec.compute, spec.precision.acc.format
    if spec.options["mean"] == "times-reciprocal":
        return product_of(sums.out, np.asarray(ops.div(1.0, float(n), c)), c)
    if spec.options["mean"] == "divide-accumulator" and acc is not None:
        return round_carried(widen(ops.div(widen(sums.acc), float(n), acc)), c)
    return quotient_of(sums.out, number_in(n, f32), c)


def _weighted(x: Array, weight: Array, root: Array, spec: SiteSpec) -> Array:
    """x (T, D) times root (T, 1) (over it, root=divide) times weight (D,), in the order and roundings of `form`."""
    c, form = spec.compute, spec.options["form"]
    normal = quotient_of if spec.options["root"] == "divide" else product_of
    if form == "weight-first":
        return given_values(normal(product_of(x, weight, c), root, c), spec)
    if form == "weight-then-round":
        return given_values(product_of(normal(x, root, c), weight, c), spec)
    return product_of(given_values(normal(x, root, c), spec), weight, spec.output, spec.precision.rules("output"))


# --- elementwise ------------------------------------------------------------------------------------------------------


def silu(gate: Array, spec: SiteSpec) -> Taps:
    """gate / (1 + exp(-gate)). gate (T, F); the result (T, F).

    **Rounds:** form=quotient: to `compute` the exponential (exp=correct: correctly rounded), 1 + it, the quotient; then
    once to the output. stepwise: each of the three to `compute` and to the output. times-sigmoid: the exponential,
    1 + it and 1 over that to `compute`, that to the output, and its product with gate to the output.
    times-even-sigmoid: as `_even_sigmoid`, and its product with gate to the output.
    """
    entered = entered_values(gate, spec)
    return Taps(entered, None, by_code(_silu_of, entered, spec))


def _silu_of(gate: Array, spec: SiteSpec) -> Array:
    """silu of a gate as it is stored."""
    c, form, wide = spec.compute, spec.options["form"], widen(gate)
    if form == "stepwise":
        grown = widen(given_values(exponential(-wide, spec), spec))
        below = widen(given_values(_one_and(grown, c), spec))
        return given_values(ops.div_wide(wide, below, c), spec)
    if form == "times-even-sigmoid":
        sigmoid = _even_sigmoid(wide, spec)
    else:
        below = _one_and(exponential(-wide, spec), c)
        if form == "quotient":
            return given_values(ops.div_wide(wide, below, c), spec)
        sigmoid = given_values(ops.div_wide(1.0, below, c), spec)
    with np.errstate(invalid="ignore"):  # -inf * 0 is NaN
        return given_values(wide * widen(sigmoid), spec)


def _even_sigmoid(x: Float64Array, spec: SiteSpec) -> Array:
    """1 / (1 + exp|x|) for x < 0, 1 less it for the others. x and the result (T, F).

    **Rounds:** the exponential to `compute` and the output; 1 + it, 1 over that, and 1 less that to `compute`; last, to
    the output.
    """
    grown = widen(given_values(exponential(np.abs(x), spec), spec))
    below = ops.div_wide(1.0, _one_and(grown, spec.compute), spec.compute)
    return given_values(np.where(x < 0, below, _one_and(-below, spec.compute)), spec)


def _one_and(x: Float64Array, c: Format) -> Float64Array:
    """1 + x for values of `compute`. **Rounds:** once, to `compute`."""
    return round_held_sum(x, _ONE, c)


_ONE = np.array(1.0)


def multiply(x: Array, y: Array, spec: SiteSpec) -> Taps:
    """x times y, both (T, F) stored first. **Rounds:** to `compute`, unless that is exact; then to the output."""
    entered, other = entered_values(x, spec), entered_values(y, spec)
    if spec.options["compute"] == "exact":
        return Taps(entered, None, product_of(entered, other, spec.output, spec.precision.rules("output")))
    return Taps(entered, None, given_values(product_of(entered, other, spec.format_of("compute")), spec))


def residual(stream: Array, x: Array, spec: SiteSpec) -> Taps:
    """stream + x, both (T, D) stored first. **Rounds:** once, to the output."""
    entered = entered_values(x, spec)
    total = sum_of(entered_values(stream, spec), entered, spec.output, spec.precision.rules("output"))
    return Taps(entered, None, total)


def unrounded_residual(stream: Array, x: Array, spec: SiteSpec) -> Array:
    """stream + x (T, D) as it is before it is stored, for norms that take that. **Rounds:** once, to `compute`.

    What is stored is still the exact sum rounded once: of operands of 11 bits or less it is also this sum rounded, if
    that has f32's 24 (2 * 11 + 2; Figueroa 1995).
    """
    total = round_sum(widen(entered_values(stream, spec)), widen(entered_values(x, spec)), spec.compute, "ties_to_even")
    return carry(total, spec.compute)


def embedding(rows: Array, spec: SiteSpec, *, factor: float = 1.0) -> Taps:
    """Gathered rows (T, D), times a factor. **Rounds:** to the storage, then to the output (usually the same format).

    With a factor other than 1, once more as `times`.
    """
    entered = entered_values(rows, spec)
    given = given_values(widen(entered), spec)
    return Taps(entered, None, given if factor == 1 else times(given, factor, spec))


def times(x: Array, factor: float, spec: SiteSpec) -> Array:
    """x (...) times a number of the config. **Rounds:** the number and the product to `compute`, then to the output.

    **Source:** PyTorch 2.13.0 has a Python number in f32 beside a tensor in bf16 or f16 (aten BinaryOpsKernel.cpp,
    opmath_t), as transformers' modeling_granite.py multiplies.
    """
    return given_values(round_wide(widen(x) * held_in(factor, spec.compute), spec.compute), spec)


def divided(taps: Taps, divisor: float, spec: SiteSpec) -> Taps:
    """The taps with what was given over a number of the config. **Rounds:** as `times`, with the quotient."""
    held = held_in(divisor, spec.compute)
    out = given_values(widen(ops.div(widen(taps.out), held, spec.compute)), spec)
    return taps.with_out(out)
