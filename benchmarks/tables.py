"""Rows as Markdown, and as JSON. Nothing here writes a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.machine import sentence
from benchmarks.regions import REGIONS
from benchmarks.rows import Row, milliseconds, significant

SCHEMA = "softfloat-llm/benchmarks/1"
_HEAD = ("what", "backend", "workers", "ms", "ns a term", "ratio", "goal or note")
_GOALS = ("what", "backend", "workers", "ratio", "goal", "verdict")


def line(row: Row) -> str:
    """A row on the screen."""
    ratio = f"{significant(row.value)} {row.unit}" if row.value is not None else ""
    cells = (f"{_what(row):72}", f"{row.backend:6}", f"{row.workers}", f"{milliseconds(row.seconds):>8} ms", ratio)
    return "  ".join((*cells, *filter(None, (_goal(row), row.note)))).rstrip()


def as_json(rows: Sequence[Row], machine: dict[str, Any]) -> str:
    found = {"schema": SCHEMA, "machine": machine, "rows": [row.to_dict() for row in rows]}
    return json.dumps(found, sort_keys=True, indent=1) + "\n"


def as_markdown(rows: Sequence[Row], machine: dict[str, Any], titles: dict[str, str]) -> str:
    """The goals first, then every part."""
    parts = [f"# Results\n\n{sentence(machine)}\n\nHow to read them: [../README.md](../README.md).\n"]
    parts.append(f"## Goals\n\n{goals(rows)}\n")
    for part in dict.fromkeys(row.part for row in rows):
        mine = [row for row in rows if row.part == part]
        table = profile(mine) if any(row.shares for row in mine) else _table(_HEAD, map(_cells, mine))
        parts.append(f"## {part}\n\n{titles.get(part, '')}\n\n{table}\n")
    return "\n".join(parts)


def goals(rows: Iterable[Row]) -> str:
    """The rows that have a goal."""
    cells = (
        (row.what, row.backend, _workers(row), _ratio(row), str(row.goal), row.verdict)
        for row in rows
        if row.goal is not None
    )
    return _table(_GOALS, cells)


def profile(rows: Sequence[Row]) -> str:
    """A table a recipe and kind of pass: the share of each region, by backend."""
    tables = []
    for what in dict.fromkeys(row.what for row in rows):
        mine = [row for row in rows if row.what == what]
        head = ("part of the time", *(f"{row.backend}" for row in mine))
        cells: list[tuple[str, ...]] = [
            (f"{region}: {about}", *(f"{100 * row.shares.get(region, 0.0):.1f} %" for row in mine))
            for region, about in REGIONS.items()
        ]
        cells.append(("whole pass", *(f"{milliseconds(row.seconds)} ms" for row in mine)))
        tables.append(f"**{what}**\n\n{_table(head, cells)}")
    return "\n\n".join(tables)


def _cells(row: Row) -> tuple[str, ...]:
    words = "; ".join(filter(None, (_goal(row), row.note)))
    return (
        _what(row),
        row.backend,
        _workers(row),
        milliseconds(row.seconds),
        significant(row.ns_a_term),
        _ratio(row),
        words,
    )


def _what(row: Row) -> str:
    """With the place on its curve, where it is a point of one (the workers have a column of their own)."""
    return row.what if row.x is None or row.what.startswith("workers") else f"{row.what}, {row.x:g}"


def _workers(row: Row) -> str:
    return str(row.workers) if row.backend else ""


def _ratio(row: Row) -> str:
    return "" if row.value is None else f"{significant(row.value)} {row.unit}"


def _goal(row: Row) -> str:
    return "" if row.goal is None else f"{row.goal}: {row.verdict}"


def _table(head: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    return "\n".join(lines)
