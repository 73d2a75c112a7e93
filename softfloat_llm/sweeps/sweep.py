"""sweep(grid): every cell once, each kept as it comes; a table, and a map of what two axes of the grid did.

A sweep that was interrupted goes on where it was: a cell whose row lies in the folder is not done again. The table does
not depend on who did the cells, or in which order. Start reading at `sweep`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softfloat_llm.analysis.answers import Answer, Table, counted
from softfloat_llm.analysis.numbers import about, jsonable
from softfloat_llm.errors import ReportError, SweepError
from softfloat_llm.io.progress import Progress
from softfloat_llm.numerics.kernels import kit_of
from softfloat_llm.sweeps.cell import How, Row
from softfloat_llm.sweeps.grid import AXES, NOTHING, Cell, Grid, Place
from softfloat_llm.sweeps.models import opened
from softfloat_llm.sweeps.store import Store
from softfloat_llm.sweeps.sweep_map import SweepMap, has_map, sweep_map_of
from softfloat_llm.sweeps.words import is_of_file, recipe_of_text
from softfloat_llm.sweeps.workers import rows_of

SCHEMA = "softfloat-llm/sweep/1"
SHOWN = 8
WIDTH = 80
"""Characters of a terminal, in which the tables fit."""
_LEAST = 8  # characters that a text is cut to at most


@dataclass(frozen=True)
class Sweep(Answer):
    """The rows of a sweep in the grid's order, the table file that holds them, and where each cell stands in the grid.

    `rows_by`, `columns_by`, `value`: what the map shows, where it is not left to the grid (see `sweep_map`).
    """

    grid: Grid
    path: Path
    rows: tuple[Row, ...]
    places: tuple[Place, ...]
    rows_by: str | None = None
    columns_by: str | None = None
    value: str = "flips"

    @property
    def failed(self) -> tuple[Row, ...]:
        """The cells that ended in an error."""
        return tuple(row for row in self.rows if row["error"] is not None)

    @property
    def left(self) -> int:
        """Cells that have no row yet."""
        return len({place.cell for place in self.places}) - len(self.rows)

    def map(self) -> SweepMap:
        """The map of two axes. Raises ReportError for an unknown axis or value, or too many labels."""
        return sweep_map_of(self.rows, self.places, self.rows_by, self.columns_by, self.value)

    def heading(self) -> list[tuple[str, str]]:
        grid = self.grid
        named = {name: counted(len(set(grid.axis(name))), name) for name in AXES if set(grid.axis(name)) - {""}}
        return [("sweep", f"{self._multiplied(named)}, {counted(grid.steps, 'step')}, against {grid.reference}")]

    def _multiplied(self, named: dict[str, str]) -> str:
        """The sizes of the axes, which multiply out to the cells: seeds only where something uses them."""
        without = {place.labels[:-1] for place in self.places}
        seeded = {place.labels[:-1] for place in self.places if place["seed"] != NOTHING}
        if not 0 < len(seeded) < len(without):
            return " x ".join(named.values())
        cells, seeds = len({place.cell for place in self.places}), named.pop("seed")
        told = f"{len(seeded)} of these {len(without)} with {seeds} each: {counted(cells, 'cell')}"
        return f"{' x '.join(named.values())}, {told}"

    def sentences(self) -> list[str]:
        done = [row for row in self.rows if row["error"] is None]
        flipped = sum(row["flips"] > 0 for row in done)
        digests = len({row["digest"] for row in done})
        cells = counted(len(self.rows) + self.left, "cell")
        lines = [f"{len(done)} of {cells} done: a token flips in {flipped}; {digests} distinct logits."]
        if self.failed:
            lines.append(f"{len(self.failed)} ended in an error, the first: {self.failed[0]['error']}")
        return lines + (
            [f"{self.left} still to be done: the line that began the sweep goes on where it was."] if self.left else []
        )

    def tables(self, *, verbose: bool = False) -> list[Table]:
        """The rows (`verbose`: all, and nothing cut), then the map where the grid has one of a terminal's width."""
        rows = self.rows if verbose else sorted(self.rows, key=_interest)
        table = _table(rows, self.rows)
        return [table if verbose else _narrow(table.cut(SHOWN)), *self._map_table()]

    def _map_table(self) -> list[Table]:
        is_asked = self.rows_by is not None or self.columns_by is not None or self.value != "flips"
        if not is_asked and not has_map(self.places):
            return []
        try:
            found = self.map()
        except ReportError:
            if is_asked:
                raise
            return []
        table = Table((found.title(), *found.columns), tuple((row, *found.words(row)) for row in found.rows))
        narrow = _narrow(table)
        return [narrow] if is_asked or _width(narrow) <= WIDTH else []

    def ending(self) -> list[tuple[str, str]]:
        return [("table", str(self.path))] if not self.left else []

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "table": str(self.path), "cells": [_plain(row) for row in self.rows]}


def _plain(row: Row) -> Row:
    return {key: _jsonable(value) for key, value in row.items()}


