"""Weights widened row by row: every finite code, any rows, blocks side by side; what must be widened whole."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from softfloat_llm.numerics import kernels
from softfloat_llm.numerics.extents import Stored
from softfloat_llm.numerics.precision import precision_of
from softfloat_llm.numerics.side_by_side import SideBySide
from softfloat_llm.numerics.stored_rows import StoredRows, stay_stored

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(np.float16), BF16]


def every_finite_code(dtype):
    values = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(dtype)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        is_finite = np.isfinite(values)
    return np.resize(values[is_finite], (96, 660))


def stored(*blocks):
    return StoredRows(blocks, Stored(blocks))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("carrier", [np.float64, np.float32])
def test_every_code_is_widened_to_its_value_and_keeps_its_sign(dtype, carrier):
    codes = every_finite_code(dtype)
    rows = stored(codes[:, :7], codes[:, 7:400], codes[:, 400:])
    expected = codes.astype(np.float64)
    assert rows.shape == codes.shape
    for ks in (slice(0, 96), slice(5, 40, 3), slice(90, 2, -1), slice(7, 8), np.array([3, 3, 95, 0])):
        chosen = rows[ks]
        out = np.empty(chosen.shape, carrier)
        chosen.widen(slice(None), out, np.empty(chosen.shape, np.int32))
        assert np.array_equal(out, expected[ks])
        assert np.array_equal(np.signbit(out), np.signbit(expected[ks]))
        assert np.array_equal(chosen.wide, expected[ks])


def test_only_rows_that_need_neither_a_check_nor_a_flush_stay_stored():
    def stay(block, text):
        return stay_stored((block,), precision_of(text))

    half = np.ones((4, 6), np.float16)
    assert stay(half, "storage=f16,acc=f16")
    assert stay(half.astype(BF16), "storage=bf16,acc=f16")
    assert not stay(half, "storage=e5m2,acc=f16")  # must be looked through for values that e5m2 does not hold
    assert not stay(half, "storage=f16,acc=f32,subnormals=ftz+daz")
    assert not stay(np.ones((6, 4), np.float16).T, "storage=f16,acc=f16")
    assert not stay(half.astype(np.float32), "storage=f16,acc=f16")
    both = half, half.astype(BF16)
    assert not stay_stored(both, precision_of("storage=f16,acc=f16"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("acc", ["acc=f16", "acc=f16,product=f16", "acc=f16,acc.rounding=toward_zero", "acc=bf16"])
@pytest.mark.parametrize("order", ["seq", "reverse", "perm:3", "lanes:4", "blocked:7"])
def test_few_rows_of_a_have_the_sums_that_they_have_among_many(dtype, acc, order):
    at = precision_of(f"storage={'bf16' if dtype == BF16 else 'f16'},{acc},order={order}")
    rng = np.random.default_rng(8)
    a = rng.standard_normal((9, 40)).astype(dtype)
    a[2, ::3], a[5] = 0, -0.0
    parts = [(rng.standard_normal((40, n)) * 0.1).astype(dtype) for n in (33, 1, 70)]
    parts[0][7] = 0
    b = SideBySide(tuple(parts))
    many = kernels.matmul(a, b, at)
    for first, stop in ((0, 1), (1, 3), (2, 6)):
        few = kernels.matmul(a[first:stop], b, at)
        assert np.array_equal(few, many[first:stop])
        assert np.array_equal(np.signbit(few), np.signbit(many[first:stop]))


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("acc", ["acc=f16", "acc=f32"])
def test_infinities_and_nan_in_weights_have_their_way(dtype, acc, backend):
    if backend == "numba":
        pytest.importorskip("numba")
    a, b = np.ones((2, 40), dtype), np.ones((40, 300), dtype)
    b[3, 4], b[5, 6], b[7, 6], b[9, 8] = np.inf, np.inf, -np.inf, np.nan
    at = precision_of(f"storage={'bf16' if dtype == BF16 else 'f16'},{acc}")
    found = kernels.matmul(a, b, at, backend=backend)
    expected = np.full((2, 300), 40.0)
    expected[:, [4, 6, 8]] = np.inf, np.nan, np.nan
    assert np.array_equal(found, expected, equal_nan=True)
