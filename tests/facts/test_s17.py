"""S17: TF32 is a compute path for f32 matrix products, not a storage format.

Tensors between the sites stay f32, so nothing else is rounded to 11 bits; a product takes its operands rounded to tf32
and adds in f32. Tensor cores cut the operands instead of rounding them, where nobody has rounded them before.
"""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.claims.engines import TF32, TF32_UNITS
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.formats import format_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.recipe import recipe_of
from softfloat_llm.sites import MATMUL, SITES
from tests.claims import reproduced


def test_s17_only_what_a_product_takes_has_11_bits_and_it_errs_between_f32_and_bf16(tiny_bench):
    reproduced(tiny_bench, "S17")
    assert {recipe_of(TF32).words()[site]["product"] for site in MATMUL} == {"exact"}  # 22 bits: exact in f32


@pytest.mark.parametrize("recipe", [TF32, *TF32_UNITS])
def test_s17_the_tensors_of_a_run_are_f32_with_all_their_bits(tiny_bench, recipe):
    run = tiny_bench.run(recipe, taps=("*.in", "*.out"))
    for name in (name for name in run.names if name.endswith(".out")):
        assert str(run.format_of_tap(name)) == "f32", name
    for site in ("layers.0.attn.q_proj", "layers.1.norm.input", "layers.2.mlp.residual"):
        values = run[f"{site}.out"]
        assert (round_to(values, "tf32") != values).any()  # more than tf32's 11 bits


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
