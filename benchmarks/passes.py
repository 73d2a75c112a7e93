"""Forward passes to be timed: a model with its recipe, its stored weights and its crew; PyTorch's of the same model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec

import numpy as np

from softfloat_llm.io.checkpoint import Model, open_model
from softfloat_llm.llama.cache import KVCache
from softfloat_llm.llama.config import Config
from softfloat_llm.llama.forward import forward
from softfloat_llm.llama.stored_weights import StoredWeights
from softfloat_llm.numerics.crew import Crew
from softfloat_llm.recipe import Recipe, recipe_of

FRANCE = (504, 3575, 282, 4649, 314)  # "The capital of France is", of SmolLM2
RECIPES = {  # name -> the recipe
    "bf16, f32 accumulator": "storage=bf16,acc=f32",
    "bf16, f16 accumulator": "storage=bf16,acc=f16",
    "f16, f16 accumulator": "storage=f16,acc=f16",
}


@cache
def model_of(name: str) -> Model:
    return open_model(name)


def tokens_of(name: str, count: int) -> tuple[int, ...]:
    """So many tokens; the usual prompt first where the model is SmolLM2."""
    first = FRANCE if name == "smollm2" else tuple(range(3, 8))
    rest = np.random.default_rng(0).integers(3, model_of(name).config.vocab_size, max(0, count - len(first)))
    return (*first, *rest.tolist())[:count]


def products_of(config: Config, positions: int) -> int:
    """How many products of a weight and an activation a pass over so many positions forms (attention is extra)."""
    hidden, size = config.hidden_size, config.head_dim
    attention = 2 * hidden * size * (config.num_attention_heads + config.num_key_value_heads)
    layer = attention + 3 * hidden * config.intermediate_size
    return positions * (config.num_hidden_layers * layer + config.vocab_size * hidden)


@dataclass(frozen=True)
class Passes:
    """Passes of one model under one recipe by one crew. Its weights are stored once."""

    model: str
    recipe_text: str
    crew: Crew

    @cached_property
    def recipe(self) -> Recipe:
        return recipe_of(self.recipe_text)

    @cached_property
    def weights(self) -> StoredWeights:
        return _stored(self.model, self.recipe_text)

    def prefill(self, count: int) -> Callable[[], KVCache]:
        """Feeds so many tokens to a new cache, which it gives back."""
        tokens = tokens_of(self.model, count)

        def work() -> KVCache:
            held = KVCache(self.weights.config, self.recipe)
            forward(self.weights, tokens, self.recipe, held, crew=self.crew)
            return held

        return work

    def step(self, held: KVCache) -> None:
        """Feeds one token more."""
        forward(self.weights, tokens_of(self.model, 1), self.recipe, held, crew=self.crew)


@cache
def _stored(model: str, recipe_text: str) -> StoredWeights:
    return StoredWeights(model_of(model).weights, recipe_of(recipe_text))


@contextmanager
def passes(model: str, recipe_text: str, backend: str = "numpy", workers: int = 1) -> Iterator[Passes]:
    """Passes whose crew ends with the context."""
    with Crew(workers, backend) as crew:
        yield Passes(model, recipe_text, crew)


def has_torch() -> bool:
    return find_spec("torch") is not None and find_spec("transformers") is not None


@cache
def torch_pass(model: str, count: int) -> Callable[[], object]:
    """A pass of transformers' model (bf16, eager) over the same tokens."""
    import torch

    from softfloat_llm.live.transformers_model import build
    from softfloat_llm.numerics.formats import format_of

    net, tokens = build(model_of(model), format_of("bf16"), "eager"), torch.tensor([tokens_of(model, count)])

    def work() -> object:
        with torch.inference_mode():
            return net(tokens)

    return work
