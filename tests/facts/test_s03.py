"""S3: bf16 spacing: 2 at 256, 0.125 in [16, 32); f16 1/64 there; all bf16 logits there are multiples of 0.125."""

from __future__ import annotations

import numpy as np

from softfloat_llm.numerics.formats import decode
from softfloat_llm.numerics.rounding import round_to, ulp


def test_s03_spacing_at_256_and_in_16_to_32():
    assert ulp(256.0, "bf16") == 2.0
    inside = np.linspace(16, np.nextafter(32, 0), 1001)
    assert (ulp(inside, "bf16") == 0.125).all()
    assert (ulp(inside, "f16") == 1 / 64).all()


def test_s03_all_bf16_values_from_16_to_32_are_multiples_of_one_eighth():
    values = decode(np.arange(1 << 16), "bf16")
    values = values[(values >= 16) & (values < 32)]
    assert np.array_equal(values, np.arange(16, 32, 0.125))


def test_s03_logits_rounded_to_bf16_are_multiples_of_one_eighth():
    logits = round_to(np.random.default_rng(0).uniform(16, 32, 10_000), "bf16").astype(np.float64)
    assert np.array_equal(logits * 8, np.round(logits * 8))
