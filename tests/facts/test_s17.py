"""S17: TF32 is a compute path for f32 matrix products, not a storage format.

Tensors between the sites stay f32, so nothing else is rounded to 11 bits; a product takes its operands rounded to tf32
and adds in f32. Tensor cores cut the operands instead of rounding them, where nobody has rounded them before.
"""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.formats import format_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.recipe import recipe_of
from softfloat_llm.runs import simulate
from softfloat_llm.sites import MATMUL, SITES, TAPPED


@pytest.fixture(scope="module")
def tiny():
    return open_model("tiny")


def test_s17_only_the_operands_of_matrix_products_are_tf32():
    for site in TAPPED:
        spec = recipe_of("storage=tf32").at(site)
        assert str(spec.storage) == ("tf32" if site in MATMUL else "f32"), site
        assert str(spec.output) == "f32", site
    words = recipe_of("storage=tf32").words()
    assert {words[site]["acc"] for site in MATMUL} == {"f32"}
    assert {words[site]["product"] for site in MATMUL} == {"exact"}  # 22 bits: exact in f32


@pytest.mark.parametrize("recipe", ["storage=tf32", "nvidia-ampere-tf32", "nvidia-hopper-tf32"])
def test_s17_the_tensors_of_a_run_are_f32_with_all_their_bits(tiny, recipe):
    run = simulate(tokens=[260, 496, 497], model=tiny, recipe=recipe, taps=["*.out"])
    for name in run.names:
        assert str(run.format_of_tap(name)) == "f32", name
    for site in ("layers.0.attn.q_proj", "layers.1.norm.input", "layers.2.mlp.residual"):
        values = run[f"{site}.out"]
        assert (round_to(values, "tf32") != values).any()  # more than tf32's 11 bits


def test_s17_the_operands_that_a_product_took_have_11_bits(tiny):
    run = simulate(tokens=[260, 496, 497], model=tiny, recipe="storage=tf32", taps=["*.in", "*.out"])
    given, taken = run["layers.0.norm.input.out"], run["layers.0.attn.q_proj.in"]
    assert np.array_equal(taken, round_to(given, "tf32"))


def test_s17_a_product_by_tf32_errs_between_f32_s_and_bf16_s(tiny):
    reference = simulate(model=tiny, recipe="f32", taps=())
    error = {}
    for recipe in ("exact", "storage=tf32", "nvidia-ampere-tf32", "f16", "bf16"):
        run = simulate(model=tiny, recipe=recipe, taps=())
        error[recipe] = np.abs(run["logits"].astype(np.float64) - reference["logits"].astype(np.float64)).max()
    print(error)
    assert error["exact"] < error["storage=tf32"] < error["f16"] < error["bf16"]  # f16 rounds what lies between, too
    assert error["storage=tf32"] < error["nvidia-ampere-tf32"]  # cut operands lose twice as much, all to one side


def test_s17_rounded_operands_are_what_the_unit_cuts_nothing_of():
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal((4, 64)).astype(np.float32) for _ in range(2))
    unit = "storage=f32,output=f32,order=fused:nvidia-ampere-tf32"
    rounded = [round_to(x, "tf32") for x in (a, b)]
    cut = [round_to(x, "tf32", "toward_zero") for x in (a, b)]
    assert np.array_equal(reduce.dot(a, b, unit), reduce.dot(*cut, unit))
    assert not np.array_equal(reduce.dot(a, b, unit), reduce.dot(*rounded, unit))
    assert (format_of("tf32").bits, format_of("tf32").precision) == (19, 11)  # no 16 or 32 bits to be stored in
    assert set(MATMUL) < set(SITES)
