"""S16: SGLang has weights and activations in bf16, a cache format of its own, norms in f32, logits widened last."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.recipe import recipe_of
from softfloat_llm.runs import simulate

PROMPT = [711, 456, 440, 14, 419, 456]
PLAIN, FP8, HEAD = (f"sglang-bf16-cuda{part}" for part in ("", "-fp8kv", "-fp32-head"))


@pytest.fixture(scope="module")
def runs():
    tiny = open_model("tiny")
    return {r: simulate(tokens=PROMPT, model=tiny, recipe=r, taps=("*",)) for r in (PLAIN, FP8, HEAD)}


def formats_of(run):
    return {name: str(run.format_of_tap(name)) for name in run.names}


def test_s16_weights_and_activations_are_bf16_and_every_accumulator_is_f32(runs):
    formats = formats_of(runs[PLAIN])
    assert {fmt for name, fmt in formats.items() if name.endswith(".acc")} == {"f32"}
    assert {fmt for name, fmt in formats.items() if name.endswith(("_proj.in", "_proj.out", "residual.out"))} == {
        "bf16"
    }


def test_s16_the_cache_has_a_format_of_its_own_and_a_scale_of_1(runs):
    plain, fp8 = formats_of(runs[PLAIN]), formats_of(runs[FP8])
    changed = {name for name in plain if plain[name] != fp8[name]}
    assert changed == {f"layers.{layer}.kv.{x}.out" for layer in range(4) for x in "kv"}
    assert {fp8[name] for name in changed} == {"e4m3fn"}
    assert {recipe_of(FP8).at(site).number_of("scale") for site in ("kv.k", "kv.v")} == {1.0}
    run = runs[FP8]
    for x in "kv":
        given, held = run[f"layers.0.kv.{x}.in"], run[f"layers.0.kv.{x}.out"]
        assert held.tobytes() == round_to(given, "e4m3fn", overflow="saturate").tobytes()
    error = np.abs(run["logits"].astype(np.float64) - runs[PLAIN]["logits"].astype(np.float64)).max()
    print(f"the fp8 cache moves a logit by up to {error}")
    assert error > 0


def test_s16_a_scale_other_than_1_keeps_what_would_be_clipped():
    """500 does not fit e4m3fn; with a scale of 2 it is 250, held as 256, and read as 512."""
    from softfloat_llm.llama.cache import kept, read_back
    from softfloat_llm.numerics.formats import bf16

    x = round_to(np.array([500.0, 3.0]), "bf16")
    for scale, wanted in (("1", [448.0, 3.0]), ("2", [512.0, 3.0])):
        spec = recipe_of(f"{FP8},kv.scale={scale}").at("kv.v")
        assert read_back(kept(x, spec, bf16).out, spec).astype(np.float64).tolist() == wanted


def test_s16_the_norm_takes_the_f32_sum_that_the_residual_stream_rounds(runs):
    run = runs[PLAIN]
    for layer, site, norm in ((0, "attn.residual", "layers.0.norm.post_attention"), (3, "mlp.residual", "norm.final")):
        taken, stored = run[f"{norm}.in"], run[f"layers.{layer}.{site}.out"]
        assert str(run.format_of_tap(f"{norm}.in")) == "f32"
        assert round_to(taken, "bf16").tobytes() == stored.tobytes()
        share = np.count_nonzero(taken.astype(np.float64) != stored.astype(np.float64)) / taken.size
        print(f"{norm}: {share:.0%} of the sums are no bf16 values")
        assert share > 0.5


def test_s16_the_residual_stream_may_be_f32_too():
    """`fp32_residual`: what is stored is the sum that the norm takes."""
    recipe = (
        f"{PLAIN},embed.output=f32,attn.residual.storage=f32,attn.residual.output=f32,mlp.residual.storage=f32,"
        "mlp.residual.output=f32"
    )
    run = simulate(tokens=PROMPT, recipe=recipe, taps=("layers.0.*",))
    assert str(run.format_of_tap("layers.0.attn.residual.out")) == "f32"
    assert run["layers.0.norm.post_attention.in"].tobytes() == run["layers.0.attn.residual.out"].tobytes()


def test_s16_logits_are_bf16_values_unless_the_head_keeps_its_accumulator(runs):
    plain, wide = runs[PLAIN], runs[HEAD]
    assert (str(plain.logits_format), str(wide.logits_format)) == ("bf16", "f32")
    assert wide["lm_head.out"].tobytes() == wide["lm_head.acc"].tobytes()
    assert round_to(wide["logits"], "bf16").tobytes() == plain["logits"].tobytes()
    assert plain.generated == wide.generated
