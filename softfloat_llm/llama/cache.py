"""The key and value cache: an explicit value, whose storage formats can be seen.

With a scale (an option of `kv.k` and `kv.v`) it holds x / scale, and attention gets that times scale.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from softfloat_llm.errors import RecipeError, TokenError
from softfloat_llm.llama.config import Config
from softfloat_llm.llama.taps import Taps, as_scaled, held_in, stored
from softfloat_llm.numerics import ops
from softfloat_llm.numerics.carriers import carry, widen
from softfloat_llm.numerics.formats import Array, Format, f32
from softfloat_llm.numerics.rounding import round_wide
from softfloat_llm.numerics.scaled import narrowing_counts
from softfloat_llm.recipe import Recipe
from softfloat_llm.site_specs import SiteSpec


def kept(x: Array, spec: SiteSpec, given: Format) -> Taps:
    """What the cache stores of x (..., C), values of the format `given`.

    **Rounds:** x over a scale other than 1 to the format of `quotient` (`given`, or f32 as vLLM's kernels have it);
    then as the option `blocks` says; then to the cache's format.
    """
    scale = scale_of(spec)
    between = given if spec.options["quotient"] == "given" else spec.format_of("quotient")
    scaled = x if scale == 1 else ops.div(widen(x), scale, between)
    decoded, lost = as_scaled(scaled, spec.options["blocks"])
    held = stored(decoded, spec.storage, spec.precision)
    if lost is None and not given.is_subset_of(spec.storage):
        lost = narrowing_counts(scaled, held, spec.storage)
    return Taps(x, None, held, enter_format=given, lost=lost)


def read_back(held: Array, spec: SiteSpec) -> Array:
    """What attention gets of what the cache holds (..., C). **Rounds:** with a scale other than 1, the product to f32.

    **Source:** vLLM (ceb47f43), csrc/quantization/w8a8/fp8/nvidia/quant_utils.cuh: `__float2bfloat16(tmp * scale)`.
    """
    scale = scale_of(spec)
    return held if scale == 1 else carry(round_wide(widen(held) * scale, f32), f32)


def scale_of(spec: SiteSpec) -> float:
    """The scale of a site of the cache, as f32 holds it."""
    return _scale_in_f32(spec.options["scale"])


@cache
def _scale_in_f32(word: str) -> float:
    return held_in(float(word), f32)


class KVCache:
    """Keys (after rotation) and values of the positions seen so far, each in its own format.

    `k_format`, `v_format` are those of the recipe's sites `kv.k` and `kv.v`. `length` positions are filled. `padding`
    (B,) counts the positions at the left of each row that hold no token.
    """

    def __init__(self, config: Config, recipe: Recipe, batch: int = 1, padding: Array | None = None) -> None:
        self._specs = recipe.at("kv.k"), recipe.at("kv.v")
        self.k_format: Format = self._specs[0].storage
        self.v_format: Format = self._specs[1].storage
        self.batch = batch
        self.padding = np.zeros(batch, np.int64) if padding is None else np.asarray(padding, np.int64)
        if self.padding.shape != (batch,) or (self.padding < 0).any():
            raise TokenError(f"padding counts positions of each of {batch} sequences: found {self.padding.tolist()}.")
        self.limit, self.window = config.position_limit, config.sliding_window
        self.attention_multiplier = config.attention_multiplier
        shape = (batch, 0, config.num_key_value_heads, config.head_dim)
        self._k = [_Rows(np.zeros(shape, self.k_format.dtype)) for _ in range(config.num_hidden_layers)]
        self._v = [_Rows(np.zeros(shape, self.v_format.dtype)) for _ in range(config.num_hidden_layers)]
        self.length = 0

    def __repr__(self) -> str:
        k, v = _spelled(*self._specs)
        return f"KVCache({self.batch} x {self.length} positions, k {k}, v {v})"

    def append(self, layer: int, k: Array, v: Array) -> None:
        """Put k, v (B, T, G, C), already in the cache's formats, behind what the layer holds."""
        self._k[layer].append(k)
        self._v[layer].append(v)

    def keys(self, layer: int) -> Array:
        """(B, S, G, C) in `k_format`."""
        return self._k[layer].held

    def values(self, layer: int) -> Array:
        """(B, S, G, C) in `v_format`."""
        return self._v[layer].held

    def read(self, layer: int) -> tuple[Array, Array]:
        """Keys and values (B, S, G, C) as attention gets them: those held, or in f32 where there is a scale."""
        return read_back(self.keys(layer), self._specs[0]), read_back(self.values(layer), self._specs[1])

    def check_fit(self, batch: int, recipe: Recipe) -> None:
        """Raises TokenError or RecipeError where a pass of so many sequences under a recipe cannot extend it."""
        if batch != self.batch:
            raise TokenError(f"The cache holds {self.batch} sequences, the tokens are {batch}.")
        held, asked = _spelled(*self._specs), _spelled(recipe.at("kv.k"), recipe.at("kv.v"))
        if asked != held:
            raise RecipeError(
                f"The cache holds k in {held[0]} and v in {held[1]}, but the recipe {recipe.name} asks for"
                f" {asked[0]} and {asked[1]}. Make a new cache for it."
            )

    def make_room(self, count: int) -> None:
        """Raises TokenError where `count` more positions would exceed the model's range."""
        if self.length + count > self.limit:
            raise TokenError(
                f"{self.length} positions and {count} more exceed max_position_embeddings = {self.limit}."
                " Use a shorter prompt or fewer steps."
            )
        check_window(self.length + count, self.window)


class _Rows:
    """Rows (B, S, ...) that more are put behind, with room for some: what is there already is seldom moved."""

    def __init__(self, room: Array) -> None:
        self._room, self.held = room, room

    def append(self, rows: Array) -> None:
        count, more = self.held.shape[1], self.held.shape[1] + rows.shape[1]
        if more > self._room.shape[1]:
            length = more if count == 0 else max(more, count + count // 2)
            self._room = np.empty((len(rows), length, *rows.shape[2:]), self._room.dtype)
            self._room[:, :count] = self.held
        np.copyto(self._room[:, count:more], rows, casting="equiv")
        self.held = self._room[:, :more]


def check_window(length: int, window: int | None) -> None:
    """Raises TokenError where a pass of so many positions would need the window: then not every key is seen."""
    if window is not None and length > window:
        raise TokenError(
            f"{length} positions exceed sliding_window = {window}: each position would see only the last {window},"
            f" which is not computed here. Use at most {window} positions (the prompt, and all steps but one)."
        )


def _spelled(*specs: SiteSpec) -> list[str]:
    return [str(spec.storage) + (f" times {scale}" if (scale := scale_of(spec)) != 1 else "") for spec in specs]
