"""Writes what a whole run found: results.json, results.md and the pictures; and the README's recorded part."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.machine import sentence
from benchmarks.rows import Row

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
_START, _STOP = "<!-- recorded: `make bench` rewrites from here -->", "<!-- to here -->"


def write(rows: Sequence[Row], machine: dict[str, Any], titles: dict[str, str], folder: Path) -> list[Path]:
    """The files that it wrote. Without matplotlib there are no pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "results.json": tables.as_json(rows, machine),
        "results.md": tables.as_markdown(rows, machine, titles),
    }
    if find_spec("matplotlib"):
        from benchmarks.plots import pictures

        files |= dict(pictures(rows))
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def with_recorded(readme: str, rows: Sequence[Row], machine: dict[str, Any]) -> str:
    """The README with these goals and this machine between its two marks."""
    before, _, rest = readme.partition(_START)
    after = rest.partition(_STOP)[2]
    return f"{before}{_START}\n\n{sentence(machine)}\n\n{tables.goals(rows)}\n\n{_STOP}{after}"
