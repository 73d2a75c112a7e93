"""S18: f16 overflows at 65504 and underflows early; bf16 has f32's range: what a range report says of both."""

from __future__ import annotations

import math

import numpy as np
import pytest

from softfloat_llm.analysis.ranges import ranges
from softfloat_llm.analysis.rounding_counts import counts_in
from softfloat_llm.numerics.formats import bf16, f16, f32
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.runs import simulate


def test_s18_f16_ends_at_65504_and_bf16_where_f32_does():
    assert f16.max == 65504.0
    assert round_to([65519.9, 65520.0], f16).tolist() == [65504.0, math.inf]
    assert f16.smallest_normal == 2.0**-14
    assert round_to([2.0**-25, 2.0**-25 * 1.001], f16).tolist() == [0.0, 2.0**-24]
    assert (bf16.emin, bf16.emax) == (f32.emin, f32.emax) == (-126, 127)
    assert f32.max / bf16.max < 1.004


def test_s18_values_that_f16_loses_bf16_keeps():
    magnitudes = 2.0 ** np.arange(-60, 60)
    lost, kept = counts_in(magnitudes, f16), counts_in(magnitudes, bf16)
    print(f"of {lost.values} powers of two: f16 {lost.to_dict()}, bf16 {kept.to_dict()}")
    assert (lost.clipped, lost.subnormal, lost.flushed) == (44, 10, 36)
    assert (kept.clipped, kept.subnormal, kept.flushed) == (0, 0, 0)


def test_s18_the_range_report_of_tiny_names_what_f16_cannot_sum():
    run = simulate(recipe="f32", taps=("*",))
    report = {fmt: ranges(run, format=fmt) for fmt in ("f16", "bf16")}
    print(report["f16"])
    assert report["f16"].first_overflow is None
    assert report["f16"].first_inner_overflow.place == "norm.final.acc"
    assert report["bf16"].first_inner_overflow is None
    flushed = {
        fmt: sum(one.counts.flushed + one.counts.subnormal for one in found.taps) for fmt, found in report.items()
    }
    print(flushed)
    assert flushed["f16"] > 0
    assert flushed["bf16"] == 0


@pytest.mark.smollm2
def test_s18_the_squares_that_smollm2_s_norms_sum_exceed_f16(smollm2_folder):
    run = simulate("The", model=smollm2_folder, recipe="f32", taps=("*norm.*",))
    found = ranges(run, format="f16")
    print(found)
    assert found.first_inner_overflow is not None
    assert ranges(run, format="bf16").first_inner_overflow is None
