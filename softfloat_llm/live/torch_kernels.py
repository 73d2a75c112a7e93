"""PyTorch's sums as kernels to reveal, at the shapes and in the layouts in which transformers' Llama calls them.

PyTorch is imported late; the kernels run it as it is set up where they are called (`torch_host.configured`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from softfloat_llm.errors import LiveError
from softfloat_llm.live.kernels import LiveKernel, Product, Reduction
from softfloat_llm.live.numpy_kernels import made
from softfloat_llm.live.torch_host import import_torch
from softfloat_llm.live.transformers_model import DTYPES, from_torch
from softfloat_llm.numerics.formats import Array, Float64Array, Format, bf16, format_of
from softfloat_llm.numerics.rounding import round_to


def torch_linear(rows: int, columns: int, terms: int, fmt: str | Format) -> Product:
    """torch.nn.functional.linear of (1, rows, terms) and a weight (columns, terms), without bias."""
    held = _held(fmt)

    def multiply(x: Array, w: Array) -> Array:
        torch = import_torch()
        return from_torch(torch.nn.functional.linear(own_tensor(x, held), own_tensor(w[0], held)))

    what = f"torch linear of ({rows}, {terms}) and ({columns}, {terms})"
    return Product(what, held, held, (1, rows, columns, terms), multiply)


def torch_matmul(rows: int, columns: int, terms: int, fmt: str | Format) -> Product:
    """torch.matmul of (rows, terms) and (terms, columns), both contiguous."""
    held = _held(fmt)

    def multiply(x: Array, w: Array) -> Array:
        torch = import_torch()
        out: Array = from_torch(torch.matmul(own_tensor(x[0], held), own_tensor(w[0].T, held)))
        return out[None]

    what = f"torch matmul of ({rows}, {terms}) and ({terms}, {columns})"
    return Product(what, held, held, (1, rows, columns, terms), multiply)


def torch_scores(heads: int, rows: int, columns: int, terms: int, fmt: str | Format) -> Product:
    """q k^T as eager attention has it: q (1, B, M, K) seen through its transpose, k (1, B, N, K) contiguous."""
    held = _held(fmt)

    def multiply(x: Array, w: Array) -> Array:
        torch = import_torch()
        q = own_tensor(x.transpose(1, 0, 2), held)[None].transpose(1, 2)
        out: Array = from_torch(torch.matmul(q, own_tensor(w, held)[None].transpose(2, 3)))[0]
        return out

    what = f"torch scores of ({heads}, {rows}, {terms}) and ({heads}, {columns}, {terms})"
    return Product(what, held, held, (heads, rows, columns, terms), multiply)


def torch_pv(heads: int, rows: int, columns: int, terms: int, fmt: str | Format) -> Product:
    """P V as eager attention has it: P (1, B, M, K) and V (1, B, K, N), both contiguous."""
    held = _held(fmt)

    def multiply(x: Array, w: Array) -> Array:
        torch = import_torch()
        values = own_tensor(w.transpose(0, 2, 1), held)
        out: Array = from_torch(torch.matmul(own_tensor(x, held)[None], values[None]))[0]
        return out

    what = f"torch pv of ({heads}, {rows}, {terms}) and ({heads}, {terms}, {columns})"
    return Product(what, held, held, (heads, rows, columns, terms), multiply)


def torch_sum(rows: int, terms: int, fmt: str | Format) -> Reduction:
    """torch.sum over the last axis of (1, rows, terms)."""
    held = _held(fmt)
    add = _reduced(lambda torch, x: torch.sum(x, -1), held)
    return Reduction(f"torch sum of ({rows}, {terms})", held, held, (rows, terms), add)


def torch_mean(rows: int, terms: int, fmt: str | Format) -> Reduction:
    """torch.mean over the last axis of (1, rows, terms), as norms have it: the sum, divided in float32, rounded."""
    held = _held(fmt)

    def divided(sums: Float64Array) -> Array:
        quotient: Array = round_to(round_to(sums / terms, "f32"), held)  # float64 divides float32 sums well enough
        return quotient

    add = _reduced(lambda torch, x: torch.mean(x, -1), held)
    return Reduction(f"torch mean of ({rows}, {terms})", held, held, (rows, terms), add, 1 / terms, divided)


def _reduced(operation: Callable[[Any, Any], Any], held: Format) -> Callable[[Array], Array]:
    return lambda x: from_torch(operation(import_torch(), own_tensor(x, held)[None]))[0]


def torch_kernel(operation: str, shape: tuple[int, ...], fmt: str | Format) -> LiveKernel:
    """The kernel of a name and a shape: linear, matmul (M, N, K); scores, pv (B, M, N, K); sum, mean (R, K).

    Raises LiveError where the name, the number of sizes or the format is another.
    """
    makers: dict[str, tuple[int, Callable[..., LiveKernel]]] = {
        "linear": (3, torch_linear), "matmul": (3, torch_matmul), "scores": (4, torch_scores), "pv": (4, torch_pv),
        "sum": (2, torch_sum), "mean": (2, torch_mean),
    }  # fmt: skip
    return made("torch", makers, operation, shape, fmt)


def _held(fmt: str | Format) -> Format:
    held = format_of(fmt)
    if held.name not in DTYPES:
        raise LiveError(f"PyTorch's kernels are revealed in {', '.join(DTYPES)}; not in {held}.")
    return held


def own_tensor(x: Array, fmt: Format) -> Any:
    """The tensor of an array in memory of PyTorch's own, which starts where its vectors do.

    MKL adds what lies before the first aligned element otherwise: its order depends on the address modulo 16 bytes.
    """
    torch = import_torch()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # it is only read
        given = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if fmt is bf16 else torch.from_numpy(x)
    own = torch.empty(x.shape, dtype=given.dtype)
    own.copy_(given)
    return own
