"""Each verb: its help begins with its most used line, which runs; what the look-ups say is so."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from softfloat_llm.analysis.golden import golden_write
from softfloat_llm.cli import (
    bisect,
    bound,
    budget,
    compare,
    explain,
    fetch,
    formats,
    golden,
    identify,
    inspect,
    lesson,
    margins,
    promote,
    ranges,
    recipes,
    recipes_check,
    report,
    reveal,
    simulate,
    taps,
    ties,
)  # fmt: skip
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.numerics.formats import FORMATS
from softfloat_llm.numerics.scaled import SCALED
from softfloat_llm.recipe import recipe_names, recipe_of, unit_recipe_names
from softfloat_llm.runs import Run
from softfloat_llm.runs import simulate as simulate_run
from tests.console import Console

VERBS = {
    "simulate": simulate.simulate,
    "compare": compare.compare,
    "margins": margins.margins,
    "ties": ties.ties,
    "budget": budget.budget,
    "bisect": bisect.bisect,
    "ranges": ranges.ranges,
    "bound": bound.bound,
    "report": report.report,
    "reveal": reveal.reveal,
    "explain round": explain.round_,
    "explain sum": explain.sum_,
    "explain dot": explain.dot,
    "explain step": explain.step,
    "identify": identify.identify,
    "golden write": golden.write,
    "golden check": golden.check,
    "formats": formats.formats,
    "formats promote": promote.promote_verb,
    "recipes": recipes.recipes,
    "recipes check": recipes_check.check_verb,
    "taps": taps.taps,
    "lesson": lesson.lesson,
    "inspect": inspect.inspect,
    "fetch": fetch.fetch,
}


def example_of(verb: str) -> str:
    """The first line of a verb's help, without the name of the program."""
    return (VERBS[verb].__doc__ or "").split("\n")[0].removeprefix("softfloat-llm ")


@pytest.mark.parametrize("verb", VERBS)
def test_help_begins_with_the_most_used_line(console: Console, verb: str) -> None:
    answer = console(*verb.split(), "--help")
    assert answer.code == 0
    lines = [line.strip() for line in answer.out.splitlines() if line.strip()]
    assert lines[0].startswith(f"Usage: softfloat-llm {verb}")
    assert lines[1].removeprefix("softfloat-llm ") == example_of(verb)


@pytest.mark.parametrize(("verbs", "told", "recipe"), [
    (["margins", "ties", "ranges"], "(in f32 without precision flags)", "f32"),
    (["budget", "bisect --fast", "bound --orders 2"], "(recipe bf16 without precision flags)", "bf16"),
])  # fmt: skip
def test_the_help_says_in_which_recipe_a_prompt_is_run_and_so_it_is(console, verbs, told, recipe):
    for verb in verbs:
        words = verb.split()
        assert told in " ".join((VERBS[words[0]].__doc__ or "").split())
        unsaid = console(*words, "The cup is", "--json")
        assert unsaid.out == console(*words, "The cup is", "--recipe", recipe, "--json").out


@pytest.mark.parametrize(
    "verb",
    [pytest.param(v, marks=pytest.mark.smollm2) if "smollm2" in example_of(v) else v for v in VERBS],
)
def test_the_example_of_the_help_runs(console: Console, saved: dict[str, Path], tmp_path: Path, verb: str) -> None:
    if verb == "golden check":
        assert console("golden", "write", tmp_path / "FOLDER").code == 0
    places = {"RUN": saved["bf16"], "REF": saved["ref"], "FOLDER": tmp_path / "FOLDER"}
    places["FILE.html"] = tmp_path / "FILE.html"
    answer = console(*(places.get(word, word) for word in shlex.split(example_of(verb))))
    assert answer.code == 0, answer.err
    assert answer.out


def test_every_verb_is_listed_with_what_it_does(console: Console) -> None:
    listed = console("--help").out
    for verb in VERBS:
        assert re.search(rf"{verb.split()[0]} +[A-Z]", listed), verb


# --- formats and recipes ----------------------------------------------------------------------------------------------


