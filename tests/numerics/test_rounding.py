"""Rounding on arrays: every border of the 16-bit formats in every mode; the exact form; real casts; properties."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softfloat_llm.errors import FormatError
from softfloat_llm.numerics import rounding
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.formats import FORMATS, bf16, decode, encode, f16, f32, f64, format_of
from softfloat_llm.numerics.modes import MODES, OVERFLOWS
from softfloat_llm.numerics.rounding import (
    flush,
    round_carried,
    round_held_sum,
    round_pair,
    round_sum,
    round_to,
    round_wide,
    to_odd_pair,
    two_sum,
)
from softfloat_llm.numerics.ulps import neighbours, ordinal, ulp, ulp_distance, value_of_ordinal
from tests.oracle import HARDWARE_MODES, assert_same, goes_away, hardware, values_of_bits

EIGHT_BITS = [f for f in FORMATS.values() if f.bits <= 8]
SPREAD = [
    "f16",
    "bf16",
    "tf32",
    "f32",
    "e4m3fn",
    "e4m3fnuz",
    "e5m2",
    "e2m1fn",
    "e3m0",
    "e2m23",
    "e5m7",
    "e8m0fnu",
    "e8m0",
]
ids = str

# --- Exhaustive: the 16-bit formats ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_every_border_between_two_codes_rounds_as_the_mode_says(name, mode):
    """Each midpoint, its float64 neighbours, and the float64 neighbours of each value; both signs; overflow included.

    The value beyond the largest finite one is 2^(emax+1), whose code is that of the infinity.
    """
    top = 0x7C00 if name == "f16" else 0x7F80
    codes = np.arange(top)
    values = values_of_bits(np.arange(top), name)
    values = np.append(values, 2.0 * values_of_bits([top - (0x400 if name == "f16" else 0x80)], name))
    low, high, middle = values[:-1], values[1:], (values[:-1] + values[1:]) / 2
    results = np.append(values[:-1], np.inf)
    for place, x in (
        (-1, np.nextafter(low, np.inf)), (-1, np.nextafter(middle, 0)), (0, middle), (1, np.nextafter(middle, np.inf)),
        (1, np.nextafter(high, 0)),
    ):  # fmt: skip
        for sign in (1.0, -1.0):
            is_up = np.broadcast_to(goes_away(mode, codes, place, sign < 0), codes.shape).copy()
            is_up[-1] = {"toward_zero": False, "to_odd": False}.get(mode, is_up[-1])
            want = sign * np.where(is_up, results[1:], results[:-1])
            assert_same(round_to(sign * x, name, mode), want, sign * x)
            assert_same(round_wide(sign * x, format_of(name), mode), want, sign * x)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_every_value_rounds_to_itself(name, mode):
    values = values_of_bits(np.arange(1 << 16), name)
    for subnormals in ("keep", "ftz", "daz", "ftz+daz"):
        got = round_to(values, name, mode, subnormals=subnormals)
        assert got.dtype == format_of(name).dtype
        assert_same(got, values if subnormals == "keep" else flush(values, format_of(name)), values)


def test_every_bf16_code_through_f32_and_back_is_the_identity():
    values = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    with np.errstate(invalid="ignore"):
        wide = values.astype(np.float32)
    assert_same(round_to(wide, "bf16"), values)


@pytest.mark.parametrize("fmt", EIGHT_BITS, ids=ids)
def test_casts_from_f32_equal_ml_dtypes(fmt):
    rng = np.random.default_rng(8)
    values = decode(np.arange(1 << fmt.bits), fmt)
    values = np.unique(values[np.isfinite(values)]).astype(np.float32)
    middles = ((values[:-1].astype(np.float64) + values[1:]) / 2).astype(np.float32)
    x = np.concatenate([values, middles, np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, -np.inf)])
    noise = rng.standard_normal(20_000) * 2.0 ** rng.integers(fmt.emin - 9, min(fmt.emax + 4, 126), 20_000)
    x = np.concatenate([x, noise, [fmt.max * 1.03125, fmt.max * 1.0625, fmt.max * 1.25, np.inf, -np.inf, np.nan]])
    x = x.astype(np.float32)
    if fmt.name == "e8m0fnu":  # ml_dtypes 0.5 takes 2^-127 (1.5 - 2^-22), a subnormal float32, to 2^-126
        x = x[~(np.abs(x) < 2.0**-126)]
    with np.errstate(all="ignore"):
        want = x.astype(fmt.dtype)
    assert_same(round_to(x, fmt), want, x)


def test_casts_from_float64_round_once_where_ml_dtypes_rounds_twice():
    assert round_to(1 + 2**-8 + 2**-40, "bf16") == 1.0078125
    assert float(np.float64(1 + 2**-8 + 2**-40).astype(ml_dtypes.bfloat16)) == 1.0


@pytest.mark.parametrize("fmt", [f16, bf16, f32], ids=str)
def test_one_cast_is_the_rounding_on_the_grid(fmt):
    """Words of float64 of all kinds, and of all exponents that meet the format's, its midpoints among them."""
    rng = np.random.default_rng(3)
    exponents = rng.integers(fmt.emin - fmt.precision - 12, fmt.emax + 3, 200_000)
    kept = rng.integers(0, 53, exponents.size)  # significand bits that are not zero
    x = np.ldexp(np.ldexp(np.floor(np.ldexp(rng.random(exponents.size) + 1, kept)), -kept), exponents)
    x = np.concatenate([x, -x, rng.integers(-(1 << 63), 1 << 63, 200_000).view(np.float64)])
    with np.errstate(invalid="ignore", over="ignore"):  # signalling NaN
        on_grid = rounding._on_grid(x, fmt, "ties_to_even", fmt.smallest_normal)
    want = rounding._overflowed(on_grid, fmt, "ties_to_even", "ieee")
    assert_same(round_wide(x, fmt), want, x)
    assert_same(round_carried(x, fmt), want, x)
    assert round_carried(x, fmt).dtype == fmt.dtype
    assert_same(round_carried(x[::-3], fmt, "toward_zero"), round_wide(x[::-3], fmt, "toward_zero"), x[::-3])


