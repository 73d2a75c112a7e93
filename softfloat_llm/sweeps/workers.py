"""Who does the cells: this process, local ones, or a Dask cluster. Rows come as they are done, in any order."""

from __future__ import annotations

import re
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from softfloat_llm.errors import SweepError, why
from softfloat_llm.io.checkpoint import Model
from softfloat_llm.sweeps.cell import How, Row, failed, row_of
from softfloat_llm.sweeps.grid import Cell
from softfloat_llm.sweeps.models import Opened, opened, told
from softfloat_llm.sweeps.pool import TRIES, in_pool

PATIENCE_SECONDS = 20
"""How long a cluster's scheduler may take to answer."""
Tick = Callable[[], None]
"""Called now and then while cells are being done."""


def rows_of(
    cells: Sequence[Cell],
    *,
    models: Mapping[str, Opened] | None = None,
    how: How | None = None,
    workers: int = 1,
    scheduler: str | None = None,
    tick: Tick = lambda: None,
) -> Iterator[Row]:
    """The rows of the cells, each once, as they are done; first those whose model could not be opened.

    `scheduler`: the address of a Dask cluster; else `workers` local processes (1: this one).
    """
    models = opened(cell.model for cell in cells) if models is None else models
    how = how or How()
    left = []
    for cell in cells:
        model = models[cell.model]
        if isinstance(model, str):
            yield failed(cell, model)
        else:
            left.append((cell, model))
    if left and scheduler is not None:
        yield from _on_cluster(left, how, scheduler, tick)
    elif workers == 1:
        yield from (row_of(cell, model, how, lambda *_: tick()) for cell, model in left)
    elif left:
        yield from in_pool(partial(row_of, how=how), [cell for cell, _ in left], workers, tick)


def _on_cluster(cells: Sequence[tuple[Cell, Model]], how: How, scheduler: str, tick: Tick) -> Iterator[Row]:
    """Each model is sent once; tasks are named by their cells, so that none is done twice."""
    dask = _distributed()
    if re.fullmatch(r"(\w+://)?[^/]+:\d+", scheduler) is None:
        raise SweepError(f"--scheduler {scheduler!r} is no address: it looks like tcp://HOST:PORT.")
    try:
        client = dask.Client(scheduler, timeout=PATIENCE_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise SweepError(
            f"The Dask scheduler {scheduler} cannot be reached: {why(error)}. Is `dask scheduler` running?"
        ) from None
    with client, client.as_current():
        sent = {name: _sent(client, model) for name, model in {cell.model: model for cell, model in cells}.items()}
        futures = {
            client.submit(row_of, cell, sent[cell.model], how, key=f"cell-{cell.name}", retries=TRIES): cell
            for cell, _ in cells
        }
        tick()
        for future in dask.as_completed(futures):
            yield _row(dask, future, futures[future])
            future.release()


def _row(dask: Any, future: Any, cell: Cell) -> Row:
    if future.status == "finished":
        row: Row = future.result()
        return row
    error = future.exception() if future.status == "error" else SweepError("The cluster gave the cell up.")
    if isinstance(error, dask.scheduler.KilledWorker):
        return failed(
            cell, f"SweepError: each worker died that had this cell or its model (out of memory?). {why(error)}."
        )
    return failed(cell, told(error))


def _sent(client: Any, model: Model) -> Any:
    """The opened model as a task's result.

    A task, and not `scatter`: what a worker held that died is made again, where data that was scattered is lost, and a
    broadcast fails with the worker.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sending large graph")
        return client.submit(_itself, model, key=f"model-{uuid.uuid4().hex}", retries=TRIES)


def _itself(model: Model) -> Model:
    return model


def _distributed() -> Any:
    try:
        import distributed
    except ModuleNotFoundError as error:
        raise SweepError(f"--scheduler needs {error.name}: pip install '.[sweep]'.") from None
    return distributed
