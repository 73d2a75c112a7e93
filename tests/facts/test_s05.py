"""S5: both logits 22.25, at ids 253 and 260: argmax takes 253, the lowest id."""

from __future__ import annotations

import pytest

from tests.claims import reproduced


def test_s05_equal_rounded_logits_give_the_lowest_id(tiny_bench):
    lines = reproduced(tiny_bench, "S5")
    assert any("tie, the lowest id is taken" in what for what in lines)  # the built-in model has such steps


@pytest.mark.smollm2
def test_s05_steps_of_smollm2_that_tie_take_the_lowest_id(smollm2_bench):
    reproduced(smollm2_bench, "S5")
