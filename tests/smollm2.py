"""Runs of SmolLM2 that several tests look at, each made once: half a minute for 20 steps."""

from __future__ import annotations

from functools import cache

from softfloat_llm.claims.bench import FRANCE, Bench
from softfloat_llm.io.checkpoint import Model, open_model
from softfloat_llm.io.fetch import cached_smollm2
from softfloat_llm.runs import Run


@cache
def smollm2() -> Model:
    """The model. Only for tests with the mark `smollm2`, which are skipped where it is not in the cache."""
    folder = cached_smollm2()
    assert folder is not None
    return open_model(folder)


@cache
def bench() -> Bench:
    """The model with the runs that were made of it."""
    return Bench(smollm2())


def free_run(recipe: str, tokens: tuple[int, ...] = FRANCE, steps: int = 1) -> Run:
    """A run that is fed its own tokens; the logits are the only tap."""
    return bench().run(recipe, tokens, steps=steps)


def taught_run(recipe: str) -> Run:
    """A run that is fed the 20 tokens that the recipe f32 chose."""
    return bench().taught(recipe)
