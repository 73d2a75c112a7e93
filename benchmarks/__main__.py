"""`python -m benchmarks [PART …]`: the parts named, or all of them, whose results are then written down."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded: ratios are of one core with one core
os.environ.setdefault("MKL_NUM_THREADS", "1")

from benchmarks import (
    bench_exact,
    bench_forward,
    bench_growth,
    bench_large,
    bench_long,
    bench_matmul,
    bench_memory,
    bench_peers,
    bench_profile,
    bench_torch,
    machine,
    records,
    tables,
)
from benchmarks.rows import Row
from benchmarks.settings import Part, Settings, settings_of
from softfloat_llm.errors import nearest

PARTS: dict[str, Part] = {
    "matmul": bench_matmul.rows, "exact": bench_exact.rows, "peers": bench_peers.rows, "growth": bench_growth.rows,
    "forward": bench_forward.rows, "profile": bench_profile.rows, "torch": bench_torch.rows,
    "memory": bench_memory.rows, "large": bench_large.rows, "long": bench_long.rows,
}  # fmt: skip
TITLES = {
    name: (sys.modules[part.__module__].__doc__ or "").strip().partition("\n\n")[0] for name, part in PARTS.items()
}


def main(words: Sequence[str] | None = None) -> int:
    """0, or 1 where a part failed."""
    asked = _parser().parse_args(words)
    settings = settings_of(is_quick=asked.quick)
    facts, rows, has_failed = machine.described(), [], False
    for name in asked.parts or PARTS:
        print(f"\n==== {name}: {TITLES[name]}", flush=True)
        for row in found(name, settings):
            rows.append(row)
            has_failed |= row.note.startswith("failed: ")
            print(tables.line(row), flush=True)
    folder = asked.out or (None if asked.parts or asked.quick else records.RESULTS)
    if folder is not None:
        print("\nwritten:", *records.write(rows, facts, TITLES, folder))
    if folder == records.RESULTS:
        readme = records.FOLDER / "README.md"
        readme.write_text(records.with_recorded(readme.read_text(encoding="utf-8"), rows, facts), encoding="utf-8")
    return int(has_failed)


def found(name: str, settings: Settings) -> Iterator[Row]:
    """The rows of a part; one that says so where it fails in the middle."""
    try:
        for row in PARTS[name](settings):
            yield replace(row, goal=None) if settings.is_quick else row
    except Exception as error:
        traceback.print_exc()
        yield Row(name, f"{name}, the rest", note=f"failed: {type(error).__name__}: {error}".splitlines()[0])


def _part(name: str) -> str:
    """The name of a part. Raises what argparse tells of its arguments."""
    if name not in PARTS:
        raise argparse.ArgumentTypeError(f"{name!r} is no part.{nearest(name, PARTS)} Known: {', '.join(PARTS)}.")
    return name


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", type=_part, help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round: only whether everything runs")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the results there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
