"""S18: f16 overflows at 65504 and underflows early; bf16 has f32's range: what a range report says of both."""

from __future__ import annotations

import pytest

from softfloat_llm.analysis.ranges import ranges
from softfloat_llm.numerics.formats import bf16, f16, f32
from tests.claims import reproduced


def test_s18_f16_ends_at_65504_loses_small_values_and_cannot_hold_the_squares_of_a_norm(tiny_bench):
    reproduced(tiny_bench, "S18")
    assert (f16.max, f16.smallest_normal) == (65504.0, 2.0**-14)
    assert f32.max / bf16.max < 1.004


def test_s18_the_range_report_of_tiny_names_what_f16_cannot_sum(tiny_bench):
    run = tiny_bench.run("f32", taps=("*",))
    report = {fmt: ranges(run, format=fmt) for fmt in ("f16", "bf16")}
    print(report["f16"])
    assert report["f16"].first_overflow is None
    assert report["f16"].first_inner_overflow.place == "norm.final.acc"
    flushed = {
        fmt: sum(one.counts.flushed + one.counts.subnormal for one in found.taps) for fmt, found in report.items()
    }
    print(flushed)
    assert flushed["f16"] > 0
    assert flushed["bf16"] == 0


@pytest.mark.smollm2
def test_s18_the_squares_that_smollm2_s_norms_sum_exceed_f16(smollm2_bench):
    reproduced(smollm2_bench, "S18")
