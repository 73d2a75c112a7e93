"""What is printed: the same bytes for the same arguments, short, silent where a reader has gone, valid JSON."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from softfloat_llm.cli import asked, main, screen, simulate
from softfloat_llm.cli.options import quoted
from softfloat_llm.io import spool
from softfloat_llm.runs import Run
from tests.console import Console, command, output, program

OFFLINE = {
    "simulate": ["simulate", "--storage", "bf16", "--acc", "f16"],
    "ten steps": ["simulate", "--steps", "10", "--teacher", "reference"],
    "alone": ["simulate", "--against", "none", "--steps", "3"],
    "json": ["simulate", "--json"],
    "formats": ["formats"],
    "format": ["formats", "half"],
    "recipes": ["recipes"],
    "recipe": ["recipes", "candle-f16-cpu-neon"],
    "toml": ["recipes", "bf16", "--toml"],
    "taps": ["taps"],
    "help": ["simulate", "--help"],
}
SHORT = ("simulate", "ten steps", "alone", "formats", "format")  # a list has as many lines as there are recipes


@pytest.mark.parametrize("name", OFFLINE)
def test_the_same_arguments_give_the_same_bytes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    width = "80" if name == "help" else "40"  # a help page alone is fitted to the terminal
    other = program(*OFFLINE[name], PYTHONHASHSEED="2", COLUMNS=width, TERM="dumb", cwd=tmp_path, TZ="Asia/Tokyo")
    assert other.returncode == 0
    assert other.stdout.decode() == output(*OFFLINE[name])
    assert other.stderr == b""  # where no terminal watches, there is no progress


@pytest.mark.parametrize("name", SHORT)
def test_an_answer_has_fewer_than_25_lines(name: str) -> None:
    assert len(output(*OFFLINE[name]).splitlines()) < 25


@pytest.mark.parametrize("name", OFFLINE)
def test_no_answer_shows_a_path_of_the_machine_or_a_colour(name: str) -> None:
    out = output(*OFFLINE[name])
    assert str(Path.cwd()) not in out
    assert str(Path.home()) not in out
    assert "\x1b" not in out


def test_tables_are_markdown_of_at_most_7_columns() -> None:
    for name in ("simulate", "ten steps", "alone", "formats", "format", "recipes", "recipe", "taps"):
        rows = [line for line in output(*OFFLINE[name]).splitlines() if line.startswith("|")]
        columns = {len(re.findall(r"(?<!\\)\|", row)) - 1 for row in rows}
        assert len(columns) == 1, name
        assert columns.pop() <= 7, name
        assert re.fullmatch(r"\|(-+:?\|)+", rows[1]), name
        assert len({len(row) for row in rows}) == 1, name


@pytest.mark.parametrize("name", ["simulate", "ten steps", "alone"])
def test_the_order_on_the_screen_is_recipe_answer_table_next_digest(name: str) -> None:
    out = output(*OFFLINE[name])
    places = [
        out.index(mark)
        for mark in ("recipe  ", "\nanswer  ", "\n|", "\nnext  ", "\ndigest  sha256:".replace("  ", "   "))
    ]
    assert places == sorted(places)


def test_simulate_is_short_for_softfloat_llm_simulate(
    capsys: pytest.CaptureFixture[str], console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = console("simulate", "--storage", "f16").out
    monkeypatch.setattr("sys.argv", ["simulate", "--storage", "f16"])
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        main.simulate_main()
    signal.signal(signal.SIGTERM, handler)
    assert ended.value.code == 0
    assert capsys.readouterr().out == usual


def test_what_to_run_next_runs(console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words: list[str] = ["simulate", "The coin shows", "--storage", "bf16", "--at", "attn.softmax.acc=bf16"]
    seen = []
    while words not in seen:
        answer = console(*words)
        assert answer.code == 0, (words, answer.err)
        seen.append(words)
        told = re.search(r"^next +(.*)$", answer.out, re.M)
        assert told is not None
        words = shlex.split(told[1].removeprefix("softfloat-llm "))
        if words[0] == "taps":
            break
    assert [len([w for w in step if w == "--steps"]) for step in seen] == [0, 1, 1]
    assert Run.load(tmp_path / "RUN").steps == 20


# --- json -------------------------------------------------------------------------------------------------------------


def parsed(text: str) -> dict[str, Any]:
    """The one object that a text holds: keys sorted at every level, no NaN or Infinity as bare words."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        assert [key for key, _ in items] == sorted(key for key, _ in items)
        return dict(items)

    whole = json.loads(text, parse_constant=refuse, object_pairs_hook=pairs)
    assert isinstance(whole, dict)
    return whole


