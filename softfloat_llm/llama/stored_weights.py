"""Weights as a recipe's sites store them: rounded, or decoded from blocks that share a scale, when first asked for."""

from __future__ import annotations

from softfloat_llm.errors import RecipeError
from softfloat_llm.llama.taps import as_scaled, stored
from softfloat_llm.llama.weights import Weights
from softfloat_llm.numerics.formats import Array, format_of
from softfloat_llm.numerics.mapped import give_back
from softfloat_llm.numerics.scaled import Counts
from softfloat_llm.recipe import Recipe
from softfloat_llm.site_specs import SiteSpec

_KEPT = 1 << 29  # bytes of rounded weights that are kept between passes; the others are rounded again each time


class StoredWeights:
    """Weights as the recipe's sites store them, each rounded when it is first asked for.

    A tensor that lies in the storage format already, or in a narrower one, is passed on as it is (memory mapped).
    `lost` counts what scaled storage (the option `weights`) clipped, flushed or made NaN, by tensor.
    """

    def __init__(self, weights: Weights, recipe: Recipe) -> None:
        self.weights, self.recipe, self.config = weights, recipe, weights.config
        self.lost: dict[str, Counts] = {}
        self._rounded: dict[tuple[str, str, str], Array] = {}
        self._bytes = 0

    def __getitem__(self, name: str) -> Array:
        return self.weights[name]

    def check_fit(self, recipe: Recipe) -> None:
        """Raises RecipeError where the weights were stored for a recipe that says other things."""
        if recipe is not self.recipe and recipe.words() != self.recipe.words():
            raise RecipeError(
                f"These weights are stored as the recipe {self.recipe.name} asks, not {recipe.name}: make"
                " StoredWeights of the recipe of the pass."
            )

    def release(self, prefix: str) -> None:
        """Give back the memory of the mapped tensors whose names begin so, of a large checkpoint."""
        if self.weights.is_large:
            for name, tensor in self.weights.items():
                if name.startswith(prefix):
                    give_back(tensor)

    def linear(self, site: str, name: str) -> tuple[Array, Array | None]:
        """The weight (N, K) and bias (N,) or None of a linear layer, in the site's storage."""
        spec = self.recipe.at(site)
        scaling = spec.options["weights"]
        if name == "lm_head":
            return self._at(spec, "lm_head.weight", self.weights.lm_head, scaling), None
        bias = self.weights.get(f"{name}.bias")
        weight = self._at(spec, f"{name}.weight", self.weights[f"{name}.weight"], scaling)
        return weight, None if bias is None else self._at(spec, f"{name}.bias", bias, "plain")

    def _at(self, spec: SiteSpec, name: str, tensor: Array, scaling: str) -> Array:
        if scaling == "plain" and format_of(tensor.dtype).is_subset_of(spec.storage):
            return tensor
        key = (name, str(spec.precision), scaling)
        if key in self._rounded:
            return self._rounded[key]
        decoded, lost = as_scaled(tensor, scaling)
        rounded = stored(decoded, spec.storage, spec.named(name).precision)
        if lost is not None:
            self.lost[name] = lost
        if self._bytes + rounded.nbytes <= _KEPT:
            self._rounded[key] = rounded
            self._bytes += rounded.nbytes
        return rounded
