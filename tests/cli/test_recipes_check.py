"""`recipes check`: the verb prints what `refusals.check` finds."""

from __future__ import annotations

import json
from pathlib import Path

from softfloat_llm.refusals import engines
from softfloat_llm.sites import LINEAR
from tests.console import Console


def test_the_verb_says_the_words_the_cause_and_what_to_do_and_exits_with_1(console: Console) -> None:
    answer = console("recipes", "check", "candle-cpu", "--storage", "bf16")
    assert answer.code == 1
    assert "answer   candle-cpu refuses it at attn.q_proj: unsupported dtype BF16 for op matmul" in answer.out
    assert "| linear | unsupported dtype BF16 for op matmul | attn.q_proj.storage bf16 |" in answer.out
    assert "         simulate --storage f32 --against bf16" in answer.out
    assert len(answer.out.splitlines()) < 25


def test_what_runs_exits_with_0_and_says_what_is_to_be_known(console: Console) -> None:
    answer = console("recipes", "check", "candle-cpu", "--storage", "f16")
    assert answer.code == 0
    assert "answer   candle-cpu runs it." in answer.out
    assert "f16 products are f16 too" in answer.out
    assert console("recipes", "check", "jax", "--storage", "e4m3fn", "-q").out == "No refusal by jax is known.\n"


def test_without_a_recipe_the_usual_formats_are_asked_and_without_an_engine_all(console: Console) -> None:
    every = console("recipes", "check")
    assert every.code == 0
    assert [line.split("|")[1].strip() for line in every.out.splitlines()[2 : 2 + len(engines())]] == list(engines())
    one = console("recipes", "check", "candle-metal")
    assert one.code == 0
    assert "Non contiguous rmsnorm is not implemented" in one.out
    asked = console("recipes", "check", "--storage", "bf16")
    assert "| candle-cpu         | refused      | unsupported dtype BF16 for op matmul |" in asked.out


def test_json_has_the_refusals_and_the_remarks(console: Console) -> None:
    answer = json.loads(console("recipes", "check", "candle-accelerate", "--storage", "f16", "--json").out)
    assert answer["schema"] == "softfloat-llm/recipes-check/1"
    assert answer["refusals"][0]["says"] == "the accelerate backend does not support f16 matmul"
    assert answer["refusals"][0]["sites"] == list(LINEAR)
    every = json.loads(console("recipes", "check", "--json").out)
    assert set(every["engines"]) == set(engines())


def test_a_recipe_of_a_file_is_checked_too(console: Console, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "bf16"\n[site."rope.table"]\nstorage = "f32"\noutput = "f32"\n')
    assert "dtype mismatch in rope BF16 F32 F32" in console("recipes", "check", "--recipe", file).out
