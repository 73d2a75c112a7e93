"""Greedy decoding and teacher forcing: which token a row of logits chooses, and what is fed next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from softfloat_llm.errors import NonFiniteError, TokenError
from softfloat_llm.llama.cache import KVCache, check_window
from softfloat_llm.llama.forward import Step, forward
from softfloat_llm.llama.stored_weights import StoredWeights
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.crew import ALONE, Crew
from softfloat_llm.numerics.formats import Array
from softfloat_llm.recipe import Recipe
from softfloat_llm.trace import Trace


def argmax(row: Array, trace: Trace | None = None, *, ties: str = "lowest") -> int:
    """The index of the largest logit, the lowest index among equals, or the last one. row (V,).

    Raises NonFiniteError where the row holds NaN: no token is taken from it.
    """
    if np.isnan(row).any():
        first = f" It began here: {trace.events[0]}." if trace and trace.events else ""
        count = np.count_nonzero(np.isnan(row))
        raise NonFiniteError(f"The logits hold {count} NaN, so no token can be chosen.{first}")
    return reduce.argmax(row, ties)


def _check_length(prompt: int, steps: int, limit: int) -> None:
    """Raises TokenError where the prompt and the tokens fed after it need more positions than the model has."""
    needed = prompt + max(steps - 1, 0)
    if needed > limit:
        room = f"at most {limit - prompt + 1} steps" if prompt <= limit else "a shorter prompt"
        raise TokenError(
            f"{prompt} prompt tokens and {steps} steps need {needed} positions, which exceed max_position_embeddings ="
            f" {limit}: take {room}."
        )


def decode(
    weights: StoredWeights,
    prompt: Sequence[int],
    recipe: Recipe,
    steps: int,
    *,
    teacher: Sequence[int] | None = None,
    trace: Trace,
    crew: Crew = ALONE,
    step: Step | None = None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Feed the prompt, then one token a step. Returns the tokens chosen, and the tokens fed (T).

    The logits of all T positions are those that the trace keeps of `lm_head.out`.
    `steps` tokens are chosen: the first from the prompt's last row, each next one after feeding the token before it:
    the run's own (free running), or the `teacher`'s (teacher forced). T = len(prompt) + max(steps - 1, 0).
    """
    cache = KVCache(weights.config, recipe)
    _check_length(len(prompt), steps, cache.limit)
    check_window(len(prompt) + max(steps - 1, 0), cache.window)
    layers = weights.config.num_hidden_layers
    passes = max(steps, 1)
    fed, chosen = list(prompt), list[int]()

    def report(done: int) -> Step | None:
        return None if step is None else lambda layer, _: step(done * layers + layer, passes * layers)

    def last_row(tokens: Sequence[int], place: int) -> Array:
        logits = forward(weights, tokens, recipe, cache, trace, crew=crew, step=report(place), is_last_enough=True)
        row: Array = logits[-1]
        return row

    row = last_row(prompt, 0)
    for place in range(steps):
        chosen.append(argmax(row, trace, ties=recipe.ties))
        if place + 1 == steps:
            break
        fed.append(chosen[-1] if teacher is None else teacher[place])
        row = last_row(fed[-1:], place + 1)
    return tuple(chosen), tuple(fed)
