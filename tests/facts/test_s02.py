"""S2: in bf16 (256 + 1) + 1 = 256 (257 ties to even, twice), 256 + (1 + 1) = 258."""

from __future__ import annotations

from tests.claims import reproduced


def test_s02_bf16_addition_is_not_associative(tiny_bench):
    reproduced(tiny_bench, "S2")