def test_ties_to_even_from_float64_equals_numpy_for_f16_and_f32():
    x = np.random.default_rng(0).integers(0, 2**63, 200_000).view(np.float64)
    x = np.concatenate([x, np.ldexp(np.random.default_rng(1).uniform(-1, 1, 200_000), np.arange(200_000) % 60 - 40)])
    with np.errstate(all="ignore"):
        assert_same(round_to(x, "f16"), x.astype(np.float16), x)
        assert_same(round_to(x, "f32"), x.astype(np.float32), x)
        assert_same(round_wide(x, f16, "ties_to_even", overflow="ieee"), x.astype(np.float16), x)


# --- The array form is the exact form -------------------------------------------------------------------------------


def trying_numbers(fmt, rng, n=150):
    """Random magnitudes across the range, values, midpoints, and the borders of overflow and of tininess."""
    x = np.exp2(rng.uniform(np.log2(fmt.smallest_subnormal) - 3, np.log2(fmt.max) + 2, n)) * rng.choice([-1.0, 1.0], n)
    low, high = (round_wide(x, fmt, mode) for mode in ("toward_negative", "toward_positive"))
    with np.errstate(invalid="ignore"):
        middle = (low + high) / 2
    normal = fmt.smallest_normal * (1 - fmt.eps * np.array([1, 1 / 2, 1 / 4, 1 / 8]))
    edges = [0.0, np.inf, np.nan, fmt.max, fmt.max * 1.01, fmt.max * 4, 1e308, np.finfo(float).max, 5e-324, *normal]
    x = np.concatenate([x, low, middle, np.nextafter(middle, 0), edges])
    return np.concatenate([x, -x])


@pytest.mark.parametrize("name", SPREAD)
def test_round_to_equals_round_exact(name):
    fmt = format_of(name)
    x = trying_numbers(fmt, np.random.default_rng(3))
    for mode, overflow, subnormals in itertools.product(MODES, OVERFLOWS, ("keep", "ftz")):
        want = [round_exact(v, fmt, mode, overflow=overflow, subnormals=subnormals) for v in x.tolist()]
        got = round_to(x, fmt, mode, overflow=overflow, subnormals=subnormals)
        assert got.dtype == fmt.dtype
        assert_same(got, want, x)


def test_a_float64_far_beyond_a_narrow_format_overflows_as_the_mode_says():
    """1e308 / 2^-21 is infinite: a scaling by the format's own largest quantum took it for an infinite operand."""
    assert round_to(1e308, "e2m23", "toward_zero") == format_of("e2m23").max
    assert round_to(-1e308, "e4m23", "toward_positive") == -format_of("e4m23").max
    assert round_to(1e308, "e4m23") == np.inf