def test_formats_table_has_every_format_and_every_scaled_one(console: Console) -> None:
    out = console("formats", "--table").out
    rows = {line.split("|")[1].strip(): line for line in out.splitlines() if line.startswith("| ")}
    assert set(rows) >= {*FORMATS, *SCALED}
    assert "448" in rows["e4m3fn"]
    body = json.loads(console("formats", "--table", "--json").out)
    assert set(body["scaled"]) == set(SCALED)
    assert console("formats", "bf16", "--table").code == 2


def test_formats_lists_every_named_format(console: Console) -> None:
    out = console("formats").out
    assert [name for name in FORMATS if f"\n| {name} " not in out] == []


def test_a_format_is_found_by_any_of_its_names(console: Console) -> None:
    out = console("formats", "half").out
    assert out.startswith("| f16 ")
    assert "65504 = 0x1.ffcp+15 = f16:0x7bff" in out
    assert "half, fp16, float16, e5m10" in out
    assert console("formats", "e5m10").out == out


def test_recipes_lists_every_recipe_with_its_status(console: Console) -> None:
    out = console("recipes").out
    for name in set(recipe_names()) - set(unit_recipe_names()):
        assert re.search(rf"^\| {name} +\| {recipe_of(name).status} ", out, re.M)


@pytest.mark.parametrize("text", ["transformers-eager", "bf16,acc=f16,order=lanes:8,norm.acc=exact"])
def test_the_toml_of_a_recipe_is_a_recipe_with_the_same_expansion(console: Console, tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(console("recipes", text, "--toml").out)
    assert recipe_of(file).words() == recipe_of(text).words()
    usual = console("simulate", "--recipe", text, "--against", "none")
    mine = console("simulate", "--recipe", file, "--against", "none")
    assert mine.out.splitlines()[-1] == usual.out.splitlines()[-1]  # the digest


def test_flags_are_put_upon_the_recipe(console: Console) -> None:
    by_flags = console("simulate", "--recipe", "transformers-eager", "--storage", "f16", "--at", "norm.root=rsqrt")
    by_text = console("simulate", "--recipe", "transformers-eager,storage=f16,norm.root=rsqrt")
    assert by_flags.out.splitlines()[-1] == by_text.out.splitlines()[-1]


# --- taps -------------------------------------------------------------------------------------------------------------


def test_taps_lists_what_a_real_pass_keeps_in_that_order_and_shape() -> None:
    run = simulate_run(taps=("*",), recipe="bf16,attn.mask.value=add-lowest")
    declared = taps.tap_shapes(open_model("tiny").config)
    assert list(declared) == list(run.names)
    for name, shape in declared.items():
        sizes = {"T": len(run.fed), "S": len(run.fed)}
        assert tuple(sizes.get(size, size) for size in shape) == tuple(
            n if str(n) not in shape else str(n) for n in run[name].shape
        ), name


def test_taps_are_chosen_by_a_pattern(console: Console, tmp_path: Path) -> None:
    out = console("taps", "layers.1.attn.s*.acc").out
    assert out.splitlines()[2:] == [
        "| layers.1.attn.scores.acc  | (T, 6, S) |",
        "| layers.1.attn.softmax.acc | (T, 6)    |",
    ]
    assert console("simulate", "--taps", "layers.1.attn.s*.acc", "--save", tmp_path / "run").code == 0
    assert set(Run.load(tmp_path / "run").names) == {
        "layers.1.attn.scores.acc",
        "layers.1.attn.softmax.acc",
        "lm_head.out",
    }


# --- simulate ---------------------------------------------------------------------------------------------------------


def test_a_prompt_is_text_a_file_or_tokens(console: Console, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("The coin shows\n")
    answers = {
        console("simulate", *words, "-q").out
        for words in (["The coin shows"], [f"@{file}"], ["--tokens", "260,496,497"], ["--tokens", " 260, 496 ,497,"])
    }
    assert len(answers) == 1


def test_the_default_is_bf16_against_f32_on_tiny(console: Console) -> None:
    digest = console("simulate").out.splitlines()[-1]
    assert console("simulate", "--model", "tiny", "--recipe", "bf16", "--against", "f32").out.splitlines()[-1] == digest


def test_a_saved_teacher_gives_prompt_model_steps_and_reference(console: Console, saved: dict[str, Path]) -> None:
    by_teacher = console("simulate", "--teacher", saved["ref"], "--json").out
    by_reference = console("simulate", "--teacher", "reference", "--steps", "2", "--json").out
    assert by_teacher == by_reference
    assert console("simulate", "--teacher", saved["ref"], "--fail-on", "flip").code == 0


def test_ranges_stand_among_token_ids(console: Console) -> None:
    spelled = console("simulate", "--tokens", "5,1,2,3,4", "--json").out
    assert console("simulate", "--tokens", "5,1..4", "--json").out == spelled
    assert "simulate --tokens 5,1..4 " in console("simulate", "--tokens", "5,1..4").out


def test_workers_do_not_change_a_byte(console: Console) -> None:
    assert console("simulate", "--workers", "2").out == console("simulate").out


# --- golden -----------------------------------------------------------------------------------------------------------


def test_golden_output_is_checked_by_running_it_again(console: Console, tmp_path: Path) -> None:
    folder = tmp_path / "tiny-f16"
    words = ["The coin shows", "--storage", "f16", "--order", "lanes:8", "--steps", "3"]
    assert console("golden", "write", folder, *words, "--checked-by", "nobody yet").code == 0
    answer = console("golden", "check", folder, "--workers", "2")
    assert answer.code == 0
    assert "identical" in answer.out
    assert "golden write tiny-f16 'The coin shows' --storage f16 --order lanes:8 --steps 3" in answer.out
    assert "nobody yet" in answer.out


def test_golden_check_of_another_run_fails_and_shows_both_values(console: Console, tmp_path: Path) -> None:
    assert console("golden", "write", tmp_path / "golden", "--storage", "bf16", "--acc", "f16").code == 0
    assert console("simulate", "--storage", "bf16", "--save", tmp_path / "run").code == 0
    answer = console("golden", "check", tmp_path / "golden", tmp_path / "run")
    assert answer.code == 1
    assert "layers.0.attn.q_proj.out" in answer.out
    assert "bf16:0x" in answer.out


def test_a_missing_or_unused_file_fails(console: Console, tmp_path: Path) -> None:
    assert console("golden", "write", tmp_path / "golden").code == 0
    (tmp_path / "golden" / "more.safetensors").write_bytes(b"")
    assert console("golden", "check", tmp_path / "golden").code == 1
    (tmp_path / "golden" / "more.safetensors").unlink()
    (tmp_path / "golden" / "run.safetensors").unlink()
    assert console("golden", "check", tmp_path / "golden").code == 1
    shutil.rmtree(tmp_path / "golden")
    assert console("golden", "check", tmp_path / "golden").code == 3


def test_golden_write_does_not_overwrite_unless_asked(console: Console, tmp_path: Path) -> None:
    assert console("golden", "write", tmp_path / "golden").code == 0
    manifest = (tmp_path / "golden" / "manifest.json").read_bytes()
    answer = console("golden", "write", tmp_path / "golden", "--storage", "f16")
    assert (answer.code, "--replace" in answer.err) == (3, True)
    assert (tmp_path / "golden" / "manifest.json").read_bytes() == manifest
    assert console("golden", "write", tmp_path / "golden", "--storage", "f16", "--replace").code == 0


def test_golden_output_of_a_taught_run_is_run_again_or_checked_by_a_saved_run(
    console: Console, saved: dict[str, Path], tmp_path: Path
) -> None:
    golden_write(tmp_path / "golden", Run.load(saved["bf16"]), made_by="a test")
    assert console("golden", "check", tmp_path / "golden").code == 0
    assert console("golden", "check", tmp_path / "golden", saved["bf16"]).code == 0
    assert console("golden", "check", tmp_path / "golden", saved["ref"]).code == 1
