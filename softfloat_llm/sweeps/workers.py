"""Who does the cells: this process, local ones, or a Dask cluster. Rows come as they are done, in any order."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

from softfloat_llm.errors import SoftfloatError, SweepError
from softfloat_llm.io.checkpoint import Model, open_model
from softfloat_llm.sweeps.cell import Row, asked_of, row_of
from softfloat_llm.sweeps.grid import Cell

PATIENCE_SECONDS = 20
"""How long a cluster's scheduler may take to answer."""
TRIES = 3
"""How often a cell is given to a new worker after the one that had it died."""


def rows_of(cells: Sequence[Cell], *, workers: int = 1, scheduler: str | None = None) -> Iterator[Row]:
    """The rows of the cells, each once, as they are done.

    `scheduler`: the address of a Dask cluster; else `workers` local processes (1: this one).
    """
    if not cells:
        return iter(())
    if scheduler is not None:
        return _on_cluster(cells, scheduler)
    return map(row_of, cells) if workers == 1 else _in_pool(cells, workers)


def _died(cell: Cell) -> Row:
    return asked_of(cell) | {"error": f"SweepError: each of {TRIES} workers died that had this cell (out of memory?)."}


def _in_pool(cells: Sequence[Cell], workers: int) -> Iterator[Row]:
    """Where a worker dies, the pool is made anew for what is left; the cells that had been taken count a try."""
    tries = dict.fromkeys(cells, 0)
    while tries:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            futures = {pool.submit(row_of, cell): cell for cell in tries}
            try:
                for future in as_completed(futures):
                    row = future.result()
                    del tries[futures[future]]
                    yield row
            except BrokenProcessPool:
                pass
        first = list(tries)[:workers]  # cells are taken in their order: the one that died is among these
        for cell in first:
            tries[cell] += 1
            if tries[cell] >= TRIES:
                del tries[cell]
                yield _died(cell)


def _on_cluster(cells: Sequence[Cell], scheduler: str) -> Iterator[Row]:
    """Each model is sent once; tasks are named by their cells, so that none is done twice."""
    dask = _distributed()
    try:
        client = dask.Client(scheduler, timeout=PATIENCE_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise SweepError(f"The Dask scheduler {scheduler} cannot be reached: {error}.") from None
    with client, client.as_current():
        models = {name: _sent(client, name) for name in dict.fromkeys(cell.model for cell in cells)}
        futures = {
            client.submit(row_of, cell, models[cell.model], key=f"cell-{cell.name}", retries=TRIES): cell
            for cell in cells
        }
        for future in dask.as_completed(futures):
            yield _died(futures[future]) if future.status == "error" else future.result()
            future.release()


def _sent(client: Any, name: str) -> Any:
    """The opened model as a task's result; None where it cannot be opened here, so that each cell tells of it.

    A task, and not `scatter`: what a worker held that died is made again, where data that was scattered is lost, and a
    broadcast fails with the worker.
    """
    try:
        model: Model = open_model(name)
    except (SoftfloatError, OSError):
        return None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sending large graph")
        return client.submit(_itself, model, key=f"model-{uuid.uuid4().hex}", retries=TRIES)


def _itself(model: Model) -> Model:
    return model


def _distributed() -> Any:
    try:
        import distributed
    except ModuleNotFoundError as error:
        raise SweepError(f"--scheduler needs {error.name}: pip install 'softfloat-llm[sweep]'.") from None
    return distributed
