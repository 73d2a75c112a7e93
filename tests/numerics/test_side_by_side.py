"""Matrices side by side: the bits of each by itself, in every form and by every crew."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.numerics import kernels
from softfloat_llm.numerics.crew import Crew
from softfloat_llm.numerics.precision import precision_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.numerics.side_by_side import SideBySide, joined

TEXTS = [
    "f16,acc=f16", "bf16,acc=f32", "f32,acc=f32", "f16,acc=f32+kahan", "bf16,acc=exact",
    "bf16,acc=bf16,acc.rounding=stochastic:8:1",
]  # fmt: skip


@pytest.fixture(params=kernels.BACKENDS)
def backend(request):
    if request.param == "numba":
        pytest.importorskip("numba")
    return request.param


def made(storage, widths=(70, 3, 130)):
    rng = np.random.default_rng(4)
    a = round_to(rng.standard_normal((3, 40)), storage)
    return a, [round_to(rng.standard_normal((n, 40)), storage).T for n in widths]


@pytest.mark.parametrize("text", TEXTS)
def test_each_part_has_its_own_bits(text, backend):
    """Random words too are those of a matrix by itself, wherever it stands."""
    at = precision_of(f"storage={text}")
    a, parts = made(at.storage)
    whole = SideBySide(tuple(parts))
    found = whole.split(kernels.matmul(a, whole, at, backend=backend))
    for part, values in zip(parts, found, strict=True):
        assert np.array_equal(values, kernels.matmul(a, part, at))


@pytest.mark.parametrize("text", TEXTS[:3])
def test_a_crew_cuts_them_where_it_likes(text):
    at = precision_of(f"storage={text}")
    a, parts = made(at.storage)
    whole = SideBySide(tuple(parts))
    with Crew(3, least=0) as crew:
        assert np.array_equal(crew.matmul(a, whole, at), kernels.matmul(a, whole, at))


def test_columns_are_those_of_the_whole():
    _, parts = made("f16", (4, 1, 6))
    whole, joined = SideBySide(tuple(parts)), np.concatenate(parts, axis=1)
    assert whole.shape == joined.shape
    for start in range(12):
        for stop in range(start, 12):
            columns = whole.columns(slice(start, stop))
            assert np.array_equal(np.concatenate(columns.parts, axis=1), joined[:, start:stop])
            assert columns.shape == (40, min(stop, 11) - min(start, 11))


@pytest.mark.parametrize("dtypes", [("f2", "f2"), ("f4", "f4"), ("f2", "f8")])
@pytest.mark.parametrize("order", ["C", "F"])
def test_joined_blocks_keep_their_values_and_their_layout(dtypes, order):
    blocks = tuple(
        np.asarray(np.random.default_rng(n).standard_normal((6, n)), dtype, order=order)
        for n, dtype in zip((4, 3), dtypes, strict=True)
    )
    whole = joined(blocks)
    assert np.array_equal(whole, np.concatenate(blocks, axis=1))
    assert whole.flags.c_contiguous == (order == "C")


@pytest.mark.parametrize("text", TEXTS)
def test_parts_that_lie_in_one_array_have_the_bits_of_parts_that_do_not(text, backend):
    at = precision_of(f"storage={text}")
    a, parts = made(at.storage)
    lying = np.concatenate(parts, axis=1)
    views = (lying[:, :70], lying[:, 70:73], lying[:, 73:])
    one = SideBySide(views, lying)
    assert one.shape == (40, 203)
    assert one.columns(slice(60, 80)).filled()[0].base is lying
    found = kernels.matmul(a, one, at, backend=backend)
    assert np.array_equal(found, kernels.matmul(a, SideBySide(tuple(parts)), at, backend=backend))


@pytest.mark.parametrize("shape", [(40, 202), (40, 204), (39, 203), (203, 40), (40,)])
def test_the_whole_has_the_shape_of_its_parts(shape):
    _, parts = made("f16")
    with pytest.raises(AssertionError):
        SideBySide(tuple(parts), np.zeros(shape, np.float16))


def test_wide_parts_are_cut_by_themselves(monkeypatch):
    """Strips that lie as tiles take them are not joined."""
    at = precision_of("storage=bf16,acc=f32")
    a, parts = made(at.storage, (600, 500, 601))
    expected = kernels.matmul(a, np.concatenate(parts, axis=1), at)
    monkeypatch.setattr(kernels, "_WIDENED", 256 * 40 * 4)
    monkeypatch.setattr(kernels, "joined", None)
    assert np.array_equal(kernels.matmul(a, SideBySide(tuple(parts)), at), expected)
    assert [strip.stop - strip.start for strip in kernels.strips_of(40, 700)] == [234, 234, 232]
