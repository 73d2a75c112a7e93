"""S20: how to debug: formats, one operator, one layer, the whole pass; the earliest difference; NaN and inf first.

`compare` does these in this order: what is not finite, tokens, distributions, distances, where the two first part.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from softfloat_llm.analysis.compare import compare
from softfloat_llm.analysis.taps import tap_of
from softfloat_llm.claims.debugging import KINDS
from softfloat_llm.site_runs import local_run
from softfloat_llm.sites import TAPPED
from tests.claims import reproduced


def test_s20_a_fault_is_found_where_it_was_put_in_and_what_is_not_finite_is_told_first(tiny_bench):
    reproduced(tiny_bench, "S20")


@pytest.mark.smollm2
def test_s20_the_same_on_smollm2(smollm2_bench):
    reproduced(smollm2_bench, "S20")


def test_s20_the_text_has_what_is_told_in_that_order(tiny_bench):
    found = compare(tiny_bench.run("f32,lm_head.output=e3m4"), tiny_bench.run("f32"))
    text = str(found)
    places = [text.index(kind) for kind in KINDS]
    assert places == sorted(places)
    assert text.index("inf in the run") < text.index("| step |")


STREAM = ("embed", "attn.residual", "mlp.residual")
READERS = {"kv.k": {"attn.scores"}, "kv.v": {"attn.pv"}}  # they take what the cache holds, in its format
ALONE = [site for site in TAPPED if site not in ("attn.mask", "norm.q", "norm.k", *STREAM)]  # sites of every Llama


@pytest.mark.parametrize("site", ALONE)
def test_s20_a_fault_at_any_site_is_the_earliest_difference_and_the_only_local_error(tiny_bench, site):
    """The site's values in bf16: it errs, and no site does that is fed the reference's values."""
    base = "f32,attn.rope.form=once" if site == "rope.table" else "f32"  # which takes tables of any format
    fault = f"{site}.storage=bf16" if site.startswith("kv.") else f"{site}.output=bf16"
    reference, wrong = (tiny_bench.run(recipe, taps=("*.out",)) for recipe in (base, f"{base},{fault}"))
    found = compare(wrong, reference, local=local_run(wrong, reference, model=tiny_bench.model))
    assert {tap_of(tap.tap).site for tap in found.local if tap.count} == {site} | READERS.get(site, set())
    assert found.first_divergence.tap.site == site


def test_s20_where_the_first_nan_arose_is_told_with_its_site_layer_and_position(tiny_bench):
    reference = tiny_bench.run("f32", taps=("*.out",))
    values = {name: array.copy() for name, array in reference.arrays.items()}
    values["layers.2.mlp.act.out"][3, 5] = np.nan
    values["lm_head.out"][4] = np.nan
    first = compare(replace(reference, arrays=values), reference).nonfinite[0]
    assert (first.tap.site, first.tap.layer, first.position, first.index) == ("mlp.act", 2, 3, (3, 5))
