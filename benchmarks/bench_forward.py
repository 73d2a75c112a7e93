"""A whole forward pass: `python -m benchmarks forward [model]` (tiny, or smollm2 where it has been fetched)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np

from benchmarks.timing import in_passes, perf_counter
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.llama.config import Config
from softfloat_llm.llama.forward import forward
from softfloat_llm.recipe import recipe_of

RECIPES = (
    "storage=f32,product=f32", "storage=bf16,acc=f32", "storage=f16,acc=f32", "storage=f16,acc=f16",
    "storage=f16,acc=f16,order=lanes:8",
)  # fmt: skip
TOKENS = tuple(range(3, 8))


def products_of(config: Config, positions: int) -> int:
    """How many products of a weight and an activation a pass over so many positions forms (attention is extra)."""
    hidden, size = config.hidden_size, config.head_dim
    attention = 2 * hidden * size * (config.num_attention_heads + config.num_key_value_heads)
    layer = attention + 3 * hidden * config.intermediate_size
    return positions * (config.num_hidden_layers * layer + config.vocab_size * hidden)


def main(words: Iterable[str] = ()) -> None:
    """Time a prefill of a few tokens in every recipe."""
    for name in list(words) or ["tiny"]:
        model = open_model(name)
        products = products_of(model.weights.config, len(TOKENS))
        print(f"# {name}: {len(TOKENS)} positions, {products / 1e6:.1f} million products of weights")
        for text in RECIPES:
            recipe = recipe_of(text)
            spent, passes = in_passes(partial(forward, model.weights, TOKENS, recipe), np.float32, 3, perf_counter)
            print(f"{text:44} {spent:8.3f} s {passes / products:8.2f} float32 passes a product")
