"""The functions in every mode and many formats against an independent oracle: Python's `decimal`.

`oracle` shares nothing with the package but `round_exact`: it evaluates in decimal, with 60 digits more than the
smallest term of a series needs, and both ends of the interval that decimal's error leaves must round alike.
"""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softfloat_llm.numerics import enclosures, functions
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.formats import bf16, e4m3fn, f16, f32, format_of, tf32
from softfloat_llm.numerics.modes import MODES
from softfloat_llm.numerics.rounding import round_to

ONE_ARGUMENT = ("exp", "log", "rsqrt", "sin", "cos", "tanh", "sigmoid")
FORMATS = (f32, tf32, f16, bf16, e4m3fn, *map(format_of, ("e5m2", "e3m12", "e2m1fn", "e4m0")))

# --- The oracle -----------------------------------------------------------------------------------------------------


@cache
def decimal_pi(digits):
    """Machin's formula, in decimal."""
    with decimal.localcontext() as context:
        context.prec = digits + 10

        def arctan_of_inverse(n):
            power = total = Decimal(1) / n
            k = 1
            while abs(power) > Decimal(10) ** -(digits + 8):
                power /= -n * n
                k += 2
                total += power / k
            return total

        return 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))


def decimal_sin(x, shift):
    """sin(x + shift pi/2) for x >= 0, with the digits that the reduction and a small result take away added."""
    with decimal.localcontext() as context:
        context.prec += 2 * max(0, x.adjusted()) + 40
        half_pi = decimal_pi(context.prec) / 2
        n = (x / half_pi).to_integral_value()
        r = x - n * half_pi
        quadrant = (int(n) + shift) % 4
        term = total = r if quadrant % 2 == 0 else Decimal(1)
        k = 2 if quadrant % 2 == 0 else 1
        while term and term.adjusted() > total.adjusted() - context.prec:
            term *= -r * r / (k * (k + 1))
            total += term
            k += 2
        return -total if quadrant >= 2 else total


def decimal_value(name, x, y=None):
    """The function's value under the current context."""
    match name:
        case "exp":
            return x.exp()
        case "log":
            return x.ln()
        case "rsqrt":
            return 1 / x.sqrt()
        case "sin":
            return decimal_sin(x, 0) if x > 0 else -decimal_sin(x.copy_abs(), 0)  # abs would round
        case "cos":
            return decimal_sin(x.copy_abs(), 1)
        case "tanh":
            return 1 - 2 / ((2 * x).exp() + 1)
        case "sigmoid":
            return 1 / (1 + (-x).exp())
    value = (y * abs(x).ln()).exp()
    return -value if x < 0 and abs(y) % 2 == 1 else value


@cache
def decimal_fraction(name, args):
    """(the value as a fraction, its relative error, 0 where it is exact)."""
    x, *y = (Decimal(a) for a in args)
    if x == 0 and name in ("exp", "cos", "sigmoid"):
        return Fraction(1, 2) if name == "sigmoid" else Fraction(1), Fraction(0)
    smallest = min(v.adjusted() for v in (x, *y, abs(x) - 1) if v)
    digits = 60 + 3 * max(0, -smallest)
    if name in ("exp", "tanh", "sigmoid"):  # beyond 200 no format sees a difference
        x = max(Decimal(-200), min(Decimal(200), x))
        digits += int(abs(x))
    with decimal.localcontext() as context:
        context.prec = digits + 20 + max(0, -smallest)
        context.clear_flags()
        value = decimal_value(name, x, *y)
        return Fraction(value), Fraction(1, 10**digits) if context.flags[decimal.Inexact] else Fraction(0)


def exact_power(value, x, y):
    """Whether the fraction nearby with 64 significand bits is x^y: v^(2^f) = x^n for y = n / 2^f."""
    shift = 64 - (value.numerator.bit_length() - value.denominator.bit_length())
    candidate = Fraction(round(value * Fraction(2) ** shift)) / Fraction(2) ** shift
    return candidate if candidate**y.denominator == x**y.numerator else None


