"""What a sweep survives: workers that die or run out of memory, an interruption, a kill, another sweep beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from softfloat_llm.errors import SweepError
from softfloat_llm.io.fetch import cached_smollm2
from softfloat_llm.sweeps.cell import row_of
from softfloat_llm.sweeps.grid import Cell, Grid
from softfloat_llm.sweeps.pool import TRIES, in_pool
from softfloat_llm.sweeps.store import Store
from softfloat_llm.sweeps.sweep import load, sweep
from tests.console import command
from tests.sweeps.killed_cluster import GRID, check

pytest.importorskip("pyarrow")
WORDS = [
    "sweep", "--recipe", "bf16", "--recipe", "f16,acc=f16", "--order", "perm:{seed}", "--seeds", "1..7",
    "--prompt", "Two", "--steps", "2",
]  # fmt: skip
CELLS = 14


def fatal(cell: Cell) -> dict[str, object]:
    """Ends its worker, as the system does where memory runs out, for one of the cells."""
    if cell.order == "lanes:2":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"cell": cell.name, "error": None, "worker": os.getpid()}


def test_only_the_cell_that_kills_its_workers_ends_in_an_error():
    grid = Grid(orders=("seq", "lanes:2"))
    rows = {row["cell"]: row for row in in_pool(fatal, grid.cells(), 2)}
    assert set(rows) == {cell.name for cell in grid.cells()}
    bad = [row for row in rows.values() if row["error"] is not None]
    assert [row["order"] for row in bad] == ["lanes:2"]
    assert f"each of {TRIES} workers died" in bad[0]["error"]


def test_memory_that_does_not_suffice_and_faults_of_ours_are_rows(monkeypatch):
    (cell,) = Grid(prompts=("Two",)).cells()
    for error, said in ((MemoryError("no room"), "MemoryError: no room"), (KeyError("x"), "Internal error: KeyError")):

        def fails(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("softfloat_llm.sweeps.cell.compare", fails)
        assert row_of(cell)["error"].startswith(said)


def started(out, workers: int) -> subprocess.Popen[bytes]:
    """A sweep in a process of its own, stopped when some rows have come: no further one comes before it goes on."""
    process = subprocess.Popen(
        command(*WORDS, "--out", out, "--workers", str(workers)), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    while len(list((out / "cells").glob("*.parquet"))) < 3:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)
    return process


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_sweep_that_is_interrupted_or_killed_ends_with_its_workers_and_goes_on_where_it_was(sign, code, tmp_path):
    process = started(tmp_path, 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) >= 2
    with pytest.raises(SweepError, match=f"Another sweep .process {process.pid}. is writing into"):
        sweep(Grid(), tmp_path)
    process.send_signal(sign)
    process.send_signal(signal.SIGCONT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == code
    if sign == signal.SIGINT:
        assert b"rows are kept" in said
        assert b"Traceback" not in said
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{child}") for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").glob("*.parquet")}
    assert 3 <= len(kept) < CELLS
    found = sweep(load(tmp_path).grid, tmp_path)
    assert len(found.rows) == CELLS
    assert not found.failed
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_what_a_killed_sweep_left_half_written_is_removed(tmp_path):
    grid = Grid(prompts=("Two",))
    sweep(grid, tmp_path)
    leftover = tmp_path / "cells" / ".x.parquet.0123abcd.partial"
    leftover.write_bytes(b"PAR1")
    sweep(grid, tmp_path)
    assert not leftover.exists()
    assert Store(tmp_path).missing(grid.cells()) == []


def test_a_cluster_of_two_workers_one_of_them_killed_gives_the_table_of_one_process(tmp_path):
    """Over tiny and SmolLM2, where it is in the cache; `python -m tests.sweeps.killed_cluster` does 48 cells."""
    pytest.importorskip("distributed")
    models = GRID.models if cached_smollm2() else GRID.models[:1]
    orders = GRID.orders[: 4 // len(models)]
    grid = replace(GRID, models=models, prompts=GRID.prompts[:1], recipes=("bf16",), orders=orders, seeds=())
    assert check(grid, tmp_path)["cells"] == 4
