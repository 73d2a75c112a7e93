"""The main job on SmolLM2: the most memory that its process ever held, mapped weights included."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.peaks import found_by
from benchmarks.rows import Goal, Row
from benchmarks.settings import Settings

GOAL = Goal(1.2)  # GB
_RUN = """
import runpy
told = 0
try:
    runpy.run_module("softfloat_llm", run_name="__main__")
except SystemExit as end:
    told = end.code
assert not told, told
"""


def rows(settings: Settings) -> Iterator[Row]:
    """`simulate --storage bf16`, as a process of its own."""
    words = ("simulate", "--model", settings.model, "--storage", "bf16")
    peak, _ = found_by(_RUN, *words)
    yield Row("memory", " ".join(words), peak, "GB at its peak", "numpy", goal=GOAL)
