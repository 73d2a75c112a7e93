"""PyTorch run beside us, tap by tap: every value of every site equal, for prompts that no reference file has.

Which recipe is held depends on the CPU: `kernels_here` skips what was not seen on it, and says so.
"""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.live.comparison import compare_live
from softfloat_llm.runs import simulate
from tests.live.kernels_here import recipe_or_skip

pytestmark = pytest.mark.torch

CASES = [(attention, fmt, mkldnn) for attention in ("eager", "sdpa") for fmt in ("bf16", "f16") for mkldnn in (1, 0)]
IDS = [f"{attention}-{fmt}-{'onednn' if mkldnn else 'native'}" for attention, fmt, mkldnn in CASES]
LENGTHS = (1, 3, 13, 35)
TAPS = {"eager": 80, "sdpa": 64}  # of fused attention, scores, scale, mask and probabilities cannot be seen


def a_prompt(length, vocabulary):
    return np.random.default_rng(length).integers(0, vocabulary, length).tolist()


@pytest.mark.parametrize(("attention", "fmt", "mkldnn"), CASES, ids=IDS)
def test_the_tiny_model_is_pytorchs_in_every_bit_of_prefill_and_cached_steps(attention, fmt, mkldnn):
    recipe = recipe_or_skip(attention, fmt, mkldnn=bool(mkldnn))
    for length in LENGTHS:
        run = simulate(tokens=a_prompt(length, 960), recipe=recipe, steps=4)
        found = compare_live(run, threads=1)
        assert found.differing == 0, found.text()
        assert len(found.found.taps) == TAPS[attention]
        assert found.found.positions == length + 3
        assert found.attention == attention
        assert found.notes == ()


@pytest.mark.smollm2
@pytest.mark.parametrize(("attention", "fmt"), [("eager", "bf16"), ("sdpa", "f16")])
def test_smollm2_is_pytorchs_in_every_bit(attention, fmt, smollm2_folder):
    recipe = recipe_or_skip(attention, fmt)
    kept = ["*.o_proj.out", "*.residual.out"]
    run = simulate(tokens=a_prompt(9, 49152), model=smollm2_folder, recipe=recipe, steps=2, taps=kept)
    found = compare_live(run, threads=1)
    assert found.differing == 0, found.text()
    assert len(found.found.taps) == 91
