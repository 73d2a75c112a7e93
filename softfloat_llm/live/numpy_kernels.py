"""NumPy's own sums as kernels to reveal: `sum`, `mean`, `dot` and `matmul`, which are its loops and its BLAS."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from softfloat_llm.errors import LiveError, nearest
from softfloat_llm.live.kernels import LiveKernel, Product, Reduction
from softfloat_llm.numerics.formats import Array, Float64Array, Format, f64, format_of
from softfloat_llm.numerics.rounding import round_to

_HELD = ("f16", "f32", "f64")


def numpy_sum(rows: int, terms: int, fmt: str | Format) -> Reduction:
    """np.sum over the last axis of (rows, terms)."""
    held = _held(fmt)
    return Reduction(f"numpy sum of ({rows}, {terms})", held, held, (rows, terms), _added(np.add.reduce))


def numpy_mean(rows: int, terms: int, fmt: str | Format) -> Reduction:
    """np.mean over the last axis of (rows, terms): the sum, divided; for f16 both in float32, then rounded."""
    held = _held(fmt)

    def divided(sums: Float64Array) -> Array:
        quotient: Array = round_to(round_to(sums / terms, "f64" if held is f64 else "f32"), held)
        return quotient

    add = _added(np.mean)
    return Reduction(f"numpy mean of ({rows}, {terms})", held, held, (rows, terms), add, 1 / terms, divided)


def _added(reduce: Callable[..., Array]) -> Callable[[Array], Array]:
    return lambda x: np.asarray(reduce(x, axis=-1))


def numpy_matmul(rows: int, columns: int, terms: int, fmt: str | Format) -> Product:
    """np.matmul of (rows, terms) and the transpose of (columns, terms), as a linear layer has it."""
    held, multiply = _held(fmt), np.matmul
    shape = (1, rows, columns, terms)
    what = f"numpy matmul of ({rows}, {terms}) and ({terms}, {columns})"
    return Product(what, held, held, shape, lambda x, w: np.asarray(multiply(x[0], w[0].T))[None])


def numpy_dot(terms: int, fmt: str | Format) -> Product:
    """np.dot of two vectors."""
    held, multiply = _held(fmt), np.dot
    what = f"numpy dot of ({terms},) and ({terms},)"
    return Product(
        what, held, held, (1, 1, 1, terms), lambda x, w: np.asarray(multiply(x[0, 0], w[0, 0])).reshape(1, 1, 1)
    )


def numpy_kernel(operation: str, shape: tuple[int, ...], fmt: str | Format) -> LiveKernel:
    """The kernel of a name and a shape: sum, mean (R, K); dot (K); matmul (M, N, K).

    Raises LiveError where the name or the number of sizes is another.
    """
    makers: dict[str, tuple[int, Callable[..., LiveKernel]]] = {
        "sum": (2, numpy_sum), "mean": (2, numpy_mean), "dot": (1, numpy_dot), "matmul": (3, numpy_matmul),
    }  # fmt: skip
    return made("numpy", makers, operation, shape, fmt)


def made(
    engine: str,
    makers: dict[str, tuple[int, Callable[..., LiveKernel]]],
    operation: str,
    shape: tuple[int, ...],
    fmt: str | Format,
) -> LiveKernel:
    """The kernel of a name; a reduction of one size is one row. Raises LiveError for a name or shape it has not."""
    if operation not in makers:
        raise LiveError(f"{engine} {operation!r} is unknown.{nearest(operation, makers)} Known: {', '.join(makers)}.")
    count, maker = makers[operation]
    sizes = (1, *shape) if count == 2 and len(shape) == 1 else shape
    if len(sizes) != count or min(sizes, default=0) < 1:
        raise LiveError(
            f"{engine} {operation} takes {count} sizes of at least 1, {_SIZES[count]};"
            f" found {', '.join(map(str, shape)) or 'none'}."
        )
    return maker(*sizes, fmt)


_SIZES = {1: "K", 2: "R,K (or K alone)", 3: "M,N,K", 4: "B,M,N,K"}


def _held(fmt: str | Format) -> Format:
    held = format_of(fmt)
    if held.name not in _HELD:
        raise LiveError(f"NumPy sums {', '.join(_HELD)} of its own; not {held}.")
    return held
