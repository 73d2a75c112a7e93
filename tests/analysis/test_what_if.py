"""what_if: the operands of every matrix product are those of the pass, its partial sums those of the order."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from softfloat_llm.analysis.ranges import ranges
from softfloat_llm.analysis.taps import forward_order
from softfloat_llm.analysis.what_if import operands, what_if, with_words
from softfloat_llm.errors import FormatError, RecipeError, RunError
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.numerics import reduce
from softfloat_llm.recipe import recipe_of
from softfloat_llm.runs import simulate
from softfloat_llm.sites import MATMUL


@pytest.fixture(scope="module")
def tiny():
    return open_model("tiny")


@pytest.fixture(scope="module")
def whole(tiny):
    """Four positions in f32 with every tap."""
    return simulate(tokens=[711, 456, 440, 14], model=tiny, recipe="f32", steps=0, taps=("*",))


@pytest.mark.parametrize("recipe", ["f32", "f16,acc=f16,order=lanes:8", "bf16,kv=e4m3fn,kv.k.scale=0.02", "bf16"])
def test_the_products_of_the_operands_are_the_sums_that_the_pass_made(tiny, recipe):
    """Every matrix product of a pass with a cache, made again from the taps and the weights, to the last bit."""
    run = simulate("Tom drinks", model=tiny, recipe=recipe, steps=2, taps=("*",))
    seen = set()
    for tap in forward_order(run.arrays):
        if tap.site not in MATMUL or tap.stage != "in":
            continue
        at, acc = run.recipe.at(tap.site).precision, run.arrays[tap.name.removesuffix("in") + "acc"]
        made = [reduce.matmul_stages(a, b, at).acc for a, b in operands(tap, run, tiny)]
        if tap.site == "attn.scores":  # for each group of heads, each query with the keys that it sees
            heads = acc.shape[1] // (len(made) // len(run.fed))
            for i, part in enumerate(made):
                group, t = divmod(i, len(run.fed))
                rows = acc[t, group * heads : (group + 1) * heads, : t + 1]
                assert np.array_equal(part, rows), tap.name
        else:
            whole = np.concatenate([part.reshape(len(run.fed), -1) for part in made], axis=1)
            assert np.array_equal(whole, acc.reshape(len(run.fed), -1)), tap.name
        seen.add(tap.site)
    assert seen == set(MATMUL)


def test_the_sums_of_a_run_and_what_they_could_come_to(tiny, whole):
    found = what_if(whole, "acc=f16", tiny)
    assert len(found.partials) == 4 * 9 + 1
    for one in found.partials:
        assert one.largest_result <= one.largest_partial <= one.any_order * (1 + 2.0**-10), one.place
        assert one.any_order >= 0
    by_place = {one.place: one for one in found.partials}
    assert by_place["layers.0.mlp.down_proj"].terms == 256
    assert by_place["lm_head"].largest_result == pytest.approx(np.abs(whole["logits"]).max(), rel=1e-5)
    assert found.worst.largest_partial == max(one.largest_partial for one in found.partials)


def test_in_f16_nothing_of_tiny_leaves_the_range_but_in_e4m3_sums_do(tiny, whole):
    fine, bad = what_if(whole, "acc=f16", tiny), what_if(whole, "acc=e3m4", tiny)
    assert fine.events == ()
    assert "With acc=f16 nothing leaves the range." in fine.sentences()
    assert bad.events
    assert "leave the range, the first: layers.0." in bad.sentences()[0]
    assert bad.not_finite > 0
    assert "would not be finite" in bad.sentences()[-1]
    assert bad.max_abs == math.inf
    json.dumps(bad.to_dict(), allow_nan=False)


def test_the_dry_run_is_the_run_with_those_words(tiny, whole):
    found = what_if(whole, "acc=f16", tiny)
    dry = simulate(tokens=whole.fed, model=tiny, recipe="f32,acc=f16", steps=0, taps=())
    assert found.recipe.words() == dry.recipe.words()
    assert found.max_abs == np.abs(dry["logits"].astype(float) - whole["logits"].astype(float)).max()
    chosen = [run["logits"].astype(float).argmax(-1) for run in (whole, dry)]
    assert found.flips == np.count_nonzero(chosen[0] != chosen[1])
    assert found.positions == 4


def test_words_are_put_upon_the_recipe_of_the_run():
    base = recipe_of("bf16,attn.softmax.acc=bf16")
    assert with_words(base, "acc=f16").words() == recipe_of("bf16,attn.softmax.acc=bf16,acc=f16").words()
    assert with_words(base, "norm.acc=f16, order=lanes:8").words() == (
        recipe_of("bf16,attn.softmax.acc=bf16,norm.acc=f16,order=lanes:8").words()
    )
    with pytest.raises(FormatError, match="Unknown format 'f61'"):
        with_words(base, "acc=f61")
    for wrong in ("acc", "norms.acc=f16", ""):
        with pytest.raises(RecipeError):
            with_words(base, wrong)


def test_a_dry_run_needs_what_the_products_took(tiny):
    with pytest.raises(RunError, match="--taps"):
        what_if(simulate(model=tiny, taps=()), "acc=f16", tiny)
    with pytest.raises(RunError, match="what the cache held"):
        what_if(simulate(model=tiny, taps=("*attn.scores.in",)), "acc=f16", tiny)


def test_a_matrix_unit_is_measured_one_term_after_another(tiny):
    run = simulate(tokens=[1, 2], model=tiny, recipe="nvidia-hopper-bf16", steps=0, taps=("*",))
    found = what_if(run, "acc=f32", tiny)
    assert found.max_abs == 0
    assert all(one.largest_partial >= one.largest_result for one in found.partials)


def test_the_table_shows_each_site_s_worst_layer_and_verbose_all(tiny, whole):
    found = what_if(whole, "acc=f16", tiny)
    (short,), (long,) = found.tables(), found.tables(verbose=True)
    assert len(short.rows) == 8
    assert len(long.rows) == len(found.partials)
    told = ranges(whole, what_if=found)
    assert "With acc=f16" in str(told)
    assert told.to_dict()["what_if"] == found.to_dict()
    assert len(str(told).splitlines()) < 25
