"""Whole forward passes: in passes a product, a decode step against a prefill, and several workers against one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.passes import RECIPES, model_of, passes, products_of
from benchmarks.rows import Goal, Row
from benchmarks.settings import Settings
from benchmarks.timing import in_passes, paired, perf_counter

TOKENS = 5
MANY_TOKENS = 32  # of a prompt of some lines: the products are then nearly all of a pass
OTHER_RECIPES = {
    "f32, rounded products": "storage=f32,product=f32",
    "f16, f16 accumulator, lanes:8": "storage=f16,acc=f16,order=lanes:8",
    "exact sums of bf16": "storage=bf16,acc=exact",
}
STEP_GOALS = {"numpy": Goal(0.5)}
WORKERS_GOAL = Goal(1.7, "at least")


def rows(settings: Settings) -> Iterator[Row]:
    """Every recipe in passes, on both models; then decode steps; then workers."""
    cases = [("tiny", name) for name in RECIPES | OTHER_RECIPES]
    cases += [("smollm2", name) for name in RECIPES if settings.model == "smollm2"]
    for model, name in cases:
        for backend in settings.backends:
            yield _in_passes(model, name, backend, settings)
    for name in RECIPES:
        for backend in settings.backends:
            yield _step(name, backend, settings)
    for tokens in (TOKENS, MANY_TOKENS):
        for name in list(RECIPES)[:2]:
            for backend in settings.backends:
                yield _workers(name, backend, tokens, settings)


def _in_passes(model: str, name: str, backend: str, settings: Settings) -> Row:
    products = products_of(model_of(model).config, TOKENS)
    with passes(model, (RECIPES | OTHER_RECIPES)[name], backend) as ours:
        spent, _, ratio = in_passes(ours.prefill(TOKENS), np.float32, settings.rounds)
    what = f"{model}, {TOKENS} tokens, {name}"
    return Row("forward", what, ratio / products, "float32 passes a product", backend, seconds=spent, terms=products)


def _step(name: str, backend: str, settings: Settings) -> Row:
    """One token after the prefill of five, against that prefill."""
    with passes(settings.model, RECIPES[name], backend) as ours:
        prefill = ours.prefill(TOKENS)
        held = prefill()
        step = partial(ours.step, held)  # a position further each time
        spent, _, ratio = paired(step, prefill, settings.rounds)
    what = f"{settings.model}, decode step after {TOKENS} tokens, {name}"
    products = products_of(model_of(settings.model).config, 1)
    goal = STEP_GOALS.get(backend)
    return Row("forward", what, ratio, "of the prefill", backend, seconds=spent, terms=products, goal=goal)


def _workers(name: str, backend: str, tokens: int, settings: Settings) -> Row:
    """One worker's time over that of as many as there are cores."""
    model, text, many = settings.model, RECIPES[name], settings.cores
    with passes(model, text, backend) as one, passes(model, text, backend, many) as several:
        pair = paired(several.prefill(tokens), one.prefill(tokens), settings.rounds, perf_counter)
    what = f"{model}, {tokens} tokens, {many} workers against 1, {name}"
    terms = products_of(model_of(model).config, tokens)
    unit = "times as fast as 1 worker"
    return Row(
        "forward", what, 1 / pair.ratio, unit, backend, many, seconds=pair.seconds, terms=terms, goal=WORKERS_GOAL
    )
