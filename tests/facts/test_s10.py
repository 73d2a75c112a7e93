"""S10: free running and teacher forcing are different questions; a cached decode and one long pass need not differ.

The first asks which text a person gets; the second, at which steps a choice differs given the same past. Under orders
that do not depend on the shape, the cache changes no bit.
"""

from __future__ import annotations

import pytest

from softfloat_llm.claims.model_runs import SHAPE_FREE
from tests.claims import reproduced


def test_s10_both_modes_agree_up_to_the_first_flip_and_the_cache_moves_bits_only_where_shapes_choose_orders(tiny_bench):
    reproduced(tiny_bench, "S10")


@pytest.mark.parametrize("recipe", SHAPE_FREE)
def test_s10_a_run_that_is_taught_its_own_tokens_is_that_run(tiny_bench, recipe):
    free = tiny_bench.run(recipe, steps=8, taps=("*.out",))
    assert tiny_bench.run(recipe, steps=8, teacher=free).digest == free.digest
