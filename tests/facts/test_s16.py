"""S16: SGLang has weights and activations in bf16, a cache format of its own, norms in f32, logits widened last."""

from __future__ import annotations

import numpy as np

from softfloat_llm.claims.engines import SGLANG, SGLANG_FP8, SGLANG_HEAD
from softfloat_llm.llama.cache import kept, read_back
from softfloat_llm.numerics.formats import bf16
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.recipe import recipe_of
from tests.claims import reproduced


def test_s16_products_are_bf16_the_cache_has_a_format_of_its_own_and_norms_take_the_f32_sum(tiny_bench):
    reproduced(tiny_bench, "S16")


def test_s16_an_fp8_cache_moves_the_logits(tiny_bench):
    plain, fp8 = (tiny_bench.run(recipe, taps=("*",)) for recipe in (SGLANG, SGLANG_FP8))
    error = np.abs(fp8["logits"].astype(np.float64) - plain["logits"].astype(np.float64)).max()
    print(f"the fp8 cache moves a logit by up to {error}")
    assert error > 0
    for x in "kv":
        given, held = fp8[f"layers.0.kv.{x}.in"], fp8[f"layers.0.kv.{x}.out"]
        assert held.tobytes() == round_to(given, "e4m3fn", overflow="saturate").tobytes()


def test_s16_a_scale_other_than_1_keeps_what_would_be_clipped():
    """500 does not fit e4m3fn; with a scale of 2 it is 250, held as 256, and read as 512."""
    x = round_to(np.array([500.0, 3.0]), "bf16")
    for scale, wanted in (("1", [448.0, 3.0]), ("2", [512.0, 3.0])):
        spec = recipe_of(f"{SGLANG_FP8},kv.scale={scale}").at("kv.v")
        assert read_back(kept(x, spec, bf16).out, spec).astype(np.float64).tolist() == wanted


def test_s16_many_sums_that_a_norm_takes_are_no_bf16_values(tiny_bench):
    run = tiny_bench.run(SGLANG, taps=("*",))
    for layer, site, norm in ((0, "attn.residual", "layers.0.norm.post_attention"), (3, "mlp.residual", "norm.final")):
        taken, stored = run[f"{norm}.in"], run[f"layers.{layer}.{site}.out"]
        assert round_to(taken, "bf16").tobytes() == stored.tobytes()
        share = np.count_nonzero(taken.astype(np.float64) != stored.astype(np.float64)) / taken.size
        print(f"{norm}: {share:.0%} of the sums are no bf16 values")
        assert share > 0.4


def test_s16_the_residual_stream_may_be_f32_too(tiny_bench):
    """`fp32_residual`: what is stored is the sum that the norm takes."""
    recipe = (
        f"{SGLANG},embed.output=f32,attn.residual.storage=f32,attn.residual.output=f32,mlp.residual.storage=f32,"
        "mlp.residual.output=f32"
    )
    run = tiny_bench.run(recipe, taps=("layers.0.*",))
    assert str(run.format_of_tap("layers.0.attn.residual.out")) == "f32"
    assert run["layers.0.norm.post_attention.in"].tobytes() == run["layers.0.attn.residual.out"].tobytes()


def test_s16_an_f32_head_rounded_is_the_plain_one(tiny_bench):
    plain, wide = (tiny_bench.run(recipe, taps=("*",)) for recipe in (SGLANG, SGLANG_HEAD))
    assert round_to(wide["logits"], "bf16").tobytes() == plain["logits"].tobytes()
    assert plain.generated == wide.generated