def oracle(name, args, fmt, mode):
    if args[0] == 0 and name in ("sin", "tanh"):
        return round_exact(args[0], fmt, mode)
    value, error = decimal_fraction(name, args)
    ends = [round_exact(value * (1 + sign * error), fmt, mode) for sign in (-1, 1)]
    if repr(ends[0]) != repr(ends[1]):
        assert name == "pow", (name, args, fmt, mode)
        return round_exact(exact_power(value, Fraction(args[0]), Fraction(args[1])), fmt, mode)
    return ends[0]


def assert_as_oracle(name, columns, fmt, modes=MODES):
    """The array form of (n,) float64 columns equals the oracle, zeros' signs and NaN included."""
    for mode in modes:
        ours = functions.function_wide(name, tuple(columns), fmt, mode)
        for args, got in zip(zip(*(c.tolist() for c in columns), strict=True), ours.tolist(), strict=True):
            want = oracle(name, args, fmt, mode)
            assert repr(got) == repr(want), f"{name}{args} to {fmt} {mode}: {got!r}, not {want!r}"


# --- Every mode and format against the oracle -----------------------------------------------------------------------

POSITIVE = ("log", "rsqrt")


def random_inputs(name, fmt, count, seed):
    """Values of the format: any bit pattern, and moderate ones (N(0, 4) and near 1)."""
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        patterns = rng.integers(0, 1 << 32, count, np.uint32).view(np.float32).astype(np.float64)
        near_one = 1 + rng.normal(0, 1, count) * 2.0 ** rng.integers(-24, 0, count)
        x = round_to(np.concatenate([patterns, rng.normal(0, 4, count), near_one]), fmt).astype(np.float64)
    x = np.abs(x) if name in POSITIVE else x
    return x[np.isfinite(x) & ((x != 0) | (name not in POSITIVE))]


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_random_inputs_round_as_the_oracle_says_in_every_mode(name, fmt):
    assert_as_oracle(name, [random_inputs(name, fmt, 60, 1)], fmt)


def inverse(name, y):
    """A float64 whose function value lies within some 2^-52 of y: a hard case. Any value near it would do as well."""
    match name:
        case "exp":
            return math.log(y)
        case "log":
            return math.exp(y)
        case "rsqrt":
            return 1 / y**2
        case "sin":
            return math.asin(y)
        case "cos":
            return math.acos(y)
        case "tanh":
            return math.atanh(y)
    return math.log(y / (1 - y))


@pytest.mark.parametrize("fmt", [f32, bf16], ids=str)
@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_float64_inputs_beside_numbers_and_midpoints_round_as_the_oracle_says(name, fmt, monkeypatch):
    rng = np.random.default_rng(2)
    settled = []
    settle = enclosures.settle
    monkeypatch.setattr(enclosures, "settle", lambda *args: settled.append(args) or settle(*args))
    half_steps = rng.integers(1 << fmt.precision, 1 << (fmt.precision + 1), 40)  # numbers and midpoints in [1/2, 1)
    x = np.array([inverse(name, y / 2.0 ** (fmt.precision + 1)) for y in half_steps.tolist()])
    assert_as_oracle(name, [x], fmt)
    assert len(settled) > 40  # such inputs cannot be decided by float64 alone


@pytest.mark.parametrize("name", ["sin", "tanh"])
def test_float64_inputs_whose_small_results_lie_beside_midpoints_round_as_the_oracle_says(name):
    rng = np.random.default_rng(10)
    y = rng.integers(1 << 24, 1 << 25, 60) * 2.0 ** -rng.integers(37, 56, 60)
    assert_as_oracle(name, [np.array([inverse(name, v) for v in y.tolist()])], f32)


@pytest.mark.parametrize("name", ["cos", "tanh", "sigmoid"])
def test_float64_inputs_whose_results_lie_beside_1_round_as_the_oracle_says(name):
    y = 1 - np.arange(1, 40) * 2.0**-25
    assert_as_oracle(name, [np.array([inverse(name, v) for v in y.tolist()])], f32)


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_float64_inputs_beside_multiples_of_half_pi_round_as_the_oracle_says(name):
    multiples = [n * math.pi / 2 for n in (1, 2, 3, 11, 22, 355, 710, 103993, 2**19 + 1, 2**20, 2**25)]
    nearest_of_all = math.ldexp(6381956970095103, 797)  # Muller et al., Handbook, table 10.2: 2^-61 from a multiple
    assert_as_oracle(name, [np.array([*multiples, -nearest_of_all, nearest_of_all])], f32)