# --- Real casts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", HARDWARE_MODES)
@pytest.mark.parametrize(("array", "dtype"), [("ps2ph", "f32"), ("pd2ph", "f64")])
def test_casts_to_f16_equal_vcvtps2ph_and_vcvtpd2ph(array, dtype, word):
    casts = hardware("casts")
    x = casts[f"{array}_x"].view(np.float32 if dtype == "f32" else np.float64)
    assert_same(round_to(x, "f16", HARDWARE_MODES[word]), values_of_bits(casts[f"{array}_{word}"], "f16"), x)


@pytest.mark.parametrize("word", ["rd", "ru"])
def test_casts_of_f32_under_daz_equal_vcvtps2ph(word):
    casts = hardware("casts")
    x = casts["ps2ph_x"].view(np.float32)
    got = round_to(x, "f16", HARDWARE_MODES[word], subnormals="daz")
    assert_same(got, values_of_bits(casts[f"ps2ph_daz_{word}"], "f16"), x)


@pytest.mark.parametrize("word", ["rd", "ru"])
def test_casts_of_f64_under_daz_equal_vcvtpd2ph(word):
    """A float64 array is plain numbers, whose subnormals are those of the target: so its own are flushed by hand."""
    casts = hardware("casts")
    x = casts["pd2ph_x"].view(np.float64)
    got = round_to(flush(x, f64), "f16", HARDWARE_MODES[word])
    assert_same(got, values_of_bits(casts[f"pd2ph_daz_{word}"], "f16"), x)


def test_casts_to_bf16_equal_vcvtneps2bf16():
    casts = hardware("casts")
    x = casts["ps2bf_x"].view(np.float32)
    assert_same(round_to(x, "bf16", subnormals="ftz+daz"), values_of_bits(casts["ps2bf_y"], "bf16"), x)


def test_casts_of_f16_to_f32_equal_vcvtph2ps():
    casts = hardware("casts")
    x = casts["ph2ps_x"].view(np.float16)
    assert_same(round_to(x, "f32"), values_of_bits(casts["ph2ps_y"], "f32"), x)


# --- Subnormals, zeros, specials ------------------------------------------------------------------------------------


def test_daz_speaks_of_the_format_that_the_operand_lies_in():
    tiny = np.array([2.0**-127, 2.0**-14 * 0.75, 1.0])
    assert_same(round_to(tiny.astype(np.float32), "f32", subnormals="daz"), [0.0, 2.0**-14 * 0.75, 1.0])
    assert_same(round_to(tiny.astype(np.float16), "f32", subnormals="daz"), [0.0, 0.0, 1.0])
    assert_same(round_to(tiny, "f16", subnormals="daz"), [0.0, 0.0, 1.0])  # plain numbers: in the target


def test_daz_takes_tiny_fractions_for_zeros_too():
    assert round_to(2.0**-140, "f32", "toward_positive", subnormals="daz") == 0.0
    assert round_to(Fraction(1, 3 * 2**140), "f32", "toward_positive", subnormals="daz") == 0.0
    assert math.copysign(1, round_to(Fraction(-1, 3 * 2**140), "f32", "toward_positive", subnormals="daz")) == -1


@pytest.mark.parametrize("mode", MODES)
def test_ftz_keeps_what_rounds_up_to_the_smallest_normal_value(mode):
    x = 2.0**-126 * (1 - np.array([2.0**-25, 2.0**-24]))
    is_up = mode in ("ties_to_even", "ties_to_away", "toward_positive")
    assert_same(round_to(x, "f32", mode, subnormals="ftz"), [2.0**-126 if is_up else 0.0, 0.0])


def test_a_single_number_can_be_flushed():
    assert round_to(2.0**-127, "f32", subnormals="ftz") == 0.0
    assert round_to(np.float32(2.0**-127), "bf16", subnormals="ftz+daz") == 0.0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["f16", "bf16", "e5m2", "e5m7"])
def test_zeros_infinities_and_nan_pass_through(name, mode):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])
    for overflow in ("ieee", "saturate"):
        want = np.where(np.isinf(x) & (overflow == "saturate"), np.copysign(format_of(name).max, x), x)
        assert_same(round_to(x, name, mode, overflow=overflow), want)


def test_a_signalling_nan_becomes_a_quiet_one_without_a_warning(recwarn):
    x = np.array([0x7F800001, 0x7FC00000], np.uint32).view(np.float32)
    codes = encode(round_to(x, "f16"), "f16")
    assert np.isnan(decode(codes, "f16")).all()
    assert (codes & 0x200).all()
    assert not recwarn.list


