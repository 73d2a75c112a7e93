"""Narrow sums in float32 against the evident form: every significand, every kind of product, signs of zeros, limits."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.numerics import kernels
from softfloat_llm.numerics.accumulate import arithmetic_of, follow
from softfloat_llm.numerics.extents import Operands, Stored
from softfloat_llm.numerics.formats import decode, format_of
from softfloat_llm.numerics.narrow_in_float32 import NarrowInFloat32, cut, may_be_in_float32
from softfloat_llm.numerics.narrow_steps import Narrow
from softfloat_llm.numerics.operands import rounded_product
from softfloat_llm.numerics.precision import precision_of
from softfloat_llm.numerics.rounding import round_to, round_wide
from softfloat_llm.numerics.tiles import Products, Rounder

ORDERS = ["seq", "reverse", "pairwise", "lanes:4", "split-k:3", "blocked:7", "blocked:5:bf16 > lanes:2"]
TEXTS = [
    "storage=f16,acc=f16,product=f16",
    "storage=bf16,acc=bf16,product=bf16",
    "storage=e4m3fn,acc=f16",
    "storage=e5m2,acc=f16,product=e5m2",
]


def steps_of(a, b, text, start=None):
    at = precision_of(text)
    sides = (Operands(x.astype(np.float32), Stored((x,))) for x in (a.T, b))
    return kernels._numpy_steps(Products(*sides, at, 4, np.dtype(np.float64)), at, "narrow", start)


def evident(a, b, at, start=None):
    wide = a.astype(np.float64), b.astype(np.float64)

    def term(k):
        return rounded_product(wide[0][:, k, None], wide[1][k], at)

    return follow(at.order.tree(a.shape[1]).program(), term, arithmetic_of(at.acc, at), (len(a), b.shape[1]), start)


def same(found, expected):
    return np.array_equal(found, expected) and np.array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.parametrize("precision", range(2, 12))
def test_every_significand_of_float32_is_cut_to_the_nearest_value_and_ties_to_even(precision):
    t = (np.arange(1 << 23, dtype=np.uint32) | np.uint32(127 << 23)).view(np.float32)
    dropped = np.uint32(24 - precision)
    words = t.view(np.uint32)
    is_odd = (words >> dropped) & np.uint32(1)
    nearest = ((words + np.uint32((1 << int(dropped) - 1) - 1) + is_odd) >> dropped << dropped).view(np.float32)
    room, out = np.empty_like(t), np.empty_like(t)
    cut(t, np.float32(2.0 ** int(dropped) + 1), room, out)
    assert np.array_equal(out, nearest)


@pytest.mark.parametrize("name", ["f16", "bf16", "e5m2", "e4m3", "e3m4"])
def test_products_in_float32_are_rounded_as_in_float64_down_to_the_signs_of_zeros(name):
    fmt, rng = format_of(name), np.random.default_rng(3)
    values = decode(rng.integers(0, 1 << fmt.bits, 1 << 17).astype(fmt.code_dtype), fmt)
    values = values[np.isfinite(values)]
    products = values * rng.permutation(values)
    products = products[np.abs(products) < min(fmt.max, 2.0**100)]
    t = products[products == products.astype(np.float32)].astype(np.float32).reshape(1, -1)
    out = np.empty_like(t)
    Rounder(fmt, t.shape, np.dtype(np.float32)).round(t, out, is_bounded=True)
    assert t.size > 1000
    assert same(out[0], round_wide(t[0].astype(np.float64), fmt))


def sparse(rng, shape, fmt, low):
    """Values of every size from 2^low to 1 and of both signs, zeros of both signs among them."""
    x = np.ldexp(rng.uniform(-2, 2, shape), rng.integers(low, 0, shape)) * (rng.random(shape) < 0.7)
    return round_to(np.copysign(x, rng.uniform(-1, 1, shape)), fmt)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("text", TEXTS)
def test_the_sums_are_those_of_the_evident_form(text, order):
    at, rng = precision_of(f"{text},order={order}"), np.random.default_rng(len(order))
    for low, k in ((-3, 40), (-14, 33), (-30, 7), (-3, 1)):
        a, b = sparse(rng, (3, k), at.storage, low), sparse(rng, (k, 70), at.storage, low // 2)
        start = sparse(rng, (3, 70), at.acc.format, low)
        for init in (None, start):
            assert same(kernels.matmul(a, b, at, init=init), evident(a, b, at, init))


def test_a_sum_one_bit_below_a_power_of_two_goes_up_to_it():
    """Where d + t of `underflow_rounding` would give 1 - 2^-11 in float32: t = 1 - 2^-24 has 24 bits."""
    at = precision_of("storage=f16,acc=f16,product=f16")
    a, b = np.array([[1.0, -(2.0**-12)]]), np.array([[1.0] * 64, [2.0**-12] * 64])
    assert isinstance(
        steps_of(a.astype(np.float16), b.astype(np.float16), "storage=f16,acc=f16,product=f16"), NarrowInFloat32
    )
    assert (kernels.matmul(a, b, at) == 1.0).all()


@pytest.mark.parametrize(
    ("text", "a", "b", "expected"),
    [
        ("storage=f16,acc=f16,product=f16", 1.0, 0.5, NarrowInFloat32),
        ("storage=f16,acc=f16,product=f16", 256.0, 255.0, Narrow),  # two of them are beyond the range
        ("storage=f16,acc=f16", 1.0, 0.5, Narrow),  # products of 22 bits
        ("storage=e4m3fn,acc=f16", 1.0, 0.5, NarrowInFloat32),
        ("storage=e5m2,acc=f16", 1.0, 0.5, NarrowInFloat32),
        ("storage=e5m2,acc=f16", 2.0**-16, 2.0**-5, Narrow),  # the product may have bits below the accumulator's
        ("storage=bf16,acc=bf16,product=bf16", 1.0, 0.5, NarrowInFloat32),
        ("storage=bf16,acc=bf16,product=bf16", 2.0**-70, 2.0**-70, Narrow),  # a product may have bits below float32's
        (
            "storage=bf16,acc=bf16,product=bf16",
            2.0**60,
            2.0**60,
            Narrow,
        ),  # 2^17 times the sum is beyond float32's range
        ("storage=tf32,acc=tf32,product=bf16", 1.0, 0.5, NarrowInFloat32),
        ("storage=bf16,acc=tf32,product=e8m3", 2.0**54, 2.0**54, Narrow),  # 2^20 times the product is beyond it
        ("storage=f16,acc=f16,product=bf16", 1.0, 0.5, Narrow),  # a product can lie off the accumulator's grid
    ],
)
def test_the_values_decide_between_the_forms(text, a, b, expected):
    at = precision_of(text)
    left, right = np.full((2, 2), a, at.storage.dtype or np.float32), np.full((2, 70), b, at.storage.dtype)
    assert type(steps_of(left, right, text)) is expected
    assert same(kernels.matmul(left, right, at), evident(left, right, at))


@pytest.mark.parametrize("text", ["storage=e4m3fn,product=e5m12,acc=bf16", "storage=e2m1fn,product=e7m17,acc=tf32"])
def test_terms_that_are_rounded_to_more_bits_than_float32_can_round_are_made_otherwise(text):
    at = precision_of(text)
    rng = np.random.default_rng(6)
    a, b = (round_to(rng.standard_normal(shape), at.storage) for shape in ((3, 40), (40, 70)))
    assert not may_be_in_float32(at)
    assert np.array_equal(kernels.matmul(a, b, at), evident(a, b, at))


def test_formats_of_more_bits_and_products_below_the_grid_are_not_asked_about():
    assert may_be_in_float32(precision_of("storage=f16,acc=f16,product=f16"))
    for text in (
        "storage=f16,acc=e8m11,product=f16",
        "storage=f32,acc=f16,product=f16",
        "storage=f16,acc=f16,product=e8m3",
    ):
        assert not may_be_in_float32(precision_of(text)), text
