"""S3: bf16 spacing: 2 at 256, 0.125 in [16, 32); f16 1/64 there; all bf16 logits there are multiples of 0.125."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.numerics.rounding import round_to
from tests.claims import reproduced


def test_s03_spacing_at_256_and_in_16_to_32_and_what_it_makes_of_logits(tiny_bench):
    lines = reproduced(tiny_bench, "S3")
    assert any("logits of the run" in what and line.obtained != "0 of 0" for what, line in lines.items())


@pytest.mark.smollm2
def test_s03_logits_of_smollm2(smollm2_bench):
    reproduced(smollm2_bench, "S3")


def test_s03_logits_rounded_to_bf16_are_multiples_of_one_eighth():
    logits = round_to(np.random.default_rng(0).uniform(16, 32, 10_000), "bf16").astype(np.float64)
    assert np.array_equal(logits * 8, np.round(logits * 8))
