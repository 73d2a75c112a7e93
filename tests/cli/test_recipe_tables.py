"""`recipes --table` and `recipes --units`: what the tables say is what the recipes and the units say."""

from __future__ import annotations

import json

import pytest

from softfloat_llm.numerics.adders import units
from softfloat_llm.recipe import recipe_names, recipe_of, unit_recipe_names
from softfloat_llm.report.recipe_tables import MOST_COLUMNS, cell, group_names
from softfloat_llm.sites import SITES, select
from tests.console import Console

ENGINES = [name for name in recipe_names() if name not in unit_recipe_names()]


def tables(out: str) -> list[list[list[str]]]:
    """Every Markdown table of a text, as rows of cells without the rule."""
    blocks = [block.splitlines() for block in out.split("\n\n") if block.startswith("|")]
    rows = [[[c.strip() for c in line.strip("|").split("|")] for line in block] for block in blocks]
    return [[header, *body] for header, _, *body in rows]


def sites_of(names: str) -> list[str]:
    return [site for word in names.split(", ") for site in select(word)]


@pytest.mark.parametrize("names", [[], ["transformers-eager", "candle-f16-cpu-neon", "nvidia-hopper-fp8-slow"]])
def test_every_site_of_every_recipe_stands_in_one_cell(console: Console, names: list[str]) -> None:
    found = tables(console("recipes", "--table", *names).out)
    seen = []
    for header, *rows in found[0::2]:
        assert len(header) <= MOST_COLUMNS + 1
        for column, name in enumerate(header[1:], start=1):
            seen.append(name)
            said = {site: row[column] for row in rows for site in sites_of(row[0])}
            for site, words in recipe_of(name).words().items():
                assert said.get(site, "-") == cell(site, words), (name, site)
    assert sorted(seen) == sorted(names or ENGINES)


def test_status_and_evidence_stand_under_each_table(console: Console) -> None:
    for _, *rows in tables(console("recipes", "--table").out)[1::2]:
        for name, status, evidence in rows:
            recipe = recipe_of(name)
            assert (status, evidence) == (recipe.status, recipe.evidence or "-")


def test_recipes_that_are_named_stand_in_one_table_whatever_their_engines(console: Console) -> None:
    found = tables(console("recipes", "--table", "bf16", "candle-f16-cpu-neon", "bf16,acc=f16").out)
    assert found[0][0] == ["site", "bf16", "candle-f16-cpu-neon", "bf16,acc=f16"]
    assert ["matmul", "bf16,f32,bf16", "bf16,f16,bf16"] in tables(
        console("recipes", "--table", "bf16", "bf16,acc=f16").out
    )[0]


@pytest.mark.parametrize(
    ("recipe", "site", "text"),
    [
        ("bf16", "embed", "bf16"),
        ("bf16", "lm_head", "bf16,f32,bf16"),
        ("f32", "lm_head", "f32 product=f32"),
        ("f32", "norm.input", "f32"),
        ("exact", "norm.input", "f32,exact,f32"),
        ("bf16,kv=e4m3fn", "kv.k", "e4m3fn"),
        ("bf16,order=lanes:8", "attn.pv", "bf16,f32,bf16 lanes:8"),
        ("transformers-eager", "norm.final", "bf16,f32,bf16 root=one-over-sqrt"),
        ("intel-vdpbf16ps", "attn.pv", "bf16,f32,bf16 swap:2 ftz+daz"),
        ("bf16,norm.compute=f16", "norm.input", "bf16,f32,bf16 compute=f16"),
        (
            "transformers-eager-bf16-cpu-amx",
            "attn.softmax",
            "bf16,f32,bf16 lanes:16 reciprocal exp=sleef-u10 +1 by shape",
        ),
    ],
)
def test_a_cell_says_the_formats_and_what_is_not_the_usual(recipe: str, site: str, text: str) -> None:
    assert cell(site, recipe_of(recipe).words()[site]) == text


def test_sites_are_named_in_few_words() -> None:
    assert group_names(list(SITES)) == "*"
    assert group_names(select("matmul")) == "matmul"
    assert group_names(["norm.final", "kv.v", *select("norm"), "embed"]) == "norm, kv.v, embed"


def test_json_of_the_table_has_every_word(console: Console) -> None:
    answer = json.loads(console("recipes", "--table", "--json").out)
    assert answer["schema"] == "softfloat-llm/recipes/1"
    assert set(answer["recipes"]) == set(ENGINES)
    assert answer["recipes"]["f16"]["site"] == recipe_of("f16").words()


def test_every_unit_and_every_recipe_of_one_is_listed_with_what_it_was_held_against(console: Console) -> None:
    listed, made = tables(console("recipes", "--units").out)
    said = {row[0]: row[1:] for row in listed[1:]}
    assert set(said) == set(units())
    for name, unit in units().items():
        assert said[name][:2] == [str(unit.output), str(unit.terms)]
        assert said[name][3::2] == [unit.rounding, unit.evidence]
        bits = {"exact": "exact", "pairwise": "pairwise"}.get(unit.model, str(unit.fraction_bits))
        assert said[name][2:5:2] == [bits, str(unit.zero_exponent) if unit.model == "aligned" else "-"]
    assert [row[0] for row in made[1:]] == unit_recipe_names()
    plain = console("recipes").out
    assert not any(f"| {name} " in plain for name in unit_recipe_names())
    assert f"{len(unit_recipe_names())} more are of matrix units" in plain


def test_units_are_chosen_by_a_word_and_an_unknown_one_is_said(console: Console) -> None:
    (made,) = tables(console("recipes", "--units", "hopper-fp8").out)
    assert [row[0] for row in made[1:]] == ["nvidia-hopper-fp8-fast", "nvidia-hopper-fp8-slow"]
    assert console("recipes", "--units", "hoper").code == 2
    answer = json.loads(console("recipes", "--units", "volta", "--json").out)
    assert answer["units"]["nvidia-volta-f16"]["F"] == 23
    assert set(answer["recipes"]) == {"nvidia-volta-f16", "nvidia-volta-f16-f16"}


def test_two_recipes_at_once_are_for_the_table(console: Console) -> None:
    answer = console("recipes", "bf16", "f16")
    assert (answer.code, "recipes --table bf16 f16" in answer.err) == (2, True)
