"""S1: formats: bytes, sign/exponent/trailing bits, max, eps of f32, f16, bf16."""

from __future__ import annotations

import pytest

from softfloat_llm.numerics.formats import format_of


@pytest.mark.parametrize(
    ("name", "width", "exponent", "trailing", "largest", "eps"),
    [
        ("f32", 4, 8, 23, 3.4028234663852886e38, 2.0**-23),
        ("f16", 2, 5, 10, 65504.0, 2.0**-10),
        ("bf16", 2, 8, 7, 3.3895313892515355e38, 2.0**-7),
    ],
)
def test_s01_formats_have_these_bits_and_limits(name, width, exponent, trailing, largest, eps):
    fmt = format_of(name)
    assert (fmt.bits // 8, fmt.dtype.itemsize) == (width, width)
    assert (int(fmt.is_signed), fmt.exponent_bits, fmt.trailing_bits) == (1, exponent, trailing)
    assert (fmt.max, fmt.eps) == (largest, eps)
