"""The main job on SmolLM2: the most memory that its process ever held, mapped weights included."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator

from benchmarks.rows import Goal, Row
from benchmarks.settings import Settings

GOAL = Goal(1.2)  # GB


def rows(settings: Settings) -> Iterator[Row]:
    """`simulate --storage bf16`, as a process of its own."""
    words = ("simulate", "--model", settings.model, "--storage", "bf16")
    peak = peak_gigabytes(words)
    yield Row("memory", " ".join(words), peak, "GB at its peak", "numpy", goal=GOAL)


def peak_gigabytes(words: Iterable[str]) -> float:
    """The largest resident size of the command as a process of its own."""
    child = subprocess.Popen([sys.executable, "-m", "softfloat_llm", *words], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{' '.join(words)} failed")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9
