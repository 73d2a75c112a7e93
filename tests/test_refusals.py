"""What engines refuse: every row has a meaning, is met by some recipe, and its commands run."""

from __future__ import annotations

import shlex
import tomllib
from importlib import resources

import pytest

from softfloat_llm.cli.main import run
from softfloat_llm.errors import RecipeError
from softfloat_llm.recipe import recipe_names
from softfloat_llm.refusals import check, elsewhere, engines, is_known_to_run, remarks
from softfloat_llm.sites import LINEAR, SITES, select

TABLE = tomllib.loads((resources.files("softfloat_llm") / "refusals.toml").read_text("utf-8"))
ROWS = TABLE["refuses"]
COMMANDS = sorted(
    {one["command"] for row in ROWS for one in row["instead"]} | {row["command"] for row in TABLE["runs"]}
)
FORMATS = ("f32", "f16", "bf16", "e4m3fn", "e5m2", "tf32")
MIXED = (
    "bf16,norm.output=f32", "bf16,rope.table=f32", "f32,rope.table=bf16", "bf16,kv=e4m3fn", "bf16,lm_head=f32",
    "bf16,attn.o_proj.output=f32", "bf16,attn.o_proj.output=e4m3fn", "bf16,mlp.up_proj.output=f16",
    "bf16,mlp.up_proj.output=e4m3fn", "bf16,embed=f32,attn.residual=f32,mlp.residual=f32",
    "bf16,embed=e5m2,attn.residual=e5m2,mlp.residual=e5m2", "bf16,rope.table=f32,attn.rope.pairs=interleaved",
    "storage=e4m3fn,attn.rope.pairs=interleaved", "f16,norm.storage=e5m2,norm.output=e5m2",
)  # fmt: skip


def test_every_row_names_engines_sites_a_source_and_what_to_do_instead():
    for row in ROWS:
        assert set(row["engines"]) <= set(engines())
        assert [select(word) for word in ([row["at"]] if isinstance(row["at"], str) else row["at"])]
        assert len(row["source"]) > 20
        assert row["instead"]
    assert {engine for row in ROWS for engine in row["engines"]} == set(engines())
    assert set(TABLE["feeds"]) >= set(LINEAR)
    assert set(TABLE["feeds"]) | set(TABLE["feeds"].values()) | set(TABLE["next"]) <= set(SITES)


def test_every_row_is_met_by_some_recipe():
    said = set()
    for recipe in (*(f"storage={fmt}" for fmt in FORMATS), *MIXED, "nvidia-hopper-fp8-fast"):
        for engine in engines():
            said |= {refusal.source for refusal in check(recipe, engine)}
    assert {row["source"] for row in ROWS} <= said


@pytest.mark.parametrize("command", COMMANDS)
def test_what_people_do_instead_runs_and_shows_a_difference(command, capsys):
    program, *words = shlex.split(command)
    code = run(words if program == "softfloat-llm" else [program, *words])
    told = capsys.readouterr()
    assert code == 0
    assert all(line.startswith("note: ") for line in told.err.splitlines()), told.err  # what a cache clipped
    assert program == "softfloat-llm" or "largest error" in told.out


def test_the_recipes_of_the_package_are_run_by_their_own_engines():
    for name in recipe_names():
        if name.startswith("transformers"):
            attention = "eager" if "eager" in name else "sdpa"
            assert check(name, f"transformers-{attention}") == []
        if name.startswith("candle"):
            assert check(name, "candle-metal" if "metal" in name else "candle-cpu") == []


def test_an_unknown_engine_is_refused_with_the_nearest():
    for function in (check, remarks, is_known_to_run):
        with pytest.raises(RecipeError, match="Did you mean 'candle-metal'"):
            function("bf16", "candle-metall")
    with pytest.raises(RecipeError, match="Known: candle-cpu"):
        elsewhere("llamacpp")


def test_a_format_that_an_engine_has_no_type_for_is_said_and_nothing_else():
    (refusal,) = check("storage=e5m7", "transformers-eager")
    assert refusal.says == "(it has no type e5m7)"
    assert refusal.sites[0] == "embed"
    assert check("storage=tf32", "transformers-eager") == []  # a compute path: its tensors are f32
