"""S11: the rope table has a format of its own, and a mismatch with q and k is said with both sides and the cure."""

from __future__ import annotations

import re

import numpy as np
import pytest

from softfloat_llm.errors import RecipeError
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.recipe import recipe_of
from softfloat_llm.runs import simulate

PROMPT = list(range(40, 80))


@pytest.fixture(scope="module")
def tiny():
    return open_model("tiny")


def table_of(tiny, recipe):
    return simulate(tokens=PROMPT, model=tiny, recipe=recipe, taps=["rope.table.*"])


@pytest.mark.parametrize("fmt", ["bf16", "f16"])
def test_s11_the_table_is_computed_in_f32_and_stored_in_the_model_s_format(tiny, fmt):
    wide, narrow = table_of(tiny, "f32"), table_of(tiny, f"transformers-eager,storage={fmt}")
    assert str(narrow.format_of_tap("rope.table.out")) == fmt
    assert str(narrow.format_of_tap("rope.table.in")) == "f32"
    assert narrow["rope.table.in"].tobytes() == wide["rope.table.in"].tobytes()
    assert narrow["rope.table.out"].tobytes() == round_to(wide["rope.table.out"], fmt).tobytes()


def test_s11_angles_in_bf16_make_another_table_than_f32_angles_stored_in_bf16(tiny):
    stored, computed = table_of(tiny, "bf16"), table_of(tiny, "bf16,rope.table.compute=bf16")
    error = np.abs(stored["rope.table.out"].astype(np.float64) - computed["rope.table.out"].astype(np.float64)).max()
    print(f"largest difference of cos or sin within {len(PROMPT)} positions: {error}")
    assert error > 8 * 2.0**-9  # far more than the half ulp below 1 that storing costs


@pytest.mark.parametrize(("recipe", "candle"), [
    ("bf16,rope.table=f32", "dtype mismatch in rope BF16 F32 F32"),
    ("f32,rope.table=bf16", "dtype mismatch in rope F32 BF16 BF16"),
    ("f16,rope.table=f32", "dtype mismatch in rope F16 F32 F32"),
])  # fmt: skip
def test_s11_a_mismatch_names_both_sides_who_set_them_the_cure_and_candle_s_words(tiny, recipe, candle):
    storage, table = recipe.split(",")[0], recipe.split("=")[1]
    with pytest.raises(RecipeError) as caught:
        simulate(model=tiny, recipe=recipe)
    text = str(caught.value)
    assert f"gets q in {storage} but cos/sin in {table}" in text
    assert f"set by rope.table.output={table}" in text
    assert "set by *.storage" in text or "storage is f32 unless set" in text
    assert candle in text
    cures = re.findall(r"--at (\S+?=\S+)", text)
    assert len(cures) == 2
    for cure in cures:
        path, word = cure.rstrip(";.").split("=")
        at = {"rope.table.output": table} | {path: word}
        base = recipe_of(storage)
        type(base)(base=base, at=at).check_fit()


def test_s11_both_formats_may_be_used_as_they_are_with_one_rounding(tiny):
    run = simulate(tokens=PROMPT, model=tiny, recipe="bf16,rope.table=f32,attn.rope.form=once", taps=["*rope*"])
    assert str(run.format_of_tap("rope.table.out")) == "f32"
    assert str(run.format_of_tap("layers.0.attn.rope.out")) == "bf16"
