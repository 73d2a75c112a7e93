"""S5: both logits 22.25, at ids 253 and 260: argmax takes 253, the lowest id."""

from __future__ import annotations

import numpy as np

from softfloat_llm.numerics.rounding import round_to


def test_s05_equal_rounded_logits_give_the_lowest_id():
    logits = np.zeros(512, np.float32)
    logits[253], logits[260] = 22.2301, 22.2815  # 260 is larger before the rounding
    assert int(np.argmax(logits)) == 260
    rounded = round_to(logits, "bf16").astype(np.float64)
    assert rounded[253] == rounded[260] == 22.25
    assert int(np.argmax(rounded)) == 253
    assert int(np.argmax(round_to(logits, "f16").astype(np.float64))) == 260
