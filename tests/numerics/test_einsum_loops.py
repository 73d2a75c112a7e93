"""The loop inside np.einsum: one after another, whatever the shape and the strides; and a NumPy in which it is not."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.numerics import einsum_loops, kernels, small_products, steps
from softfloat_llm.numerics.einsum_loops import (
    are_groups_sequential,
    is_sequential,
    products_are_rounded,
    sums_of_groups,
    sums_of_products,
)
from softfloat_llm.numerics.precision import precision_of
from softfloat_llm.numerics.rounding import round_to


@pytest.fixture(autouse=True)
def _forgets():
    products_are_rounded.cache_clear()
    yield
    is_sequential.cache_clear()
    are_groups_sequential.cache_clear()
    products_are_rounded.cache_clear()


def one_by_one(left, right):
    total = np.zeros((left.shape[1], right.shape[1]), left.dtype)
    for x, y in zip(left, right, strict=True):
        total += x[:, None] * y
    return total


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_numpy_at_hand_adds_one_after_another(dtype):
    assert is_sequential(np.dtype(dtype))


@pytest.mark.parametrize("shape", [(1, 1, 2), (1, 700, 2), (2, 3, 5), (7, 129, 64), (33, 40, 1000), (300, 5, 3)])
def test_sums_are_those_of_one_addition_after_another(shape):
    m, k, n = shape
    rng = np.random.default_rng(k)
    left, right = (round_to(rng.standard_normal((3 * k, size)), "f16").astype(np.float32) for size in (m, n))
    for ks in (slice(0, k), slice(1, 3 * k, 3), np.sort(rng.permutation(3 * k)[:k])):
        found = np.empty((m, n), np.float32)
        sums_of_products(left[ks], right[ks], found)
        assert found.tobytes() == one_by_one(left[ks], right[ks]).tobytes()


@pytest.mark.parametrize(
    "shape", [(1, 3, 3, 64, 6), (1, 3, 3, 6, 64), (5, 3, 3, 64, 5), (2, 8, 4, 64, 200), (9, 1, 1, 70, 2)]
)
def test_sums_of_groups_are_those_of_each_group_by_itself(shape):
    positions, groups, share, k, n = shape
    rng = np.random.default_rng(k)
    left = round_to(rng.standard_normal((positions, groups, share, k)), "f16").astype(np.float32)
    right = round_to(rng.standard_normal((groups, k, n)), "f16").astype(np.float32)
    found = np.empty((positions, groups, share, n), np.float32)
    sums_of_groups(left, right, found)
    for g in range(groups):
        alone = one_by_one(left[:, g].reshape(-1, k).T, right[g])
        assert found[:, g].tobytes() == alone.reshape(positions, share, n).tobytes()


@pytest.mark.parametrize("ordered", [lambda ks: ks[::-1], lambda ks: [*ks[::2], *ks[1::2]]])
def test_a_numpy_that_added_groups_in_another_order_is_noticed_and_not_used(monkeypatch, ordered):
    def other(left, right, out):
        out[...] = 0
        for k in ordered(range(left.shape[-1])):
            out += left[..., k, None] * right[:, None, k]

    at, rng = precision_of("storage=f16,acc=f32"), np.random.default_rng(1)
    a, b = round_to(rng.standard_normal((5, 6, 70)), "f16"), round_to(rng.standard_normal((2, 70, 9)), "f16")
    assert small_products.grouped_product(a, b, at) is not None
    monkeypatch.setattr(einsum_loops, "sums_of_groups", other)
    are_groups_sequential.cache_clear()
    assert not are_groups_sequential(np.dtype(np.float32))
    assert small_products.grouped_product(a, b, at) is None


def backward(left, right):
    return one_by_one(left[::-1], right[::-1])


def by_halves(left, right):
    half = len(left) // 2
    return one_by_one(left[:half], right[:half]) + one_by_one(left[half:], right[half:])


@pytest.mark.parametrize("other", [backward, by_halves])
def test_a_numpy_that_added_in_another_order_is_noticed_and_not_used(monkeypatch, other):
    at, rng = precision_of("storage=f16,acc=f32"), np.random.default_rng(1)
    a, b = round_to(rng.standard_normal((5, 70)), "f16"), round_to(rng.standard_normal((70, 9)), "f16")
    monkeypatch.setattr(small_products, "SMALL", 0)
    expected = kernels.matmul(a, b, at)
    for module in (einsum_loops, steps):
        monkeypatch.setattr(module, "sums_of_products", lambda left, right, out: np.copyto(out, other(left, right)))
    is_sequential.cache_clear()
    assert not is_sequential(np.dtype(np.float32))
    assert not products_are_rounded(np.dtype(np.float32))
    assert kernels.matmul(a, b, at).tobytes() == expected.tobytes()


def test_a_build_that_fuses_products_is_noticed(monkeypatch):
    def fused(left, right, out):
        total = np.zeros(out.shape)
        for x, y in zip(left.astype(np.float64), right.astype(np.float64), strict=True):
            total = (total + x[:, None] * y).astype(np.float32).astype(np.float64)
        out[...] = total

    for module in (einsum_loops, steps):
        monkeypatch.setattr(module, "sums_of_products", fused)
    is_sequential.cache_clear()
    products_are_rounded.cache_clear()
    assert is_sequential(np.dtype(np.float32))
    assert not products_are_rounded(np.dtype(np.float32))
    at, rng = precision_of("storage=f32,acc=f32,product=f32"), np.random.default_rng(2)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 50), (50, 8)))
    assert kernels.matmul(a, b, at).tobytes() == one_by_one(a.T, b).tobytes()
