"""S1: formats: bytes, sign/exponent/trailing bits, max, eps of f32, f16, bf16."""

from __future__ import annotations

from softfloat_llm.numerics.formats import format_of
from tests.claims import reproduced


def test_s01_formats_have_these_bits_and_limits(tiny_bench):
    reproduced(tiny_bench, "S1")
    for name in ("f32", "f16", "bf16"):
        fmt = format_of(name)
        assert fmt.dtype.itemsize * 8 == fmt.bits == int(fmt.is_signed) + fmt.exponent_bits + fmt.trailing_bits
