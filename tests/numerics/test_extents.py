"""How small and how large operands are: against a look at each, and what is remembered of them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from softfloat_llm.numerics import extents
from softfloat_llm.numerics.extents import (
    Operands,
    Stored,
    extent_of,
    extremes,
    is_all_finite,
    is_below,
    spread,
    unchanging,
)
from softfloat_llm.numerics.formats import format_of


def looked_at(block):
    wide = np.abs(block.astype(np.float64))
    nonzero = np.where(wide > 0, wide, np.inf)
    return nonzero.min(axis=1, initial=np.inf), wide.max(axis=1, initial=0.0), (wide == 0).any(axis=1)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(1, 1), (3, 700), (700, 3), (64, 129), (5, 0), (0, 5), (301, 700)])
def test_the_extent_is_what_a_look_at_every_value_gives(dtype, shape):
    rng = np.random.default_rng(shape[0])
    values = (
        rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 4, shape) * rng.choice([0.0, 1.0], shape, p=[0.1, 0.9])
    )
    block = values.astype(dtype)
    for layout in (block, np.asfortranarray(block), block[::-1], np.repeat(block, 2, axis=1)[:, ::2]):
        for found, expected in zip(extent_of(layout), looked_at(layout), strict=True):
            assert np.array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_an_infinity_is_the_largest_and_a_nan_leaves_no_bound(dtype):
    block = np.ones((3, 40), dtype)
    block[1, 5], block[2, 7] = -np.inf, np.nan
    for layout in (block, np.asfortranarray(block)):
        largest = extent_of(layout).largest
        assert largest[:2].tolist() == [1.0, np.inf]
        assert np.isnan(largest[2])


def operands(block):
    return Operands(block.astype(np.float32), Stored((block,)))


def test_products_lie_between_their_bounds():
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((7, 3)).astype(np.float16), rng.standard_normal((7, 90)).astype(np.float16)
    a[2, 1] = b[4, 50] = 0
    products = np.abs(a.astype(np.float64)[:, :, None] * b.astype(np.float64)[:, None, :])
    bounds = spread(operands(a), operands(b))
    nonzero = np.where(products > 0, products, np.inf)
    assert (bounds.smallest == nonzero.min(axis=(1, 2))).all()
    assert (bounds.largest == products.max(axis=(1, 2))).all()
    assert np.flatnonzero(bounds.has_zero).tolist() == [2, 4]
    low, high = extremes(operands(a), operands(b))
    assert low <= nonzero.min()
    assert high >= products.max()


def test_blocks_side_by_side_have_the_extent_of_the_whole():
    rng = np.random.default_rng(6)
    parts = tuple(rng.standard_normal((9, n)).astype(ml_dtypes.bfloat16) for n in (4, 1, 30))
    for found, expected in zip(Stored(parts).extent, looked_at(np.concatenate(parts, axis=1)), strict=True):
        assert np.array_equal(found, expected)


def test_only_what_nobody_can_write_to_is_remembered(tmp_path, monkeypatch):
    looks = []
    monkeypatch.setattr(extents, "extent_of", lambda block: looks.append(block.shape) or extent_of(block))
    writeable = np.ones((3, 4), np.float16)
    for _ in range(2):
        assert Stored((writeable.T,)).extent.largest[0] == 1.0
    writeable[...] = 2.0
    assert Stored((writeable.T,)).extent.largest[0] == 2.0
    assert len(looks) == 3
    view = writeable.T
    view.flags.writeable = False  # the owner may still be written to
    _ = Stored((view,)).extent, Stored((view,)).extent
    assert len(looks) == 5
    (tmp_path / "weights").write_bytes(writeable.tobytes())
    mapped = np.memmap(tmp_path / "weights", np.float16, "r", shape=(3, 4))
    for block in (mapped, unchanging(writeable), unchanging(np.asfortranarray(writeable))):
        before = len(looks)
        for _ in range(3):
            _ = Stored((block.T,)).extent
        assert len(looks) == before + 1


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_unchanging_array_has_the_same_values_in_the_same_order_and_cannot_be_written_to(order):
    array = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3, order=order)
    kept = unchanging(array)
    assert (kept == array).all()
    assert (kept.dtype, kept.strides) == (array.dtype, array.strides)
    with pytest.raises(ValueError, match="WRITEABLE"):
        kept.flags.writeable = True


def test_an_array_that_was_read_only_for_a_while_has_the_extent_of_what_it_holds_now():
    block = np.ones((2, 4), np.float16)
    view = block[:]
    for value in (1.0, 2.0, 3.0):
        view[...] = value  # a view that was there before the flag may always be written to
        block.flags.writeable = False
        assert Stored((block,)).extent.largest[0] == value
        block.flags.writeable = True


def test_another_array_in_the_same_place_is_another_one():
    for value in (1.0, 3.0, 5.0):
        block = unchanging(np.full((50, 1000), value, np.float16))
        assert Stored((block,)).extent.largest[0] == value
        del block


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, ml_dtypes.float8_e5m2])
def test_one_value_that_is_not_finite_is_found_among_the_largest_ones(dtype):
    largest = np.full((3, 50), np.float64(ml_dtypes.finfo(dtype).max)).astype(dtype)
    for values in (largest, -largest, largest[:0], np.asfortranarray(largest), largest[:, ::2]):
        assert is_all_finite(values)
    for bad in (np.inf, -np.inf, np.nan, -np.nan):
        values = largest.copy()
        values[2, 49] = bad
        assert not is_all_finite(values)
        assert not is_all_finite(values.T)


@pytest.mark.parametrize("limit", [65504.0, 3.39e38, 1.0, format_of("e5m23").max])
def test_what_is_known_to_be_below_a_limit_is(limit):
    """The float32 beside the limit on both sides, further ones, infinities and NaN, as one element of several sizes."""
    beside = [float(np.nextafter(np.float32(limit), np.float32(to))) for to in (0.0, np.inf)]
    for size in (1, 7, 400):
        for value in (0.0, limit * 0.999, *beside, limit, -limit, limit * 1.001, np.inf, -np.inf, np.nan):
            x = np.zeros(size, np.float32)
            x[size // 2] = value
            if is_below(x, limit):
                assert abs(x[size // 2]) < limit
    assert is_below(np.full((2, 3), 0.01, np.float32), limit)
    assert not is_below(np.zeros(3), limit)


def test_a_limit_whose_square_float32_rounds_is_not_below_itself():
    """Rounded down, its square is less than the exact one, with which it is therefore not to be compared."""
    limit = format_of("e5m23").max
    below, itself, above = (np.nextafter(np.float32(limit), np.float32(to)) for to in (0.0, limit, np.inf))
    assert itself == limit
    assert float(itself * itself) < limit * limit
    assert [is_below(np.array([0.0, sign * x]).astype(np.float32), limit) for x in (below, itself, above)
            for sign in (1, -1)] == [True, True, False, False, False, False]  # fmt: skip
