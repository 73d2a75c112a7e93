"""`compare` on the command line: its order, local errors, tensors of other tools, its JSON, its exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from softfloat_llm.runs import Run
from tests.cli.test_schemas import problems
from tests.console import Console


@pytest.fixture(scope="module")
def dumped(saved: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference's values under the names of another tool, a map of names, and a file of zeros."""
    folder = tmp_path_factory.mktemp("dumps")
    ref = Run.load(saved["ref"])
    np.savez(
        folder / "ref.npz",
        logits=ref["logits"][None],
        **{f"h{i}": ref[f"layers.{i}.mlp.residual.out"] for i in range(4)},
    )
    (folder / "map.toml").write_text('layers.N.mlp.residual.out = "h{N}"\n')
    np.savez(folder / "short.npz", logits=ref["logits"][:3])
    return folder


def table_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


def test_the_answer_is_in_its_order_and_short(console: Console, saved: dict[str, Path]) -> None:
    out = console("compare", saved["flip"], saved["flip ref"]).out
    wanted = [
        "The token flips: ' empty' in the reference, ' full' in the run.", "The reference leads by", "KL divergence",
        "the largest error of a logit", "First different value: rope.table.out", "| step |",
    ]  # fmt: skip
    places = [out.index(text) for text in wanted]
    assert places == sorted(places)
    assert len(out.splitlines()) < 25


def test_local_errors_stand_beside_those_of_the_run(console: Console, saved: dict[str, Path]) -> None:
    answer = console("compare", saved["bf16"], saved["ref"], "--local")
    assert answer.code == 0, answer.err
    assert "Fed the reference's values, layers." in answer.out
    header = table_of(answer.out)[0]
    assert re.sub(r"\s+", " ", header) == (
        "| site | error in the run | in bf16 ulp | at | made at the site | in bf16 ulp | at |"
    )
    assert len(answer.out.splitlines()) < 25
    whole = console("compare", saved["bf16"], saved["ref"], "--local", "-v").out
    assert "local row ulp" in whole
    assert "local: what the site makes of the reference's values." in whole
    told = json.loads(console("compare", saved["bf16"], saved["ref"], "--local", "--json").out)
    assert problems("compare", told) == []
    assert {site["site"] for site in told["sites"] if site["local"]} >= {"mlp.act_mul", "lm_head"}


def test_verbose_explains_its_columns(console: Console, saved: dict[str, Path]) -> None:
    out = console("compare", saved["bf16"], saved["ref"], "-v").out
    for word in ("differing: elements", "max abs:", "max ulp:", "row ulp:", "steps: values of the format"):
        assert word in out
    assert "--local -v" not in out
    assert len([line for line in table_of(out) if line.startswith("| layers.")]) == 4 * 20


def test_tensors_of_another_tool_are_a_side(console: Console, saved: dict[str, Path], dumped: Path) -> None:
    words = ["compare", saved["bf16"], dumped / "ref.npz", "--names", dumped / "map.toml"]
    told = json.loads(console(*words, "--json").out)
    assert problems("compare", told) == []
    assert [tap["tap"] for tap in told["taps"]] == [
        *(f"layers.{i}.mlp.residual.out" for i in range(4)), "lm_head.out"
    ]  # fmt: skip
    runs = json.loads(console("compare", saved["bf16"], saved["ref"], "--json").out)
    assert (told["steps"], told["kl"], told["max_abs"]) == (runs["steps"], runs["kl"], runs["max_abs"])
    unnamed = console("compare", saved["bf16"], dumped / "ref.npz").out
    assert "4 tensors of" in unnamed
    assert "h0, h1, h2, h3. Name them with --names." in unnamed
    local = json.loads(console(*words, "--local", "--json").out)
    assert [tap["tap"] for tap in local["local"]] == [tap["tap"] for tap in told["taps"]]
    assert console(*words, "--within", "tokens").code == 0


def test_two_files_are_compared(console: Console, dumped: Path) -> None:
    answer = console("compare", dumped / "ref.npz", dumped / "ref.npz", "--within", "identical")
    assert answer.code == 0
    assert f"run      {dumped / 'ref.npz'}" in answer.out
    assert (
        problems("compare", json.loads(console("compare", dumped / "ref.npz", dumped / "ref.npz", "--json").out)) == []
    )


def test_what_cannot_be_compared_is_told(console: Console, saved: dict[str, Path], dumped: Path) -> None:
    for words, code, said in (
        ([saved["bf16"]], 2, "RUN and REF"),
        ([saved["bf16"], saved["ref"], "--names", dumped / "map.toml"], 2, "a saved run has our names"),
        ([dumped / "ref.npz", saved["ref"], "--local"], 2, "is no run of ours"),
        ([saved["bf16"], dumped / "short.npz"], 3, "has the shape (6, 960) in the run of bf16, but (3, 960) in"),
        ([saved["bf16"], dumped / "nothing.npz"], 3, "No such file"),
        ([saved["bf16"], dumped / "ref.npz", "--names", dumped / "no.toml"], 3, "No such file"),
        ([saved["bf16"], saved["ref"], "--model", "tiny"], 2, "--model tiny cannot stand with a saved run"),
        ([saved["bf16"], saved["ref"], "--local", "--model", "smollm2"], 3, "other weights now"),
        ([saved["bf16"], saved["ref"], "--taps", "embd.*"], 3, "Did you mean"),
        (["--live", "torch", "--names", dumped / "map.toml"], 2, "cannot stand with --live"),
    ):
        if "smollm2" in words and not _has_smollm2():
            continue
        answer = console("compare", *words)
        assert (answer.code, answer.out) == (code, ""), (words, answer.err)
        assert said in answer.err


def _has_smollm2() -> bool:
    from softfloat_llm.io.fetch import cached_smollm2

    return cached_smollm2() is not None
