"""Conformance vectors: right by other people's arithmetic (SoftFloat), and able to catch what is wrong."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from softfloat_llm.errors import FormatError, VectorError
from softfloat_llm.numerics.formats import decode, encode, format_of
from softfloat_llm.numerics.modes import MODES
from softfloat_llm.vectors.cases import OPERANDS, made, read_cases, right_result
from softfloat_llm.vectors.runner import is_same, ours, read_testfloat, run_cases
from softfloat_llm.vectors.suite import suite

softfloat = pytest.importorskip("softfloatpy")
SOFTFLOAT_MODES = {
    "ties_to_even": softfloat.RoundingMode.NEAR_EVEN, "ties_to_away": softfloat.RoundingMode.NEAR_MAX_MAG,
    "toward_zero": softfloat.RoundingMode.MIN_MAG, "toward_positive": softfloat.RoundingMode.MAX,
    "toward_negative": softfloat.RoundingMode.MIN,
}  # fmt: skip
SOFTFLOAT_FLAGS = {"inexact": 1, "underflow": 2, "overflow": 4, "divide_by_zero": 8, "invalid": 16}
TYPES = {"f16": ("f16", softfloat.Float16, 2), "f32": ("f32", softfloat.Float32, 4)}
ARITHMETIC = [operation for operation in OPERANDS if operation != "round"]


def by_softfloat(operation, fmt, mode, operands):
    """Berkeley SoftFloat, by way of softfloatpy: the result, and the flags that it raised."""
    if mode not in SOFTFLOAT_MODES:
        raise NotImplementedError(mode)
    prefix, kind, size = TYPES[str(fmt)]
    softfloat.set_rounding_mode(SOFTFLOAT_MODES[mode])
    softfloat.set_tininess_mode(softfloat.TininessMode.AFTER_ROUNDING)
    softfloat.set_exception_flags(0)
    codes = [int(encode(np.array([x]), fmt)[0]) for x in operands]
    arguments = [kind.from_bytes(code.to_bytes(size, "big")) for code in codes]
    name = "mul_add" if operation == "fma" else operation
    result = getattr(softfloat, f"{prefix}_{name}")(*arguments)
    return float(decode(np.array([int.from_bytes(result.to_bytes(), "big")]), fmt)[0])


@pytest.mark.parametrize("mode", SOFTFLOAT_MODES)
@pytest.mark.parametrize("fmt", TYPES)
@pytest.mark.parametrize("operation", ARITHMETIC)
def test_softfloat_agrees_with_every_vector_flags_included(operation, fmt, mode):
    cases = suite(operation, fmt, mode)
    assert len(cases) >= 200
    for case in cases:
        assert is_same(by_softfloat(operation, case.format, mode, case.operands), case.result), str(case)
        if not any(math.isnan(x) for x in case.operands):
            raised = {name for name, bit in SOFTFLOAT_FLAGS.items() if softfloat.test_exception_flags(bit)}
            assert raised == case.flags, str(case)


def bf16_by_softfloat(operation, fmt, mode, operands):
    """bf16 by float32 SoftFloat, then to bf16: 24 bits are at least 2 * 8 + 2, where rounding twice is harmless."""
    softfloat.set_rounding_mode(softfloat.RoundingMode.NEAR_EVEN)
    words = [np.float32(x).view(np.uint32).item().to_bytes(4, "big") for x in operands]
    wide = getattr(softfloat, f"f32_{operation}")(*map(softfloat.Float32.from_bytes, words))
    narrow = int.from_bytes(softfloat.f32_to_bf16(wide).to_bytes(), "big")
    return float(decode(np.array([narrow]), fmt)[0])


@pytest.mark.parametrize("operation", ["add", "sub", "mul", "div", "sqrt"])
def test_softfloat_agrees_in_bf16(operation):
    cases = suite(operation, "bf16")
    assert run_cases(cases, bf16_by_softfloat).wrong == ()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", ["f16", "bf16", "f32", "tf32", "e5m2", "e4m3", "e3m4", "e5m7"])
@pytest.mark.parametrize("operation", OPERANDS)
def test_our_own_operations_agree_with_every_vector(operation, fmt, mode):
    found = run_cases(suite(operation, fmt, mode, count=60))
    assert found.wrong == (), str(found)
    assert found.total >= 50


@pytest.mark.parametrize("name", ["e2m1fn", "e3m2fn", "e2m3fn", "e8m0"])
@pytest.mark.parametrize("operation", OPERANDS)
def test_a_format_without_nan_has_minus_zero_where_an_operation_is_invalid_on_every_cpu(operation, name):
    """The sign of the NaN of sqrt(-1) or 0/0 is the CPU's choice; the zero that stands for it must not be."""
    for mode in MODES:
        assert run_cases(suite(operation, name, mode, count=50)).wrong == ()


