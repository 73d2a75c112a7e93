"""The evident scalar form, against integer arithmetic and hand-worked numbers. Everything else is held against it."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softfloat_llm.numerics.exact import dot_exact, floor_log2, fraction, round_exact
from softfloat_llm.numerics.formats import format_of
from softfloat_llm.numerics.modes import MODES
from tests.oracle import goes_away, values_of_bits

fractions = st.fractions(min_value=-100_000, max_value=100_000, max_denominator=10**9)


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("mode", MODES)
def test_round_exact_between_two_codes_follows_the_mode(name, mode):
    """A stride of the codes and both ends of each binade: below, on and above the midpoint of each pair, both signs."""
    top = 0x7C00 if name == "f16" else 0x7F80
    step = 1 << format_of(name).trailing_bits
    codes = sorted(
        {0, 1, 2, top - 2, *range(3, top - 1, 211), *(c + d for c in range(step, top, step) for d in (-1, 0))}
    )
    for code in codes:
        low, high = (Fraction(float(v)) for v in values_of_bits([code, code + 1], name))
        for place, weight in ((-1, Fraction(499_999, 10**6)), (0, Fraction(1, 2)), (1, Fraction(500_001, 10**6))):
            x = low + (high - low) * weight
            for sign in (1, -1):
                want = sign * float(high if goes_away(mode, code, place, sign < 0) else low)
                got = round_exact(sign * x, name, mode)
                assert (got, math.copysign(1, got)) == (want, sign), (code, place, sign)


@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "e5m7"])
@pytest.mark.parametrize(
    ("mode", "positive", "negative"),
    [
        ("ties_to_even", math.inf, -math.inf), ("ties_to_away", math.inf, -math.inf), ("toward_zero", None, None),
        ("toward_positive", math.inf, None), ("toward_negative", None, -math.inf), ("to_odd", None, None),
    ],
)  # fmt: skip
def test_overflow_goes_where_the_mode_says(name, mode, positive, negative):
    largest = format_of(name).max
    beyond = Fraction(largest) * 2
    assert round_exact(beyond, name, mode) == (positive or largest)
    assert round_exact(-beyond, name, mode) == (negative or -largest)
    assert round_exact(beyond, name, mode, overflow="saturate") == largest
    assert round_exact(-beyond, name, mode, overflow="saturate") == -largest


def test_the_border_of_overflow_is_half_an_ulp_beyond_the_largest_value():
    assert round_exact(65519.999, "f16") == 65504.0
    assert round_exact(65520, "f16") == math.inf
    assert round_exact(Fraction(65520) - Fraction(1, 10**30), "f16") == 65504.0


def test_ftz_judges_tininess_after_rounding_with_unbounded_exponent():
    """numerics.md: 2^-126 (1 - 2^-25) is kept, 2^-126 (1 - 2^-24) is flushed."""
    normal = Fraction(2) ** -126
    assert round_exact(normal * (1 - Fraction(2) ** -25), "f32", subnormals="ftz") == 2.0**-126
    assert round_exact(normal * (1 - Fraction(2) ** -24), "f32", subnormals="ftz") == 0.0
    assert round_exact(normal * (1 - Fraction(2) ** -24), "f32") == 2.0**-126


@pytest.mark.parametrize("mode", MODES)
def test_nan_infinities_and_zeros_pass(mode):
    assert math.isnan(round_exact(math.nan, "f16", mode))
    assert round_exact(-math.inf, "f16", mode) == -math.inf
    assert math.copysign(1, round_exact(-0.0, "f16", mode)) == -1
    assert math.copysign(1, round_exact(Fraction(0), "f16", mode)) == 1


def test_a_result_that_underflows_keeps_its_sign():
    assert math.copysign(1, round_exact(Fraction(-1, 2**200), "f16")) == -1
    assert round_exact(Fraction(-1, 2**2000), "f16", "toward_negative") == -(2.0**-24)


@given(fractions, st.sampled_from(["bf16", "f16", "f32", "e4m3", "e3m0"]))
def test_the_result_is_one_of_the_two_neighbours_and_nearest_where_it_should(x, name):
    low, high = round_exact(x, name, "toward_negative"), round_exact(x, name, "toward_positive")
    assert low <= x <= high
    for mode in MODES:
        assert round_exact(x, name, mode) in (low, high)
    if math.isfinite(low) and math.isfinite(high):
        assert abs(fraction(round_exact(x, name)) - x) == min(x - fraction(low), fraction(high) - x)


@given(fractions.filter(bool))
def test_floor_log2_is_the_exponent(x):
    exponent = floor_log2(abs(x))
    assert Fraction(2) ** exponent <= abs(x) < Fraction(2) ** (exponent + 1)


@given(st.lists(st.tuples(st.floats(-1e30, 1e30), st.floats(-1e30, 1e30)), max_size=9))
def test_dot_exact_loses_nothing(pairs):
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    assert dot_exact(a, b) == sum((Fraction(x) * Fraction(y) for x, y in pairs), Fraction(0))


def test_dot_exact_takes_arrays_of_any_format():
    assert dot_exact(np.array([1, 2], np.float16), np.array([0.5, 2.0**-24], np.float16)) == Fraction(1, 2) + Fraction(
        1, 2**23
    )
