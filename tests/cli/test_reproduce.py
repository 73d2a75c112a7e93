"""`reproduce` on the command line: its table, its JSON, its exit codes."""

from __future__ import annotations

import json

import pytest

from softfloat_llm.claims import reproduce
from softfloat_llm.claims.outcome import equal
from tests.cli.test_schemas import problems
from tests.console import Console


def test_one_claim_has_a_line_for_each_number(console: Console) -> None:
    answer = console("reproduce", "S2")
    assert answer.code == 0
    rows = [line for line in answer.out.splitlines() if line.startswith("| ")]
    assert rows[0].split() == ["|", "what", "|", "expected", "|", "obtained", "|", "verdict", "|"]
    assert len(rows) == 5
    assert "next     softfloat-llm reproduce S2 --model smollm2" in answer.out
    assert console("reproduce", "S2", "-q").out.splitlines()[-1] == "It holds."


def test_the_json_is_what_its_schema_says(console: Console) -> None:
    for claim in ("S2", "S5", "S13"):
        told = json.loads(console("reproduce", claim, "--json").out)
        assert problems("reproduce", told) == []
        assert told["is_reproduced"]
        assert (told["model"]["name"], told["model"]["kind"]) == ("tiny", "tiny")


def test_a_claim_that_does_not_hold_is_exit_code_1(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = reproduce.Claim("one is two", lambda _: [equal("one", 2, 1)])
    monkeypatch.setitem(reproduce.CLAIMS, "S2", broken)
    answer = console("reproduce", "s2")
    assert answer.code == 1
    assert "It does not hold." in answer.out
    assert answer.err == "Not reproduced: S2.\n"
    assert json.loads(console("reproduce", "s2", "--json").out)["is_reproduced"] is False


def test_words_that_are_wrong_are_told(console: Console) -> None:
    answer = console("reproduce", "S99")
    assert (answer.code, answer.out) == (2, "")
    assert "Did you mean 'S9'" in answer.err
    assert console("reproduce", "S2", "--model", "nowhere").code == 3
