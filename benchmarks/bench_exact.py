"""Exact sums against one float64 BLAS product."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.bench_matmul import SHAPES
from benchmarks.rows import Goal, Row
from benchmarks.settings import Settings, operands, spelled
from benchmarks.timing import paired
from softfloat_llm.numerics import kernels
from softfloat_llm.numerics.precision import precision_of

GOAL = Goal(20.0)


def rows(settings: Settings) -> Iterator[Row]:
    """Three storages in three shapes."""
    for storage in ("f16", "bf16", "f32"):
        for place in ("up", "down", "prefill"):
            for backend in settings.backends:
                yield _exact(storage, place, backend, settings)


def _exact(storage: str, place: str, backend: str, settings: Settings) -> Row:
    """Against a product of operands that are widened and contiguous already, on one BLAS thread."""
    shape = settings.shape(*SHAPES[place])
    at = precision_of(f"storage={storage},acc=exact")
    a, b = operands(shape, storage)
    wide = [np.ascontiguousarray(part.astype(np.float64)) for part in (a, b)]
    spent, _, ratio = paired(
        partial(kernels.matmul, a, b, at, backend=backend), partial(np.matmul, *wide), settings.rounds
    )
    what = f"exact sum of {storage}, {place} {spelled(shape)}"
    terms = int(np.prod(shape))
    return Row("exact", what, ratio, "BLAS products", backend, seconds=spent, terms=terms, goal=GOAL)