JSON = {
    "simulate": ["simulate"],
    "simulate, alone": ["simulate", "--against", "none"],
    "simulate, not finite": ["simulate", "--storage", "e3m4", "--acc", "e3m4", "--steps", "0"],
    "formats": ["formats"],
    "formats, one": ["formats", "e5m7"],
    "recipes": ["recipes"],
    "recipes, one": ["recipes", "exact"],
    "taps": ["taps"],
    "taps, some": ["taps", "layers.2.kv.*"],
}


@pytest.mark.parametrize("name", JSON)
def test_json_is_one_object_with_its_schema(console: Console, name: str) -> None:
    answer = console(*JSON[name], "--json")
    assert answer.code == 0
    assert parsed(answer.out)["schema"] == f"softfloat-llm/{name.split(',', maxsplit=1)[0]}/1"


def test_the_json_of_simulate_holds_the_comparison_and_the_run(console: Console) -> None:
    told = parsed(console("simulate", "The cup is", "--json", "--fail-on", "flip").out)
    assert told["flips"] == 1
    assert told["max_abs"] > 0
    assert told["max_ulp"] > 0
    assert told["ulp_format"] == "bf16"
    assert told["first_divergence"]["tap"] == "rope.table.out"
    assert told["run"]["digest"] == told["digest"]
    assert told["run"]["text"] == " full"
    assert told["claims"] == {"fail_on": ["flip"], "broken": ["flip"]}


def test_json_writes_what_is_not_finite_as_strings(console: Console) -> None:
    told = parsed(console(*JSON["simulate, not finite"], "--json").out)
    assert told["max_abs"] == told["max_ulp"] == "inf"
    assert told["run"]["events"]
    assert told["nonfinite"][0]["in"] == "run"


def test_the_json_of_compare(console: Console, saved: dict[str, Path]) -> None:
    told = parsed(console("compare", saved["flip"], saved["flip ref"], "--json", "--within", "tokens").out)
    assert told["schema"] == "softfloat-llm/compare/1"
    assert (told["within"], told["holds"], told["flips"]) == ("tokens", False, 1)


# --- quiet, verbose, colour -------------------------------------------------------------------------------------------


def test_quiet_gives_the_answer_alone(console: Console) -> None:
    usual, quiet = console("simulate").out, console("simulate", "-q").out
    assert "|" not in quiet
    assert "digest" not in quiet
    assert all(line in usual for line in quiet.splitlines())


def test_verbose_adds_hex_floats_and_codes(console: Console) -> None:
    for words in (["simulate"], ["simulate", "--against", "none"]):
        assert "bf16:0x" not in console(*words).out
        assert re.search(r"0x1\.[0-9a-f]+p\+\d+ = bf16:0x[0-9a-f]{4}", console(*words, "-v").out)


