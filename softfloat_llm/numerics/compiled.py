"""The steps of `steps` compiled by numba: the same bits, without the passes over memory. The extra `fast` brings numba.

Where the form of a step differs from NumPy's, its docstring says why the bits do not. The loops themselves are those of
`compiled_loops`. Start reading at `KIT`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from softfloat_llm.numerics.compiled_loops import (
    CHAINS,
    by_underflow,
    fused_multiply_add,
    fused_multiply_add_codes,
    grid_of,
    in_float32,
    in_float64,
    join,
    look_out,
    multiply_add,
    multiply_add_codes,
    nearest,
    once,
    rounded_by_underflow,
)
from softfloat_llm.numerics.compiled_widening import WIDENING
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
from softfloat_llm.numerics.stored_rows import StoredRows
from softfloat_llm.numerics.threads import share
from softfloat_llm.numerics.tiles import Piece, Products, is_native
from softfloat_llm.numerics.underflow_rounding import reach

_FEWEST_COLUMNS = 64  # to a thread: eight cache lines of sums


def _over_columns(loop: Callable[..., None], products: Products, acc: Array, *rest: Any) -> None:
    """loop(acc, *rest, first, last) for all columns of acc, some in each thread: none meets its neighbour."""
    columns = acc.shape[1]
    size = max(_FEWEST_COLUMNS, -(-columns // products.threads))
    parts = [(first, min(first + size, columns)) for first in range(0, columns, size)]
    share(lambda part: loop(acc, *rest, *part), parts, products.threads, look_out)


class CompiledNative(Native):
    """acc = acc + term in float32 or float64, products included."""

    _of_codes = multiply_add_codes

    def __init__(self, products: Products, at: Precision) -> None:
        super().__init__(products, at, None)
        self.depth = len(products.left)  # no block of products is formed

    def begin(self, acc: Array, piece: Piece) -> None:
        """acc = +0, then as `enter`."""
        OnTile.begin(self, acc, piece)

    def _fast(self, acc: Array, piece: Piece) -> None:
        left, side = self.products.left[piece.ks], self.products.sides[1]
        if isinstance(side, StoredRows):
            (codes,) = side.blocks
            loop = self._of_codes[codes.dtype]
            _over_columns(loop, self.products, acc, left, codes[piece.ks].view(np.uint16))
        else:
            self._of_values(acc, left, side.wide[piece.ks])

    def _of_values(self, acc: Array, left: Array, right: Array) -> None:
        product = self.products.at.product
        if product is not None and not is_native(product, self.products.dtype):
            step = in_float32 if self.dtype == np.float32 else in_float64
            chain = CHAINS[True, step]
            _over_columns(chain, self.products, acc, left, right, grid_of(product), grid_of(product))
            return
        same = (side.astype(self.dtype, copy=False) for side in (left, right))
        _over_columns(multiply_add, self.products, acc, *same)


class CompiledFused(CompiledNative):
    """acc = fma(a, b, acc) in float32: one instruction, right for all values."""

    _of_codes = fused_multiply_add_codes

    def _of_values(self, acc: Array, left: Array, right: Array) -> None:
        _over_columns(fused_multiply_add, self.products, acc, left, right)

    def term(self, acc: Array, piece: Piece) -> None:
        """acc = R(the term): fma(a, b, -0), as -0 changes no sum, not even the sign of a zero."""
        acc[...] = -0.0
        self._fast(acc, piece)


def takes_codes(at: Precision, path: Path) -> bool:
    """Whether the loops of a path widen right themselves."""
    is_in_float32 = at.acc.format is f32 and at.product in (None, f32)
    return is_in_float32 and path in ("native", "fused")


class CompiledNarrow(Narrow):
    """acc = R(acc + term) for an IEEE-like format of at most 24 bits, in any range."""

    def __init__(self, products: Products, at: Precision, start: Float64Array | None) -> None:
        super().__init__(products, at, start)
        quick = self._quick
        self._chain = CHAINS[at.product is not None, nearest if self._is_never_doubtful else once]
        self._adapts = quick is not None and self._is_never_doubtful and not self._can_be_trifle
        self.depth = len(products.left) if quick is None or self._adapts else quick.count

    def enter(self, acc: Array, piece: Piece) -> None:
        """As `Narrow.enter`. Where nothing hangs on the sums but their size, the loop itself looks at that."""
        if self._adapts:
            self._by_underflow(acc, piece)
            self._sign_zeros(acc, piece)
        else:
            super().enter(acc, piece)

    def _by_underflow(self, acc: Array, piece: Piece) -> None:
        quick, ks = self._quick, piece.ks
        assert quick is not None
        product = self.at.product or self.format
        of_products = (quick.down, quick.back)  # which exact products do not take, but numba wants tuples of one type
        if self.at.product is not None:
            of_products = (quick.down_product, quick.back_product)
        rounds = quick.factors, quick.down, quick.back, *of_products
        bounds = self._is_quick[ks], self._least[ks], self.bounds.largest[ks], reach(self.format, 2.0)
        _over_columns(
            by_underflow if self.at.product is None else rounded_by_underflow, self.products, acc, self._sum,
            self.products.left[ks], self.products.right[ks], rounds, (quick.start, quick.ends), bounds,
            (grid_of(product), grid_of(self.format)),
        )  # fmt: skip

    def _one_by_one(self, acc: Array, piece: Piece) -> None:
        """The step that is right in any range. A sum that is zero has its sign, which `enter` takes from `_sum`."""
        left, right = self.products.left[piece.ks], self.products.right[piece.ks]
        grids = grid_of(self.at.product or self.format), grid_of(self.format)
        _over_columns(self._chain, self.products, acc, left, right, *grids)
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


KIT = Kit(_steps, widened_here, is_compiled=True, takes_codes=takes_codes)
"""What `kernels` takes in place of NumPy's steps."""