def test_a_wrong_subject_is_caught():
    def twice(operation, fmt, mode, operands):
        """bf16 through float32: rounded twice."""
        return ours("round", fmt, mode, (float(np.float32(operands[0])),))

    found = run_cases(suite("round", "bf16"), twice, name="twice")
    assert found.wrong
    assert "differ" in str(found)
    assert found.to_dict()["wrong"][0]["case"].startswith("round  bf16")


def test_a_case_reads_back_from_its_line():
    cases = [case for operation in OPERANDS for case in suite(operation, "f16", "toward_negative", count=20)]
    again = list(read_cases(map(str, cases)))
    for case, other in zip(cases, again, strict=True):
        assert str(case) == str(other)
        assert case.flags == other.flags


def test_the_line_of_the_documentation():
    assert str(made("add", (256.0, 1.0), format_of("bf16"), "ties_to_even")) == (
        "add  bf16  ties_to_even  0x1p+8 0x1p+0  -> 0x1p+8  inexact"
    )


@pytest.mark.parametrize(
    ("operation", "operands", "mode", "result", "flags"),
    [
        ("div", (1.0, -0.0), "ties_to_even", -math.inf, {"divide_by_zero"}),
        ("div", (0.0, 0.0), "ties_to_even", math.nan, {"invalid"}),
        ("sqrt", (-0.0,), "ties_to_even", -0.0, set()), ("sqrt", (-1.0,), "ties_to_even", math.nan, {"invalid"}),
        ("add", (1.0, -1.0), "toward_negative", -0.0, set()), ("add", (1.0, -1.0), "toward_zero", 0.0, set()),
        ("fma", (math.inf, 0.0, 1.0), "ties_to_even", math.nan, {"invalid"}),
        ("fma", (65504.0, 65504.0, -math.inf), "ties_to_even", -math.inf, set()),
        ("mul", (65504.0, 2.0), "toward_zero", 65504.0, {"inexact", "overflow"}),
        ("mul", (2.0**-14, 2.0**-11), "ties_to_even", 0.0, {"inexact", "underflow"}),
        ("round", (2.0**-14 * (1 - 2.0**-12),), "ties_to_even", 2.0**-14, {"inexact"}),  # tiny before, not after
        ("round", (2.0**-14 * (1 - 2.0**-11),), "ties_to_even", 2.0**-14, {"inexact", "underflow"}),
        ("sqrt", (2.0,), "toward_positive", 1.4150390625, {"inexact"}),
    ],
)  # fmt: skip
def test_corners(operation, operands, mode, result, flags):
    found, raised = right_result(operation, operands, format_of("f16"), mode)
    assert is_same(found, result)
    assert raised == flags


def test_roots_are_held_between_squares():
    fmt = format_of("f32")
    for case in suite("sqrt", fmt, "toward_negative", count=100):
        x = case.operands[0]
        if math.isfinite(x) and x > 0:
            below, above = (
                Fraction(case.result),
                Fraction(float(np.nextafter(np.float32(case.result), np.float32(np.inf)))),
            )
            assert below**2 <= Fraction(x) < above**2


TESTFLOAT = """\
3C00 3C00 4000 00
7BFF 7BFF 7C00 05
8683 0000 8683 00
"""


