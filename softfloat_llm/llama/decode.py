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


def argmax(row: Array, trace: Trace | None = None, *, ties: str = "lowest", name: str = "") -> int:
    """The index of the largest logit, the lowest index among equals, or the last one. row (V,).

    Raises NonFiniteError where the row holds NaN: no token is taken from it. `name` says of which prompt it is.
    """
    if np.isnan(row).any():
        first = f" It began here: {trace.events[0]}." if trace and trace.events else ""
        count = np.count_nonzero(np.isnan(row))
        raise NonFiniteError(f"{name}The logits hold {count} NaN, so no token can be chosen.{first}")
    return reduce.argmax(row, ties)


def check_length(prompt: int, steps: int, limit: int) -> None:
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

    The logits of all T positions are those that the trace keeps of `lm_head.out`. `steps` tokens are chosen: the first
    from the prompt's last row, each next one after feeding the token before it: the run's own (free running), or the
    `teacher`'s (teacher forced). T = len(prompt) + max(steps - 1, 0).
    """
    teachers = None if teacher is None else [teacher]
    [decoded] = decode_together(
        weights, [prompt], recipe, steps, teachers=teachers, traces=[trace], crew=crew, step=step
    )
    return decoded


def decode_together(
    weights: StoredWeights,
    prompts: Sequence[Sequence[int]],
    recipe: Recipe,
    steps: int,
    *,
    teachers: Sequence[Sequence[int]] | None = None,
    traces: Sequence[Trace],
    names: Sequence[str] = (),
    crew: Crew = ALONE,
    step: Step | None = None,
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """`decode` of several prompts, all in each pass, the shorter ones padded at the left. `names` are for errors."""
    longest = max(len(prompt) for prompt in prompts)
    cache = KVCache(weights.config, recipe, len(prompts), np.array([longest - len(prompt) for prompt in prompts]))
    check_length(longest, steps, cache.limit)
    check_window(longest + max(steps - 1, 0), cache.window)
    layers, passes = weights.config.num_hidden_layers, max(steps, 1)
    fed, chosen = [list(prompt) for prompt in prompts], [list[int]() for _ in prompts]

    def last_rows(ids: Sequence[Sequence[int]], place: int) -> Array:
        report = None if step is None else lambda layer, _: step(place * layers + layer, passes * layers)
        logits = forward(weights, ids, recipe, cache, traces, crew=crew, step=report, is_last_enough=True)
        last: Array = logits[:, -1]
        return last

    rows = last_rows([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], 0)
    for place in range(steps):
        for b, row in enumerate(rows):
            chosen[b].append(argmax(row, traces[b], ties=recipe.ties, name=names[b] if names else ""))
        if place + 1 == steps:
            break
        for b, tokens in enumerate(fed):
            tokens.append(chosen[b][-1] if teachers is None else teachers[b][place])
        rows = last_rows([tokens[-1:] for tokens in fed], place + 1)
    return [(tuple(c), tuple(f)) for c, f in zip(chosen, fed, strict=True)]
