"""S8: on the whole model bf16 errs ten times as much as f16, and f16 with f16 accumulators errs like bf16.

Largest difference of a logit at the last position of the prompt, against the recipe f32.
"""

from __future__ import annotations

import pytest

from tests.claims import reproduced


@pytest.mark.smollm2
def test_s08_the_logit_error_of_each_recipe_lies_between_its_bounds(smollm2_bench):
    reproduced(smollm2_bench, "S8")


def test_s08_on_tiny_f16_accumulators_cost_what_bf16_storage_costs_and_f16_storage_alone_a_tenth(tiny_bench):
    reproduced(tiny_bench, "S8")
