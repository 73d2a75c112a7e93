"""0 done · 1 a claim does not hold · 2 the words are wrong · 3 an input cannot be used · 4 internal error · 130."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from softfloat_llm import tiny
from softfloat_llm.cli import simulate as simulate_verb
from tests.checkpoints import write_checkpoint
from tests.console import Console

FLIPS = "The cup is"  # tiny.NEAR_TIES: bf16 gives the other token

WRONG_WORDS = {
    "no such verb": (["simulat"], "Did you mean 'simulate'?"),
    "no such verb of a verb": (["recipes", "chekc"], "No such command 'chekc'. Did you mean 'check'?"),
    "no such verb of a verb, with words": (["formats", "promot", "f16", "bf16"], "Did you mean 'promote'?"),
    "no such option": (["simulate", "--storge", "bf16"], "No such option: --storge. Did you mean --storage?"),
    "option of a verb in a group": (["golden", "write", "x", "--replce"], "Did you mean --replace?"),
    "option by another name": (["simulate", "--dtype", "bf16"], "No such option: --dtype. Did you mean --storage?"),
    "option that nothing is like": (["formats", "--xyzzy"], "No such option: --xyzzy.\n"),
    "option of the program": (["--verson"], "Did you mean --version?"),
    "option in place of a number": (["explain", "round", "-0.1", "--too", "f16"], "--too. Did you mean --to?"),
    "option of identify": (["identify", "dot", "--josn"], "No such option: --josn. Did you mean --json?"),
    "unknown format": (["simulate", "--storage", "bf61"], "Unknown format 'bf61'. Did you mean 'bf16'?"),
    "format to look up": (["formats", "e9m3"], "an eXmY has X from 2 to 8"),
    "unknown recipe": (["simulate", "--recipe", "f61"], "Unknown recipe 'f61'. Did you mean 'f16'?"),
    "unknown reference": (["simulate", "--against", "f23"], "Unknown recipe 'f23'. Did you mean 'f32'?"),
    "recipe to look up": (["recipes", "bf61"], "Unknown recipe 'bf61'. Did you mean 'bf16'?"),
    "unknown order": (["simulate", "--order", "lane:8"], "Did you mean 'lanes:8'?"),
    "unknown rounding": (["simulate", "--rounding", "to_zero"], "Did you mean 'toward_zero'?"),
    "rounding by another name": (["simulate", "--rounding", "nearest"], "Did you mean 'ties_to_even'?"),
    "rounding in shorthand": (["simulate", "--rounding", "RTZ"], "Did you mean 'toward_zero'?"),
    "subnormals by another name": (["simulate", "--subnormals", "flush"], "Did you mean 'ftz'?"),
    "order by another name": (["simulate", "--order", "random:3"], "Did you mean 'perm:3'?"),
    "order without its argument": (["simulate", "--order", "lane"], "Did you mean 'lanes:W'?"),
    "product that is no format": (["simulate", "--product", "none"], "Here also: exact."),
    "misspelt stage in a text": (["simulate", "--recipe", "bf16,ac=f16"], "Did you mean 'acc'?"),
    "stage in place of a site": (["simulate", "--at", "acc=f16"], "matmul.acc at all matrix products"),
    "misspelt stage in place of a site": (["simulate", "--at", "ac=f16"], "Did you mean the key 'acc'?"),
    "beginning of a recipe": (["simulate", "--recipe", "llama"], "Did you mean 'llama.cpp-bf16-cpu-avx512bf16'?"),
    "a stage of a sum as an option": (["explain", "sum", "1", "2", "--order", "seq"], "No such option: --order. What"),
    "unknown subnormals": (["simulate", "--subnormals", "fzt"], "Did you mean 'ftz'?"),
    "unknown site": (["simulate", "--at", "attn.sofmax.acc=f32"], "Did you mean 'attn.softmax"),
    "key that the site lacks": (["simulate", "--at", "embed.acc=f32"], "embed"),
    "at without a word": (["simulate", "--at", "attn.softmax.acc"], "expected SITE.KEY=WORD"),
    "claim that is none": (["simulate", "--fail-on", "flop"], "Did you mean 'flip'?"),
    "claim without a reference": (["simulate", "--fail-on", "flip", "--against", "none"], "needs a reference"),
    "teacher without a reference": (["simulate", "--teacher", "reference", "--against", "none"], "needs a reference"),
    "tokens that are none": (["simulate", "--tokens", "1,two"], "'two' is no token id"),
    "tokens that run backwards": (["simulate", "--tokens", "1,9..3"], "The range '9..3' runs backwards: write 3..9"),
    "more tokens than any model takes": (["margins", "--tokens", "0..9999999999"], "more than 1048576 numbers in all"),
    "lengths that run backwards": (["reveal", "--engine", "torch", "--tokens", "4..2"], "runs backwards: write 2..4"),
    "steps that are none": (["simulate", "--steps", "-1"], "--steps"),
    "model to fetch": (["fetch", "smolm2"], "Did you mean 'smollm2'?"),
    "bound that is none": (
        ["compare", "a", "b", "--within", "token"],
        "expected identical, tokens, or a number of ulps of 0 or more. Did you mean 'tokens'?",
    ),
    "one run to compare": (["compare", "a"], "REF"),
}


@pytest.mark.parametrize(("words", "said"), WRONG_WORDS.values(), ids=WRONG_WORDS)
def test_wrong_words_give_2_and_what_would_be_right(console: Console, words: list[str], said: str) -> None:
    answer = console(*words)
    assert answer.code == 2
    assert said in answer.err
    assert answer.out == ""
    assert "Traceback" not in answer.err


UNUSABLE = {
    "unknown model": (["simulate", "--model", "tyny"], "Did you mean 'tiny'?"),
    "empty prompt": (["simulate", ""], "the prompt is empty"),
    "no tokens": (["simulate", "--tokens", ""], "the prompt is empty"),
    "token beyond the vocabulary": (["simulate", "--tokens", "1,960"], "960 lies outside the vocabulary"),
    "token below 0": (["simulate", "--tokens=-1,2"], "-1 lies outside the vocabulary"),
    "prompt and tokens": (["simulate", "Hello", "--tokens", "1"], "not both"),
    "file that is not there": (["simulate", "@nowhere.txt"], "nowhere.txt"),
    "teacher that is no run": (["simulate", "--teacher", "nowhere"], "nowhere"),
    "run that is no run": (["compare", "nowhere", "neither"], "nowhere"),
    "tap that is none": (["taps", "layers.9.*"], "No tap is named"),
    "built-in model to fetch": (["fetch", "tiny"], "built in"),
}


@pytest.mark.parametrize(("words", "said"), UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_input_gives_3_and_says_why(console: Console, words: list[str], said: str) -> None:
    answer = console(*words)
    assert answer.code == 3
    assert said in answer.err
    assert answer.out == ""
    assert "Traceback" not in answer.err


LEAVES = {
    "prompt": (["simulate", "@{}"], "Reading the prompt from {}: "),
    "recipe": (["simulate", "--recipe", "{}.toml"], "Reading the recipe {}.toml: "),
    "run": (["simulate", "--teacher", "{}"], "Reading the run {0}: {0}/run.json: "),
    "tensors": (["compare", "{}.npz", "{}.npz"], "Reading {}.npz: "),
    "order": (["simulate", "--order", "tree:@{}"], "Reading the tree file {}: "),
    "prompts": (["ties", "--prompts", "{}"], "Reading the prompts from {}: "),
    "vectors": (["vectors", "run", "{}"], "Reading the vectors {}: "),
    "pairs": (["identify", "round", "--pairs", "{}"], "Reading the pairs of {}: "),
    "numbers": (["explain", "sum", "@{}.npy"], "Reading {}.npy: "),
    "vectors to write": (["vectors", "write", "{}/x", "--op", "add", "--format", "f16"], "Writing {}/x: "),
    "run to save": (["simulate", "--save", "/proc/self/nowhere"], "Saving the run /proc/self/nowhere: "),
}


@pytest.mark.parametrize(("words", "said"), LEAVES.values(), ids=LEAVES)
def test_what_the_system_refuses_is_told_in_words_and_with_what_was_done(
    console: Console, tmp_path: Path, words: list[str], said: str
) -> None:
    nowhere = tmp_path / "none" / "such"
    answer = console(*(word.format(nowhere) for word in words))
    assert answer.code in (2, 3)
    assert said.format(nowhere) in answer.err
    assert "Errno" not in answer.err
    assert "No such file or directory" in answer.err


@pytest.mark.parametrize(
    "word", ["simulate @{}", "simulate --recipe {}", "vectors run {}", "simulate --order tree:@{}"]
)
def test_bytes_that_are_no_text_are_told_without_the_words_of_a_codec(
    console: Console, tmp_path: Path, word: str
) -> None:
    file = tmp_path / "bytes.toml"
    file.write_bytes(b"ab\xff")
    answer = console(*word.format(file).split())
    assert "it is no text in UTF-8 (byte 2 is 0xff)" in answer.err
    assert "codec" not in answer.err


def test_an_error_of_the_system_that_nobody_told_names_the_file(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "weights.bin")

    monkeypatch.setattr("softfloat_llm.cli.options.open_model", refuse)
    answer = console("simulate")
    assert answer.code == 3
    assert answer.err.startswith("PermissionError: weights.bin: Permission denied. Check that it is there")


def test_a_truncated_checkpoint_gives_3(console: Console, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        shutil.copy(tiny.FOLDER / name, tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    answer = console("simulate", "--model", tmp_path)
    assert answer.code == 3
    assert answer.err.startswith("CheckpointError:")


def test_text_for_a_model_without_tokenizer_gives_3_and_tokens_work(console: Console, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model")
    answer = console("simulate", "--model", tmp_path / "model")
    assert (answer.code, "token ids" in answer.err) == (3, True)
    assert console("simulate", "--model", tmp_path / "model", "--tokens", "1,2,3").code == 0


def test_a_row_of_nan_gives_no_token(console: Console) -> None:
    words = ["simulate", "--storage", "e3m4", "--acc", "e3m4"]
    answer = console(*words)
    assert answer.code == 3
    assert answer.err.startswith("NonFiniteError:")
    assert "layers.0.attn.scores" in answer.err  # where it began
    assert "after 14 of 16 terms" in answer.err
    assert console(*words, "--fail-on", "nonfinite").code == 1


CLAIMS = {
    "a flip": ([FLIPS, "--fail-on", "flip"], 1),
    "no flip": (["--fail-on", "flip"], 0),
    "a difference": (["--fail-on", "differs"], 1),
    "no difference": (["--against", "bf16", "--fail-on", "differs"], 0),
    "all finite": (["--fail-on", "nonfinite"], 0),
    "all finite, alone": (["--against", "none", "--fail-on", "nonfinite"], 0),
    "one of two": ([FLIPS, "--fail-on", "nonfinite", "--fail-on", "flip"], 1),
}


@pytest.mark.parametrize(("words", "code"), CLAIMS.values(), ids=CLAIMS)
def test_a_claim_decides_the_exit_code_of_simulate(console: Console, words: list[str], code: int) -> None:
    answer = console("simulate", *words)
    assert answer.code == code
    assert ("Claim broken" in answer.err) == bool(code)
    assert answer.out  # the answer is given all the same


WITHIN = {
    "identical": ("same", "ref", "identical", 0),
    "not identical": ("bf16", "ref", "identical", 1),
    "tokens": ("bf16", "ref", "tokens", 0),
    "not tokens": ("flip", "flip ref", "tokens", 1),
    "ulps": ("bf16", "ref", "1e9", 0),
    "too few ulps": ("bf16", "ref", "0.25", 1),
    "identical is within 0": ("same", "ref", "0", 0),
}


@pytest.mark.parametrize(("run", "ref", "within", "code"), WITHIN.values(), ids=WITHIN)
def test_a_claim_decides_the_exit_code_of_compare(
    console: Console, saved: dict[str, Path], run: str, ref: str, within: str, code: int
) -> None:
    answer = console("compare", saved[run], saved[ref], "--within", within)
    assert answer.code == code
    assert ("Claim broken" in answer.err) == bool(code)


def test_without_a_claim_a_difference_is_no_failure(console: Console, saved: dict[str, Path]) -> None:
    assert console("compare", saved["flip"], saved["flip ref"]).code == 0


def test_runs_of_two_prompts_cannot_be_compared(console: Console, saved: dict[str, Path]) -> None:
    answer = console("compare", saved["flip"], saved["ref"])
    assert (answer.code, answer.out) == (3, "")


def test_a_fault_of_the_program_gives_4(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(simulate_verb, "simulate_run", broken)
    answer = console("simulate")
    assert answer.code == 4
    assert "Internal error: ZeroDivisionError: on purpose" in answer.err
    assert "Traceback" not in answer.err
    assert "Traceback" in console("simulate", "-v").err


def test_a_traceback_is_shown_on_demand_only(console: Console) -> None:
    assert "Traceback" not in console("simulate", "--model", "tyny").err
    assert "Traceback" in console("simulate", "--model", "tyny", "-v").err


def test_no_verb_shows_the_help(console: Console) -> None:
    answer = console()
    assert answer.code == 2
    assert "simulate" in answer.out
