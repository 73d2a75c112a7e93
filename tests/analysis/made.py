"""Small runs made by hand: two positions, three taps, four ids, any format."""

from __future__ import annotations

import numpy as np

from softfloat_llm.numerics.formats import format_of
from softfloat_llm.numerics.reduce import argmax
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.recipe import recipe_of
from softfloat_llm.runs import Run

LOGITS = [[1.0, 2.0, 3.0, 0.5], [20.0, 22.375, 22.25, -4.0]]  # the last row: ids 1 and 2 are 1 bf16 ulp apart
ACT = [[0.5, -1.0], [2.0, 4.0]]


def made_run(
    recipe="f32",
    *,
    logits=LOGITS,
    act=ACT,
    prompt=(5, 6),
    generated=None,
    fed=None,
    digest="sha256:weights",
    events=(),
    more=None,
):
    """A Run whose logits and activations are these values, rounded to the format of the recipe's logits."""
    chosen = recipe_of(recipe)
    fmt = chosen.at("lm_head").output
    taps = {"embed.out": act, "layers.0.mlp.act.out": act, **(more or {}), "lm_head.out": logits}
    arrays = {name: round_to(np.array(values, np.float64), fmt) for name, values in taps.items()}
    rows = arrays["lm_head.out"][len(prompt) - 1 :].astype(np.float64)
    return Run(
        model="made",
        model_digest=digest,
        config={},
        recipe=chosen,
        prompt_tokens=tuple(prompt),
        generated=tuple(argmax(row, chosen.ties) for row in rows) if generated is None else tuple(generated),
        fed=tuple(prompt) if fed is None else tuple(fed),
        is_teacher_forced=False,
        arrays=arrays,
        formats=dict.fromkeys(arrays, format_of(fmt)),
        events=tuple(events),
        pieces={1: " the", 2: " a"},
    )


def changed(values, place, value):
    """A copy of nested lists with one element changed."""
    array = np.array(values, np.float64)
    array[place] = value
    return array.tolist()
