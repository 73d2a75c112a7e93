"""A sweep on a Dask cluster of two worker processes, one of them killed in the middle, against one process.

`python -m tests.sweeps.killed_cluster` does 48 cells over tiny and smollm2, and prints what came of them; a test does
fewer. The dead worker stays dead: the other one finishes. Start reading at `check`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from softfloat_llm.sweeps.grid import Grid
from softfloat_llm.sweeps.sweep import Sweep, sweep

GRID = Grid(
    models=("tiny", "smollm2"), prompts=("The cup is", "The capital of France is"), recipes=("bf16", "f16,acc=f16"),
    orders=("seq", "lanes:8", "split-k:4", "pairwise", "perm:{seed}"), seeds=(1, 2),
)  # fmt: skip


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[tuple[str, list[int]]]:
    """A scheduler and worker processes, as a shell starts them: the scheduler's address, the workers' process ids."""
    file = folder / "scheduler.json"
    with ExitStack() as stack, open(folder / "dask.log", "wb") as log:

        def started(kind: str, *words: str) -> int:
            command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--scheduler-file", str(file), *words]
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process.pid

        started("scheduler", "--port", "0", "--host", "127.0.0.1", "--no-dashboard", "--no-show")
        while not file.exists():
            time.sleep(0.05)
        pids = [started("worker", "--no-nanny", "--nthreads", "1", "--no-dashboard") for _ in range(workers)]
        yield json.loads(file.read_text())["address"], pids


def kill_in_the_middle(pid: int, cells: Path, after: int) -> threading.Thread:
    """Kill a process once so many rows have come."""

    def run() -> None:
        while not cells.is_dir() or len(list(cells.glob("*.parquet"))) < after:
            time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def check(grid: Grid, folder: Path) -> dict[str, object]:
    """Both sweeps, the comparison of their tables, and the figures. A difference is an AssertionError."""
    started = time.monotonic()
    alone = sweep(grid, folder / "alone")
    between = time.monotonic()
    counts: list[int] = []
    with cluster(folder) as (address, pids):
        after = max(1, len(alone.rows) // 3)
        killer = kill_in_the_middle(pids[0], folder / "cluster" / "cells", after)
        found = sweep(grid, folder / "cluster", scheduler=address, progress=lambda _, done, total: counts.append(done))
        assert not killer.is_alive(), "the sweep was over before the worker was killed"
    ended = time.monotonic()
    assert not alone.failed, alone.failed[0]["error"]
    assert columns(found) == columns(alone)
    assert found.path.read_bytes() == alone.path.read_bytes()
    names = sorted(path.stem for path in (folder / "cluster" / "cells").glob("*.parquet"))
    assert names == sorted({cell.name for cell in grid.cells()})  # a row for each cell
    assert [count for count in counts if count] == list(range(1, len(names) + 1))  # and each was written once
    return {
        "cells": len(names), "killed_after": after, "flips": sum(row["flips"] for row in found.rows),
        "distinct_logits": len({row["digest"] for row in found.rows}), "alone_s": round(between - started, 1),
        "cluster_s": round(ended - between, 1),
    }  # fmt: skip


def columns(found: Sweep) -> list[tuple[object, ...]]:
    """All rows, all columns, sorted by cell, as the Parquet file has them."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(found.path).sort_by("cell").to_pylist()
    return [tuple(repr(value) for value in row.values()) for row in table]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(check(GRID, Path(place))))
