"""Other packages' ways to the same product: a sequential accumulator of 16 bits, a step a term. Each is imported late.

`fma`: the exact product enters the accumulator with one rounding. `rounded`: the product is rounded, then the sum.
Start reading at `PEERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np

from softfloat_llm.numerics.formats import Array

Product = Callable[[], Array]
"""Makes the product once; the result in float64."""
Threads = Callable[[int], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Peer:
    """`make` gets a (M, K), b (K, N) in the storage's dtype. `k_part`: how much of K, where all of it takes minutes."""

    name: str
    module: str
    storage: str
    form: str
    make: Callable[[Array, Array], Product]
    k_part: int = 1
    threads: Threads | None = None

    @property
    def is_installed(self) -> bool:
        return find_spec(self.module) is not None


def _steps(a: Array, b: Array, form: str, rounded: Callable[[Array], Array]) -> Product:
    """A loop over K in float64 with one call of `rounded` a rounding: products of 11 bits are exact in it."""
    left, right = a.astype(np.float64), np.ascontiguousarray(b.astype(np.float64))

    def product() -> Array:
        acc = np.zeros((len(left), right.shape[1]))
        for k in range(len(right)):
            term = left[:, k, None] * right[k]
            acc = rounded(acc + (term if form == "fma" else rounded(term)))
        return acc

    return product


def _native(a: Array, b: Array) -> Product:
    """A loop over K in the operands' own dtype, whose every operation rounds."""
    rows = np.ascontiguousarray(b)

    def product() -> Array:
        acc = np.zeros((len(a), rows.shape[1]), a.dtype)
        for k in range(len(rows)):
            acc = acc + a[:, k, None] * rows[k]
        return acc.astype(np.float64)

    return product


def _numpy_casts(a: Array, b: Array) -> Product:
    return _steps(a, b, "fma", lambda x: x.astype(np.float16).astype(np.float64))


def _ml_dtypes_casts(a: Array, b: Array) -> Product:
    return _steps(a, b, "fma", lambda x: x.astype(ml_dtypes.bfloat16).astype(np.float64))


def _gfloat(form: str) -> Callable[[Array, Array], Product]:
    def make(a: Array, b: Array) -> Product:
        from gfloat import round_ndarray
        from gfloat.formats import format_info_binary16

        return _steps(a, b, form, lambda x: round_ndarray(format_info_binary16, x))

    return make


def _pychop(form: str) -> Callable[[Array, Array], Product]:
    def make(a: Array, b: Array) -> Product:
        from pychop import Chop

        return _steps(a, b, form, Chop(exp_bits=5, sig_bits=10, rmode=1))

    return make


def _apytypes(a: Array, b: Array) -> Product:
    from apytypes import APyFloatAccumulatorContext, APyFloatArray

    left, right = (APyFloatArray.from_float(np.ascontiguousarray(x.astype(np.float64)), 5, 10) for x in (a, b))

    def product() -> Array:
        with APyFloatAccumulatorContext(5, 10):
            result: Any = left @ right
        return np.asarray(result.to_numpy(), np.float64)

    return product


class _ApytypesThreads:
    """A context in which apytypes has so many threads."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> None:
        import apytypes

        self.before = apytypes.n_threads()
        apytypes.reset_thread_pool(self.count)

    def __exit__(self, *_: object) -> None:
        import apytypes

        apytypes.reset_thread_pool(self.before)


def _torch_threads(count: int) -> AbstractContextManager[Any]:
    from softfloat_llm.live.torch_host import configured

    return configured(threads=count)


def _torch_steps(form: str) -> Callable[[Array, Array], Product]:
    """Half-precision steps: a multiplication and an addition, each rounded once; or one addcmul, rounded twice."""

    def make(a: Array, b: Array) -> Product:
        import torch

        left, right = torch.from_numpy(np.array(a.T, order="C")), torch.from_numpy(np.array(b, order="C"))

        def product() -> Array:
            acc = torch.zeros((left.shape[1], right.shape[1]), dtype=torch.float16)
            for k in range(len(right)):
                x, y = left[k, :, None], right[k]
                acc = torch.addcmul(acc, x, y) if form == "fma" else acc + x * y
            return np.asarray(acc.double().numpy())

        return product

    return make


def _torch_casts(a: Array, b: Array) -> Product:
    """Float32 steps, each cast to half: rounded twice, to float32 first."""
    import torch

    left, right = (torch.from_numpy(np.array(x, order="C")).float() for x in (a.T, b))

    def product() -> Array:
        acc = torch.zeros((left.shape[1], right.shape[1]), dtype=torch.float32)
        for k in range(len(right)):
            acc = torch.addcmul(acc, left[k, :, None], right[k]).half().float()
        return np.asarray(acc.double().numpy())

    return product


PEERS = (
    Peer("NumPy, float16 steps", "numpy", "f16", "rounded", _native),
    Peer("NumPy, float64 steps cast to float16", "numpy", "f16", "fma", _numpy_casts),
    Peer("ml_dtypes, bfloat16 steps", "ml_dtypes", "bf16", "rounded", _native),
    Peer("ml_dtypes, float64 steps cast to bfloat16", "ml_dtypes", "bf16", "fma", _ml_dtypes_casts),
    Peer("apytypes", "apytypes", "f16", "rounded", _apytypes, threads=_ApytypesThreads),
    Peer("gfloat", "gfloat", "f16", "fma", _gfloat("fma")),
    Peer("gfloat", "gfloat", "f16", "rounded", _gfloat("rounded")),
    Peer("pychop", "pychop", "f16", "fma", _pychop("fma"), k_part=16),
    Peer("pychop", "pychop", "f16", "rounded", _pychop("rounded"), k_part=16),
    Peer("PyTorch, half steps", "torch", "f16", "rounded", _torch_steps("rounded"), threads=_torch_threads),
    Peer("PyTorch, half addcmul steps", "torch", "f16", "fma", _torch_steps("fma"), threads=_torch_threads),
    Peer("PyTorch, float32 steps cast to half", "torch", "f16", "fma", _torch_casts, threads=_torch_threads),
)


def with_threads(peer: Peer, count: int) -> AbstractContextManager[Any]:
    """A context in which the peer has so many threads; one that does nothing for a peer that has one in any case."""
    return nullcontext() if peer.threads is None else peer.threads(count)
