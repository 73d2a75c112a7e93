"""A long context in little memory: 2,048 tokens of SmolLM2, in a process of its own.

The most memory that the process ever held, mapped weights and all logits included; and what a token costs, as a ratio
of what it costs in a prompt of 256.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.rows import Goal, Row
from benchmarks.settings import Settings

LENGTHS = (256, 2048)
GOAL = Goal(1.5)  # GB
RECIPES = ("storage=bf16,acc=f32",)
_RUN = """
import json, resource, sys, time
import numpy as np
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.runs import simulate
model = open_model(sys.argv[1])
tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, int(sys.argv[3])).tolist()
began = time.perf_counter()
run = simulate(tokens=tokens, model=model, recipe=sys.argv[2], taps=())
seconds = time.perf_counter() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9
print(json.dumps([peak, seconds, run.digest]))
"""


class _Found(NamedTuple):
    """Gigabytes, seconds, digest."""

    peak: float
    seconds: float
    digest: str


def rows(settings: Settings) -> Iterator[Row]:
    """Each recipe: the memory of the longest prompt, then the seconds a token as a ratio of the shortest's."""
    lengths = (16, 64) if settings.is_quick else LENGTHS if settings.model == "smollm2" else (64, 256)
    for recipe in RECIPES:
        short, long = (_of(settings.model, recipe, length) for length in lengths)
        what = f"{settings.model}, {lengths[1]:,} tokens, {recipe}"
        yield Row(
            "long", what, long.peak, "GB at most", "numpy", seconds=long.seconds, goal=GOAL, note=long.digest[:23]
        )
        ratio = (long.seconds / lengths[1]) / (short.seconds / lengths[0])
        yield Row("long", f"{what}: a token", ratio, f"times one of {lengths[0]}", "numpy", seconds=long.seconds)


def _of(model: str, recipe: str, length: int) -> _Found:
    """A run in a process of its own."""
    words = [sys.executable, "-c", _RUN, model, recipe, str(length)]
    return _Found(*json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout))


def main() -> None:
    """Print the rows."""
    for row in rows(Settings()):
        print(f"{row.what}: {row.value:.2f} {row.unit} ({row.seconds:.0f} s) {row.note}")


if __name__ == "__main__":
    main()
