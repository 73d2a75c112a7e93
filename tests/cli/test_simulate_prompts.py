"""simulate --prompts: a row each, what is saved, what is refused; --save streams its taps."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from softfloat_llm.cli.screen import sized
from softfloat_llm.runs import Run, simulate
from tests.console import Console

PROMPTS = "The cup is\n\nThe capital of France is\nThe light is on. The light is\n"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text(PROMPTS)
    return path


def test_a_prompt_that_looks_like_an_option_goes_behind_them_in_what_is_next(console: Console) -> None:
    said = console("simulate", "--storage", "bf16", "--", "-5 degrees").out
    line = next(line for line in said.splitlines() if line.startswith("next "))
    assert line.endswith(" -- '-5 degrees'")
    assert console(*shlex.split(line)[1:]).code == 0


def test_each_prompt_has_a_row_and_the_first_that_flips_is_next(console: Console, prompts: Path) -> None:
    told = console("simulate", "--prompts", prompts, "--storage", "bf16")
    lines = told.out.splitlines()
    assert told.code == 0
    assert len([line for line in lines if line.startswith("|")]) == 2 + 3
    assert "1 of 3 prompts chooses another token than the reference: 1." in told.out
    assert "next     simulate 'The cup is' --storage bf16" in lines
    quiet = console("simulate", "--prompts", prompts, "--storage", "bf16", "-q")
    assert quiet.out == "1 of 3 prompts chooses another token than the reference: 1.\n"
    alone = console("simulate", "--prompts", prompts, "--storage", "bf16", "--against", "none")
    assert "3 prompts, each as it runs alone." in alone.out


def test_the_runs_are_those_of_the_prompts_alone_and_are_saved_in_one_folder(console: Console, prompts: Path) -> None:
    words = ["simulate", "--prompts", prompts, "--storage", "f16", "--steps", "2", "--save", prompts.parent / "runs"]
    told = console(*words, "--json")
    body = json.loads(told.out)
    for number, prompt in enumerate(PROMPTS.split("\n\n", maxsplit=1)[0].splitlines() + PROMPTS.splitlines()[2:], 1):
        run = simulate(prompt, model="tiny", recipe="f16", steps=2)
        assert body["prompts"][number - 1]["digest"] == run.digest
        assert Run.load(prompts.parent / "runs" / str(number)).names == run.names
    assert console(*words).code == 3  # it is there already
    for verb in (["compare", prompts.parent / "runs", prompts.parent / "runs"], ["margins", prompts.parent / "runs"]):
        assert f"such as {prompts.parent / 'runs' / '1'}." in console(*verb).err


def test_what_is_saved_is_told_with_its_size(console: Console, prompts: Path) -> None:
    one, several = prompts.parent / "one", prompts.parent / "several"
    words = ["simulate", "--taps", "embed.out", "--steps", "0", "--replace"]
    for folder, where, told in ((one, [], ": 2 taps, "), (several, ["--prompts", prompts], "1 to 3 in")):
        answer = console(*words, *where, "--save", folder)
        size = sum(path.stat().st_size for path in folder.rglob("*.*"))
        assert (told in answer.err, f"{sized(size)}.\n" in answer.err) == (True, True), answer.err
        assert console(*words, *where, "--save", folder, "-q").err == ""
        body = json.loads(console(*words, *where, "--save", folder, "--json").out)
        assert body.get("run", body)["saved_bytes"] == size
    assert [sized(n) for n in (0, 1, 999_001, 1_000_000, 9_900_001, 10**10)] == [
        "0 kB", "1 kB", "1000 kB", "1 MB", "10 MB", "10 GB",
    ]  # fmt: skip


def test_a_claim_is_broken_where_it_is_for_one_prompt(console: Console, prompts: Path) -> None:
    assert console("simulate", "--prompts", prompts, "--storage", "bf16", "--fail-on", "flip").code == 1
    told = console(
        "simulate", "--prompts", prompts, "--recipe", "f32", "--fail-on", "differs", "--teacher", "reference"
    )
    assert told.code == 0


@pytest.mark.parametrize(("words", "code", "message"), [
    (["The cup"], 2, "--prompts cannot stand with another prompt"), (["--tokens", "1,2"], 2, "cannot stand with"),
    (["--teacher", "some-run"], 2, "is a run of one prompt"), (["--model", "no-such-folder"], 3, "no-such-folder"),
])  # fmt: skip
def test_words_that_do_not_go_with_several_prompts_are_refused(console, prompts, words, code, message):
    told = console("simulate", "--prompts", prompts, *words)
    assert told.code == code
    assert message in told.err


def test_a_file_without_prompts_is_refused(console: Console, tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text("\n \n")
    told = console("simulate", "--prompts", tmp_path / "none.txt")
    assert (told.code, "there are none. Expected one a line" in told.err) == (3, True)
    assert "Reading the prompts from" in console("simulate", "--prompts", tmp_path / "missing.txt").err


def test_save_leaves_the_run_and_nothing_of_its_reference(console: Console, tmp_path: Path) -> None:
    told = console("simulate", "The cup is", "--recipe", "bf16", "--save", tmp_path / "run")
    assert f"The run is {tmp_path / 'run'}: " in told.err
    assert told.out == console("simulate", "The cup is", "--recipe", "bf16").out
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    simulate("The cup is", model="tiny", recipe="bf16").save(tmp_path / "again")
    for name in ("run.json", "tensors.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
