"""Our sites fed PyTorch's values: the one site that computes otherwise is named, and no site behind it."""

from __future__ import annotations

import pytest

from softfloat_llm.live.comparison import compare_live
from softfloat_llm.runs import simulate

pytestmark = pytest.mark.torch
PROMPT = [711, 456, 440, 14, 419, 456]


def sites_that_differ(differences):
    return {tap.tap.partition(".")[2].partition(".")[2].removesuffix(".out") for tap in differences if tap.count}


def test_one_wrong_form_is_found_where_it_is():
    """silu with each of its steps rounded, where PyTorch rounds once; all else as PyTorch has it."""
    run = simulate(tokens=PROMPT, recipe="transformers-eager-bf16-cpu-native,mlp.act.form=stepwise")
    found = compare_live(run, mkldnn=False, is_local=True)
    in_run, at_site = (sites_that_differ(part) for part in (found.found.taps, found.found.local))
    print(f"in the run {sorted(in_run)}; fed PyTorch's values {sorted(at_site)}")
    assert at_site == {"mlp.act"}
    assert in_run > {"mlp.act", "mlp.down_proj", "attn.q_proj"}


def test_a_recipe_with_pytorchs_bits_errs_at_no_site():
    run = simulate(tokens=PROMPT, recipe="transformers-eager-bf16-cpu-native")
    found = compare_live(run, mkldnn=False, is_local=True)
    assert found.differing == 0
    assert all(tap.count == 0 for tap in found.found.local)
    assert "Equal to PyTorch in every bit" in str(found)
