"""Where the rows of a sweep are kept: a Parquet file for each cell as it comes, and one table of all.

OUT/grid.json            what the last sweep into the folder goes through, and where each cell stands in it
OUT/cells/NAME.parquet   one row; written beside, then renamed, so that an interruption leaves no half of it
OUT/table.parquet        all rows, in the grid's order; its bytes depend on the rows alone
OUT/.lock                held while a sweep writes; let go when its process ends, however it ends
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from softfloat_llm.errors import SoftfloatError, SweepError, why
from softfloat_llm.io.atomic import PARTIAL, new_file
from softfloat_llm.sweeps.cell import Row
from softfloat_llm.sweeps.grid import AXES, Cell, Grid, Place, grid_of

GRID_SCHEMA = "softfloat-llm/sweep-grid/1"
COLUMNS = {
    "cell": "string", "model": "string", "prompt": "string", "recipe": "string", "order": "string", "seed": "int64",
    "steps": "int64", "reference": "string", "model_digest": "string", "error": "string", "tokens": "list",
    "reference_tokens": "list", "digest": "string", "reference_digest": "string", "flips": "int64",
    "first_flip": "int64", "ties": "int64", "least_margin": "float64", "margins": "numbers",
    "run_margins": "numbers", "step_abs": "numbers", "max_abs": "float64", "mean_abs": "float64",
    "last_abs": "float64", "max_ulp": "float64", "ulp_format": "string", "max_kl": "float64", "mean_kl": "float64",
}  # fmt: skip
"""Column -> type; `list` is a list of int64, `numbers` one of float64. What a cell with an error has none of is null.

`margins`, `run_margins`, `step_abs`: of each step, the margin of the reference and of the run, and the run's largest
error; `least_margin` is of the reference. `max_abs` and `mean_abs` are of all positions, the prompt's too.
"""


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise SweepError(f"A sweep needs {error.name}: pip install '.[sweep]'.") from None
    return pyarrow


class Store:
    """The folder of a sweep. **Raises** SweepError where pyarrow is missing, or the folder cannot be written."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._arrow = _pyarrow()
        kinds = {"list": self._arrow.list_(self._arrow.int64()), "int64": self._arrow.int64()}
        kinds |= {"numbers": self._arrow.list_(self._arrow.float64())}
        kinds |= {"string": self._arrow.string(), "float64": self._arrow.float64()}
        self._schema = self._arrow.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
        try:
            (self.folder / "cells").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SweepError(
                f"Writing the sweep {folder}: {why(error)}. Choose a folder that can be written."
            ) from None

    @property
    def table(self) -> Path:
        return self.folder / "table.parquet"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder; remove what a killed sweep left half-written. Raises SweepError where another holds it."""
        with open(self.folder / ".lock", "a+", encoding="utf-8") as file:
            self._lock(file)
            for leftover in [*self.folder.glob(f".*{PARTIAL}"), *self.folder.glob(f"cells/.*{PARTIAL}")]:
                leftover.unlink(missing_ok=True)
            yield

    def _lock(self, file: Any) -> None:
        try:
            import fcntl
        except ImportError:  # without such locks two sweeps both work, and write the same rows
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise SweepError(
                f"Another sweep ({file.read().strip() or 'a process'}) is writing into {self.folder}: wait for its end,"
                " or choose another folder."
            ) from None
        except OSError:  # a network's folder that has none
            return
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()

    def keep_grid(self, grid: Grid, places: Sequence[Place]) -> None:
        """Write down what is swept, so that the rows can be read as a grid without the models."""
        body = {
            "schema": GRID_SCHEMA,
            "grid": asdict(grid),
            "axes": AXES,
            "cells": [[p.cell, *p.labels] for p in places],
        }
        self._write_bytes(json.dumps(body, indent=1).encode(), self._grid_path)

    def kept_grid(self) -> tuple[Grid, tuple[Place, ...]]:
        """The grid of the last sweep into the folder. Raises SweepError where there is none."""
        try:
            body = json.loads(self._grid_path.read_text(encoding="utf-8"))
            if body["schema"] != GRID_SCHEMA or tuple(body["axes"]) != AXES:
                raise ValueError(f"its schema is {body['schema']!r}")
            places = tuple(Place(name, tuple(labels)) for name, *labels in body["cells"])
            return grid_of(body["grid"], str(self._grid_path)), places
        except (OSError, ValueError, TypeError, KeyError, SoftfloatError) as error:
            told = why(error, with_file=True)
            raise SweepError(
                f"{self.folder} holds no sweep that can be read ({told}). Say what is to be swept."
            ) from None

    @property
    def _grid_path(self) -> Path:
        return self.folder / "grid.json"

    def put(self, row: Row) -> None:
        """Keep a row, in the place of an earlier one of the same cell."""
        self._write([row], self._path(row["cell"]))

    def get(self, name: str) -> Row | None:
        """The row of a cell, or None where there is none yet, or none that can be read."""
        path = self._path(name)
        if not path.is_file():
            return None
        try:
            rows: list[Row] = self._arrow.parquet.read_table(path, schema=self._schema).to_pylist()
        except (self._arrow.ArrowException, OSError):
            return None
        return rows[0] if len(rows) == 1 and rows[0]["cell"] == name else None

    def missing(self, cells: Sequence[Cell]) -> list[Cell]:
        """The cells that are still to be done: those without a row, and those whose row is an error."""
        rows = {cell: self.get(cell.name) for cell in cells}
        return [cell for cell, row in rows.items() if row is None or row["error"] is not None]

    def rows(self, places: Sequence[Place]) -> list[Row]:
        """The rows that there are, each once, in the order of the places."""
        names = dict.fromkeys(place.cell for place in places)
        return [row for row in map(self.get, names) if row is not None]

    def collect(self, rows: Sequence[Row]) -> None:
        """Write the table of these rows."""
        self._write(list(rows), self.table)

    def _path(self, name: str) -> Path:
        return self.folder / "cells" / f"{name}.parquet"

    def _write(self, rows: list[Row], path: Path) -> None:
        table = self._arrow.Table.from_pylist([{name: row.get(name) for name in COLUMNS} for row in rows], self._schema)
        sink = self._arrow.BufferOutputStream()
        self._arrow.parquet.write_table(table, sink, compression="none")
        self._write_bytes(sink.getvalue(), path)

    def _write_bytes(self, body: Any, path: Path) -> None:
        try:
            with new_file(path) as file:
                file.write(body)
        except OSError as error:
            raise SweepError(f"Writing {path}: {why(error)}.") from None
