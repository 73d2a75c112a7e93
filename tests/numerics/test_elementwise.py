"""Elementwise steps by float32's own operations against the ones by way of float64: no bit apart, specials included."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.numerics import elementwise
from softfloat_llm.numerics.carriers import carry, widen
from softfloat_llm.numerics.elementwise import USUAL, difference_of, factors, number_in, product_of, quotient_of, sum_of
from softfloat_llm.numerics.formats import bf16, f16, f32, format_of
from softfloat_llm.numerics.modes import MODES
from softfloat_llm.numerics.ops import div_wide
from softfloat_llm.numerics.rounding import round_sum, round_to, round_wide

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0]


def operands(fmt, seed):
    """Of all magnitudes, and next to each other's: the smallest, the largest, halves of an ulp apart."""
    rng = np.random.default_rng(seed)
    wide = np.ldexp(rng.standard_normal(6000), rng.integers(fmt.emin - fmt.precision, fmt.emax + 1, 6000))
    near = rng.standard_normal(3000)
    ends = [fmt.max, -fmt.max, fmt.smallest_normal, fmt.smallest_subnormal, -fmt.smallest_subnormal, *SPECIAL]
    x = round_to(np.concatenate([wide, near, np.repeat(ends, len(ends))]), fmt)
    y = round_to(np.concatenate([rng.permutation(wide), near * (1 + fmt.eps * rng.integers(0, 3, 3000)),
                                 np.tile(ends, len(ends))]), fmt)  # fmt: skip
    return x, y


def assert_bits(found, expected):
    assert found.dtype == expected.dtype
    is_nan = np.isnan(expected.astype(np.float64))
    assert np.array_equal(np.isnan(found.astype(np.float64)), is_nan)
    assert found[~is_nan].tobytes() == expected[~is_nan].tobytes()


@pytest.mark.parametrize("fmt", [f32, f16, bf16, format_of("e5m7"), format_of("tf32")], ids=str)
def test_sums_are_rounded_once(fmt):
    x, y = operands(fmt, 1)
    assert_bits(sum_of(x, y, fmt), carry(round_sum(widen(x), widen(y), fmt, "ties_to_even"), fmt))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", [f32, bf16], ids=str)
def test_sums_and_products_take_every_rule(fmt, mode):
    x, y = operands(fmt, 2)
    for rules in (USUAL | {"mode": mode}, USUAL | {"mode": mode, "overflow": "saturate", "subnormals": "ftz"}):
        assert_bits(sum_of(x, y, fmt, rules), carry(round_sum(widen(x), widen(y), fmt, **rules), fmt))
        with np.errstate(all="ignore"):
            assert_bits(product_of(x, y, fmt, rules), carry(round_wide(widen(x) * widen(y), fmt, **rules), fmt))


def test_every_pair_of_a_row_of_bf16_codes_is_added_as_fractions_are():
    """bf16 by way of float32 is harmless: all codes with some of all exponents."""
    codes = np.arange(1 << 16, dtype=np.uint16).view(bf16.dtype)
    for other in round_to([1.0, -1.5078125, 3e-39, 2.0**-126, 3.38e38, 2.0**-8], bf16):
        y = np.full_like(codes, other)
        assert_bits(sum_of(codes, y, bf16), carry(round_sum(widen(codes), widen(y), bf16, "ties_to_even"), bf16))


@pytest.mark.parametrize("to", [f32, bf16, f16, format_of("e4m3fn")], ids=str)
@pytest.mark.parametrize("fmt", [bf16, f16], ids=str)
def test_products_in_float32_of_all_codes_with_some_are_the_exact_ones_once_they_are_rounded(fmt, to):
    """Halves of the smallest numbers of bf16 and f16 too, and what lies beside them."""
    codes = np.arange(1 << 16, dtype=np.uint16).view(fmt.dtype)
    least = fmt.smallest_subnormal
    others = round_to([1.0, -1.9921875, 2.0**-1 + 2.0**-8, least, 3 * least, -(2.0**-126), 2.0**-7, fmt.max], fmt)
    ends = round_to(SPECIAL, fmt)
    for y in (*others, *ends, *codes[:: 1 << 12]):
        with np.errstate(all="ignore"):
            exact = widen(codes) * widen(y)
        assert_bits(product_of(codes, y, to), carry(round_wide(exact, to), to))


def test_products_of_two_formats_or_by_other_rules_are_made_in_float64():
    x, y = np.ones(2, f16.dtype), np.ones(2, bf16.dtype)
    for operands, to, mode, dtype in [
        ((x, x, x), bf16, "ties_to_even", np.float32),
        ((x, y), bf16, "ties_to_even", np.float64),
        ((y, y), bf16, "toward_zero", np.float64),
        ((y, y), format_of("e4m3fn"), "ties_to_even", np.float64),
    ]:
        assert {made.dtype for made in factors(*operands, fmt=to, rules=USUAL | {"mode": mode})} == {np.dtype(dtype)}


@pytest.mark.parametrize("to", [f32, bf16, f16], ids=str)
@pytest.mark.parametrize("fmt", [f32, bf16, f16], ids=str)
def test_products_differences_and_quotients_are_those_by_way_of_float64(fmt, to):
    x, y = operands(fmt, 3)
    a, b = widen(x), widen(y)
    with np.errstate(all="ignore"):
        assert_bits(product_of(x, y, to), carry(round_wide(a * b, to), to))
        assert_bits(difference_of(x, y, to), carry(round_wide(a - b, to), to))
        assert_bits(quotient_of(x, y, to), carry(div_wide(a, b, to), to))


def test_float64_operands_are_not_cut_to_float32():
    x, y = np.array([1.0 + 2.0**-40]), np.array([2.0**-60])
    assert product_of(x, np.array([1 - 2.0**-40]), f32)[0] == 1.0
    assert difference_of(x, np.array([1.0]), f32)[0] == 2.0**-40
    assert quotient_of(np.array([3.0]), np.array([1.0]), f32).dtype == np.float32
    assert sum_of(x, y, f32)[0] == 1.0


def test_a_number_is_held_once_in_its_carrier():
    assert number_in(1e-8, f16) == 0
    assert number_in(0.1, bf16).dtype == bf16.dtype
    assert number_in(0.1, bf16) is number_in(0.1, bf16)
    with pytest.raises(ValueError, match="read-only"):
        number_in(0.1, f32)[...] = 1.0
    assert elementwise.in_float32(number_in(0.5, f32)) is number_in(0.5, f32)


@pytest.mark.parametrize(("fmt", "numbers"), [("e6m5", (0.0, -0.0)), ("e6m6", (-0.0, 0.0)), ("e6m7", (1e-99, -1e-99))])
def test_zeros_of_both_signs_are_two_numbers(fmt, numbers):
    """Whichever was asked for first: each pair in a format of its own, of which nothing is held yet."""
    for number in numbers:
        assert np.signbit(number_in(number, format_of(fmt))) == np.signbit(number)


def test_the_usual_rules_are_nobodys_to_change():
    with pytest.raises(TypeError, match="does not support item assignment"):
        USUAL["mode"] = "toward_zero"
