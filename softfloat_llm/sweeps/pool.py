"""Local processes that do the cells, and end with this one: interrupted, terminated or killed. Start at `in_pool`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from softfloat_llm.sweeps.cell import Row, failed
from softfloat_llm.sweeps.grid import Cell

TRIES = 3
"""How often a cell is given to a new worker after the one that had it died."""
_TICK_SECONDS = 1.0


def in_pool(
    do: Callable[[Cell], Row], cells: Sequence[Cell], workers: int, tick: Callable[[], None] = lambda: None
) -> Iterator[Row]:
    """The rows of the cells as they are done. Where a worker dies, each cell that may have been its last is tried
    alone, so that none is blamed for another; then the pool is made anew for what is left."""
    left = dict.fromkeys(cells)
    while left:
        taken: set[Cell] = set()
        try:
            for cell, row in _until_broken(do, left, workers, tick, taken):
                del left[cell]
                yield row
        except BrokenProcessPool:
            for cell in [cell for cell in left if cell in taken]:
                del left[cell]
                yield _alone(do, cell, tick)


def _until_broken(
    do: Callable[[Cell], Row], cells: dict[Cell, None], workers: int, tick: Callable[[], None], taken: set[Cell]
) -> Iterator[tuple[Cell, Row]]:
    """Two cells a worker are given out at a time; `taken` are those whose row has not come back."""
    waiting = iter(list(cells))
    futures: dict[Future[Row], Cell] = {}
    with _pool(workers) as pool:
        while True:
            for cell in islice(waiting, 2 * workers - len(futures)):
                taken.add(cell)
                futures[pool.submit(do, cell)] = cell
            if not futures:
                return
            for future in wait(futures, _TICK_SECONDS, FIRST_COMPLETED).done:
                row = future.result()
                cell = futures.pop(future)
                taken.remove(cell)
                yield cell, row
            tick()


def _alone(do: Callable[[Cell], Row], cell: Cell, tick: Callable[[], None]) -> Row:
    for _ in range(TRIES - 1):
        try:
            return next(row for _, row in _until_broken(do, {cell: None}, 1, tick, set()))
        except BrokenProcessPool:
            continue
    return failed(cell, f"SweepError: each of {TRIES} workers died that had this cell (out of memory?).")


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """A pool whose processes end at once when the block ends, or this process does: they hold the end of a pipe."""
    context = get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_live_with, initargs=(theirs,))
    try:
        yield pool
        pool.shutdown()
    finally:
        ours.close()
        pool.shutdown(wait=False, cancel_futures=True)
        theirs.close()


def _live_with(parent: Connection[Any, Any]) -> None:
    """An interruption is the parent's to handle; when its end of the pipe closes, so does this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Connection[Any, Any]) -> None:
    parent.poll(None)
    os._exit(0)