def test_labels_are_bold_where_colour_is_asked_for_and_never_without(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = console("simulate").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = console("simulate").out
    assert "\x1b[1m" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert console("simulate").out == plain


def test_a_bar_appears_on_stderr_when_a_terminal_watches_long_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(screen, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with screen.watched(is_quiet=False) as progress:
        assert progress is not None
        progress("bf16", 1, 4)
        progress("bf16", 4, 4)
    said = capsys.readouterr()
    assert said.out == ""
    assert "bf16" in said.err
    with screen.watched(is_quiet=True) as progress:
        assert progress is None


def test_work_that_counts_nothing_shows_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(screen, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with screen.watched(is_quiet=False) as bar:
        bar._timer.join()  # type: ignore[union-attr]
        screen.announce(bar, "about 80 s more.")
    said = capsys.readouterr()
    assert (said.out, "working" in said.err, "about 80 s more." in said.err) == ("", True, True)
    screen.announce(None, "nobody watches")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("verb", "least"), [("bisect", 40), ("budget", 3), ("bound", 9)])
def test_passes_are_counted_against_how_many_there_will_be_and_what_they_take_is_announced(
    monkeypatch: pytest.MonkeyPatch, console: Console, verb: str, least: int
) -> None:
    seen: list[tuple[str, int, int]] = []
    said: list[str] = []
    monkeypatch.setattr(asked, "ANNOUNCED_SECONDS", 0.0)
    monkeypatch.setattr(asked, "announce", lambda _, text: said.append(text))
    monkeypatch.setattr(asked, "counting", lambda _: asked.Passes(lambda *told: seen.append(told)))
    words = ["--fast", "--storage", "bf16"] if verb == "bisect" else []
    assert console(verb, "Anna likes", *words).code == 0
    counts = [(done, total) for what, done, total in seen if what == "passes"]
    assert [done for done, _ in counts] == list(range(len(counts)))
    assert least <= counts[-1][1] <= len(counts) + 2  # what was expected came; own rows and halvings may be spared
    assert re.fullmatch(r"\d+ passes of about \d+\.\d s: about \d+ s more\.", said[0])


# --- pipes and interruptions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["formats"], ["simulate"], ["taps", "--json"], ["simulate", "--help"], ["--help"]])
def test_a_reader_that_has_gone_away_is_no_error(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(command(*words), stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_an_interrupted_save_leaves_nothing(console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path, *_: object, **__: object) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(spool, "write_pieces", interrupted)
    answer = console("simulate", "--save", tmp_path / "run")
    assert (answer.code, answer.out) == (130, "")
    assert "Interrupted" in answer.err
    assert list(tmp_path.iterdir()) == []


KILLED_HALFWAY = """
import os, time
from softfloat_llm.cli.main import main
from softfloat_llm.io import spool

def half(path, *_):
    path.write_bytes(b"half")
    os.kill(os.getpid(), {sent})
    time.sleep(60)

spool.write_pieces = half
main(["simulate", "--save", "run"])
"""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_of_saving_leaves_nothing(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    script = KILLED_HALFWAY.format(sent=int(sent))
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (code, b"")
    assert b"Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_saved_run_is_not_overwritten_unless_asked_for(console: Console, tmp_path: Path) -> None:
    place = tmp_path / "run"
    assert console("simulate", "--save", place).code == 0
    digest = Run.load(place).digest
    again = console("simulate", "--storage", "f16", "--save", place)
    assert (again.code, "--replace" in again.err) == (3, True)
    assert Run.load(place).digest == digest
    assert console("simulate", "--storage", "f16", "--save", place, "--replace").code == 0
    assert Run.load(place).digest != digest
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_quoted_words_come_back() -> None:
    assert shlex.split(quoted("it's |")) == ["it's |"]


def test_sums_without_a_fast_form_are_announced_before_they_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(simulate, "announce", lambda _, text: said.append(text))
    output("simulate", "--storage", "bf16", "--acc", "f32+kahan", "--against", "none")
    assert said == [
        "note: matmul: acc=f32+kahan takes four roundings a term: some 20 to 30 times the time of plain f16 sums"
    ]
    output("simulate", "--storage", "bf16", "--acc", "f16", "--against", "none")
    assert len(said) == 1
