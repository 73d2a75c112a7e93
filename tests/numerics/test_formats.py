"""Formats: every code of every format of at most 16 bits, against NumPy and ml_dtypes; names; refusals."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest

from softfloat_llm.errors import FormatError
from softfloat_llm.numerics.formats import FORMATS, bf16, decode, encode, f16, f32, f64, format_of, tf32
from tests.oracle import assert_same, differs, values_of_bits

OWN_DTYPE = [f for f in FORMATS.values() if f.has_own_dtype and f.bits <= 16]
SPREAD = [
    "e2m0",
    "e2m1",
    "e2m5",
    "e2m13",
    "e3m0",
    "e3m2",
    "e4m7",
    "e5m7",
    "e5m9",
    "e6m3",
    "e6m9",
    "e7m8",
    "e8m0",
    "e8m7",
]
ids = str


def all_codes(fmt):
    return np.arange(1 << fmt.bits)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_every_code_of_16_bits_decodes_to_the_value_of_its_bits(name):
    assert_same(decode(all_codes(format_of(name)), name), values_of_bits(all_codes(format_of(name)), name))


@pytest.mark.parametrize("fmt", OWN_DTYPE, ids=ids)
def test_every_code_decodes_as_its_dtype_does(fmt):
    codes = all_codes(fmt)
    with np.errstate(invalid="ignore"):  # signalling NaN
        want = codes.astype(fmt.code_dtype).view(fmt.dtype).astype(np.float64)
    got = decode(codes, fmt)
    is_number = ~np.isnan(want)
    assert_same(got, want, codes)
    assert np.array_equal(np.signbit(got[is_number]), np.signbit(want[is_number]))


@pytest.mark.parametrize("fmt", [*OWN_DTYPE, tf32, *map(format_of, SPREAD)], ids=ids)
def test_every_value_encodes_to_the_code_that_it_came_from(fmt):
    codes = all_codes(fmt) if fmt.bits <= 16 else np.arange(0, 1 << fmt.bits, 7)
    values = decode(codes, fmt)
    is_number = ~np.isnan(values)
    assert np.array_equal(encode(values[is_number], fmt), codes[is_number])
    assert encode(values, fmt).dtype == fmt.code_dtype
    if fmt.has_nan:
        assert np.isnan(decode(encode(values, fmt), fmt))[~is_number].all()


@pytest.mark.parametrize("fmt", OWN_DTYPE, ids=ids)
def test_codes_of_an_array_of_the_dtype_are_its_bytes(fmt):
    codes = all_codes(fmt).astype(fmt.code_dtype)
    assert np.array_equal(encode(codes.view(fmt.dtype), fmt), codes)


@pytest.mark.parametrize("name", SPREAD)
def test_codes_of_exmy_follow_ieee_754(name):
    """Independent reading of the standard: (-1)^S 2^(E-bias) (1 + T 2^-Y), and the exponent fields 0 and all ones."""
    x_bits, y_bits = (int(part) for part in name[1:].split("m"))
    bias, top = 2 ** (x_bits - 1) - 1, 2**x_bits - 1
    for code in range(0, 2 ** (1 + x_bits + y_bits), 1 if x_bits + y_bits < 10 else 53):
        sign, rest = divmod(code, 2 ** (x_bits + y_bits))
        field, trailing = divmod(rest, 2**y_bits)
        value = float(decode([code], name)[0])
        if field == top:
            assert np.isnan(value) if trailing else np.isinf(value)
        elif field == 0:
            assert abs(value) == trailing * 2.0 ** (1 - bias - y_bits)
        else:
            assert abs(value) == (1 + trailing * 2.0**-y_bits) * 2.0 ** (field - bias)
        assert np.isnan(value) or np.signbit(value) == bool(sign)


@pytest.mark.parametrize("fmt", [f64, f32, *OWN_DTYPE], ids=ids)
def test_derived_numbers_equal_finfo(fmt):
    known = ml_dtypes.finfo(fmt.dtype)
    assert fmt.bits == known.bits or fmt.bits in (4, 6)  # the sub-byte formats, which ml_dtypes keeps in bytes
    assert fmt.max == float(known.max)
    assert fmt.smallest_normal == float(known.smallest_normal)
    assert fmt.smallest_subnormal == float(known.smallest_subnormal)
    assert fmt.eps == float(known.eps)


def test_tf32_has_the_range_of_f32_and_the_precision_of_f16():
    assert (tf32.exponent_bits, tf32.precision, tf32.bits) == (f32.exponent_bits, f16.precision, 19)
    assert tf32.max == (2 - 2.0**-10) * 2.0**127


@pytest.mark.parametrize("fmt", [*FORMATS.values(), *map(format_of, ["e5m7", "e8m0", "e2m23", "e8m22"])], ids=ids)
def test_the_carrier_holds_the_largest_and_the_smallest_value(fmt):
    values = np.array([fmt.max, fmt.smallest_normal, fmt.smallest_subnormal])
    assert np.array_equal(values.astype(fmt.dtype).astype(np.float64), values)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("fp16", "f16"), ("half", "f16"), ("float16", "f16"), ("e5m10", "f16"), ("bfloat16", "bf16"), ("e8m7", "bf16"),
        ("float8_e4m3fn", "e4m3fn"), ("fp8", "e4m3fn"), ("float8_e5m2", "e5m2"), ("e8m23", "f32"), ("single", "f32"),
        ("e8m10", "tf32"), ("double", "f64"), (" BF16 ", "bf16"), ("float4_e2m1fn", "e2m1fn"), ("fp32", "f32"),
    ],
)  # fmt: skip
def test_names_in_use_mean_the_short_name(spelling, name):
    assert str(format_of(spelling)) == name
    assert format_of(spelling) is FORMATS[name]


@pytest.mark.parametrize("fmt", [*FORMATS.values(), format_of("e3m0"), format_of("e6m9")], ids=ids)
def test_every_format_parses_back_from_its_name(fmt):
    assert format_of(str(fmt)) == fmt
    assert format_of(fmt) is fmt


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_a_dtype_names_its_format(dtype):
    assert format_of(np.dtype(dtype)).dtype == dtype
    assert format_of(dtype).dtype == dtype


@pytest.mark.parametrize(
    ("word", "says"),
    [("bf61", "Did you mean 'bf16'?"), ("e1m3", "out of range"), ("e9m3", "out of range"), ("e5m24", "out of range")],
)
def test_an_unknown_name_is_refused_with_a_hint(word, says):
    with pytest.raises(FormatError, match=says.replace("?", r"\?")):
        format_of(word)


@pytest.mark.parametrize("word", [16, None, "", "int8", np.dtype(np.int8), "e4 m3"])
def test_what_is_no_format_is_refused(word):
    with pytest.raises(FormatError):
        format_of(word)


def test_codes_with_too_many_bits_are_refused():
    with pytest.raises(FormatError, match="6 bits"):
        decode([64], "e3m2fn")
    with pytest.raises(FormatError, match="8 bits"):
        decode([-1], "e5m2")
    with pytest.raises(FormatError, match="integers"):
        decode([0.5], "e5m2")


@pytest.mark.parametrize(
    ("value", "name"),
    [(257.0, "bf16"), (65536.0, "f16"), (np.inf, "e4m3fn"), (0.0, "e8m0fnu"), (-1.0, "e8m0fnu"), (2.0**-25, "f16")],
)
def test_encode_refuses_a_value_that_the_format_does_not_hold(value, name):
    with pytest.raises(FormatError, match="does not hold"):
        encode(np.array([1.0, value]), name)


def test_a_format_without_nan_has_no_code_for_it():
    with pytest.raises(FormatError, match="no code for NaN"):
        encode(np.array([np.nan]), "e2m1fn")


@pytest.mark.parametrize("name", ["e4m3fn", "e4m3fnuz", "e5m2", "f16", "bf16", "e5m7"])
def test_nan_encodes_to_a_nan_of_its_sign_where_there_are_two(name):
    codes = encode(np.array([np.nan, -np.nan]), name)
    assert np.isnan(decode(codes, name)).all()
    assert (codes[0] != codes[1]) == format_of(name).has_negative_zero


def test_shapes_survive_decode_and_encode():
    codes = np.arange(24).reshape(2, 3, 4)
    assert decode(codes, bf16).shape == encode(decode(codes, bf16), bf16).shape == (2, 3, 4)
    assert decode(np.uint8(0x38), "e4m3fn").shape == ()
    assert not differs(decode(np.uint8(0x38), "e4m3fn"), 1.0)


def test_leading_zeros_and_foreign_digits_make_no_further_formats():
    assert format_of("e05m10") is f16
    for name in ("e\u0663m\u0662", "e" + "1" * 5000 + "m1"):
        with pytest.raises(FormatError, match="Unknown format"):
            format_of(name)


@pytest.mark.parametrize("fmt", [*FORMATS.values(), format_of("e5m7")], ids=str)
def test_a_pickled_format_is_the_format_itself(fmt):
    again = pickle.loads(pickle.dumps(fmt))
    assert again == fmt
    assert (again is fmt) == (fmt.name in FORMATS)
