"""Queries in blocks, of two kinds that have nothing to do with each other.

Of an engine: flash attention takes queries in blocks, each a product of its own, over the keys that it can see. Whether
a recipe has that is a site's option `queries`; what a rule such as `order if M == 2` calls M is then the rows of a
block. That can be seen in the bits: `in_query_blocks`.

Of memory: attention over a long context is made for some `Queries` after the others, so that nothing of the size of
queries times keys is there at once. That moves no bit: `in_turn`, in which what cannot be parted is one block.

Shape letters: T query positions, S key positions, H heads, N columns, n queries of a block, W keys that are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from softfloat_llm.llama.taps import IN_VECTORS, Taps
from softfloat_llm.numerics.formats import Array
from softfloat_llm.numerics.orders import Order
from softfloat_llm.recipe import Scope
from softfloat_llm.site_specs import SiteSpec

SCORES_AT_ONCE = 1 << 20
"""Scores (n, H, S) of a block of memory: float64 temporaries of 8 MiB, of which a softmax has about ten."""
MOST_ROWS = 64
"""Queries of a block of memory, at most: of their keys, all but the last 64 are seen by each of them."""


class Queries(NamedTuple):
    """Some of T queries, from the `first` on, and the S keys of all of them: the last query sees each.

    What is made for n of them over their keys is (n, H, W): W is S, or as many keys as the last of them sees.
    """

    first: int
    positions: int
    length: int

    def sees(self, t: int) -> int:
        """How many keys query t of these sees."""
        return self.length - self.positions + self.first + t + 1


def whole(positions: int, length: int) -> Queries:
    """All T queries of S keys."""
    return Queries(0, positions, length)


# --- blocks of an engine ----------------------------------------------------------------------------------------------


def block_rows(positions: int, spec: SiteSpec) -> int:
    """How many queries are one product.

    **Source:** PyTorch 2.13, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp, flash_attention_kernel_impl.
    """
    if spec.options["queries"] == "all":
        return positions
    return 256 if positions >= 768 else 64 if positions >= 192 else 32


class Product(NamedTuple):
    """One product: some rows of the queries at hand over the first `keys` keys, and its M and N (or K) in rules."""

    rows: slice
    keys: int
    sizes: tuple[int, int]


def in_query_blocks(
    count: int, width: int, queries: Queries, spec: SiteSpec, over_keys: Sequence[str], make: Callable[[Product], Taps]
) -> Taps:
    """The taps of n queries (whole blocks), `make` giving those of one product, over at most W keys.

    Of the stages `over_keys` the last axis is the keys: a block's are as wide as it has keys, and are filled with 0.
    """
    rows = block_rows(queries.positions, spec)
    if queries.positions <= rows:
        return make(Product(slice(0, count), width, (queries.positions, queries.length)))
    assert queries.first % rows == 0
    products = []
    for start in range(0, count, rows):
        end = min(start + rows, count)
        keys = queries.sees(end - 1)
        products.append(Product(slice(start, end), keys, (end - start, keys)))
    return _stacked([make(product) for product in products], over_keys, width)


def _stacked(parts: list[Taps], over_keys: Sequence[str], width: int) -> Taps:
    """The taps of blocks of queries one after another."""
    starts = [0, *accumulate(len(part.out) for part in parts)]

    def terms(index: tuple[int, ...]) -> tuple[int, int]:
        block = int(np.searchsorted(starts, index[0], side="right")) - 1
        tell = parts[block].terms
        assert tell is not None
        return tell((index[0] - starts[block], *index[1:]))

    def stage(name: str) -> Array:
        arrays = [getattr(part, name) for part in parts]
        joined: Array = np.concatenate([_as_wide(array, width) for array in arrays] if name in over_keys else arrays)
        return joined

    told = terms if all(part.terms is not None for part in parts) else None
    enter, acc, out = stage("enter"), stage("acc"), stage("out")
    is_finite = all(part.is_finite for part in parts)
    return parts[-1].with_out(out, is_finite=is_finite)._replace(enter=enter, acc=acc, terms=told)


def _as_wide(array: Array, width: int) -> Array:
    """An array (n, H, N) with 0 up to a width of the last axis."""
    return np.pad(array, ((0, 0), (0, 0), (0, width - array.shape[-1])))


# --- blocks of memory -------------------------------------------------------------------------------------------------

OF_ATTENTION = ("attn.scale", "attn.scores", "attn.mask", "attn.softmax", "attn.pv")
_PRODUCTS = ("attn.scores", "attn.pv")
_OVER_KEYS = ("attn.softmax", "attn.pv")


class Block(NamedTuple):
    """Some rows of the queries, as `Queries`, and how many keys are looked at for them."""

    rows: slice
    queries: Queries
    width: int


def in_turn(queries: Queries, heads: int, recipe: Scope) -> list[Block]:
    """T queries over S keys in blocks that can be made one after the other, and give the bits of all at once.

    One block where a site rounds by random words, which an element's place in the whole array counts, or where a rule
    speaks of the place of an element. Later keys are not looked at where a sum that has them as terms of 0 is the same
    without them.
    """
    whole_block = Block(slice(0, queries.positions), queries, queries.length)
    rows = max(1, min(MOST_ROWS, SCORES_AT_ONCE // max(1, heads * queries.length)))
    if rows >= queries.positions:
        return [whole_block]
    specs = {site: recipe.at(site) for site in OF_ATTENTION}
    if any(spec.precision.is_stochastic or _is_by_place(spec) for spec in specs.values()):
        return [whole_block]
    own = min(block_rows(queries.positions, specs[site]) for site in _PRODUCTS)
    if own < queries.positions:  # whole blocks of the engine
        rows = own * max(1, rows // own)
    is_cut = all(_is_shape_free(specs[site]) for site in _OVER_KEYS) and not _is_by_vector(specs["attn.softmax"])
    return [_block(start, rows, queries, is_cut) for start in range(0, queries.positions, rows)]


def _block(start: int, rows: int, queries: Queries, is_cut: bool) -> Block:
    stop = min(start + rows, queries.positions)
    return Block(
        slice(start, stop), queries._replace(first=start), queries.sees(stop - 1) if is_cut else queries.length
    )


def _is_by_place(spec: SiteSpec) -> bool:
    """True where a rule speaks of an element's place, or may have random words, which count it."""
    return any(rule.when is not None and (rule.when.has_place or "rounding" in rule.key) for rule in spec.rules)


def _is_by_vector(spec: SiteSpec) -> bool:
    words = (spec.options["exp"], *(rule.word for rule in spec.rules if rule.key == "exp"))
    return any(word in IN_VECTORS for word in words)


def _is_shape_free(spec: SiteSpec) -> bool:
    """True where no order that the site can have is moved by further terms of 0."""
    orders = [Order(rule.word) for rule in spec.rules if rule.key == "order"]
    return all(order.is_shape_free for order in (spec.precision.order, *orders))