# --- Kinds of input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [2**53 + 1, 2**63 + 2**39 + 1, 2**80 + 2**56 + 1, Fraction(2**80 + 2**56 + 1)])
def test_big_integers_round_once(x):
    assert round_to(x, "f32") == round_exact(x, "f32")
    assert round_to(x, "f32", "toward_positive") > x
    assert round_to([x], "f32", "to_odd").tolist() == [round_exact(x, "f32", "to_odd")]


def test_an_extended_float_rounds_once():
    x = np.longdouble(1) + np.longdouble(2) ** -11 + np.longdouble(2) ** -60
    if x != np.float64(x):  # where long double is wider than float64
        assert round_to(x, "f16") == 1.0009765625


def test_a_scalar_gives_a_float_and_an_array_its_carrier():
    for x in (0.1, np.float32(0.1), np.array(0.1), Fraction(1, 10)):
        assert type(round_to(x, "bf16")) is float
    assert round_to([0.1], "bf16").dtype == bf16.dtype
    assert round_to(np.zeros((0, 3)), "tf32").dtype == np.float32
    assert round_to(np.zeros((0, 3)), "tf32").shape == (0, 3)


def test_the_input_is_not_changed():
    x = np.array([1e-10, 0.1, 1e10])
    for mode, subnormals in itertools.product(MODES, ("keep", "ftz+daz")):
        round_to(x, "f16", mode, subnormals=subnormals)
    assert x.tolist() == [1e-10, 0.1, 1e10]


def test_unknown_words_are_refused_with_a_hint():
    with pytest.raises(FormatError, match="ties_to_even"):
        round_to(1.0, "f16", "ties_to_evn")
    with pytest.raises(FormatError, match="Known: ieee, saturate"):
        round_to(1.0, "f16", overflow="clamp")
    with pytest.raises(FormatError, match="Known: keep"):
        round_to(1.0, "f16", subnormals="flush")
    with pytest.raises(FormatError, match="Unknown format"):
        round_to(1.0, "f17")


@pytest.mark.parametrize("x", [1j, "one", None, np.array(["a"]), np.datetime64("2024-01-01"), [1.0, None]])
def test_what_is_no_real_number_is_refused(x):
    with pytest.raises(FormatError, match="Only real numbers"):
        round_to(x, "f16")


# --- Pairs ----------------------------------------------------------------------------------------------------------

anything = st.floats(-(2.0**60), 2.0**60)


@settings(max_examples=300)
@given(anything, anything, st.sampled_from(MODES), st.sampled_from(["f64", "f32", "f16", "bf16", "e4m3"]))
def test_a_sum_of_two_float64_rounds_once(x, y, mode, name):
    s, e = two_sum(np.float64(x), np.float64(y))
    assert Fraction(float(s)) + Fraction(float(e)) == Fraction(x) + Fraction(y)
    got = round_pair(np.array([s]), np.array([e]), format_of(name), mode)
    want = round_exact(Fraction(x) + Fraction(y), name, mode)
    assert got[0] == want or (math.isnan(want) and np.isnan(got[0]))


def test_to_odd_pair_moves_only_even_sums_and_towards_the_error():
    one, up = 1.0, np.nextafter(1.0, 2)
    s = np.array([one, one, one, up, up, np.inf, -one])
    e = np.array([2.0**-60, -(2.0**-60), 0.0, 2.0**-60, -(2.0**-60), np.nan, -(2.0**-60)])
    assert_same(to_odd_pair(s, e), [up, np.nextafter(1.0, 0), one, up, up, np.inf, -up])


@pytest.mark.parametrize("name", ["f32", "f16", "e4m3fnuz", "e4m3fn", "e8m0fnu"])
@pytest.mark.parametrize("mode", MODES)
def test_zero_sums_have_the_sign_of_ieee_754(name, mode):
    x = np.array([1.0, 0.0, -0.0, 0.0, -0.0])
    y = np.array([-1.0, 0.0, -0.0, -0.0, 0.0])
    cancelled = -0.0 if mode == "toward_negative" else 0.0
    want = np.array([cancelled, 0.0, -0.0, cancelled, cancelled])
    fmt = format_of(name)
    if not fmt.has_negative_zero:
        want = want + 0.0 if fmt.has_zero else want * np.nan
    assert_same(round_sum(x, y, fmt, mode), want, x, y)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "tf32", "e5m2", "e4m3fnuz", "e3m2fn"])
