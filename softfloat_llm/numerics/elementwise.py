"""Sums, products and quotients of arrays in their carrier dtypes, each rounded once.

By float32's own operations where those do the same, else by way of float64. `ops` has these for everybody, with all
modes and checks; here are the steps of a forward pass, whose operands have at most 24 bits and shapes that fit. Start
reading at `sum_of`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from softfloat_llm.numerics.carriers import carry, widen
from softfloat_llm.numerics.formats import Array, Format, bf16, f16, f32
from softfloat_llm.numerics.modes import USUAL
from softfloat_llm.numerics.ops import div_wide
from softfloat_llm.numerics.rounding import is_one_cast, round_carried, round_sum, round_wide


def sum_of(x: Array, y: Array, fmt: Format, rules: Mapping[str, Any] = USUAL) -> Array:
    """x + y (...), rounded once to the format.

    float32's own sum is one rounding to f32. To bf16 or f16, of values of those (11 bits at most), rounding to float32
    first is harmless, which has 2 * 11 + 2 bits (Figueroa 1995), or exact, below the normal range.
    """
    is_held = x.dtype == fmt.dtype == y.dtype or (fmt is f32 and _fit_float32(x, y))
    if is_held and is_one_cast(fmt, **rules):
        with np.errstate(all="ignore"):
            total: Array = in_float32(x) + in_float32(y)
            return total if fmt is f32 else total.astype(fmt.dtype)
    return carry(round_sum(widen(x), widen(y), fmt, **rules), fmt)


def difference_of(x: Array, y: Array, fmt: Format) -> Array:
    """x - y (...), rounded once to f32; to another format as float64 has it, then to the format. Ties to even."""
    with np.errstate(all="ignore"):
        if fmt is f32 and _fit_float32(x, y):
            return in_float32(x) - in_float32(y)
        return round_carried(widen(x) - widen(y), fmt)


def product_of(x: Array, y: Array, fmt: Format, rules: Mapping[str, Any] = USUAL) -> Array:
    """x * y (...), rounded once to the format."""
    with np.errstate(all="ignore"):
        if fmt is f32 and _fit_float32(x, y) and is_one_cast(fmt, **rules):
            return in_float32(x) * in_float32(y)
        left, right = factors(x, y, fmt=fmt, rules=rules)
        return round_carried(left * right, fmt, **rules)


def factors(*operands: Array, fmt: Format, rules: Mapping[str, Any]) -> list[Array]:
    """The same numbers in a dtype in which the product of two, once it is rounded to the format, is rounded once.

    float64, where it is exact, if the carriers have at most 24 bits. Or float32, of f16 or of bf16 alone: that has the
    22 bits of the one, always; and the 16 of the other from 2^-134 on, below which bf16 and f16 have 0 either way.
    """
    first, *others = (x.dtype for x in operands)
    is_narrow = first in (f16.dtype, bf16.dtype) and all(dtype == first for dtype in others)
    dtype = np.float32 if is_narrow and is_one_cast(fmt, **rules) else np.float64
    return [x.astype(dtype) for x in operands]


def quotient_of(x: Array, y: Array, fmt: Format) -> Array:
    """x / y (...), rounded once to the format, ties to even."""
    if fmt is f32 and _fit_float32(x, y):
        with np.errstate(all="ignore"):
            return in_float32(x) / in_float32(y)
    return carry(div_wide(widen(x), widen(y), fmt), fmt)


def number_in(number: float, fmt: Format) -> Array:
    """A number (), rounded once to the format, in its carrier dtype. Not to be changed."""
    return _held(number, math.copysign(1.0, number), fmt)


@cache
def _held(number: float, sign: float, fmt: Format) -> Array:
    """The same. The sign keeps 0.0 and -0.0 apart, which are equal."""
    held = carry(round_wide(np.array([number]), fmt), fmt)[0, ...]
    held.flags.writeable = False
    return held


def in_float32(x: Array) -> Array:
    """The same numbers (...), of at most 32 bits each, as float32: x itself, where that is what it is."""
    return x if x.dtype == np.float32 else x.astype(np.float32)


def _fit_float32(x: Array, y: Array) -> bool:
    return x.dtype.itemsize <= 4 and y.dtype.itemsize <= 4
