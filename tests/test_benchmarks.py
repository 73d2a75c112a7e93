"""Every part of the benchmarks runs, on tiny sizes; what it finds can be written; a goal bounds from one side."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import bench_peers, bench_torch, records, tables
from benchmarks.peaks import found_by
from benchmarks.peers import PEERS
from benchmarks.regions import REGIONS, RULES, Profile
from benchmarks.rows import Goal, Row
from benchmarks.settings import Settings
from benchmarks.timing import in_passes, pair_of, paired

PACKAGE = Path(__file__).parents[1] / "softfloat_llm"
QUICK = Settings(is_quick=True, backends=("numpy",))
LIVE = ("peers", "torch")  # load PyTorch where it is installed


@pytest.mark.parametrize("part", [name for name in benchmarks.PARTS if name not in LIVE])
def test_every_part_runs(part):
    rows = list(benchmarks.found(part, QUICK))
    assert rows
    assert not [row.note for row in rows if row.note.startswith("failed")]
    assert all(row.value is not None and row.value >= 0 for row in rows)
    assert part == "profile" or all(row.value for row in rows)  # few looks fall into so short a pass, or none
    assert {row.part for row in rows} == {part}


def test_peers_are_timed_and_compared_bit_by_bit(monkeypatch):
    monkeypatch.setattr(bench_peers, "PEERS", [peer for peer in PEERS if peer.module in ("numpy", "ml_dtypes")])
    rows = list(benchmarks.found("peers", QUICK))[1:]
    assert sorted(row.workers for row in rows) == [1] * 4 + [2] * 4
    assert all("equal bits" in row.note for row in rows)
    assert all(("the peer uses one core" in row.note) == (row.workers > 1) for row in rows)


@pytest.mark.parametrize("peer", [peer for peer in PEERS if peer.module in ("gfloat", "pychop", "apytypes")])
def test_other_packages_give_our_bits(peer):
    pytest.importorskip(peer.module)
    assert "equal bits" in bench_peers._row(peer, "numpy", 1, QUICK).note


def test_what_is_not_installed_is_a_row_that_says_so(monkeypatch):
    absent = replace(PEERS[-1], module="no_such_package")
    monkeypatch.setattr(bench_peers, "PEERS", [absent])
    monkeypatch.setattr(bench_torch, "has_torch", lambda: False)
    rows = [*benchmarks.found("peers", QUICK), *benchmarks.found("torch", QUICK)]
    assert [row.value for row in rows] == [None] * len(rows)
    assert all("pip install" in row.note for row in rows[1:])


@pytest.mark.torch
def test_passes_are_held_against_pytorch():
    rows = list(benchmarks.found("torch", QUICK))
    assert all(row.value is not None for row in rows)
    half = next(peer for peer in PEERS if peer.name == "PyTorch, half steps")
    assert "equal bits" in bench_peers._row(half, "numpy", 1, QUICK).note


def test_a_part_that_fails_says_so_and_the_others_go_on(monkeypatch, capsys):
    def fails(_):
        yield Row("exact", "one", 1.0)
        raise ValueError("broken")

    monkeypatch.setitem(benchmarks.PARTS, "exact", fails)
    assert benchmarks.main(["exact", "--quick"]) == 1
    assert "failed: ValueError: broken" in capsys.readouterr().out


def test_a_part_that_there_is_not_is_told_with_those_that_there_are(capsys):
    with pytest.raises(SystemExit) as refused:
        benchmarks.main(["exact", "memry"])
    assert refused.value.code == 2
    told = "'memry' is no part. Did you mean 'memory'? Known: matmul, exact, peers, growth, forward, profile, torch, "
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("goal", "value", "verdict"),
    [
        (Goal(3.5), 3.5, "met"), (Goal(3.5), 3.6, "MISSED"), (Goal(1.7, "at least"), 1.7, "met"),
        (Goal(1.7, "at least"), 1.6, "MISSED"), (Goal(2.0), None, "not measured"), (None, 1.0, ""),
    ],
)  # fmt: skip
def test_a_goal_is_a_bound_from_one_side(goal, value, verdict):
    assert Row("part", "what", value, goal=goal).verdict == verdict


def test_a_ratio_is_the_median_of_pairs():
    assert pair_of([(1.0, 1.0), (9.0, 3.0), (4.0, 1.0)]) == (4.0, 1.0, 3.0)
    ticks = iter(range(10_000))

    def clock():
        return next(ticks)  # each call of the clock is a second later: every work takes one

    assert paired(lambda: None, lambda: None, 5, clock).ratio == 1
    assert in_passes(lambda: None, float, 1).ratio > 0


def test_what_a_process_held_is_not_what_the_one_held_that_started_it():
    held = np.ones(50_000_000)  # 0.4 GB
    found = found_by("import sys\ntold = sys.argv[1:]", "3", "x")
    assert found.told == ["3", "x"]
    assert found.gigabytes < held.nbytes / 1e9 / 2


def test_a_profile_charges_all_of_the_time_to_its_regions():
    found = Profile().of(lambda: sum(i * i for i in range(300_000)))
    assert set(found.seconds) == set(REGIONS)
    assert found.seconds["bookkeeping"] == sum(found.seconds.values()) > 0


def test_every_word_of_the_rules_is_in_the_name_of_a_function_that_there_is():
    names = {
        path.relative_to(PACKAGE).with_suffix("").as_posix(): [
            node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)
        ]
        for path in PACKAGE.rglob("*.py")
    }
    for where, function, _ in RULES:
        folder, _, modules = where.partition("/")
        for module in re.findall(r"\w+", modules) or [""]:
            assert [path for path in names if path.startswith(f"{folder}/{module}")], (where, module)
        there = [name for path, functions in names.items() if re.match(where, path) for name in functions]
        for word in re.findall(r"\w+", function):
            assert [name for name in there if word in name and re.fullmatch(function, name)], (where, word)


def test_results_are_a_table_data_and_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    shares = dict.fromkeys(REGIONS, 1 / len(REGIONS))
    rows = [
        Row("matmul", "f16 fma, up [5,576]x[576,1536]", 8.0, "float64 passes a product", "numpy", goal=Goal(9.0)),
        Row("peers", "gfloat, fma [8,1536]x[1536,576]", 20.0, "times as fast as the peer", "numba", 2),
        *(Row("growth", "T: f16 fma", 8.0 / x, "float64 passes a product", "numpy", x=x) for x in (1, 2)),
        *(Row("growth", "workers: f16 fma", x, "times as fast as 1 worker", "numba", x, x=x) for x in (1, 2)),
        *(
            Row("growth", "workers by tokens: tiny, f16", 1.5, "times as fast as 1 worker", "numpy", 2, x=x)
            for x in (1, 5)
        ),
        Row("profile", "tiny, 5 tokens", 0.1, "of the time in products", "numpy", seconds=1.0, shares=shares),
    ]
    facts = {
        "cpu": "a CPU",
        "cores": 2,
        "cache": "",
        "system": "",
        "python": "3",
        "packages": {},
        "load": None,
        "date": "",
    }
    names = {path.name for path in records.write(rows, facts, benchmarks.TITLES, tmp_path)}
    assert names == {"results.json", "results.md", "matmul.svg", "peers.svg", "growth.svg", "profile.svg"}
    assert json.loads((tmp_path / "results.json").read_text())["rows"][0]["verdict"] == "met"
    assert "| f16 fma, up [5,576]x[576,1536] | numpy | 1 | 8.00 float64 passes a product |" in tables.goals(rows)
    readme = records.with_recorded((records.FOLDER / "README.md").read_text(), rows, facts)
    assert readme == records.with_recorded(readme, rows, facts)
    assert tables.goals(rows) in readme
