"""matmul, a product at a time, in passes (see timing.py): `python -m benchmarks matmul [part …]`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from benchmarks.timing import in_passes, pass_seconds, perf_counter, seconds, thread_time
from softfloat_llm.numerics import kernels
from softfloat_llm.numerics.formats import Array, format_of
from softfloat_llm.numerics.operands import carried
from softfloat_llm.numerics.precision import Precision, precision_of
from softfloat_llm.numerics.rounding import round_to

Shape = tuple[int, int, int]
SHAPES: dict[str, Shape] = {  # (M, K, N) of SmolLM2-135M's matrices
    "up": (5, 576, 1536), "down": (8, 1536, 576), "decode up": (1, 576, 1536), "decode down": (1, 1536, 576),
    "prefill": (48, 576, 1536), "head": (5, 576, 49152), "scores 5": (5, 64, 5), "scores 24": (24, 64, 24),
    "values 24": (24, 24, 64),
}  # fmt: skip
PRECISIONS: dict[str, tuple[str, type]] = {
    "f16 to f32": ("storage=f16,acc=f32", np.float32),
    "bf16 to f32": ("storage=bf16,acc=f32", np.float32),
    "bf16 to f32, flushing": ("storage=bf16,acc=f32,subnormals=ftz+daz", np.float32),
    "f32, rounded products": ("storage=f32,acc=f32,product=f32", np.float32),
    "f32 fma": ("storage=f32,acc=f32", np.float64),
    "f16 fma": ("storage=f16,acc=f16", np.float64),
    "f16, rounded products": ("storage=f16,acc=f16,product=f16", np.float64),
    "bf16 fma": ("storage=bf16,acc=bf16", np.float64),
    "bf16, rounded products": ("storage=bf16,acc=bf16,product=bf16", np.float64),
}
GOALS = {"f16 to f32": 6.0, "bf16 to f32": 6.0, "f32, rounded products": 6.0, "f16 fma": 14.0}
EXACT_GOAL = 20.0
ORDERS = ("seq", "lanes:8", "blocked:32 > lanes:2", "split-k:4", "pairwise", "perm:1")


def operands(shape: Shape, storage: str) -> tuple[Array, Array]:
    """Activations of unit size; weights as a checkpoint has them, (N, K), seen transposed."""
    m, k, n = shape
    rng = np.random.default_rng(1)
    fmt = format_of(storage)
    return round_to(rng.standard_normal((m, k)), fmt), round_to(rng.standard_normal((n, k)) * 0.05, fmt).T


def row(name: str, shape: str, *, order: str = "seq", workers: int = 1, goal: float | None = None) -> None:
    """Time one matmul and print it. Threads are timed by the wall clock."""
    text, dtype = PRECISIONS[name]
    at = precision_of(f"{text},order={order}")
    a, b = operands(SHAPES[shape], str(at.storage))
    clock = thread_time if workers == 1 else perf_counter
    spent, passes = in_passes(_call(a, b, at, workers), dtype, clock=clock)
    m, k, n = SHAPES[shape]
    label = f"{name}, {shape} [{m},{k}]x[{k},{n}]" + (f", {order}" if order != "seq" else "")
    verdict = f"   goal {goal:g}: {'met' if passes / (m * k * n) <= goal else 'MISSED'}" if goal else ""
    print(f"{label:58} {spent * 1e3:9.2f} ms {passes / (m * k * n):7.2f} {np.dtype(dtype).name} passes{verdict}")


def main_forms() -> None:
    """seq, one worker."""
    for name in PRECISIONS:
        for shape in ("up", "down"):
            row(name, shape, goal=GOALS.get(name))


def other_shapes() -> None:
    """seq, one worker."""
    for shape in list(SHAPES)[2:]:
        for name in ("bf16 to f32", "f16 fma", "f32 fma"):
            row(name, shape)


def other_orders() -> None:
    """One worker."""
    for order in ORDERS:
        for name in ("bf16 to f32", "f16 fma"):
            row(name, "up", order=order)


def threads() -> None:
    """By the wall clock: worth something only on a machine that is otherwise idle."""
    for name in ("bf16 to f32", "f16 fma"):
        at = precision_of(PRECISIONS[name][0])
        a, b = operands(SHAPES["head"], str(at.storage))
        one, two = (seconds(_call(a, b, at, workers), 5, perf_counter) for workers in (1, 2))
        ratio = f"{one / two:.2f} times as fast"
        print(f"{name + ', head':58} {one * 1e3:9.2f} ms, with 2 workers {two * 1e3:9.2f} ms: {ratio}")


def _call(a: Array, b: Array, at: Precision, workers: int) -> Callable[[], object]:
    return lambda: kernels.matmul(a, b, at, workers=workers)


def exact_sums() -> None:
    """Against one float64 BLAS product of widened, contiguous operands, one BLAS thread."""
    for storage in ("f16", "bf16", "f32"):
        at = precision_of(f"storage={storage},acc=exact")
        for shape in ("up", "down", "prefill"):
            a, b = operands(SHAPES[shape], storage)
            wide_a, wide_b = a.astype(np.float64), np.ascontiguousarray(b.astype(np.float64))
            spent, blas = seconds(_call(a, b, at, 1), 9), seconds(partial(np.matmul, wide_a, wide_b), 9)
            verdict = f"goal {EXACT_GOAL:g}: {'met' if spent / blas <= EXACT_GOAL else 'MISSED'}"
            print(f"{storage + ', ' + shape:58} {spent * 1e3:9.2f} ms {spent / blas:7.1f} BLAS products   {verdict}")


def widening() -> None:
    """An element of transposed weights, to contiguous float32."""
    for storage in ("bf16", "f16", "f32", "e4m3fn"):
        at = precision_of(f"storage={storage}")
        b = operands(SHAPES["up"], storage)[1]
        spent, passes = in_passes(partial(carried, b, "b", at, np.dtype(np.float32)), np.float32)
        print(f"{storage:58} {spent * 1e3:9.2f} ms {passes / b.size:7.2f} float32 passes an element")


PARTS: dict[str, Callable[[], None]] = {
    "main": main_forms, "shapes": other_shapes, "orders": other_orders, "workers": threads, "exact": exact_sums,
    "widening": widening,
}  # fmt: skip


def main(words: Iterable[str] = ()) -> None:
    """The parts named, or all."""
    print(f"one pass: {pass_seconds(np.float32) * 1e9:.3f} ns an element in float32,", end=" ")
    print(f"{pass_seconds(np.float64) * 1e9:.3f} in float64")
    for part in list(words) or PARTS:
        print(f"\n# {part}: {(PARTS[part].__doc__ or '').strip()}")
        PARTS[part]()


if __name__ == "__main__":
    main()
