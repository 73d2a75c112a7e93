"""sweep(grid): every cell once, each kept as it comes; a table, and a heat map of what the recipes did.

A sweep that was interrupted goes on where it was: a cell whose row lies in the folder is not done again. The table does
not depend on who did the cells, or in which order. Start reading at `sweep`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softfloat_llm.analysis.answers import Answer, Table, counted
from softfloat_llm.analysis.numbers import about, jsonable
from softfloat_llm.errors import SweepError
from softfloat_llm.io.progress import Progress
from softfloat_llm.sweeps.cell import Row
from softfloat_llm.sweeps.grid import Grid
from softfloat_llm.sweeps.store import Store
from softfloat_llm.sweeps.workers import rows_of

SCHEMA = "softfloat-llm/sweep/1"
SHOWN = 8


@dataclass(frozen=True)
class Sweep(Answer):
    """The rows of a sweep in the grid's order, and the table file that holds them."""

    grid: Grid
    path: Path
    rows: tuple[Row, ...]

    @property
    def failed(self) -> tuple[Row, ...]:
        """The cells that ended in an error."""
        return tuple(row for row in self.rows if row["error"] is not None)

    def heading(self) -> list[tuple[str, str]]:
        grid = self.grid
        axes: dict[str, tuple[object, ...]] = {
            "model": grid.models,
            "prompt": grid.prompts,
            "recipe": grid.recipes,
            "order": grid.orders,
        }
        axes["seed"] = grid.seeds
        counts = [counted(len(axis), name) for name, axis in axes.items() if axis]
        return [("sweep", f"{' x '.join(counts)}, {counted(grid.steps, 'step')}, against {grid.reference}")]

    def sentences(self) -> list[str]:
        done = [row for row in self.rows if row["error"] is None]
        flipped = sum(row["flips"] > 0 for row in done)
        digests = len({row["digest"] for row in done})
        cells = counted(len(self.rows), "cell")
        told = f"{len(done)} of {cells} done: a token flips in {flipped}; {digests} distinct logits."
        if not self.failed:
            return [told]
        return [f"{told} {len(self.failed)} ended in an error, the first: {self.failed[0]['error']}"]

    def tables(self, *, verbose: bool = False) -> list[Table]:
        rows = self.rows if verbose else sorted(self.rows, key=_interest)[:SHOWN]
        header = ("model", "recipe", "order", "prompt", "flips", "largest error of a logit", "KL")
        return [Table(header, tuple(_cells(row) for row in rows)), *self._heat_map()]

    def _heat_map(self) -> list[Table]:
        """Recipes by orders: cells with a flip, of how many."""
        if len(self.grid.recipes) < 2 or not 1 < len(self.grid.orders) <= 6:
            return []
        body = ((recipe, *(self._share(recipe, order) for order in self.grid.orders)) for recipe in self.grid.recipes)
        return [Table(("cells that flip", *self.grid.orders), tuple(body))]

    def _share(self, recipe: str, order: str) -> str:
        seeds = self.grid.seeds or (None,)
        texts = {(recipe.replace("{seed}", str(s)), order.replace("{seed}", str(s))) for s in seeds}
        rows = [row for row in self.rows if (row["recipe"], row["order"]) in texts]
        flipped = sum(bool(row["flips"]) for row in rows)
        return f"{'#' * min(5, -(-5 * flipped // max(1, len(rows)))):5} {flipped}/{len(rows)}"

    def ending(self) -> list[tuple[str, str]]:
        return [("table", str(self.path))]

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "table": str(self.path), "cells": [_plain(row) for row in self.rows]}


def _plain(row: Row) -> Row:
    return {key: jsonable(value) if isinstance(value, float) else value for key, value in row.items()}


def _interest(row: Row) -> tuple[bool, int, float]:
    """Errors first, then what flips most, then what lies furthest off."""
    return row["error"] is None, -(row["flips"] or 0), -(row["max_abs"] or 0.0)


def _cells(row: Row) -> tuple[str, ...]:
    order = row["order"] or ""
    if row["error"] is not None:
        return (row["model"], row["recipe"], order, row["prompt"], "", row["error"].partition(":")[0], "")
    flips = f"{row['flips']} of {row['steps']}"
    return (row["model"], row["recipe"], order, row["prompt"], flips, about(row["max_abs"]), about(row["max_kl"]))


def sweep(
    grid: Grid,
    out: str | Path,
    *,
    workers: int = 1,
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Do every cell of the grid that has no row in the folder `out`, and collect all rows in out/table.parquet.

    `workers`: local processes. `scheduler`: the address of a Dask cluster in their place. A cell that cannot be done is
    a row with its error; it is tried again by the next sweep into the folder.
    **Raises** SweepError where the folder cannot be written, the cluster not be reached, or a package is missing.
    """
    if workers < 1:
        raise SweepError(f"workers is {workers}: at least 1 does the work.")
    store, cells = Store(out), grid.cells()
    todo = store.missing(cells)
    rows = rows_of(todo, workers=workers, scheduler=scheduler)
    for place, row in enumerate(rows, start=len(cells) - len(todo) + 1):
        store.put(row)
        if progress is not None:
            progress("cells", place, len(cells))
    return Sweep(grid, store.table, tuple(store.collect(cells)))