def _jsonable(value: Any) -> Any:
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    return jsonable(value) if isinstance(value, float) else value


def _interest(row: Row) -> tuple[bool, int, float]:
    """Errors first, then what flips most, then what lies furthest off."""
    return row["error"] is None, -(row["flips"] or 0), -(row["max_abs"] or 0.0)


# --- the table of rows ------------------------------------------------------------------------------------------------


def _table(rows: Sequence[Row], among: Sequence[Row]) -> Table:
    """What tells these rows apart among all, then what came of each."""
    axes = [name for name in ("model", "recipe", "order", "prompt") if len({row[name] for row in among}) > 1]
    header = (*(axes or ["recipe"]), "flips", "error", "KL")
    return Table(header, tuple(_cells(row, header[:-3]) for row in rows))


def _cells(row: Row, axes: Sequence[str]) -> tuple[str, ...]:
    labels = tuple(NOTHING if row[axis] is None else row[axis].replace("\n", " ") for axis in axes)
    if row["error"] is not None:
        return (*labels, "", row["error"].partition(":")[0], "")
    return (*labels, f"{row['flips']} of {row['steps']}", about(row["max_abs"]), about(row["max_kl"]))


def _narrow(table: Table) -> Table:
    """The table in `WIDTH` characters: its longest texts are cut in the middle, until no text is longer than a few."""
    texts = [list(row) for row in (table.header, *table.rows)]
    most = [max(len(row[i]) for row in texts) for i in range(len(table.header))]
    while _framed(most) > WIDTH and max(most) > _LEAST:
        most[most.index(max(most))] -= 1
    header, *rows = (tuple(cut(text, most[i]) for i, text in enumerate(row)) for row in texts)
    return Table(header, tuple(rows), table.right, table.note)


def _framed(widths: Sequence[int]) -> int:
    """Characters of a line of a table with these columns; `wording.markdown_table` makes none narrower than 3."""
    return sum(max(3, width) + 3 for width in widths) + 1


def _width(table: Table) -> int:
    return len(table.as_text().partition("\n")[0])


def cut(text: str, most: int) -> str:
    """A text of at most so many characters: what is too much is left out in its middle, where texts differ least.

    >>> cut("bf16,rounding=stochastic:16:7", 15), cut("bf16", 15)
    ('bf16,ro…ic:16:7', 'bf16')
    """
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


# --- the work ---------------------------------------------------------------------------------------------------------


def sweep(
    grid: Grid,
    out: str | Path,
    *,
    workers: int = 1,
    backend: str = "numpy",
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Do every cell of the grid that has no row in the folder `out`, and collect all rows in out/table.parquet.

    `workers`: local processes. `scheduler`: the address of a Dask cluster in their place. `backend`: of every worker,
    `numpy` or `numba`; not a bit depends on any of them. A cell that cannot be done is a row with its error; it is
    tried again by the next sweep into the folder.
    **Raises** GridError for a word that means nothing by itself, before anything runs; SweepError where the folder
    cannot be written or another sweep writes into it, the cluster not be reached, or a package is missing.
    """
    if workers < 1:
        raise SweepError(f"workers is {workers}: at least 1 does the work.")
    kit_of(backend)
    grid.check()
    store = Store(out)
    with store.alone():
        models = opened(grid.models)
        pairs = list(grid.places(models))
        cells, places = tuple(dict.fromkeys(cell for cell, _ in pairs)), tuple(place for _, place in pairs)
        store.keep_grid(grid, places)
        todo = store.missing(cells)
        counter = _Counter(progress, len(cells) - len(todo), len(cells))
        how = How(backend, _recipes_of_files(cells))
        for row in rows_of(todo, models=models, how=how, workers=workers, scheduler=scheduler, tick=counter.tick):
            store.put(row)
            counter.count()
        rows = store.rows(places)
        store.collect(rows)
    return Sweep(grid, store.table, tuple(rows), places)


def load(out: str | Path) -> Sweep:
    """What lies in the folder of a sweep, one that is still at work too; nothing is run, no model is opened.

    **Raises** SweepError where no sweep lies there.
    """
    if not Path(out).is_dir():
        raise SweepError(f"{out} is no folder of a sweep. Say what is to be swept.")
    store = Store(out)
    grid, places = store.kept_grid()
    return Sweep(grid, store.table, tuple(store.rows(places)), places)


def _recipes_of_files(cells: Sequence[Cell]) -> dict[str, Any]:
    texts = {text for cell in cells for text in (cell.recipe, cell.reference) if is_of_file(text)}
    return {text: recipe_of_text(text) for text in texts}


class _Counter:
    """Tells a progress how many cells are done, also while one is at work."""

    def __init__(self, progress: Progress | None, done: int, total: int) -> None:
        self._progress, self._done, self._total = progress, done, total
        self.tick()

    def tick(self) -> None:
        if self._progress is not None:
            self._progress("cells", self._done, self._total)

    def count(self) -> None:
        self._done += 1
        self.tick()
