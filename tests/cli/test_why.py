"""The verbs that say why a token moved: what they are asked about, what they answer, and what they refuse."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from softfloat_llm.runs import Run
from tests.console import Console, output

ANSWERS = {
    "margins": ["margins", "The cup is", "--steps", "8", "--format", "bf16"],
    "ties": ["ties", "The cup is", "--steps", "20", "--recipe", "bf16"],
    "ties of prompts": ["ties", "--prompts", "default"],
    "budget": ["budget", "The cup is"],
    "budget by site": ["budget", "The cup is", "--by", "site", "--storage", "f16", "--acc", "f16"],
    "bisect": ["bisect", "The cup is", "--fast", "--recipe", "f32,mlp.act=bf16,lm_head.output=bf16"],
    "ranges": ["ranges"],
    "ranges of a dry run": ["ranges", "--what-if", "acc=f16", "--kv-scales", "e4m3fn"],
    "bound": ["bound", "The cup is", "--orders", "4", "--acc", "f16", "--storage", "f16"],
    "ranges for a cache": ["ranges", "--kv-scales", "e4m3fn", "--format", "bf16"],
}
"""Commands that run on the built-in model, each in a second or so."""


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_short_and_its_tables_are_markdown_of_at_most_7_columns(name: str) -> None:
    out = output(*ANSWERS[name])
    assert len(out.splitlines()) < 25
    assert str(Path.cwd()) not in out
    for block in out.split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        columns = {len(re.findall(r"(?<!\\)\|", row)) - 1 for row in rows}
        assert not rows or (len(columns) == 1 and columns.pop() <= 7)
    assert out.index("prompt  ") < out.index("\nrecipe  ") < out.index("\nanswer  ") < out.index("\n|")


@pytest.mark.parametrize("name", ANSWERS)
def test_quiet_is_the_answer_alone(console: Console, name: str) -> None:
    quiet = console(*ANSWERS[name], "-q").out
    assert "|" not in quiet
    assert all(line in output(*ANSWERS[name]) for line in quiet.splitlines())


@pytest.mark.parametrize("name", ANSWERS)
def test_json_is_one_object_with_sorted_keys_and_its_schema(console: Console, name: str) -> None:
    text = console(*ANSWERS[name], "--json").out
    told = json.loads(text)
    assert told["schema"] == f"softfloat-llm/{ANSWERS[name][0]}/1"
    assert text == json.dumps(told, sort_keys=True, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("verb", ["margins", "ties"])
def test_a_saved_run_and_the_words_that_made_it_give_one_answer(
    console: Console, saved: dict[str, Path], verb: str
) -> None:
    run = Run.load(saved["ref"])
    tokens = ",".join(str(token) for token in run.prompt_tokens)
    by_words = console(verb, "--tokens", tokens, "--recipe", "f32", "--steps", str(run.steps), "--json")
    assert console(verb, saved["ref"], "--json").out == by_words.out


def test_what_is_no_run_is_a_prompt_unless_it_is_a_path(console: Console, tmp_path: Path) -> None:
    assert "'The cup is'" in console("margins", "The cup is").out
    for path in (tmp_path, tmp_path / "nowhere"):
        answer = console("margins", path)
        assert (answer.code, answer.out) == (3, "")
        assert "holds no saved run" in answer.err
    assert console("margins", "The" + " cup" * 99).code == 0  # too long for a file's name


def test_a_saved_run_takes_no_words_that_it_has_said_itself(console: Console, saved: dict[str, Path]) -> None:
    for words in (["--storage", "f16"], ["--model", "tiny"], ["--steps", "3"], ["--at", "norm.acc=f16"]):
        answer = console("margins", saved["ref"], *words)
        assert (answer.code, answer.out) == (2, "")
        assert f"{words[0]}" in answer.err


def test_ids_near_the_choice_have_their_texts_where_the_model_is_at_hand(
    console: Console, saved: dict[str, Path]
) -> None:
    assert "' empty' before ' full'" in console("margins", saved["flip ref"]).out


def test_prompts_are_read_from_a_file(console: Console, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("The cup is\n\nThe capital of France is\n")
    out = console("ties", "--prompts", file).out
    assert "At 1 of 2 steps" in out
    for bad in ("", "\n \n"):
        file.write_text(bad)
        assert (console("ties", "--prompts", file).code, console("ties", "--prompts", tmp_path / "no").code) == (3, 3)
    assert console("ties", "The cup is", "--prompts", "default").code == 2


def test_wrong_words_of_margins_are_told(console: Console) -> None:
    for words, said in (
        (["--format", "bf61"], "Did you mean 'bf16'?"),
        (["--within", "-1"], "0 or more"),
        (["--compute", "f64"], "f64"),
    ):
        answer = console("margins", *words)
        assert answer.code == 2, words
        assert said in answer.err


# --- one step ---------------------------------------------------------------------------------------------------------


def test_a_step_is_named_or_found_among_steps(console: Console) -> None:
    by_steps = console("budget", "Tom drinks", "--steps", "6", "--json")
    by_step = console("budget", "Tom drinks", "--step", "4", "--json")
    assert json.loads(by_steps.out) == json.loads(by_step.out)
    assert json.loads(by_step.out)["step"] == 4
    assert console("budget", "Tom drinks", "--step", "4", "--steps", "6").code == 2


@pytest.mark.parametrize("verb", ["budget", "bisect"])
def test_a_saved_run_has_the_budget_of_the_words_that_made_it(
    console: Console, saved: dict[str, Path], verb: str
) -> None:
    fast = ["--fast"] if verb == "bisect" else []
    by_run = console(verb, saved["flip"], "--model", "tiny", "--json", *fast)  # where its weights are
    assert by_run.code == 0
    by_words = console(verb, "The cup is", "--storage", "bf16", "--json", *fast)
    assert json.loads(by_run.out) == json.loads(by_words.out) | {"recipe": json.loads(by_run.out)["recipe"]}
    assert console(verb, saved["flip"], "--storage", "bf16").code == 2


def test_what_to_run_next_runs(console: Console) -> None:
    words = ["budget", "The cup is", "--recipe", "f32,mlp.act=bf16,lm_head.output=bf16", "--against", "f16"]
    seen = []
    while words not in seen:
        answer = console(*words)
        assert answer.code == 0, answer.err
        seen.append(words)
        told = re.search(r"^next +softfloat-llm (.*)$", answer.out, re.M)
        assert told is not None
        words = shlex.split(told[1])
    assert [step[0] for step in seen] == ["budget", "bisect", "budget"]
    assert all(step[-4:] == ["--against", "f16", "--step", "0"] for step in seen[1:])


def test_a_step_that_does_not_flip_cannot_be_bisected(console: Console) -> None:
    answer = console("bisect", "--storage", "bf16")
    assert (answer.code, answer.out) == (3, "")
    assert "no token flips" in answer.err


def test_wrong_words_of_budget_are_told(console: Console) -> None:
    for words, said in (
        (["--by", "sites"], "Did you mean 'site'?"),
        (["--pair", "1"], "expected two token ids"),
        (["--pair", "1,x"], "expected two token ids"),
        (["--against", "f23"], "Did you mean 'f32'?"),
        (["--recipe", "bf16,rope.table=f32"], "They must share a format"),
    ):
        answer = console("budget", *words)
        assert answer.code == 2, words
        assert said in answer.err
    assert console("budget", "--pair", "1,960").code == 3
    assert console("budget", "--pair", "1,2", "-q").code == 0


# --- ranges -----------------------------------------------------------------------------------------------------------


def test_ranges_of_a_saved_run_are_those_of_the_taps_that_it_kept(console: Console, tmp_path: Path) -> None:
    words = ["The cup is", "--storage", "f16"]
    assert console("simulate", *words, "--taps", "*", "--save", tmp_path / "all").code == 0
    assert console("simulate", *words, "--save", tmp_path / "few").code == 0
    told = json.loads(console("ranges", *words, "--what-if", "acc=f16", "--json").out)
    again = json.loads(console("ranges", tmp_path / "all", "--what-if", "acc=f16", "--json").out)
    assert {key: told[key] for key in told if key not in ("recipe", "what_if")} == {
        key: again[key] for key in told if key not in ("recipe", "what_if")
    }
    assert told["what_if"]["partials"] == again["what_if"]["partials"]
    few = json.loads(console("ranges", tmp_path / "few", "--json").out)
    assert all(one["stage"] == "out" for one in few["taps"])
    for words in (["--what-if", "acc=f16"], ["--kv-scales", "e4m3fn"]):
        answer = console("ranges", tmp_path / "few", *words)
        assert (answer.code, "--taps" in answer.err) == (3, True)


def test_wrong_words_of_ranges_are_told(console: Console) -> None:
    for words, said in (
        (["--format", "bf61"], "Did you mean 'bf16'?"),
        (["--format", "e8m0fnu"], "no negative values"),
        (["--what-if", "norms.acc=f16"], "Unknown site"),
        (["--kv-scales", "fp9"], "Unknown format"),
    ):
        answer = console("ranges", *words)
        assert answer.code == 2, words
        assert said in answer.err


# --- bound ------------------------------------------------------------------------------------------------------------


def test_one_dot_product_has_a_band(console: Console) -> None:
    words = ["bound", "--dot", "256,1,1", "1,0x1p0,1", "--storage", "bf16", "--acc", "bf16", "--orders", "reverse"]
    out = console(*words).out
    assert "The widest band is 2 (1 bf16 ulp in [256, 512))" in out
    assert json.loads(console(*words, "--json").out)["widest"]["high"] == 258.0
    assert len(out.splitlines()) < 25


def test_the_sums_of_one_place_have_a_band(console: Console, tmp_path: Path) -> None:
    words = ["The cup is", "--storage", "f16", "--acc", "f16"]
    place = ["--sums", "layers.3.mlp.down_proj", "--json"]
    told = console("bound", *words, *place).out
    assert json.loads(told)["kind"] == "sums"
    assert console("simulate", *words, "--taps", "*mlp.down_proj.in", "--save", tmp_path / "run").code == 0
    assert console("bound", tmp_path / "run", *place).out == told
    assert console("bound", tmp_path / "run", "--sums", "lm_head").code == 3


def test_a_saved_run_has_the_band_of_its_last_step(console: Console, saved: dict[str, Path]) -> None:
    told = json.loads(console("bound", saved["bf16"], "--orders", "2", "--json").out)
    assert (told["kind"], told["step"], told["orders"]) == ("logits", 1, ["perm:0", "perm:1"])


def test_wrong_words_of_bound_are_told(console: Console) -> None:
    for words, code, said in (
        (["--orders", "0"], 2, "at least one other order"),
        (["--orders", "lane:8"], 2, "Did you mean 'lanes:8'?"),
        (["--sites", "matmuls"], 2, "Did you mean 'matmul'?"),
        (["--dot", "1,x", "1,2"], 2, "expected numbers"),
        (["--dot", "", "1,2"], 2, "holds no number"),
        (["--dot", "1", "1,2"], 2, "A band takes"),
        (["a prompt", "--dot", "1", "1"], 2, "two rows of numbers"),
        (["--sums", "mlp.act"], 3, "no linear layer"),
    ):
        answer = console("bound", *words)
        assert answer.code == code, words
        assert said in answer.err
