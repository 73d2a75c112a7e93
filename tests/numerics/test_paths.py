"""Which form serves a precision, and what those without a fast one say."""

from __future__ import annotations

import pytest

from softfloat_llm.analysis.slow_sites import slow_notes
from softfloat_llm.numerics.modes import MODES
from softfloat_llm.numerics.paths import path_of, slow_reason
from softfloat_llm.numerics.precision import precision_of
from softfloat_llm.recipe import recipe_of


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("acc", ["f16", "bf16", "e4m3fn", "e5m2", "e2m1fn", "f32"])
def test_every_mode_of_every_short_accumulator_has_a_fast_form(acc, mode):
    at = precision_of(f"storage=f16,acc={acc},acc.rounding={mode}")
    assert path_of(at) != "evident"
    assert slow_reason(at) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("f16,acc=f16+neumaier", "acc=f16+neumaier takes four roundings"),
        ("f16,acc=f16,acc.rounding=stochastic:8:1", "stochastic rounding draws a word"),
        ("f16,acc=f32,order=fused:8", "order=fused:8 looks at all terms"),
        ("f16,acc=f16,subnormals=ftz", "acc=f16 flushes"),
        ("f32,acc=f16", "acc=f16 of products of 48 bits"),
        ("bf16,acc=exact,product=bf16", "acc=exact of rounded products"),
        ("f16,acc=f32,product=f16,rounding=toward_zero", "product=f16 with its rounding"),
    ],
)
def test_the_others_say_why(text, reason):
    assert slow_reason(precision_of(f"storage={text}")).startswith(reason)


@pytest.mark.parametrize("text", ["bf16,acc=exact", "f32,acc=exact,product=f64", "f32", "f64,acc=f64,product=f64"])
def test_forms_of_other_kinds_are_fast_too(text):
    assert slow_reason(precision_of(f"storage={text}")) is None


def test_a_recipe_says_it_of_the_sites_that_have_it():
    assert slow_notes(recipe_of("bf16")) == []
    recipe = recipe_of("f16,acc=f16,lm_head.acc=f32+kahan,attn.pv.rounding=stochastic:8:1")
    assert slow_notes(recipe) == [
        "lm_head: acc=f32+kahan takes four roundings a term: some 20 to 30 times the time of plain f16 sums",
        "attn.pv: stochastic rounding draws a word for every step: some 30 times the time of plain f16 sums",
    ]
