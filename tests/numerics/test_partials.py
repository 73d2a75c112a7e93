"""partial_sums: against the order's tree in fractions, and against the sums that matmul gives."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from softfloat_llm.errors import FormatError, PrecisionError
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.partials import partial_sums
from softfloat_llm.numerics.precision import precision_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.numerics.trees import Chain, Join, Rounded, fold

ORDERS = ["seq", "reverse", "pairwise", "lanes:4", "blocked:4", "split-k:3", "split-k:3:bf16", "perm:7", "ilp:4",
          "perm:3 > lanes:4"]  # fmt: skip


def walked(row, column, at):
    """(total, largest, magnitudes) of one sum, in fractions, by walking the tree."""
    seen = []

    def rounded(x):
        seen.append(abs(round_exact(x, at.acc.format)))
        return Fraction(round_exact(x, at.acc.format))

    def step(node, parts):
        if isinstance(node, int):
            return ("term", Fraction(float(row[node])) * Fraction(float(column[node])))
        if isinstance(node, Rounded):
            return ("value", Fraction(round_exact(parts[0][1], node.format)), seen.append(abs(float(
                round_exact(parts[0][1], node.format)))))[:2]  # fmt: skip
        if isinstance(node, Chain):
            total = Fraction(0)
            for _, value in parts:
                total = rounded(total + value)
            return ("value", total)
        assert isinstance(node, Join)
        values = [rounded(value) if kind == "term" else value for kind, value in parts]
        total = values[0]
        for value in values[1:]:
            total = rounded(total + value)
        return ("value", total)

    kind, total = fold(at.order.tree(len(row)).root, step)
    total = rounded(total) if kind == "term" else total
    return float(total), max(seen, default=0.0), math.fsum(seen)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("acc", ["f32", "f16", "bf16"])
def test_partial_sums_are_those_of_the_tree_in_fractions(order, acc):
    rng = np.random.default_rng(5)
    a, b = (round_to(rng.standard_normal(shape), "f16") for shape in ((3, 13), (13, 2)))
    at = precision_of(f"storage=f16,acc={acc},order={order}")
    found = partial_sums(a, b, at)
    for i in range(3):
        for j in range(2):
            total, largest, magnitudes = walked(a[i], b[:, j], at)
            assert (found.total[i, j], found.largest[i, j]) == (total, largest)
            assert found.magnitudes[i, j] == pytest.approx(magnitudes, rel=2**-48)  # added in float64, 20 roundings


@pytest.mark.parametrize("at", [
    "storage=bf16,acc=f32", "storage=f16,product=f16,acc=f16,order=lanes:8", "storage=f32,acc=f64",
    "storage=bf16,acc=f32,order=fused:nvidia-hopper-bf16", "storage=f16,acc=f16,acc.rounding=toward_zero",
    "storage=f16,acc=f32,order=perm:1",
])  # fmt: skip
def test_the_totals_are_the_accumulators_of_matmul(at):
    rng = np.random.default_rng(2)
    storage = precision_of(at).storage
    a, b = (round_to(rng.standard_normal(shape), storage) for shape in ((4, 64), (64, 5)))
    assert np.array_equal(partial_sums(a, b, at).total, reduce.matmul_stages(a, b, at).acc.astype(np.float64))


def test_tiles_do_not_change_a_value(monkeypatch):
    rng = np.random.default_rng(3)
    a, b = (round_to(rng.standard_normal(shape), "bf16") for shape in ((4, 30), (30, 9)))
    whole = partial_sums(a, b, "storage=bf16,acc=f32")
    monkeypatch.setattr("softfloat_llm.numerics.partials._TILE", 8)
    cut = partial_sums(a, b, "storage=bf16,acc=f32")
    assert all(np.array_equal(x, y) for x, y in zip(whole[:3], cut[:3], strict=True))


def test_a_sum_may_leave_the_range_on_its_way_though_its_result_does_not():
    found = partial_sums([[40000.0, 40000.0, -40000.0]], [[1.0]] * 3, "storage=f16,acc=f32")
    assert (found.total.item(), found.largest.item()) == (40000.0, 80000.0)
    assert partial_sums([[40000.0, 40000.0, -40000.0]], [[1.0]] * 3, "storage=f16,acc=f16").total.item() == math.inf


@pytest.mark.parametrize(("shape", "roundings"), [((1, 0), 0), ((1, 1), 1), ((1, 5), 5)])
def test_short_sums(shape, roundings):
    found = partial_sums(np.ones(shape), np.ones((shape[1], 1)), "storage=f16,acc=f16")
    assert (found.total.item(), found.largest.item(), found.roundings) == (shape[1], shape[1], roundings)


def test_what_has_no_partial_sums_is_refused():
    for at in ("storage=f16,acc=exact", "storage=f16,acc=f32+kahan"):
        with pytest.raises(PrecisionError, match="no partial sums"):
            partial_sums([[1.0]], [[1.0]], at)
    with pytest.raises(PrecisionError, match=r"a has \(1, 2\), b has \(1, 1\)"):
        partial_sums([[1.0, 2.0]], [[1.0]], "storage=f16,acc=f16")
    with pytest.raises(FormatError):
        partial_sums([[0.1]], [[1.0]], "storage=f16,acc=f16")
