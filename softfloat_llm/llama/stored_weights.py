"""Weights as a recipe's sites store them: rounded, or decoded from blocks that share a scale, when first asked for.

A product takes the columns of W^T side by side, where a checkpoint has the rows of W. What is kept between passes is
therefore kept turned: the transpose of an array in Fortran's order is one in C's. Layers of one input lie side by side
there, so that they can be one product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from softfloat_llm.errors import RecipeError
from softfloat_llm.llama.taps import as_scaled, stored
from softfloat_llm.llama.weights import Weights
from softfloat_llm.numerics.extents import unchanging
from softfloat_llm.numerics.formats import Array, Format, format_of
from softfloat_llm.numerics.kernels import strips_of
from softfloat_llm.numerics.mapped import give_back
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.scaled import Counts
from softfloat_llm.numerics.side_by_side import SideBySide
from softfloat_llm.recipe import Recipe
from softfloat_llm.site_specs import SiteSpec

_KEPT = 1 << 29  # bytes of weights that are kept between passes; the others are rounded, and turned, again each time
_TURNED_AT_ONCE = 128  # rows: a strip whose cache lines are still there when their next words are taken


Named = tuple[tuple[str, str], ...]
"""Linear layers of one input, by site and name."""


class Linears(NamedTuple):
    """Linear layers of one input, in the storage of their sites."""

    layers: tuple[tuple[Array, Array | None], ...]
    """The weight (N, K) and bias (N,), or None, of each."""
    turned: SideBySide | None = None
    """All their weights W^T, side by side as a product takes them, where they are kept so."""


class _Kept(NamedTuple):
    """Tensors in storage, as they are kept: each, and those of matrices turned, side by side."""

    each: list[Array]
    turned: SideBySide

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.turned.filled())


class StoredWeights:
    """Weights as the recipe's sites store them, each rounded when it is first asked for.

    A tensor that lies in the storage format already, or in a narrower one, is passed on as it is (memory mapped); when
    a linear layer asks for it again, it is kept turned (a wide one in turned strips), unless the checkpoint is large.
    `lost` counts what scaled storage (the option `weights`) clipped, flushed or made NaN, by tensor.
    """

    def __init__(self, weights: Weights, recipe: Recipe) -> None:
        self.weights, self.recipe, self.config = weights, recipe, weights.config
        self.lost: dict[str, Counts] = {}
        self._kept: dict[tuple[_Key, ...], _Kept] = {}
        self._settled: dict[Named, Linears] = {}
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
        return self.linears(((site, name),)).layers[0]

    def linears(self, named: Named) -> Linears:
        """The same of layers of one input."""
        if named in self._settled:
            return self._settled[named]
        biases = [self._bias(site, name) for site, name in named]
        weights, turned = self._together([self._wanted(site, name) for site, name in named])
        found = Linears(tuple(zip(weights, biases, strict=True)), turned)
        if turned is not None:  # the weights are kept; beside them a bias that is not is small
            self._settled[named] = found
        return found

    def _wanted(self, site: str, name: str) -> _Wanted:
        tensor = self.weights.lm_head if name == "lm_head" else self.weights[f"{name}.weight"]
        spec = self.recipe.at(site)
        return _Wanted(f"{name}.weight", tensor, spec, spec.options["weights"])

    def _bias(self, site: str, name: str) -> Array | None:
        bias = None if name == "lm_head" else self.weights.get(f"{name}.bias")
        if bias is None:
            return None
        (stored,), _ = self._together([_Wanted(f"{name}.bias", bias, self.recipe.at(site), "plain")])
        return stored

    def _together(self, wanted: Sequence[_Wanted]) -> tuple[list[Array], SideBySide | None]:
        """Tensors of one kind in storage; and all as a product takes them, where they are kept so."""
        if len({(each.is_plain, each.tensor.shape[1:], each.tensor.dtype, each.spec.storage) for each in wanted}) > 1:
            return [self._together([each])[0][0] for each in wanted], None
        key = tuple(each.key for each in wanted)
        if key not in self._kept:
            if wanted[0].is_plain and not self._is_worth_keeping(wanted):
                return [each.tensor for each in wanted], None
            stored = [each.tensor if each.is_plain else self._rounded(each) for each in wanted]
            if self._bytes + sum(each.nbytes for each in stored) > _KEPT:
                return stored, None
            self._kept[key] = _in_strips(stored[0]) if wanted[0].is_plain and len(wanted) == 1 else _as_one(stored)
            self._bytes += self._kept[key].nbytes
        return self._kept[key]

    def _is_worth_keeping(self, wanted: Sequence[_Wanted]) -> bool:
        """True for matrices that need no rounding, when they are asked for again, unless the checkpoint is large."""
        self._asked.update(each.name for each in wanted)
        is_new = any(self._asked[each.name] < 2 for each in wanted)
        return not is_new and not self.weights.is_large and wanted[0].tensor.ndim > 1

    def _rounded(self, wanted: _Wanted) -> Array:
        decoded, lost = as_scaled(wanted.tensor, wanted.scaling)
        if lost is not None:
            self.lost[wanted.name] = lost
        spec = wanted.spec
        return stored(decoded, spec.storage, spec.named(wanted.name).precision)


_Key = tuple[str, Precision | None, str]


class _Wanted(NamedTuple):
    """A tensor, and how it is to be stored."""

    name: str
    tensor: Array
    spec: SiteSpec
    scaling: str

    @property
    def is_plain(self) -> bool:
        """True where the storage holds it as it is."""
        return self.scaling == "plain" and _holds(self.spec.storage, self.tensor.dtype)

    @property
    def key(self) -> _Key:
        """What is stored hangs on."""
        return self.name, None if self.is_plain else self.spec.precision, self.scaling


@cache
def _holds(storage: Format, dtype: np.dtype[Any]) -> bool:
    """True where every value of a tensor's format is one of the storage format."""
    return format_of(dtype).is_subset_of(storage)


def _as_one(stored: Sequence[Array]) -> _Kept:
    """Tensors in one array, whose rows are theirs."""
    whole = unchanging(_turned(stored))
    bounds = accumulate(map(len, stored), initial=0)
    each = [whole[start:stop] for start, stop in pairwise(bounds)]
    return _Kept(each, SideBySide(tuple(part.T for part in each), whole.T))


def _in_strips(tensor: Array) -> _Kept:
    """A tensor that lies as it is stored in a checkpoint: of a wide matrix each tile in one piece of memory."""
    strips = list(strips_of(*tensor.T.shape))
    if len(strips) == 1:
        return _as_one([tensor])
    return _Kept([tensor], SideBySide(tuple(unchanging(_turned([tensor[strip]])).T for strip in strips)))


def _turned(weights: Sequence[Array]) -> Array:
    """The same values, one under the other, in Fortran's order. weights (N, K), or of one dimension, of one dtype."""
    first = weights[0]
    turned = np.empty((sum(map(len, weights)), *first.shape[1:]), first.dtype, order="F")
    codes = f"u{first.dtype.itemsize}"  # which NumPy moves faster than the dtypes of others
    rest = turned.view(codes)
    for weight in weights:
        for start in range(0, len(weight), _TURNED_AT_ONCE):
            strip = weight[start : start + _TURNED_AT_ONCE].view(codes)
            rest[: len(strip)] = strip
            rest = rest[len(strip) :]
    return turned
