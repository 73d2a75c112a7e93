"""Runs of SmolLM2 that several tests look at, each made once: half a minute for 20 steps."""

from __future__ import annotations

from functools import cache

from softfloat_llm.io.checkpoint import Model, open_model
from softfloat_llm.io.fetch import cached_smollm2
from softfloat_llm.runs import Run, simulate

FRANCE = (504, 3575, 282, 4649, 314)
"""The prompt of the experiments: The capital of France is."""


@cache
def smollm2() -> Model:
    """The model. Only for tests with the mark `smollm2`, which are skipped where it is not in the cache."""
    folder = cached_smollm2()
    assert folder is not None
    return open_model(folder)


@cache
def free_run(recipe: str, tokens: tuple[int, ...] = FRANCE, steps: int = 1) -> Run:
    """A run that is fed its own tokens; the logits are the only tap."""
    return simulate(tokens=tokens, model=smollm2(), recipe=recipe, steps=steps, taps=())


@cache
def taught_run(recipe: str) -> Run:
    """A run that is fed the 20 tokens that the recipe f32 chose."""
    teacher = free_run("f32", steps=20)
    return simulate(tokens=teacher.tokens, model=smollm2(), recipe=recipe, teacher=teacher, taps=())
