"""Where the rows of a sweep are kept: a Parquet file for each cell as it comes, and one table of all.

OUT/cells/NAME.parquet   one row; written beside, then renamed, so that an interruption leaves no half of it
OUT/table.parquet        all rows, in the grid's order; its bytes depend on the rows alone
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softfloat_llm.errors import SweepError
from softfloat_llm.io.atomic import new_file
from softfloat_llm.sweeps.cell import Row
from softfloat_llm.sweeps.grid import Cell

COLUMNS = {
    "cell": "string", "model": "string", "prompt": "string", "recipe": "string", "order": "string", "seed": "int64",
    "steps": "int64", "reference": "string", "error": "string", "tokens": "list", "reference_tokens": "list",
    "digest": "string", "reference_digest": "string", "flips": "int64", "first_flip": "int64", "ties": "int64",
    "least_margin": "float64", "max_abs": "float64", "last_abs": "float64", "max_ulp": "float64",
    "ulp_format": "string", "max_kl": "float64", "mean_kl": "float64",
}  # fmt: skip
"""Column -> type; `list` is a list of int64. What a cell with an error has none of is null."""


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise SweepError(f"A sweep needs {error.name}: pip install 'softfloat-llm[sweep]'.") from None
    return pyarrow


class Store:
    """The folder of a sweep. **Raises** SweepError where pyarrow is missing, or the folder cannot be written."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._arrow = _pyarrow()
        kinds = {"list": self._arrow.list_(self._arrow.int64()), "int64": self._arrow.int64()}
        kinds |= {"string": self._arrow.string(), "float64": self._arrow.float64()}
        self._schema = self._arrow.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
        try:
            (self.folder / "cells").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SweepError(f"Writing the sweep {folder}: {error}. Choose a folder that can be written.") from None

    @property
    def table(self) -> Path:
        return self.folder / "table.parquet"

    def put(self, row: Row) -> None:
        """Keep a row, in the place of an earlier one of the same cell."""
        self._write([row], self._path(row["cell"]))

    def get(self, cell: Cell) -> Row | None:
        """The row of a cell, or None where there is none yet, or none that can be read."""
        path = self._path(cell.name)
        if not path.is_file():
            return None
        try:
            rows: list[Row] = self._arrow.parquet.read_table(path, schema=self._schema).to_pylist()
        except (self._arrow.ArrowException, OSError):
            return None
        return rows[0] if len(rows) == 1 and rows[0]["cell"] == cell.name else None

    def missing(self, cells: Sequence[Cell]) -> list[Cell]:
        """The cells that are still to be done: those without a row, and those whose row is an error."""
        rows = {cell: self.get(cell) for cell in cells}
        return [cell for cell, row in rows.items() if row is None or row["error"] is not None]

    def collect(self, cells: Sequence[Cell]) -> list[Row]:
        """Write the table of these cells, in their order, and give its rows."""
        rows = [row for row in map(self.get, cells) if row is not None]
        self._write(rows, self.table)
        return rows

    def _path(self, name: str) -> Path:
        return self.folder / "cells" / f"{name}.parquet"

    def _write(self, rows: list[Row], path: Path) -> None:
        table = self._arrow.Table.from_pylist([{name: row.get(name) for name in COLUMNS} for row in rows], self._schema)
        try:
            with new_file(path) as file:
                self._arrow.parquet.write_table(table, file, compression="none")
        except OSError as error:
            raise SweepError(f"Writing {path}: {error}.") from None
