"""S4: 22.371271 and 22.277479 → bf16 22.375 and 22.25 (still one ulp apart); → f16 22.375 and 22.28125."""

from __future__ import annotations

import numpy as np

from softfloat_llm.numerics.rounding import round_to, ulp_distance

LOGITS = np.array([22.371271, 22.277479], np.float32)


def test_s04_in_bf16_the_two_logits_stay_one_ulp_apart():
    rounded = round_to(LOGITS, "bf16")
    assert rounded.astype(np.float64).tolist() == [22.375, 22.25]
    assert int(ulp_distance(rounded[0], rounded[1], "bf16")) == 1


def test_s04_in_f16_they_stay_apart_too():
    assert round_to(LOGITS, "f16").astype(np.float64).tolist() == [22.375, 22.28125]