@pytest.mark.parametrize("fmt", [f32, f16, bf16], ids=str)
@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_tiny_huge_and_simple_inputs_round_as_the_oracle_says(name, fmt):
    exponents = [*range(-149, -24, 9), *range(-28, 9), *range(20, 128, 9), 127]
    x = np.array([significand * 2.0**e for e in exponents for significand in (1.0, 1.5)])
    x = x if name in POSITIVE else np.concatenate([x, -x])
    assert_as_oracle(name, [x], fmt)


@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_float64_inputs_of_any_exponent_round_as_the_oracle_says(name):
    rng = np.random.default_rng(3)
    x = np.ldexp(rng.uniform(1, 2, 30), rng.integers(-300, 300, 30))
    x = np.concatenate([x, np.ldexp(rng.uniform(1, 2, 30), rng.integers(-60, 20, 30))])
    assert_as_oracle(name, [x if name in POSITIVE else np.concatenate([x, -x])], f32)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_every_61st_f16_code_rounds_as_the_oracle_says(name, mode):
    x = np.arange(0, 1 << 16, 61, np.uint16).view(np.float16).astype(np.float64)
    x = x[np.isfinite(x) & ((x > 0) | (name not in POSITIVE))]
    assert_as_oracle(name, [x], f16, [mode])


@given(st.sampled_from(ONE_ARGUMENT), st.floats(-f32.max, f32.max, width=32), st.sampled_from(MODES))
@settings(max_examples=150, deadline=None)
def test_any_f32_rounds_as_the_oracle_says(name, x, mode):
    if name in POSITIVE and x <= 0:
        x = 1.0 - x
    assert_as_oracle(name, [np.array([x])], f32, [mode])


# --- The enclosures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_enclosures_hold_the_decimal_value(name):
    rng = np.random.default_rng(5)
    for x in np.ldexp(rng.uniform(1, 2, 40), rng.integers(-25, 8, 40)).tolist():
        value, _ = decimal_fraction(name, (x,))
        low, high = enclosures.ENCLOSE[name](Fraction(x), 128)
        margin = abs(value) / 10**60
        assert low - margin < value < high + margin
        assert high - low < abs(low) * Fraction(2) ** -90


# --- pow ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", [f32, bf16, e4m3fn], ids=str)
def test_pow_of_random_arguments_rounds_as_the_oracle_says(fmt):
    rng = np.random.default_rng(6)
    x = np.concatenate([np.exp2(rng.uniform(-20, 20, 60)), 1 + rng.normal(0, 1, 60) * 2.0 ** rng.integers(-20, -2, 60)])
    y = rng.normal(0, 1, x.size) * 2.0 ** rng.integers(-20, 5, x.size)
    columns = [round_to(c, f32).astype(np.float64) for c in (x, y)]
    assert_as_oracle("pow", columns, fmt)


@pytest.mark.parametrize("fmt", [f32, bf16], ids=str)
def test_pow_with_exact_and_tied_results_rounds_as_the_oracle_says(fmt):
    bases = [3.0, 5.0, -7.0, 9.0, 2.25, 0.25, 17.0, 257.0, 4097.0, -0.5, 1.0 + 2.0**-8, -1.0, 2.0**-60]
    exponents = [2.0, 3.0, -1.0, -3.0, 0.5, 1.5, -0.25, 5.0, 1.0, 15.0, 2.0**-10]
    pairs = [(x, y) for x in bases for y in exponents if x > 0 or y == int(y)]
    assert_as_oracle("pow", [np.array(c) for c in zip(*pairs, strict=True)], fmt)


@pytest.mark.parametrize("theta", [10000.0, 100000.0, 500000.0])
@pytest.mark.parametrize("head_size", [8, 64, 128])
def test_rope_frequencies_are_the_rounded_powers_of_theta(theta, head_size):
    exponents = -np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
    ours = functions.pow(np.float32(theta), exponents)
    assert ours.dtype == np.float32
    for y, got in zip(exponents.tolist(), ours.tolist(), strict=True):
        assert got == (oracle("pow", (theta, y), f32, "ties_to_even") if y else 1.0)