def test_a_sum_of_values_of_the_format_is_the_sum_of_any_two(name, mode):
    """All pairs of what lies beside the powers of two (of each third, to spare time), in range and far beyond."""
    fmt = format_of(name)
    powers = 2.0 ** np.arange(fmt.emin - fmt.trailing_bits, fmt.emax + 1, 3 if fmt.exponent_bits == 8 else 1)
    near = [p * f for p in powers for f in (1.0, 1 - fmt.eps / 2, 1 + fmt.eps, 1.5)]
    x = np.unique(round_wide(np.array([0.0, fmt.max, *near]), fmt, overflow="saturate"))
    x = np.concatenate([x, -x, [np.inf, -np.inf, np.nan]])
    first, second = (part.ravel() for part in np.meshgrid(x, x))
    with np.errstate(invalid="ignore"):
        want = round_sum(first, second, fmt, mode)
    assert_same(round_held_sum(first, second, fmt, mode), want, first, second)


# --- ulp, ordinals, neighbours --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3fn", "e5m2", "e3m2fn", "e5m7"])
def test_ordinals_of_all_values_are_consecutive(name):
    fmt = format_of(name)
    values = decode(np.arange(1 << fmt.bits), fmt)
    values = np.unique(values[~np.isnan(values)])
    places = ordinal(values, fmt)
    assert (np.diff(places) == 1).all()
    assert places[np.flatnonzero(values == 0)] == 0
    assert_same(value_of_ordinal(places, fmt), values + 0.0)


@pytest.mark.parametrize("name", ["f16", "bf16", "e5m2", "e4m3", "e3m4", "f32", "f64"])
def test_the_words_of_a_carrier_give_the_ordinals_that_its_values_give(name):
    """All codes; of f32 and f64 a sample. A value of another dtype goes the slow way: encoded, and taken apart."""
    fmt = format_of(name)
    drawn = np.random.default_rng(0).integers(0, 1 << 64, 1 << 16, np.uint64, endpoint=False) if fmt.bits > 16 else None
    codes = np.arange(1 << fmt.bits) if drawn is None else drawn >> np.uint64(64 - fmt.bits)
    edges = [0, 1, -1, 1 << (fmt.bits - 1), ((1 << fmt.exponent_bits) - 1) << fmt.trailing_bits]
    words = np.append(codes, [edge % (1 << fmt.bits) for edge in edges] if fmt.bits < 64 else codes[:0])
    carried = words.astype(fmt.code_dtype).view(fmt.dtype)
    with np.errstate(invalid="ignore"):  # signalling NaN
        wide = carried.astype(np.float64)
    of_words, of_values = ordinal(carried, fmt), np.array([_ordinal_of_one(x, fmt) for x in wide])
    assert_same(of_words, of_values)
    assert_same(ordinal(carried.reshape(-1, 1)[::2], fmt), of_words.reshape(-1, 1)[::2])
    if fmt is not f64:
        assert_same(ordinal(wide, fmt), of_words)


def _ordinal_of_one(x, fmt):
    """From the definition: the value over the grid of its binade, and the values that lie in the binades below."""
    if np.isnan(x):
        return np.iinfo(np.int64).min
    if x == 0:
        return 0
    if np.isinf(x):
        return int(np.copysign(((1 << fmt.exponent_bits) - 1) << fmt.trailing_bits, x))
    exponent = max(int(np.frexp(x)[1]) - 1, fmt.emin)
    of_binade = int(Fraction(abs(float(x))) / Fraction(2) ** (exponent - fmt.trailing_bits))
    return (1 if x > 0 else -1) * (of_binade + ((exponent - fmt.emin) << fmt.trailing_bits))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_ulp_is_the_gap_to_the_next_value_of_the_binade(name):
    values = values_of_bits(np.arange(0x7C00 if name == "f16" else 0x7F80), name)
    assert_same(ulp(values[:-1], name), np.diff(values))
    assert_same(ulp(-values[:-1], name), np.diff(values))


def test_ulp_of_known_numbers():
    assert (ulp(20.0, "bf16"), ulp(20.0, "f16")) == (0.125, 0.015625)
    assert (ulp(40.0, "bf16"), ulp(40.0, "f16")) == (0.25, 0.03125)
    assert (ulp(12.0, "bf16"), ulp(12.0, "f16")) == (0.0625, 0.0078125)
    assert ulp(-11.03, "bf16") == 0.0625
    assert np.isnan(ulp(np.inf, "bf16"))
    assert ulp(0.0, "f32") == 2.0**-149


