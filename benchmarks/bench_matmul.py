"""Every form of matmul, a product at a time, and the widening of weights, against plain NumPy passes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks.rows import Goal, Row
from benchmarks.settings import Settings, Shape, operands, spelled
from benchmarks.timing import in_passes
from softfloat_llm.numerics import kernels
from softfloat_llm.numerics.operands import carried
from softfloat_llm.numerics.precision import precision_of

SHAPES: dict[str, Shape] = {  # (M, K, N) of SmolLM2-135M's matrices
    "up": (5, 576, 1536), "down": (8, 1536, 576), "decode up": (1, 576, 1536), "decode down": (1, 1536, 576),
    "prefill": (48, 576, 1536), "head": (5, 576, 49152), "scores 5": (5, 64, 5), "scores 24": (24, 64, 24),
    "values 24": (24, 24, 64),
}  # fmt: skip


class Form(NamedTuple):
    """A precision, and the dtype of the passes that it is counted in."""

    name: str
    text: str
    dtype: type


MAIN = (
    Form("f16 to f32, exact products", "storage=f16,acc=f32", np.float32),
    Form("bf16 to f32, exact products", "storage=bf16,acc=f32", np.float32),
    Form("f32, rounded products", "storage=f32,acc=f32,product=f32", np.float32),
    Form("f32 fma", "storage=f32,acc=f32", np.float64),
    Form("f16 fma", "storage=f16,acc=f16", np.float64),
    Form("f16, rounded products", "storage=f16,acc=f16,product=f16", np.float64),
    Form("bf16 fma", "storage=bf16,acc=bf16", np.float64),
    Form("bf16, rounded products", "storage=bf16,acc=bf16,product=bf16", np.float64),
)
OTHERS = (
    Form("bf16 to f32, flushing", "storage=bf16,acc=f32,subnormals=ftz+daz", np.float32),
    Form("e4m3fn to f32", "storage=e4m3fn,acc=f32", np.float32),
    Form("e4m3fn to f16", "storage=e4m3fn,acc=f16", np.float64),
    Form("tf32 to f32", "storage=tf32,acc=f32", np.float32),
    Form("f64", "storage=f64,product=f64,acc=f64", np.float64),
    Form("e5m2 accumulator", "storage=e5m2,acc=e5m2", np.float64),
    Form("e4m3fn accumulator", "storage=e4m3fn,acc=e4m3fn", np.float64),
    Form("f16, toward zero", "storage=f16,acc=f16,acc.rounding=toward_zero", np.float64),
    Form("f16, toward positive", "storage=f16,acc=f16,acc.rounding=toward_positive", np.float64),
    Form("f16, ties to away", "storage=f16,acc=f16,acc.rounding=ties_to_away", np.float64),
    Form("f16, to odd", "storage=f16,acc=f16,acc.rounding=to_odd", np.float64),
    Form("f16 to f32, toward zero", "storage=f16,acc=f32,acc.rounding=toward_zero", np.float64),
    Form("f16, saturating", "storage=f16,acc=f16,overflow=saturate", np.float64),
    Form("f16, flushing", "storage=f16,acc=f16,subnormals=ftz", np.float64),
    Form("f16, stochastic", "storage=f16,acc=f16,acc.rounding=stochastic", np.float64),
    Form("f32, Kahan", "storage=f16,acc=f32+kahan", np.float64),
    Form("f16, Kahan", "storage=f16,acc=f16+kahan", np.float64),
    Form("f16, Neumaier", "storage=f16,acc=f16+neumaier", np.float64),
    Form("f16 to f32, unit nvidia-hopper-f16", "storage=f16,acc=f32,order=fused:nvidia-hopper-f16", np.float64),
    Form("f16 to f32, unit nvidia-volta-f16", "storage=f16,acc=f32,order=fused:nvidia-volta-f16", np.float64),
    Form("exact sum of f16", "storage=f16,acc=exact", np.float64),
)
ORDERS = ("lanes:8", "blocked:32 > lanes:2", "split-k:4", "pairwise", "perm:1")
BY_NAME = {form.name: form for form in MAIN + OTHERS}

F32_GOALS = {"numpy": 3.5, "numba": 2.0}
FMA_GOALS = {"numpy": 9.0, "numba": 3.0}
GOALS = {
    ("f16 to f32, exact products", "up"): F32_GOALS, ("f16 to f32, exact products", "down"): F32_GOALS,
    ("bf16 to f32, exact products", "up"): F32_GOALS, ("bf16 to f32, exact products", "down"): F32_GOALS,
    ("f16 fma", "up"): FMA_GOALS,
}  # fmt: skip


def row(form: Form, place: str, backend: str, settings: Settings, order: str = "seq") -> Row:
    """One matmul by one worker."""
    shape = settings.shape(*SHAPES[place])
    at = precision_of(form.text if order == "seq" else f"{form.text},order={order}")
    a, b = operands(shape, str(at.storage))
    work = partial(kernels.matmul, a, b, at, backend=backend)
    spent, _, ratio = in_passes(work, form.dtype, settings.rounds)
    terms = int(np.prod(shape))
    bound = GOALS.get((form.name, place), {}).get(backend) if order == "seq" else None
    return Row(
        part="matmul",
        what=f"{form.name}, {place} {spelled(shape)}" + ("" if order == "seq" else f", {order}"),
        value=ratio / terms,
        unit=f"{np.dtype(form.dtype).name} passes a product",
        backend=backend,
        seconds=spent,
        terms=terms,
        goal=None if bound is None else Goal(bound),
    )


def widening(storage: str, settings: Settings) -> Row:
    """An element of transposed weights, to contiguous float32."""
    shape = settings.shape(*SHAPES["up"])
    b = operands(shape, storage)[1]
    work = partial(carried, b, "b", precision_of(f"storage={storage}"), np.dtype(np.float32))
    spent, _, ratio = in_passes(work, np.float32, settings.rounds)
    what = f"widening {storage} weights [{shape[1]},{shape[2]}]"
    return Row("matmul", what, ratio / b.size, "float32 passes an element", "numpy", seconds=spent, terms=b.size)


def rows(settings: Settings) -> Iterator[Row]:
    """The main forms, the other accumulators and modes, the other shapes, the other orders; then the widening."""
    cases = [(form, place, "seq") for form in MAIN for place in ("up", "down")]
    cases += [(form, "up", "seq") for form in OTHERS]
    usual = [BY_NAME[name] for name in ("bf16 to f32, exact products", "f16 fma", "f32 fma")]
    cases += [(form, place, "seq") for place in list(SHAPES)[2:] for form in usual]
    cases += [(form, "up", order) for order in ORDERS for form in usual[:2]]
    for form, place, order in cases:
        for backend in settings.backends:
            yield row(form, place, backend, settings, order)
    for storage in ("bf16", "f16", "f32", "e4m3fn"):
        yield widening(storage, settings)
