"""Each site fed the reference's values: what it gives is its own rounding of them, and nothing of what came before."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.analysis.compare import compare
from softfloat_llm.errors import RunError
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.llama.blocks import linear, multiply, residual, rms_norm
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.recipe import recipe_names, recipe_of
from softfloat_llm.runs import simulate
from softfloat_llm.site_meanings import other_meanings
from softfloat_llm.site_runs import local_run
from softfloat_llm.sites import TAPPED
from tests.analysis.made import made_run

PROMPT = [711, 456, 440, 14, 419, 456]


@pytest.fixture(scope="module")
def tiny():
    return open_model("tiny")


@pytest.fixture(scope="module")
def reference(tiny):
    return simulate(tokens=PROMPT, model=tiny, recipe="f32", steps=3, taps=("*",))


@pytest.mark.parametrize("recipe", ["f32", "bf16", "transformers-sdpa-bf16-cpu-amx", "sglang-bf16-cuda-fp8kv"])
def test_a_run_that_is_its_own_reference_makes_each_of_its_values_again(tiny, recipe):
    run = simulate(tokens=PROMPT, model=tiny, recipe=recipe, steps=3)
    local = local_run(run, run, model=tiny)
    assert local.names == run.names
    assert all(local[name].tobytes() == run[name].tobytes() for name in run.names)
    found = compare(run, run, local=local)
    assert "Fed the reference's values, no site differs." in str(found)
    assert all(tap.is_identical for tap in found.local)


def test_each_site_gives_what_it_makes_of_the_reference_s_values_in_its_own_formats(tiny, reference):
    """Against the blocks called one by one with the reference's taps, rounded to bf16."""
    recipe = recipe_of("bf16,norm.takes=unrounded")
    run = simulate(tokens=PROMPT, model=tiny, recipe=recipe, teacher=reference, taps=("*.out",))
    local = local_run(run, reference, model=tiny)
    layer, weights = "layers.2.", tiny.weights
    prefix = "model.layers.2."

    def given(name):
        return round_to(reference[f"{layer}{name}.out"], "bf16")

    stream = round_to(reference["layers.1.mlp.residual.out"], "bf16")
    norm = recipe.at("norm.input"), tiny.config.rms_norm_eps
    wanted = {
        "norm.input": rms_norm(  # the unrounded sum that it takes is the reference's too
            stream, weights[f"{prefix}input_layernorm.weight"], *norm, unrounded=reference["layers.1.mlp.residual.out"]
        ),
        "mlp.up_proj": linear(
            given("norm.post_attention"), weights[f"{prefix}mlp.up_proj.weight"], recipe.at("mlp.up_proj")
        ),
        "mlp.act_mul": multiply(given("mlp.act"), given("mlp.up_proj"), recipe.at("mlp.act_mul")),
        "mlp.residual": residual(given("attn.residual"), given("mlp.down_proj"), recipe.at("mlp.residual")),
    }
    for site, taps in wanted.items():
        assert local[f"{layer}{site}.out"].tobytes() == taps.out.tobytes(), site
    assert local["embed.out"].tobytes() == run["embed.out"].tobytes()  # nothing comes before it


def test_an_error_that_is_put_in_at_one_site_is_local_there_alone(tiny, reference):
    run = simulate(model=tiny, recipe="f32,mlp.up_proj.output=e5m2", teacher=reference)
    found = compare(run, reference, local=local_run(run, reference, model=tiny))
    off = {tap.tap for tap in found.local if tap.count}
    assert off == {f"layers.{i}.mlp.up_proj.out" for i in range(4)}
    assert len([tap for tap in found.taps if tap.count]) > 50  # in the run everything behind is off
    assert "mlp.up_proj.out errs most" in str(found)
    site = next(site for site in found.sites if site.site == "mlp.down_proj")
    assert (site.local_ulp, site.inherited_ulp > 1) == (0.0, True)


def test_what_is_another_quantity_in_the_reference_is_neither_fed_nor_compared(tiny, reference):
    """Probabilities that are divided after they met the values: softmax and weighting are one step."""
    run = simulate(model=tiny, recipe="f32,attn.softmax.normalise=after", teacher=reference, taps=("*",))
    found = compare(run, reference, local=local_run(run, reference, model=tiny))
    names = {tap.tap for tap in found.taps}
    assert "layers.0.attn.softmax.in" in names
    assert not names & {f"layers.0.attn.{tap}" for tap in ("softmax.out", "pv.in", "pv.acc")}
    assert any("(attn.softmax.normalise): attn.softmax.out, attn.pv.in, attn.pv.acc" in note for note in found.notes)
    assert found.is_whole
    worst = max(tap.max_row_ulp for tap in found.local)
    assert 0 < worst < 16  # f32 ulps: another order of the same roundings


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_and_itself_mean_the_same_everywhere(name):
    assert other_meanings(recipe_of(name), recipe_of(name)) == {}


def test_what_differs_in_meaning_is_a_tap_of_the_pass():
    after = "attn.softmax.normalise=after"
    for words in (
        "attn.rope.pairs=interleaved", "attn.scale.on=query", "attn.softmax.base=2", after,
        f"{after},attn.softmax.online=64", "kv.k.scale=2", "kv.v.scale=2", "attn.scale.on=query,attn.softmax.base=2",
    ):  # fmt: skip
        found = other_meanings(recipe_of(f"f32,{words}"), recipe_of("f32"))
        assert found
        assert {tap.rpartition(".")[0] for tap in found} <= set(TAPPED)


@pytest.mark.parametrize("words", ["kv.k.scale=2", "attn.scale.on=query", "attn.rope.pairs=interleaved"])
def test_where_the_two_mean_the_same_in_exact_arithmetic_no_site_errs_by_much(tiny, reference, words):
    """f32 with another option: every local error is some roundings of f32."""
    run = simulate(model=tiny, recipe=f"f32,{words}", teacher=reference)
    found = compare(run, reference, local=local_run(run, reference, model=tiny))
    assert max(tap.max_row_ulp for tap in found.local) < 64
    assert found.flips == 0


def test_positions_that_were_fed_other_tokens_are_left_out(tiny, reference):
    run = simulate("Tom drinks", model=tiny, recipe="bf16", steps=6)
    other = simulate("Tom drinks", model=tiny, recipe="f32", steps=6)
    shared = next((i for i, (a, b) in enumerate(zip(run.fed, other.fed, strict=True)) if a != b), len(run.fed))
    assert len(local_run(run, other, model=tiny).fed) == shared


def test_a_reference_without_taps_is_refused_and_so_are_other_weights(tiny, reference):
    run = simulate(model=tiny, recipe="bf16", teacher=reference)
    with pytest.raises(RunError, match="keeps no tap but its logits"):
        local_run(run, simulate(model=tiny, recipe="f32", teacher=reference, taps=()), model=tiny)
    with pytest.raises(RunError, match="other weights now"):
        local_run(made_run(), reference, model=tiny)


def test_the_bits_do_not_depend_on_workers(tiny, reference):
    run = simulate(model=tiny, recipe="bf16", teacher=reference)
    one, two = (local_run(run, reference.arrays, model=tiny, workers=workers) for workers in (1, 2))
    assert all(np.array_equal(one[name], two[name], equal_nan=True) for name in one.names)
