"""S2: in bf16 (256 + 1) + 1 = 256 (257 ties to even, twice), 256 + (1 + 1) = 258."""

from __future__ import annotations

from softfloat_llm.numerics import ops, reduce


def test_s02_bf16_addition_is_not_associative():
    assert ops.add(ops.add(256, 1, "bf16"), 1, "bf16") == 256.0
    assert ops.add(256, ops.add(1, 1, "bf16"), "bf16") == 258.0


def test_s02_sum_of_256_1_1_in_bf16_stays_256_and_in_reverse_reaches_258():
    assert reduce.sum([256, 1, 1], "storage=bf16,acc=bf16") == 256.0
    assert reduce.sum([256, 1, 1], "storage=bf16,acc=bf16,order=reverse") == 258.0
