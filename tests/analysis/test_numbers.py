"""Numbers for people: what is printed reads back, or says that it does not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softfloat_llm.analysis.numbers import about, binade, code, decimal, distance, hex_float, jsonable
from softfloat_llm.numerics.formats import FORMATS, bf16, decode, f16, f32, format_of
from softfloat_llm.numerics.rounding import round_to


@pytest.mark.parametrize("fmt", [f16, bf16], ids=str)
def test_every_16_bit_value_reads_back(fmt):
    values = decode(np.arange(0, 1 << 16, 7, dtype=np.uint16), fmt)
    for value in values[np.isfinite(values)].tolist():
        assert round_to(float(decimal(value, fmt)), fmt) == value


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_every_f32_reads_back(value):
    assert round_to(float(decimal(value, f32)), f32) == value


@given(st.floats(-1e300, 1e300, allow_nan=False))
def test_about_gives_the_value_or_is_marked(value):
    text = about(value)
    assert text.startswith("~") or float(text) == value
    assert float(text.lstrip("~")) == pytest.approx(value, rel=5e-3)


def test_short_values_are_exact_and_others_shortest():
    assert decimal(1.00390625, bf16) == "1.00390625"
    assert decimal(0.10009765625, bf16) == "0.1"
    assert decimal(3.0, f32) == "3"
    assert decimal(-0.0, f32) == "-0"
    assert [decimal(x, f32) for x in (math.inf, -math.inf, math.nan)] == ["inf", "-inf", "nan"]


def test_a_distance_names_its_ulp_and_its_grid():
    assert distance(0.125, 22.375, bf16) == "0.125 (1 bf16 ulp in [16, 32))"
    assert distance(2.0**-24, 2.0**-20, f16) == f"{about(2.0**-24)} (1 f16 ulp in [0, 2^-14))"
    assert distance(2.0**100, 2.0**101, bf16).endswith("(64 bf16 ulp in [2^101, 2^102))")
    assert distance(math.inf, 1.0, bf16) == "inf"


def test_binades_begin_at_powers_of_two():
    assert [binade(x, bf16) for x in (1.0, 1.99, 2.0, -3.0, 0.25)] == [
        "[1, 2)",
        "[1, 2)",
        "[2, 4)",
        "[2, 4)",
        "[0.25, 0.5)",
    ]


@pytest.mark.parametrize("name", [*FORMATS, "e5m7"])
def test_codes_have_as_many_digits_as_the_format_has_bits(name):
    fmt = format_of(name)
    digits = code(fmt.max, fmt).split(f"{fmt}:0x")[1]
    assert len(digits) == math.ceil(fmt.bits / 4)


def test_hex_floats_read_back():
    for value in (1.0, -0.0, 22.25, 2.0**-1074, 1e300, 0.1):
        assert float.fromhex(hex_float(value)) == value
    assert (hex_float(22.25), hex_float(1.0)) == ("0x1.64p+4", "0x1p+0")


def test_json_has_no_bare_nan():
    assert [jsonable(x) for x in (1.5, math.inf, -math.inf, math.nan)] == [1.5, "inf", "-inf", "nan"]