def test_testfloat_lines_are_read():
    cases = list(read_testfloat(TESTFLOAT.splitlines(), "f16_add"))
    assert [case.result for case in cases] == [2.0, math.inf, cases[2].operands[0]]
    assert cases[1].flags == {"inexact", "overflow"}
    assert run_cases(cases).wrong == ()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("add bf16 ties_to_even 0x1p0 -> 0x1p0", "line 1: add takes 2 operands, found 1"),
        ("\n# x\nadd bf16 nearest 0x1p0 0x1p0 -> 0x1p0", "line 3: unknown rounding mode 'nearest'"),
        ("ad bf16 ties_to_even 1 1 -> 1", "Did you mean 'add'"), ("add bf16 ties_to_even 1 1", "expected OPERATION"),
        ("add bf16 ties_to_even 1 xyz -> 1", "'xyz' is no hexadecimal float"),
        ("add bf16 ties_to_even 1 1 -> 1 loud", "unknown flag 'loud'"),
        ("add bf17 ties_to_even 1 1 -> 1", "line 1: Unknown format 'bf17'"),
        ("add bf16 ties_to_even 1 1 -> 0x1p99999", "no hexadecimal float"),
        ("# x\nadd bf16 ties_to_even 0x1.01p0 1 -> 1", "line 2: 0x1.01p0 is no value of bf16"),
        ("add bf16 ties_to_even 1 1 -> 0x1.01p1", "line 1: 0x1.01p1 is no value of bf16"),
        ("add f16 ties_to_even 1 1 -> 0x1p16", "0x1p16 is no value of f16"),
        ("add e4m3fn ties_to_even 1 inf -> nan", "inf is no value of e4m3fn"),
        ("add e2m1fn ties_to_even 1 1 -> nan", "nan is no value of e2m1fn"),
        ("add e4m3fnuz ties_to_even 1 -0x0p0 -> 1", "-0x0p0 is no value of e4m3fnuz"),
        ("round e8m0fnu ties_to_even 1 -> -0x1p0", "-0x1p0 is no value of e8m0fnu"),
        ("round f16 ties_to_even 0x1.00000000000001p0 -> 1", "more bits than float64"),
        ("round f16 ties_to_even 0x1p-1075 -> 0x0p0", "more bits than float64"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_case_is_named(lines, message):
    with pytest.raises((VectorError, FormatError), match=message):
        list(read_cases(lines.split("\n")))


@pytest.mark.parametrize(
    ("line", "function", "message"),
    [
        ("3C00 3C00 4000", "f16_add", "expected 4 words"), ("3C00 3C0G 4000 00", "f16_add", "not hexadecimal"),
        ("13C00 3C00 4000 00", "f16_add", "more than 16 bits"), ("", "f16_addd", "one of add, sub"),
    ],
)  # fmt: skip
def test_a_testfloat_line_that_is_none_is_named(line, function, message):
    with pytest.raises(VectorError, match=message):
        list(read_testfloat([line], function))


def test_round_takes_any_float64_and_zeros_of_many_digits_are_zeros():
    lines = [
        "round f16 ties_to_even 0x1.0000000000001p0 -> 0x1p0 inexact",
        "round f16 ties_to_even 0x0.000p-9999 -> 0x0p0",
    ]
    assert [case.operands for case in read_cases(lines)] == [(1 + 2.0**-52,), (0.0,)]


def test_what_vectors_cannot_be_made_of_is_refused():
    with pytest.raises(VectorError, match="Did you mean 'add'"):
        suite("addd", "f16")
    with pytest.raises(VectorError, match="with a sign and a zero"):
        suite("add", "e8m0fnu")
    with pytest.raises(VectorError, match="at most 24 bits"):
        suite("add", "f64")


def test_the_same_words_make_the_same_vectors():
    assert [str(c) for c in suite("fma", "bf16", seed=3)] == [str(c) for c in suite("fma", "bf16", seed=3)]
    assert [str(c) for c in suite("fma", "bf16", seed=3)] != [str(c) for c in suite("fma", "bf16", seed=4)]
