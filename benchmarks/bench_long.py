"""A long context in little memory: 2,048 tokens of SmolLM2, in a process of its own.

The most memory that the process ever held, mapped weights and all logits included; and what a token costs, as a ratio
of what it costs in a prompt of 256.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.peaks import found_by
from benchmarks.rows import Goal, Row
from benchmarks.settings import Settings

LENGTHS = (256, 2048)
GOAL = Goal(1.5)  # GB
RECIPES = ("storage=bf16,acc=f32",)
_RUN = """
import sys, time
import numpy as np
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.runs import simulate
model = open_model(sys.argv[1])
tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, int(sys.argv[3])).tolist()
began = time.perf_counter()
run = simulate(tokens=tokens, model=model, recipe=sys.argv[2], taps=())
seconds = time.perf_counter() - began
told = [seconds, run.digest]
"""


def rows(settings: Settings) -> Iterator[Row]:
    """Each recipe: the memory of the longest prompt, then the seconds a token as a ratio of the shortest's."""
    lengths = (16, 64) if settings.is_quick else LENGTHS if settings.model == "smollm2" else (64, 256)
    for recipe in RECIPES:
        short, long = (found_by(_RUN, settings.model, recipe, str(length)) for length in lengths)
        seconds, digest = long.told
        what = f"{settings.model}, {lengths[1]:,} tokens, {recipe}"
        yield Row("long", what, long.gigabytes, "GB at most", "numpy", seconds=seconds, goal=GOAL, note=digest[:23])
        ratio = (seconds / lengths[1]) / (short.told[0] / lengths[0])
        yield Row("long", f"{what}: a token", ratio, f"times one of {lengths[0]}", "numpy", seconds=seconds)
