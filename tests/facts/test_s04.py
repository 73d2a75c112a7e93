"""S4: 22.371271 and 22.277479 → bf16 22.375 and 22.25 (still one ulp apart); → f16 22.375 and 22.28125."""

from __future__ import annotations

from tests.claims import reproduced


def test_s04_two_close_logits_stay_one_ulp_apart_in_bf16_and_apart_in_f16(tiny_bench):
    reproduced(tiny_bench, "S4")