def test_values_of_f64_further_apart_than_int64_can_say_are_its_largest():
    assert ulp_distance([20.0, -1e300, 1.0], [-20.0, 1e300, -1.0], "f64").tolist() == [
        (1 << 63) - 1, (1 << 63) - 1, 2 * int(ordinal(1.0, "f64")),
    ]  # fmt: skip


def test_ulp_distance_counts_steps_across_zero_and_marks_nan():
    a = np.array([22.375, -0.0, 2.0**-149, np.nan, np.nan, np.inf])
    b = np.array([22.25, 0.0, -(2.0**-149), np.nan, 1.0, np.inf])
    largest = np.iinfo(np.int64).max
    assert ulp_distance(a.astype(np.float32), b.astype(np.float32), "f32").tolist() == [65536, 0, 2, 0, largest, 0]
    assert int(ulp_distance(22.375, 22.25, "bf16")) == 1


@given(st.floats(-70_000, 70_000), st.sampled_from(["f16", "bf16", "e5m7", "e4m3fn"]))
def test_neighbours_enclose_and_are_one_step_apart(x, name):
    low, high = neighbours(x, name)
    if math.isfinite(low) and math.isfinite(high):
        assert low <= x <= high
        assert ulp_distance(low, high, name) == (0 if low == high else 1)


# --- Properties -----------------------------------------------------------------------------------------------------

doubles = st.floats(allow_nan=False, allow_infinity=False)
names = st.sampled_from(["f32", "tf32", "f16", "bf16", "e5m2", "e4m3", "e5m7", "e3m0", "e2m23"])


@given(doubles, doubles, names, st.sampled_from([m for m in MODES if m != "to_odd"]))
def test_rounding_is_monotone(x, y, name, mode):
    low, high = sorted((x, y))
    assert round_to(low, name, mode) <= round_to(high, name, mode)


@given(doubles, names)
def test_rounding_is_odd_symmetric(x, name):
    for mode in ("ties_to_even", "ties_to_away", "toward_zero", "to_odd"):
        assert_same(round_to(-x, name, mode), -round_to(x, name, mode))
    assert_same(round_to(-x, name, "toward_positive"), -round_to(x, name, "toward_negative"))


@given(doubles, names, st.sampled_from(MODES), st.sampled_from(OVERFLOWS), st.sampled_from(["keep", "ftz"]))
def test_rounding_is_idempotent(x, name, mode, overflow, subnormals):
    once = round_to(x, name, mode, overflow=overflow, subnormals=subnormals)
    assert_same(round_to(once, name, mode, overflow=overflow, subnormals=subnormals), once)


@given(doubles, names, st.sampled_from(MODES))
def test_the_error_of_a_normal_result_is_at_most_u_times_x(x, name, mode):
    fmt = format_of(name)
    rounded = round_to(x, fmt, mode)
    if fmt.smallest_normal <= abs(x) <= fmt.max and math.isfinite(rounded):
        u = Fraction(fmt.eps) / (2 if mode.startswith("ties") else 1)
        assert abs(Fraction(rounded) - Fraction(x)) <= u * abs(Fraction(x))


@given(doubles, names)
def test_ftz_differs_from_keep_only_by_zeros(x, name):
    kept, flushed = round_to(x, name), round_to(x, name, subnormals="ftz")
    assert flushed == kept or (flushed == 0 and abs(kept) <= format_of(name).smallest_normal)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_saturation_differs_only_beyond_the_range(x):
    for fmt in (f16, bf16, f32, format_of("e4m3fn")):
        plain, saturated = round_to(x, fmt), round_to(x, fmt, overflow="saturate")
        assert plain == saturated or (not math.isfinite(plain) and saturated == math.copysign(fmt.max, x))


def test_large_integers_in_a_list_are_rounded_once_beside_other_numbers():
    assert round_to([2**63 + 2**39 + 1, -1], "f32")[0] == 2**63 + 2**40
    assert round_to([2**60 + 2**36 + 1, 0.5], "f32")[0] == 2**60 + 2**37


def test_negative_zeros_and_numpy_integers_among_objects_are_kept():
    got = round_to(np.array([np.float32(-0.0), np.int64(3), Fraction(1, 2)], object), "f32")
    assert np.signbit(got[0])
    assert got.tolist() == [0.0, 3.0, 0.5]


def test_saturation_to_f64_holds_for_infinities_too():
    assert round_to(np.inf, "f64", overflow="saturate") == np.finfo(np.float64).max
