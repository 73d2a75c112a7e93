"""The steps of `steps` compiled by numba: the same bits, without the passes over memory. The extra `fast` brings numba.

Where the form of a step differs from NumPy's, its docstring says why the bits do not. The loops themselves are those of
`compiled_loops`. Start reading at `KIT`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from softfloat_llm.numerics.compiled_loops import (
    CHAINS,
    WIDENING,
    by_underflow,
    fused_multiply_add,
    grid_of,
    in_float32,
    in_float64,
    join,
    multiply_add,
    nearest,
    once,
    rounded_by_underflow,
    run_through,
)
from softfloat_llm.numerics.formats import Array, Float64Array, f32
from softfloat_llm.numerics.narrow_steps import Narrow
from softfloat_llm.numerics.operands import has_even_columns, turned_pairs, widened
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.steps import (
    Kit,
    Native,
    OnTile,
    Path,
    Steps,
    flushes,
    never_tiny,
)
from softfloat_llm.numerics.tiles import Piece, Products, is_native
from softfloat_llm.numerics.underflow_rounding import reach


class CompiledNative(Native):
    """acc = acc + term in float32 or float64, products included."""

    def __init__(self, products: Products, at: Precision) -> None:
        super().__init__(products, at, None)
        self.depth = len(products.left)  # no block of products is formed

    def begin(self, acc: Array, piece: Piece) -> None:
        """acc = +0, then as `enter`."""
        OnTile.begin(self, acc, piece)

    def _fast(self, acc: Array, piece: Piece) -> None:
        left, right = self.products.left[piece.ks], self.products.right[piece.ks]
        product = self.products.at.product
        if product is not None and not is_native(product, self.products.dtype):
            step = in_float32 if self.dtype == np.float32 else in_float64
            CHAINS[True, step](acc, left, right, grid_of(product), grid_of(product))
            return
        multiply_add(acc, left.astype(self.dtype, copy=False), right.astype(self.dtype, copy=False))


class CompiledFused(CompiledNative):
    """acc = fma(a, b, acc) in float32: one instruction, right for all values."""

    def _fast(self, acc: Array, piece: Piece) -> None:
        fused_multiply_add(acc, self.products.left[piece.ks], self.products.right[piece.ks])

    def term(self, acc: Array, piece: Piece) -> None:
        """acc = R(the term): fma(a, b, -0), as -0 changes no sum, not even the sign of a zero."""
        acc[...] = -0.0
        self._fast(acc, piece)


class CompiledNarrow(Narrow):
    """acc = R(acc + term) for an IEEE-like format of at most 24 bits, in any range."""

    def __init__(self, products: Products, at: Precision, start: Float64Array | None) -> None:
        super().__init__(products, at, start)
        self.depth = len(products.left) if self._quick is None else self._quick.count
        self.product = at.product
        self._chain = CHAINS[at.product is not None, nearest if self._is_never_doubtful else once]
        self._runs_through = self._quick is not None and at.product is None and self._is_never_doubtful

    def enter(self, acc: Array, piece: Piece) -> None:
        """As `Narrow.enter`, from one piece that needs another form to the next within one call."""
        done = self._all_by_underflow(acc, piece) if self._runs_through else 0
        if done < piece.length:
            super().enter(acc, piece.cut(done, piece.length))
        else:
            self._sign_zeros(acc, piece)

    def _all_by_underflow(self, acc: Array, piece: Piece) -> int:
        """`_by_underflow` as long as the conditions hold; how many terms that were."""
        assert self._quick is not None
        count, ks = self._quick.count, piece.ks
        if not self._is_quick[ks].all():
            return 0
        starts = np.arange(0, piece.length, count)
        least = np.minimum.reduceat(self._least[ks], starts)
        largest = np.add.reduceat(self.bounds.largest[ks], starts)
        left = self.products.left[ks] * np.resize(self._quick.factors[:count], piece.length)[:, None]
        per_largest = reach(self.format, 2.0)  # of the largest sum
        quick = self._quick
        return int(
            run_through(
                acc, self._sum, left, self.products.right[ks], quick.down, quick.back, quick.ends, quick.start, least,
                largest, per_largest,
            )
        )  # fmt: skip

    def _by_underflow(self, acc: Array, piece: Piece) -> None:
        quick, n = self._quick, piece.length
        assert quick is not None
        left = self.products.left[piece.ks] * quick.factors[:n, None]
        right, constants = self.products.right[piece.ks], (quick.down[:n], quick.back[:n])
        ends = quick.start, float(quick.ends[n])
        if self.product is None:
            by_underflow(acc, self._sum, left, right, *constants, ends)
        else:
            of_products = quick.down_product[:n], quick.back_product[:n]
            rounded_by_underflow(acc, self._sum, left, right, *constants, of_products, ends)

    def _one_by_one(self, acc: Array, piece: Piece) -> None:
        """The step that is right in any range. A sum that is zero has its sign, which `enter` takes from `_sum`."""
        left, right = self.products.left[piece.ks], self.products.right[piece.ks]
        self._chain(acc, left, right, grid_of(self.product or self.format), grid_of(self.format))
        if self._loses_signs:
            np.copyto(self._sum, acc)

    def _fast(self, acc: Array, piece: Piece) -> None:
        if self._quick is None:
            self._one_by_one(acc, piece)
        else:
            super()._fast(acc, piece)

    def term(self, acc: Array, piece: Piece) -> None:
        """acc = R(the term): -0 changes no sum."""
        acc[...] = -0.0
        self._one_by_one(acc, piece)

    def join(self, acc: Array, other: Array) -> None:
        """acc = R(acc + other): 53 bits are at least 2p + 2, where rounding twice is harmless (Figueroa 1995)."""
        join(acc, other, grid_of(self.format))


def _steps(products: Products, at: Precision, path: Path, start: Float64Array | None) -> Steps | None:
    """The compiled steps of a path. Sums that may have to be flushed are left to the evident form, as in `kernels`."""
    if path == "narrow":
        return CompiledNarrow(products, at, start)
    if flushes(at) and (start is not None or not never_tiny(at, products.spread)):
        return None
    is_float32_fma = at.product is None and at.acc.format is f32
    return CompiledFused(products, at) if is_float32_fma else CompiledNative(products, at)


def widened_here(block: Array, dtype: np.dtype[Any]) -> Array:
    """As `operands.widened`: bf16 and f16 are widened in one go, transposed weights after two neighbours as one."""
    if dtype != np.float32 or block.dtype not in WIDENING:
        return widened(block, dtype)
    one_by_one, in_pairs = WIDENING[block.dtype]
    wide = np.empty(block.shape, np.uint32)
    if block.strides[1] == block.itemsize:
        one_by_one(block.view(np.uint16), wide)
    elif has_even_columns(block.T):
        in_pairs(turned_pairs(block.T), wide)
    else:
        return widened(block, dtype)
    return wide.view(np.float32)


KIT = Kit(_steps, widened_here)
"""What `kernels` takes in place of NumPy's steps."""
