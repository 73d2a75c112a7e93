"""The main job on SmolLM2: its memory as a process, and its passes against PyTorch's own bf16 pass, in one run.

`python -m benchmarks simulate`. Needs SmolLM2 (fetched); the ratios need PyTorch and transformers too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

from benchmarks.timing import perf_counter
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.io.fetch import fetch_smollm2
from softfloat_llm.llama.forward import forward
from softfloat_llm.llama.stored_weights import StoredWeights
from softfloat_llm.recipe import recipe_of

TOKENS = (504, 3575, 282, 4649, 314)
COMMAND = ("simulate", "--model", "smollm2", "--storage", "bf16")
MEMORY_GOAL, TIME_GOAL, ROUNDS = 1.2, 15.0, 7


def peak_gigabytes(words: Iterable[str]) -> float:
    """The largest resident size of the command as a process of its own, mapped weights included."""
    child = subprocess.Popen([sys.executable, "-m", "softfloat_llm", *words], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{' '.join(words)} failed")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9


def torch_pass(threads: int) -> Callable[[], Any]:
    """One bf16 forward pass of transformers (eager) over the same tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    options = {"dtype": torch.bfloat16, "attn_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(fetch_smollm2(), **options).eval()

    def run() -> None:
        with torch.inference_mode():
            model(torch.tensor([TOKENS]))

    return run


def seconds_of(work: Callable[[], Any]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def verdict(value: float, goal: float) -> str:
    return "met" if value <= goal else "MISSED"


def main(_: Iterable[str] = ()) -> None:
    """Print the memory, then each pass as a multiple of PyTorch's, timed in turn."""
    peak = peak_gigabytes(COMMAND)
    print(f"{' '.join(COMMAND)}: {peak:.2f} GB at most   (goal {MEMORY_GOAL} GB: {verdict(peak, MEMORY_GOAL)})")
    model = open_model("smollm2")
    recipes = [recipe_of(name) for name in ("bf16", "f32")]
    passes = {r.name: partial(forward, StoredWeights(model.weights, r), TOKENS, r) for r in recipes}
    if find_spec("torch") is None or find_spec("transformers") is None:
        print("PyTorch is not here, so there is nothing to hold the passes against: pip install '.[torch]'")
        return
    for threads in (1, os.cpu_count() or 1):
        peer = torch_pass(threads)
        peer()
        rows: dict[str, list[float]] = {name: [] for name in passes}
        for _ in range(ROUNDS):
            base = seconds_of(peer)
            for name, work in passes.items():
                rows[name].append(seconds_of(work) / base)
        for name, ratios in rows.items():
            ratio = median(ratios)
            what = f"{name} pass of {len(TOKENS)} tokens: {ratio:5.1f} of PyTorch's bf16 pass on {threads} thread(s)"
            print(f"{what}   (goal {TIME_GOAL:.0f}: {verdict(ratio, TIME_GOAL)})")
