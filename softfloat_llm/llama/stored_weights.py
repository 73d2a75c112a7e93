"""Weights as a recipe's sites store them: rounded, or decoded from blocks that share a scale, when first asked for.

A product takes the columns of W^T side by side, where a checkpoint has the rows of W. What is kept between passes is
therefore kept turned: the transpose of an array in Fortran's order is one in C's.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np

from softfloat_llm.errors import RecipeError
from softfloat_llm.llama.taps import as_scaled, stored
from softfloat_llm.llama.weights import Weights
from softfloat_llm.numerics.extents import unchanging
from softfloat_llm.numerics.formats import Array, Format, format_of
from softfloat_llm.numerics.mapped import give_back
from softfloat_llm.numerics.scaled import Counts
from softfloat_llm.recipe import Recipe
from softfloat_llm.site_specs import SiteSpec

_KEPT = 1 << 29  # bytes of weights that are kept between passes; the others are rounded, and turned, again each time
_TURNED_AT_ONCE = 128  # rows: a strip whose cache lines are still there when their next words are taken


class StoredWeights:
    """Weights as the recipe's sites store them, each rounded when it is first asked for.

    A tensor that lies in the storage format already, or in a narrower one, is passed on as it is (memory mapped); when
    a linear layer asks for it again, it is kept turned, unless the checkpoint is large.
    `lost` counts what scaled storage (the option `weights`) clipped, flushed or made NaN, by tensor.
    """

    def __init__(self, weights: Weights, recipe: Recipe) -> None:
        self.weights, self.recipe, self.config = weights, recipe, weights.config
        self.lost: dict[str, Counts] = {}
        self._kept: dict[tuple[str, str, str], Array] = {}
        self._bytes, self._asked = 0, Counter[str]()

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
        is_plain = scaling == "plain" and _holds(spec.storage, tensor.dtype)
        if is_plain:
            self._asked[name] += 1
            if tensor.ndim == 1 or self.weights.is_large or self._asked[name] < 2:
                return tensor
        key = (name, "", "") if is_plain else (name, str(spec.precision), scaling)
        if key in self._kept:
            return self._kept[key]
        weight = tensor if is_plain else self._rounded(spec, name, tensor, scaling)
        return self._keep(key, weight)

    def _rounded(self, spec: SiteSpec, name: str, tensor: Array, scaling: str) -> Array:
        decoded, lost = as_scaled(tensor, scaling)
        if lost is not None:
            self.lost[name] = lost
        return stored(decoded, spec.storage, spec.named(name).precision)

    def _keep(self, key: tuple[str, str, str], weight: Array) -> Array:
        """The weight, turned and kept where there is room."""
        if self._bytes + weight.nbytes > _KEPT:
            return weight
        turned = unchanging(_turned(weight))
        self._kept[key] = turned
        self._bytes += turned.nbytes
        return turned


@cache
def _holds(storage: Format, dtype: np.dtype[Any]) -> bool:
    """True where every value of a tensor's format is one of the storage format."""
    return format_of(dtype).is_subset_of(storage)


def _turned(weight: Array) -> Array:
    """The same values in Fortran's order. weight (N, K), or anything of one dimension."""
    turned = np.empty(weight.shape, weight.dtype, order="F")
    codes = f"u{weight.dtype.itemsize}"  # which NumPy moves faster than the dtypes of others
    source, target = weight.view(codes), turned.view(codes)
    for start in range(0, len(weight), _TURNED_AT_ONCE):
        target[start : start + _TURNED_AT_ONCE] = source[start : start + _TURNED_AT_ONCE]
    return turned
