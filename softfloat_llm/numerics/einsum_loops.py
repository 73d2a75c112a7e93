"""Sums of products by the loop inside np.einsum: acc[m, n] = acc[m, n] + a[k, m] b[k, n] for each k in turn.

For two operands whose last axis is contiguous in b and in the result, einsum (without BLAS: optimize=False) multiplies
and adds row by row, the summed axis outside: one pass over memory a product, and no Python between two terms. NumPy
does not promise the order, so `is_sequential` looks at the one that is installed; where it is another, or where the
shape does not lead to that loop, `steps` adds term by term.

Whether the product is rounded before it is added depends on the build (an fma does not): that is of no account where
it is exact, and elsewhere `products_are_rounded` tells.
Source: NumPy 2.4, numpy/_core/src/multiarray/einsum.cpp and einsum_sumprod.c.src.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from softfloat_llm.numerics.formats import Array

_SHAPES = ((1, 2, 2), (1, 9, 17), (2, 33, 2), (3, 5, 31), (5, 64, 67), (17, 3, 130))  # M, K, n
_GROUPED = (
    (1, 1, 1, 2, 2), (1, 3, 1, 9, 17), (7, 1, 1, 33, 2), (2, 3, 3, 64, 6), (5, 2, 4, 5, 64), (3, 1, 2, 40, 130)
)  # fmt: skip
"""T, G, R, K, n"""


def can_sum(left: Array, right: Array) -> bool:
    """True for a tile, left (K, M) and right (K, n), whose last axis is the inner loop's: it must not be 1 long."""
    return bool(right.shape[1] > 1 and left.shape[0] > 0 and left.shape[1] > 0)


def sums_of_products(left: Array, right: Array, out: Array) -> None:
    """out (M, n) = +0, then out + left[k] right[k] for each k in turn. left (K, M), right (K, n), one dtype.

    The last axis of right and out is contiguous and longer than 1; no stride is negative.
    """
    np.einsum("km,kn->mn", left, right, out=out, optimize=False)


def sums_of_groups(left: Array, right: Array, out: Array) -> None:
    """The same for each of G groups: out (T, G, R, n), left (T, G, R, K), right (G, K, n), of which g meets g alone."""
    np.einsum("tgrk,gkn->tgrn", left, right, out=out, optimize=False)


@lru_cache(maxsize=4)
def are_groups_sequential(dtype: np.dtype[Any]) -> bool:
    """`is_sequential` of `sums_of_groups`: more axes might be gone through in another order."""
    return all(_groups_agree(dtype, shape) for shape in _GROUPED)


def _groups_agree(dtype: np.dtype[Any], shape: tuple[int, int, int, int, int]) -> bool:
    """`_agrees`, for exact products."""
    positions, groups, share, terms, columns = shape
    rng, bits = np.random.default_rng(terms), np.finfo(dtype).nmant // 2 + 1
    left = _numbers(rng, (positions, groups, share, terms), dtype, bits)
    right = _numbers(rng, (groups, terms, columns), dtype, bits)
    found = np.empty((positions, groups, share, columns), dtype)
    sums_of_groups(left, right, found)
    expected = np.zeros_like(found)
    for k in range(terms):
        expected += left[..., k, None] * right[:, None, k]
    return found.tobytes() == expected.tobytes()


@lru_cache(maxsize=4)
def is_sequential(dtype: np.dtype[Any]) -> bool:
    """True where the NumPy at hand adds exact products of this dtype (float32, float64) one after another."""
    return all(_agrees(dtype, shape, bits=np.finfo(dtype).nmant // 2 + 1) for shape in _SHAPES)


@lru_cache(maxsize=4)
def products_are_rounded(dtype: np.dtype[Any]) -> bool:
    """True where it also rounds every product before it adds it."""
    return all(_agrees(dtype, shape, bits=np.finfo(dtype).nmant + 1) for shape in _SHAPES)


def _agrees(dtype: np.dtype[Any], shape: tuple[int, int, int], *, bits: int) -> bool:
    """True where the loop does as multiplications and additions one by one, on operands of so many bits."""
    rows, terms, columns = shape
    rng = np.random.default_rng(terms)
    left, right = (_numbers(rng, (terms, n), dtype, bits) for n in (rows, columns))
    found, expected = np.empty((rows, columns), dtype), np.zeros((rows, columns), dtype)
    sums_of_products(left, right, found)
    for x, y in zip(left, right, strict=True):
        expected += x[:, None] * y
    return found.tobytes() == expected.tobytes()


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any], bits: int) -> Array:
    """Random numbers of so many bits, of magnitudes far apart, so that every other order gives other sums."""
    whole = rng.integers(1 << (bits - 1), 1 << bits, shape).astype(dtype)
    signs = rng.choice(np.array([-1, 1], dtype), shape)
    numbers: Array = np.ldexp(whole, rng.integers(-bits - 8, 8 - bits, shape)) * signs
    return numbers
