"""Special values, ends of the range, and results beside 1: what the functions give without an approximation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from softfloat_llm.numerics import functions, reduce
from softfloat_llm.numerics.formats import e4m3fn, f32, format_of
from softfloat_llm.numerics.modes import MODES

ONE_ARGUMENT = ("exp", "log", "rsqrt", "sin", "cos", "tanh", "sigmoid")
INF, NAN = math.inf, math.nan
POW_SPECIAL = [  # IEEE 754-2019, section 9.2.1
    (NAN, 0.0, 1.0), (INF, -0.0, 1.0), (-3.5, 0.0, 1.0), (0.0, 0.0, 1.0), (1.0, NAN, 1.0), (1.0, INF, 1.0),
    (NAN, 1.0, NAN), (2.0, NAN, NAN), (-1.0, NAN, NAN), (-1.0, INF, 1.0), (-1.0, -INF, 1.0),
    (0.0, -3.0, INF), (-0.0, -3.0, -INF), (-0.0, -2.0, INF), (-0.0, -0.5, INF), (0.0, -INF, INF), (-0.0, -INF, INF),
    (0.0, 3.0, 0.0), (-0.0, 3.0, -0.0), (-0.0, 2.0, 0.0), (-0.0, 0.5, 0.0), (-0.0, INF, 0.0),
    (0.5, INF, 0.0), (0.5, -INF, INF), (-2.0, INF, INF), (-2.0, -INF, 0.0), (2.0, INF, INF),
    (INF, 0.5, INF), (INF, -0.5, 0.0), (-INF, 3.0, -INF), (-INF, 2.0, INF), (-INF, 0.5, INF), (-INF, -3.0, -0.0),
    (-INF, -2.0, 0.0), (-INF, INF, INF), (-INF, -INF, 0.0), (-8.0, 0.5, NAN), (-8.0, 1 / 3, NAN), (-8.0, 3.0, -512.0),
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("x", "y", "want"), POW_SPECIAL)
def test_pow_has_the_special_values_of_the_standard(x, y, want, mode):
    assert repr(functions.pow(x, y, "f32", mode)) == repr(want)


SPECIAL = [
    ("exp", -INF, 0.0), ("exp", INF, INF), ("exp", 0.0, 1.0), ("exp", -0.0, 1.0),
    ("log", 0.0, -INF), ("log", -0.0, -INF), ("log", INF, INF), ("log", 1.0, 0.0), ("log", -1.0, NAN),
    ("log", -INF, NAN), ("log", -1e-30, NAN),
    ("rsqrt", 0.0, INF), ("rsqrt", -0.0, -INF), ("rsqrt", INF, 0.0), ("rsqrt", -1.0, NAN), ("rsqrt", -INF, NAN),
    ("rsqrt", 2.0**-12, 64.0), ("sin", 0.0, 0.0), ("sin", -0.0, -0.0), ("sin", INF, NAN), ("sin", -INF, NAN),
    ("cos", 0.0, 1.0), ("cos", -0.0, 1.0), ("cos", INF, NAN), ("tanh", 0.0, 0.0), ("tanh", -0.0, -0.0),
    ("tanh", INF, 1.0), ("tanh", -INF, -1.0), ("sigmoid", -INF, 0.0), ("sigmoid", INF, 1.0), ("sigmoid", -0.0, 0.5),
    *((name, NAN, NAN) for name in ONE_ARGUMENT),
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "x", "want"), SPECIAL)
def test_special_values_are_the_same_in_every_mode(name, x, want, mode):
    for fmt in ("f32", "bf16", "f16", "tf32"):
        assert repr(getattr(functions, name)(x, fmt, mode)) == repr(want)


@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_every_nan_gives_the_positive_quiet_nan(name):
    codes = np.array([0x7F800001, 0xFFC00000, 0xFFFFFFFF], np.uint32)
    assert getattr(functions, name)(codes.view(np.float32)).view(np.uint32).tolist() == [0x7FC00000] * 3


def test_exp_beyond_the_range_goes_where_the_mode_says():
    f32_max, smallest = f32.max, f32.smallest_subnormal
    assert [functions.exp(1e30, "f32", mode) for mode in MODES] == [INF, INF, f32_max, INF, f32_max, f32_max]
    assert [functions.exp(-1e30, "f32", mode) for mode in MODES] == [0, 0, 0, smallest, 0, smallest]


def test_overflow_in_a_format_without_infinities_is_nan_and_in_one_without_nan_the_largest_value():
    x = np.array([50.0, 1e300, -50.0, -1e300])
    np.testing.assert_array_equal(functions.function_wide("exp", (x,), e4m3fn), [NAN, NAN, 0.0, 0.0])
    np.testing.assert_array_equal(functions.function_wide("exp", (x,), format_of("e2m1fn")), [6.0, 6.0, 0.0, 0.0])


@pytest.mark.parametrize("order", ["seq", "lanes:2"])
@pytest.mark.parametrize("acc", ["f32", "f16", "bf16", "f32+kahan", "exact"])
@pytest.mark.parametrize("output", ["e2m1fn", "e3m2fn", "e2m3fn"])
def test_a_nan_sum_goes_to_an_output_without_nan_as_minus_zero_whatever_its_sign(output, acc, order):
    """What exact.round_exact makes of +NaN. The CPU chooses the sign of inf - inf: x86 takes -, ARM +."""
    at = f"storage=bf16,acc={acc},output={output},order={order}"
    for a, b in (([INF, -INF], [1, 1]), ([INF, 1], [0, 1]), ([NAN, 1], [1, 1]), ([1, math.copysign(NAN, -1)], [1, 1])):
        row, column = np.tile(np.array(a, float), (3, 1)), np.tile(np.array(b, float)[:, None], (1, 5))
        for got in (reduce.dot(a, b, at), *reduce.matmul(row, column, at).astype(float).ravel()):
            assert math.copysign(1, got) == -1
            assert got == 0


def test_subnormal_results_are_flushed_and_operands_zeroed_on_demand():
    assert 0 < functions.exp(-90.0, "f32") < f32.smallest_normal
    assert functions.exp(-90.0, "f32", subnormals="ftz") == 0
    assert functions.rsqrt(-1e-40, "f32", subnormals="daz") == -INF
    assert math.isnan(functions.rsqrt(-1e-40, "f32"))


BESIDE = [  # name, x, the number beside which the result lies, and whether it lies above
    ("exp", 1e-30, 1.0, True), ("exp", -1e-30, 1.0, False), ("cos", 1e-30, 1.0, False), ("tanh", 99.0, 1.0, False),
    ("sigmoid", 99.0, 1.0, False), ("sigmoid", 1e-30, 0.5, True), ("sigmoid", -1e-30, 0.5, False),
    ("sin", 2.0**-100, 2.0**-100, False), ("tanh", 2.0**-100, 2.0**-100, False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "x", "beside", "is_above"), BESIDE)
def test_a_result_just_beside_a_number_goes_to_its_neighbour_in_the_directed_modes(name, x, beside, is_above):
    low, high = (beside, beside * (1 + f32.eps)) if is_above else (beside * (1 - f32.eps / 2), beside)
    odd = high if is_above else low
    assert [getattr(functions, name)(x, "f32", mode) for mode in MODES] == [beside, beside, low, high, low, odd]


def test_a_float64_beside_a_midpoint_is_not_taken_for_the_midpoint():
    midpoint = (1 + 2.0**-24) * 2.0**-40
    assert functions.sin(midpoint, "f32", "ties_to_away") == 2.0**-40
    assert functions.sin(math.nextafter(midpoint, 1), "f32") == (1 + 2.0**-23) * 2.0**-40


def test_pow_beside_one_knows_its_side_even_where_the_exponent_underflows():
    x = 1 - 2.0**-53
    assert functions.pow(x, 1e-320, "f32", "toward_zero") == 1 - 2.0**-24
    assert functions.pow(x, -1e-320, "f32", "toward_positive") == 1 + 2.0**-23
