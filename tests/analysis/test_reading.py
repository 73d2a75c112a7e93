"""Numbers are read exactly: every way to write them, and nothing that is none."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softfloat_llm.analysis.exact_text import cut_bits, exact_decimal, fields, nearly, shown
from softfloat_llm.analysis.reading import number_of, numbers_of
from softfloat_llm.errors import FormatError, WordError
from softfloat_llm.numerics.formats import FORMATS, decode


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("22.277479", Fraction(22277479, 10**6)), ("0.1", Fraction(1, 10)), ("1e-3", Fraction(1, 1000)),
        (".5", Fraction(1, 2)), ("2.", Fraction(2)), ("+3", Fraction(3)), ("-3", Fraction(-3)), ("1/3", Fraction(1, 3)),
        ("0x1.64p+4", Fraction(89, 4)), ("0x.8", Fraction(1, 2)), ("0xff", Fraction(255)),
        ("2^-24", Fraction(1, 2**24)), ("2**10", Fraction(1024)), ("1 + 2^-11", Fraction(2049, 2048)),
        ("1+3*2^-11", Fraction(2051, 2048)),
        ("-2^3 - 0x1p-1", Fraction(-17, 2)), ("1+2^-8+2^-40", 1 + Fraction(1, 256) + Fraction(1, 2**40)),
        ("bf16:0x41b2", Fraction(89, 4)), ("F32:0x41B20000", Fraction(89, 4)), ("e4m3fn:0b1111110", Fraction(448)),
        ("f64:0x3ff8000000000000", Fraction(3, 2)), (3, Fraction(3)), (0.1, Fraction(0.1)),
    ],
)  # fmt: skip
def test_a_number_is_read_exactly(text, value):
    assert number_of(text).value == value


@pytest.mark.parametrize("text", ["-0", "-0.0", "-0x0p0", "bf16:0x8000", -0.0])
def test_a_negative_zero_keeps_its_sign(text):
    value = number_of(text).value
    assert value == 0
    assert math.copysign(1, value) == -1


@pytest.mark.parametrize(("text", "value"), [("inf", math.inf), ("-Infinity", -math.inf), ("bf16:0xff80", -math.inf)])
def test_infinities_are_read(text, value):
    assert number_of(text).value == value
    assert not number_of(text).is_finite


@pytest.mark.parametrize("text", ["nan", "-NaN", "f16:0x7e00"])
def test_nan_is_read(text):
    assert math.isnan(number_of(text).value)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "abc", "1 2", "0x", "--1", "1+", "1..2", "1_000", "1,5", "e5", "0x1.8q3", "١", "1e", "2^", "1+*3",
        "1e99999", "1/0", "2^9999999", "9" * 2000, "1e2000*1e2000*1e2000*1e2000", "\x00", "0b11", "true", "∞",
    ],
)  # fmt: skip
def test_what_is_no_number_is_refused_in_words(text):
    with pytest.raises(WordError) as raised:
        number_of(text)
    assert len(str(raised.value)) < 400


def test_codes_of_formats_that_do_not_exist_or_have_fewer_bits_are_refused():
    with pytest.raises(FormatError, match="Did you mean 'bf16'"):
        number_of("bf61:0x1")
    with pytest.raises(WordError, match="has 16 bits, this one 17"):
        number_of("f16:0x10000")


def test_lists_are_read_with_commas_or_without():
    assert [n.value for n in numbers_of(["1, 2", "3", "[4;5]", 6])] == [1, 2, 3, 4, 5, 6]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_repr_and_the_hex_form_of_a_float_mean_what_they_say(x):
    assert number_of(x.hex()).value == Fraction(x)
    assert number_of(repr(x)).value == Fraction(repr(x))
    code = struct.unpack("<Q", struct.pack("<d", x))[0]
    assert number_of(f"f64:{code:#x}").value == Fraction(x)


@pytest.mark.parametrize("fmt", [f for f in FORMATS.values() if f.bits <= 8], ids=str)
def test_the_three_fields_of_a_code_are_its_bits(fmt):
    for code in range(1 << fmt.bits):
        value = float(decode(np.uint8(code), fmt))
        if math.isnan(value):
            continue
        assert "".join(fields(value, fmt)) == f"{code:0{fmt.bits}b}"
        assert [len(part) for part in fields(value, fmt)] == [fmt.is_signed, fmt.exponent_bits, fmt.trailing_bits]


@given(st.integers(-(10**30), 10**30), st.integers(0, 40), st.integers(0, 40))
def test_an_exact_decimal_reads_back(numerator, twos, fives):
    x = Fraction(numerator, 2**twos * 5**fives)
    text = exact_decimal(x)
    assert text is not None
    assert Fraction(text) == x


@given(st.fractions())
def test_what_is_shown_is_exact_or_marked(x):
    for text in (shown(x), nearly(x)):
        assert text.startswith("~") or Fraction(text) == x
    if nearly(x).startswith("~"):
        assert abs(Fraction(nearly(x)[1:]) - x) <= abs(x) / 100


@given(st.fractions(0, 1).filter(lambda x: x < 1))
def test_cut_bits_are_the_binary_expansion(rest):
    bits = cut_bits(rest)
    kept = bits.removesuffix("...")
    value = Fraction(int(kept or "0", 2), 2 ** len(kept))
    assert value <= rest < value + Fraction(1, 2 ** len(kept))
    assert bits.endswith("...") == (value != rest)
