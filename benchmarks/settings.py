"""How a run of the benchmarks goes: rounds, sizes, backends; and the shapes and precisions that several parts take."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from benchmarks.rows import Row
from softfloat_llm.numerics.extents import unchanging
from softfloat_llm.numerics.formats import Array, format_of
from softfloat_llm.numerics.rounding import round_to

Shape = tuple[int, int, int]  # M, K, N


@dataclass(frozen=True)
class Settings:
    """`is_quick`: a look at whether every part runs, on tiny sizes; its figures mean nothing."""

    is_quick: bool = False
    backends: tuple[str, ...] = ("numpy", "numba")

    @property
    def rounds(self) -> int:
        return 1 if self.is_quick else 5

    def shape(self, m: int, k: int, n: int) -> Shape:
        """The shape, or a tiny one."""
        return (min(m, 2), min(k, 16), min(n, 24)) if self.is_quick else (m, k, n)

    @property
    def model(self) -> str:
        """SmolLM2 where it has been fetched; the built-in model otherwise, and in a quick run."""
        return "tiny" if self.is_quick or not has_smollm2() else "smollm2"

    @property
    def cores(self) -> int:
        """Workers of the rows with several: all cores."""
        return max(2, os.cpu_count() or 1)


Part = Callable[[Settings], Iterator[Row]]


def settings_of(*, is_quick: bool) -> Settings:
    """The backends that are installed."""
    return Settings(is_quick, ("numpy", "numba") if find_spec("numba") else ("numpy",))


def has_smollm2() -> bool:
    from softfloat_llm.io.fetch import cached_smollm2

    return cached_smollm2() is not None


def operands(shape: Shape, storage: str, seed: int = 1) -> tuple[Array, Array]:
    """Activations of unit size; weights as a checkpoint has them, (N, K), seen transposed, which nobody can change."""
    m, k, n = shape
    rng = np.random.default_rng(seed)
    fmt = format_of(storage)
    left, weights = round_to(rng.standard_normal((m, k)), fmt), round_to(rng.standard_normal((n, k)) * 0.05, fmt)
    return left, unchanging(weights).T


def spelled(shape: Shape) -> str:
    m, k, n = shape
    return f"[{m},{k}]x[{k},{n}]"
