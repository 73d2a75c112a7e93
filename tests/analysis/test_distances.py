"""difference: whole arrays against the same distances one element at a time; and its memory."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from softfloat_llm.analysis.compare import compare
from softfloat_llm.analysis.distances import difference
from softfloat_llm.numerics.formats import format_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.numerics.ulps import ulp, ulp_distance
from softfloat_llm.runs import Run
from tests.analysis.made import made_run
from tests.numerics.test_mapped import resident_kilobytes

PLAIN = [0.0, -0.0, 1.0, -1.0, 20.0, 22.375, 1e-40, -3e-45, 65504.0, 3.3e38]
SPECIAL = [math.nan, math.inf, -math.inf]


def are_one(x, y):
    return (math.isnan(x) and math.isnan(y)) or (x == y and math.copysign(1, x) == math.copysign(1, y))


def one_apart(x, y):
    if are_one(x, y):
        return 0.0
    return abs(x - y) if math.isfinite(x) and math.isfinite(y) else math.inf


def one_by_one(run, reference, fmt):
    """What `difference` finds, from Python floats: (differing, first, three largest with their places, steps)."""
    rows = [[float(v) for v in row] for row in run], [[float(v) for v in row] for row in reference]
    places = [(i, j) for i in range(len(rows[0])) for j in range(len(rows[0][0]))]
    pairs = {(i, j): (rows[0][i][j], rows[1][i][j]) for i, j in places}
    other = [p for p in places if not are_one(*pairs[p])]
    tops = [max([0.0, *(abs(v) for v in row if math.isfinite(v))]) for row in rows[1]]
    apart = {p: one_apart(*pairs[p]) for p in places}
    in_ulp = {p: apart[p] / ulp(pairs[p][1] if math.isfinite(pairs[p][1]) else 1.0, fmt) for p in places}
    in_row = {p: apart[p] / ulp(tops[p[0]], fmt) for p in places}
    largest = [max(values.values()) for values in (apart, in_ulp, in_row)]
    where = [next(p for p in places if v[p] == top) for v, top in zip((apart, in_ulp, in_row), largest, strict=True)]
    steps = [int(ulp_distance(x, round_to(y, fmt, overflow="saturate"), fmt)) for x, y in
             (pairs[p] for p in other) if math.isfinite(x) and math.isfinite(y)]  # fmt: skip
    all_finite = len(steps) == len(other)
    return len(other), other[0] if other else None, largest, where, max([0, *steps]) if all_finite else None


@pytest.mark.parametrize("formats", ["bf16 f32", "f16 f32", "f32 f32", "f16 bf16", "f32 f64", "f64 f64", "e4m3fn bf16"])
@pytest.mark.parametrize("special", [False, True])
def test_whole_arrays_give_what_one_element_after_the_other_gives(formats, special):
    fmt, other = (format_of(word) for word in formats.split())
    rng = np.random.default_rng(len(formats))
    for spread in (0.0, 1e-3, 1.0, 40.0):
        drawn = np.concatenate([rng.standard_normal(40) * 2.0**spread, PLAIN, SPECIAL if special else []])
        reference = round_to(rng.permutation(drawn)[:48].reshape(6, 8), other)
        moved = reference.astype(np.float64) * (1 + 0.01 * spread * rng.integers(-1, 2, reference.shape))
        run = round_to(np.where(rng.random(moved.shape) < 0.1, -moved, moved), fmt)
        found = difference("lm_head.out", run, reference, fmt, other)
        count, first, largest, where, steps = one_by_one(run, reference, fmt)
        assert (found.count, found.first and found.first.index, found.max_steps) == (count, first, steps)
        assert [found.max_abs, found.max_ulp, found.max_row_ulp] == largest
        told = [found.max_abs_at, found.max_ulp_at, found.max_row_ulp_at]
        assert [at and at.index for at in told] == (where if count else [None] * 3)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident pages are read from /proc")
def test_a_comparison_of_saved_runs_keeps_nothing_of_them_in_memory(tmp_path):
    rng = np.random.default_rng(0)
    act = rng.standard_normal((2, 1 << 18))
    for name, more in (("run", act), ("reference", act + 1)):
        made_run(more={"layers.0.mlp.gate_proj.out": more}).save(tmp_path / name)
    run, reference = Run.load(tmp_path / "run"), Run.load(tmp_path / "reference")
    assert compare(run, reference).max_abs == 0
    assert resident_kilobytes(tmp_path / "run" / "tensors.safetensors") < 100
    assert resident_kilobytes(tmp_path / "reference" / "tensors.safetensors") < 100
    np.testing.assert_array_equal(run["layers.0.mlp.gate_proj.out"], act.astype(np.float32))
