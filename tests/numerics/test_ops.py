"""The six operations: real f16 and f32 instructions, the exact form, zeros and specials, kinds of operands."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softfloat_llm.errors import FormatError
from softfloat_llm.numerics import ops
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.formats import decode, format_of
from softfloat_llm.numerics.modes import MODES
from softfloat_llm.numerics.rounding import round_to
from tests.oracle import HARDWARE_MODES, ExactMachine, assert_same, hardware, values_of_bits

NARROW = ["e2m1fn", "e3m2fn", "e4m3fn", "e4m3fnuz", "e5m2", "e3m0"]

# --- Real instructions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", HARDWARE_MODES)
@pytest.mark.parametrize("operation", ["add", "sub", "mul", "div", "sqrt", "fma"])
def test_f16_operations_equal_avx512_fp16(operation, word):
    arrays = hardware("f16_ops")
    want = values_of_bits(arrays[f"{operation}_{word}"], "f16")
    operands = [arrays[f"{operation}_{k}"][: want.size].view(np.float16) for k in "abc" if f"{operation}_{k}" in arrays]
    got = getattr(ops, operation)(*operands, mode=HARDWARE_MODES[word])
    assert got.dtype == np.float16
    assert_same(got, want, *operands)


@pytest.mark.parametrize(("suffix", "subnormals"), [("", "keep"), ("_ftzdaz", "ftz+daz")])
def test_f32_operations_equal_avx512(suffix, subnormals):
    arrays = hardware("f32_dot")
    a, b, c = (arrays[f"one_{k}"].view(np.float32) for k in "abc")
    for operation, operands in (("fma", (a, b, c)), ("mul", (a, b)), ("add", (a, c))):
        want = values_of_bits(arrays[f"one_{operation}{suffix}"], "f32")
        assert_same(getattr(ops, operation)(*operands, subnormals=subnormals), want, *operands)


# --- The exact form -------------------------------------------------------------------------------------------------


def exact_result(operation, operands):
    """The exact result of finite, nonzero operands as a fraction (of a root: near enough, with a sticky last bit)."""
    x, *rest = (Fraction(o) for o in operands)
    match operation:
        case "add":
            return x + rest[0]
        case "sub":
            return x - rest[0]
        case "mul":
            return x * rest[0]
        case "div":
            return x / rest[0]
        case "fma":
            return x * rest[0] + rest[1]
    scaled = x * 4**1400
    root = math.isqrt(scaled.numerator // scaled.denominator)
    return (root + (0 if root * root == scaled else Fraction(1, 2))) / Fraction(2) ** 1400


def exactly(operation, operands, fmt, mode, subnormals="keep"):
    value = exact_result(operation, operands)
    zero = -0.0 if mode == "toward_negative" else 0.0
    return round_exact(value if value else zero, fmt, mode, subnormals=subnormals)


def random_operands(fmt, count, rng, spread=24):
    """Values of the format of all sizes that lie near each other, so that sums cancel and products border the range."""
    fmt = format_of(fmt)
    low, high = (max(fmt.emin, -900) - fmt.precision, min(fmt.emax, 900))
    centre = rng.uniform(low, high, 60)
    size = [np.clip(centre + rng.uniform(-spread, spread, 60), low, high) for _ in range(count)]
    draws = [
        round_to(np.ldexp(rng.choice([-1, 1], 60) * rng.uniform(1, 2, 60), s.astype(int)), fmt, overflow="saturate")
        for s in size
    ]
    return [np.where(d.astype(np.float64) == 0, fmt.smallest_subnormal, d.astype(np.float64)) for d in draws]


@pytest.mark.parametrize("name", ["f64", "f32", "bf16", "tf32", "e5m7", "e4m3"])
@pytest.mark.parametrize("operation", ["add", "sub", "mul", "div", "sqrt", "fma"])
def test_every_operation_equals_the_exact_result_rounded_once(operation, name):
    rng = np.random.default_rng(11)
    count = {"sqrt": 1, "fma": 3}.get(operation, 2)
    for mode, subnormals in itertools.product(MODES, ("keep", "ftz")):
        operands = [np.abs(o) if operation == "sqrt" else o for o in random_operands(name, count, rng)]
        want = [exactly(operation, row, name, mode, subnormals) for row in zip(*operands, strict=True)]
        got = getattr(ops, operation)(*operands, name, mode, subnormals=subnormals)
        assert_same(got, want, *operands)


@pytest.mark.parametrize("operation", ["div", "sqrt", "add", "fma"])
def test_f32_operands_to_f64_results_equal_the_exact_result(operation):
    """Quotients and roots in [2^53, 2^54) among them: there a marker of size 1 looked like half an ulp."""
    rng = np.random.default_rng(12)
    count = {"sqrt": 1, "fma": 3}.get(operation, 2)
    base = np.ldexp(rng.uniform(1, 2, 60), rng.integers(100, 110, 60) if operation == "sqrt" else 54)
    operands = [base.astype(np.float32), *(rng.uniform(1, 2, 60).astype(np.float32) for _ in range(count - 1))]
    for mode in MODES:
        want = [exactly(operation, row, "f64", mode) for row in zip(*(o.tolist() for o in operands), strict=True)]
        assert_same(getattr(ops, operation)(*operands, "f64", mode), want, *operands)


@pytest.mark.parametrize("name", NARROW)
def test_all_pairs_of_a_narrow_format_add_and_multiply_and_divide_exactly(name):
    """All pairs of codes (of the 8-bit formats every third), in all modes for sums, against exact fractions."""
    fmt = format_of(name)
    values = decode(np.arange(0, 1 << fmt.bits, 3 if fmt.bits == 8 else 1), fmt)
    values = values[np.isfinite(values) & (values != 0)]
    x, y = (a.ravel() for a in np.meshgrid(values, values))
    for operation, modes in (
        ("add", MODES if fmt.bits < 8 else ("toward_negative",)),
        ("mul", MODES[:1]),
        ("div", MODES[:1]),
    ):
        for mode in modes:
            want = [exactly(operation, pair, fmt, mode) for pair in zip(x.tolist(), y.tolist(), strict=True)]
            want = np.array(want) if fmt.has_negative_zero else np.array(want) + 0.0
            assert_same(getattr(ops, operation)(x, y, fmt, mode), want, x, y)


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_any_two_float64_add_and_multiply_to_bf16_by_one_rounding(x, y):
    machine = ExactMachine("bf16", "toward_negative")
    assert_same(ops.add(x, y, "bf16", "toward_negative"), machine.add(x, y))
    if x and y:
        assert_same(ops.mul(x, y, "bf16"), round_exact(Fraction(x) * Fraction(y), "bf16"))


# --- Zeros and specials ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 1e300])
def test_a_sum_that_cancels_is_positive_zero_but_negative_toward_negative(scale):
    """1e300 takes the way of the fractions, 1.0 that of the pairs."""
    for mode in MODES:
        want = -0.0 if mode == "toward_negative" else 0.0
        assert_same(ops.add(scale, -scale, "f64", mode), want)
        assert_same(ops.sub(scale, scale, "f64", mode), want)
        assert_same(ops.fma(scale, 1.0, -scale, "f64", mode), want)
        assert_same(ops.add([scale, 0.0], [0.0, -0.0], "f64", mode)[1], want)
        assert_same(ops.fma([scale, 0.0], [1.0, -1.0], [0.0, 0.0], "f64", mode)[1], want)


@pytest.mark.parametrize("mode", ["toward_negative", "ties_to_even"])
def test_a_format_without_negative_zero_gets_none(mode):
    assert_same(ops.add(1, -1, "e4m3fnuz", mode), 0.0)
    assert math.isnan(ops.add(1, -1, "e8m0fnu", mode))


def test_specials_follow_ieee_754():
    inf, nan = math.inf, math.nan
    cases = [
        (ops.add, (inf, -inf), nan), (ops.add, (inf, 1.0), inf), (ops.sub, (inf, inf), nan), (ops.mul, (0.0, inf), nan),
        (ops.mul, (-2.0, 0.0), -0.0), (ops.div, (1.0, 0.0), inf), (ops.div, (-1.0, 0.0), -inf),
        (ops.div, (0.0, 0.0), nan),
        (ops.div, (1.0, -inf), -0.0), (ops.div, (inf, inf), nan), (ops.sqrt, (-0.0,), -0.0), (ops.sqrt, (-1.0,), nan),
        (ops.sqrt, (inf,), inf), (ops.fma, (0.0, inf, 1.0), nan), (ops.fma, (inf, 1.0, -inf), nan),
        (ops.fma, (1.0, 1.0, inf), inf), (ops.fma, (0.0, -1.0, -0.0), -0.0), (ops.add, (nan, 1.0), nan),
    ]  # fmt: skip
    for fmt in ("f16", "bf16", "f32", "f64"):
        for operation, operands, want in cases:
            assert_same(operation(*operands, fmt), want, operation.__name__)
            beside_1e300 = operation(*([o, 1e300] for o in operands), "f64")
            assert_same(beside_1e300[0], want, operation.__name__)


def test_daz_flushes_operands_of_their_own_format_and_ftz_the_result():
    tiny = np.array([2.0**-127], np.float32)
    one = np.array([1.0], np.float32)
    assert_same(ops.add(tiny, tiny, subnormals="daz"), [0.0])
    assert_same(ops.add(tiny, tiny), [2.0**-126])
    assert_same(ops.mul(np.array([2.0**-126], np.float32), one / 2, subnormals="ftz"), [0.0])
    assert_same(ops.mul(np.array([2.0**-126], np.float32), one / 2, subnormals="daz"), [2.0**-127])
    assert_same(ops.div(one, tiny, subnormals="daz"), [np.inf])
    assert ops.mul(2.0**-126, 0.5, "f32", subnormals="ftz") == 0.0


# --- Operands -------------------------------------------------------------------------------------------------------


def test_mixed_formats_are_refused_naming_both():
    with pytest.raises(FormatError, match="f16 and f32"):
        ops.add(np.ones(2, np.float16), np.ones(2, np.float32))
    with pytest.raises(FormatError, match="bf16 and f32"):
        ops.fma(np.ones(2, ml_dtypes.bfloat16), np.ones(2, np.float32), np.ones(2, np.float32), "f32")


def test_plain_numbers_need_a_format():
    with pytest.raises(FormatError, match="needs the format of its result"):
        ops.add(1, 2)
    assert ops.add(np.ones(1, np.float16), 2048.0).tolist() == [2048.0]


@pytest.mark.parametrize("operand", [2**53 + 1, Fraction(1, 3), [2**60 + 1]])
def test_an_operand_that_float64_cannot_hold_is_refused_not_rounded(operand):
    with pytest.raises(FormatError, match="more bits than float64"):
        ops.add(operand, 0, "f32")


def test_unknown_words_are_refused():
    with pytest.raises(FormatError, match="rounding mode"):
        ops.add(1, 1, "f16", "nearest")
    with pytest.raises(FormatError, match="Unknown subnormals"):
        ops.add(1, 1, "f16", subnormals="flush")
    with pytest.raises(FormatError, match="Only real numbers"):
        ops.add(1j, 1, "f16")


def test_operands_broadcast_and_stay_as_they_were():
    x, y = np.ones((3, 1), np.float16), np.arange(4, dtype=np.float16)
    got = ops.add(x, y, subnormals="ftz+daz")
    assert got.shape == (3, 4)
    assert got.dtype == np.float16
    assert x.tolist() == [[1.0]] * 3
    assert y.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_fma_rounds_once_where_a_product_and_a_sum_round_twice():
    x, y = 1 + 2**-10, 1 - 2**-10
    assert ops.fma(x, y, -1, "f16") == -(2.0**-20)
    assert ops.add(ops.mul(x, y, "f16"), -1, "f16") == 0.0


finite32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(finite32, finite32)
def test_addition_and_multiplication_commute(x, y):
    for mode in MODES:
        assert_same(ops.add(x, y, "f32", mode), ops.add(y, x, "f32", mode))
        assert_same(ops.mul(x, y, "f32", mode), ops.mul(y, x, "f32", mode))


@given(finite32.filter(lambda x: x >= 0))
def test_the_root_of_a_rounded_square_encloses(x):
    low, high = ops.sqrt(x, "f32", "toward_negative"), ops.sqrt(x, "f32", "toward_positive")
    assert Fraction(low) ** 2 <= Fraction(x) <= Fraction(high) ** 2


def test_words_and_shapes_that_do_not_fit_are_refused_by_name():
    with pytest.raises(FormatError, match=r"\+ of arrays of the shapes \(2,\) and \(3,\)"):
        ops.add(np.ones(2, np.float16), np.ones(3, np.float16))
    with pytest.raises(FormatError, match="Unknown rounding mode None"):
        ops.add(1.0, 1.0, "f16", mode=None)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "e4m3fnuz", "e3m2fn"])
def test_the_wide_forms_are_div_and_sqrt_without_their_questions(name):
    x = decode(np.arange(0, 1 << 16, 97), "bf16")
    y = x[::-1].copy()
    assert_same(ops.div_wide(x, y, format_of(name)), ops.div(x, y, name), x, y)
    assert_same(ops.div_wide(1.0, y, format_of(name)), ops.div(1.0, y, name), y)
    assert_same(ops.sqrt_wide(x, format_of(name)), ops.sqrt(x, name), x)


def test_the_wide_forms_to_f64_take_operands_of_53_bits():
    x, y = np.abs(np.random.default_rng(2).standard_normal((2, 300)))
    assert_same(ops.div_wide(x, y, format_of("f64")), ops.div(x, y, "f64"), x, y)
    assert_same(ops.sqrt_wide(x, format_of("f64")), ops.sqrt(x, "f64"), x)
