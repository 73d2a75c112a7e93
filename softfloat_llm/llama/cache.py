"""The key and value cache: an explicit value, whose storage formats can be seen."""

from __future__ import annotations

import numpy as np

from softfloat_llm.errors import RecipeError, TokenError
from softfloat_llm.llama.config import Config
from softfloat_llm.numerics.formats import Array, Format
from softfloat_llm.recipe import Recipe


class KVCache:
    """Keys (after rotation) and values of the positions seen so far, each in its own format.

    `k_format`, `v_format` are those of the recipe's sites `kv.k` and `kv.v`. `length` positions are filled. `padding`
    (B,) counts the positions at the left of each row that hold no token.
    """

    def __init__(self, config: Config, recipe: Recipe, batch: int = 1, padding: Array | None = None) -> None:
        self.k_format: Format = recipe.at("kv.k").storage
        self.v_format: Format = recipe.at("kv.v").storage
        self.batch = batch
        self.padding = np.zeros(batch, np.int64) if padding is None else np.asarray(padding, np.int64)
        if self.padding.shape != (batch,) or (self.padding < 0).any():
            raise TokenError(f"padding counts positions of each of {batch} sequences: found {self.padding.tolist()}.")
        self.limit = config.max_position_embeddings
        shape = (batch, 0, config.num_key_value_heads, config.head_dim)
        self._k = [np.zeros(shape, self.k_format.dtype) for _ in range(config.num_hidden_layers)]
        self._v = [np.zeros(shape, self.v_format.dtype) for _ in range(config.num_hidden_layers)]
        self.length = 0

    def __repr__(self) -> str:
        return f"KVCache({self.batch} x {self.length} positions, k {self.k_format}, v {self.v_format})"

    def append(self, layer: int, k: Array, v: Array) -> None:
        """Put k, v (B, T, G, C), already in the cache's formats, behind what the layer holds."""
        self._k[layer] = np.concatenate([self._k[layer], k], axis=1)
        self._v[layer] = np.concatenate([self._v[layer], v], axis=1)

    def keys(self, layer: int) -> Array:
        """(B, S, G, C) in `k_format`."""
        return self._k[layer]

    def values(self, layer: int) -> Array:
        """(B, S, G, C) in `v_format`."""
        return self._v[layer]

    def check_fit(self, batch: int, recipe: Recipe) -> None:
        """Raises TokenError or RecipeError where a pass of so many sequences under a recipe cannot extend it."""
        if batch != self.batch:
            raise TokenError(f"The cache holds {self.batch} sequences, the tokens are {batch}.")
        asked = recipe.at("kv.k").storage, recipe.at("kv.v").storage
        if asked != (self.k_format, self.v_format):
            raise RecipeError(
                f"The cache holds k in {self.k_format} and v in {self.v_format}, but the recipe {recipe.name} asks for"
                f" {asked[0]} and {asked[1]}. Make a new cache for it."
            )

    def make_room(self, count: int) -> None:
        """Raises TokenError where `count` more positions would exceed the model's range."""
        if self.length + count > self.limit:
            raise TokenError(
                f"{self.length} positions and {count} more exceed max_position_embeddings = {self.limit}."
                " Use a shorter prompt or fewer steps."
            )
