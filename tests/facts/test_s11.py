"""S11: the rope table has a format of its own, and a mismatch with q and k is said with both sides and the cure."""

from __future__ import annotations

import re

import numpy as np
import pytest

from softfloat_llm.claims.engines import MISMATCHES, POSITIONS, table_of
from softfloat_llm.errors import RecipeError
from softfloat_llm.recipe import recipe_of
from tests.claims import reproduced


def test_s11_the_table_is_computed_in_f32_and_stored_in_the_model_s_format(tiny_bench):
    reproduced(tiny_bench, "S11")
    assert np.abs(table_of(tiny_bench, "f32").enter).max() == POSITIONS - 1  # the first frequency is 1


@pytest.mark.smollm2
def test_s11_the_table_of_smollm2(smollm2_bench):
    reproduced(smollm2_bench, "S11")


@pytest.mark.parametrize(("recipe", "candle"), MISMATCHES.items())
def test_s11_a_mismatch_names_both_sides_who_set_them_the_cure_and_candle_s_words(recipe, candle):
    storage, table = recipe.split(",")[0], recipe.split("=")[1]
    with pytest.raises(RecipeError) as caught:
        recipe_of(recipe).check_fit()
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
