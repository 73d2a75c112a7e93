"""A dry run: what would become of a run if its matrix products were summed otherwise, such as with `acc=f16`.

Two things are told. The run made again with those words: which sums leave their range, and what becomes of the logits.
And how large the partial sums of the run itself are (in float64, in the order of its recipe), so that the headroom is
known where nothing overflows. Start reading at `what_if`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from softfloat_llm.analysis.answers import Table, counted
from softfloat_llm.analysis.distances import absolute, differs
from softfloat_llm.analysis.numbers import about, jsonable
from softfloat_llm.analysis.step_logits import fed_again
from softfloat_llm.analysis.taps import Tap, forward_order
from softfloat_llm.analysis.verdicts import choice
from softfloat_llm.analysis.wording import token_words
from softfloat_llm.errors import RunError
from softfloat_llm.io.checkpoint import Model
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.formats import Array, Format, f32
from softfloat_llm.numerics.partials import partial_sums
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.recipe import PRECISION_FLAGS, Recipe, recipe_of
from softfloat_llm.sites import LINEAR, MATMUL

if TYPE_CHECKING:
    from softfloat_llm.runs import Run

SHOWN_SITES = 8
Operands = tuple[Array, Array]
"""a (M, K) and b (K, N) of one matrix product."""


@dataclass(frozen=True)
class PartialRange:
    """The sums of one site of one layer: of K terms each, their results, partial sums, and sums of magnitudes.

    No order of the same terms has a partial sum beyond `any_order` (summed in f32, so to three digits or more).
    """

    place: str
    site: str
    layer: int | None
    terms: int
    largest_result: float
    largest_partial: float
    at: tuple[int, ...]
    any_order: float

    def to_dict(self) -> dict[str, Any]:
        """JSON: plain numbers, strings, lists."""
        return {
            "place": self.place,
            "site": self.site,
            "layer": self.layer,
            "terms": self.terms,
            "largest_result": jsonable(self.largest_result),
            "largest_partial": jsonable(self.largest_partial),
            "at": list(self.at),
            "any_order": jsonable(self.any_order),
        }


@dataclass(frozen=True)
class WhatIf:
    """What `words` would do to a run: where sums leave their range (`events`), the logits, and the sums' sizes."""

    words: str
    recipe: Recipe
    format: Format
    """The accumulator of `lm_head` in the dry run: whose largest value the partial sums are held against."""
    events: tuple[str, ...]
    not_finite: int
    max_abs: float
    """The largest change of a logit; inf where one is not finite."""
    flips: int
    positions: int
    told: tuple[str, str]
    """What the last position chooses, in the run and in the dry run."""
    partials: tuple[PartialRange, ...]

    @property
    def worst(self) -> PartialRange | None:
        return max(self.partials, key=lambda one: one.largest_partial, default=None)

    def sentences(self) -> list[str]:
        if self.events:
            lines = [
                f"With {self.words} {counted(len(self.events), 'site')} leave the range, the first: {self.events[0]}."
            ]
        else:
            lines = [f"With {self.words} nothing leaves the range."]
        if self.worst is not None:
            most = self.worst.largest_partial
            room = about(self.format.max / most) if most else "inf"
            limit = f"{self.format}'s {about(self.format.max, 5)}"
            where = f"{about(most)}, at {self.worst.place}"
            lines.append(f"The run's largest partial sum is {where}; the headroom to {limit} is {room}.")
        if self.not_finite:
            return [*lines, f"{counted(self.not_finite, 'logit')} would not be finite."]
        moved = f"{self.told[0]} -> {self.told[1]}" if self.told[0] != self.told[1] else f"stays {self.told[0]}"
        change = f"The logits would change by up to {about(self.max_abs)}; the last token {moved}"
        return [*lines, f"{change}, {self.flips} of {counted(self.positions, 'position')} flip."]

    def tables(self, *, verbose: bool = False) -> list[Table]:
        """Each site's largest sums over all layers, the largest first; `verbose`: each layer."""
        header = (
            "sums",
            "terms",
            "result",
            "partial sum",
            f"headroom to {about(self.format.max, 5)}",
            "at",
            "in any order",
        )
        shown = self.partials if verbose else _worst_of_sites(self.partials)
        rows = tuple(
            (
                one.place,
                str(one.terms),
                about(one.largest_result),
                about(one.largest_partial),
                about(self.format.max / one.largest_partial if one.largest_partial else math.inf),
                str(list(one.at)),
                about(one.any_order),
            )
            for one in sorted(shown, key=lambda one: -one.largest_partial)
        )
        table = Table(header, rows, right=(1, 2, 3, 4, 6))
        return [table if verbose else table.cut(SHOWN_SITES)]

    def to_dict(self) -> dict[str, Any]:
        """JSON: plain numbers, strings, lists."""
        return {
            "words": self.words,
            "recipe": {"name": self.recipe.name, "site": self.recipe.words()},
            "format": str(self.format),
            "events": list(self.events),
            "not_finite": self.not_finite,
            "max_abs": jsonable(self.max_abs),
            "flips": self.flips,
            "positions": self.positions,
            "last": list(self.told),
            "partials": [one.to_dict() for one in self.partials],
        }


def what_if(run: Run, words: str, model: Model, *, workers: int = 1) -> WhatIf:
    """What `KEY=WORD` pairs, put upon a run's recipe, would do to it: `acc=f16`, or `mlp.down_proj.acc=f16`.

    The run keeps what its matrix products take (`*.in`) and what the cache holds (`*.kv.*.out`); its tokens are fed
    again. **Rounds:** the partial sums of the run's operands in float64. **Raises** RecipeError for unknown words,
    RunError where the run did not keep these taps.
    """
    recipe = with_words(run.recipe, words)
    dry = fed_again(run, run.fed, recipe, model, workers)
    x, y = (one["logits"].astype(np.float64) for one in (dry, run))
    chosen = [[choice(row, one.recipe.ties).token for row in one["logits"]] for one in (run, dry)]
    last = [token_words("" if tokens[-1] is None else run.piece(tokens[-1]), tokens[-1]) for tokens in chosen]
    acc = recipe.at("lm_head").precision.acc.format
    return WhatIf(
        words=words,
        recipe=recipe,
        format=f32 if acc is None else acc,
        events=tuple(str(event) for event in dry.events),
        not_finite=int(np.count_nonzero(~np.isfinite(x))),
        max_abs=float(absolute(x, y, differs(x, y)).max()),
        flips=len([1 for one, other in zip(*chosen, strict=True) if one != other]),
        positions=len(x),
        told=(last[0], last[1]),
        partials=tuple(_partials(run, model)),
    )


def with_words(base: Recipe, words: str) -> Recipe:
    """A recipe with `KEY=WORD` or `SITE.KEY=WORD` pairs put upon it. Raises RecipeError for other words."""
    pairs = [part.strip() for part in words.split(",")]
    flags = [pair for pair in pairs if "=" in pair and pair.partition("=")[0].strip() in (*PRECISION_FLAGS, "kv")]
    given = {key.strip(): word.strip() for key, _, word in (pair.partition("=") for pair in flags)}
    return Recipe(recipe_of(base), at=[pair for pair in pairs if pair not in flags], **given)


# --- the sums of a run ------------------------------------------------------------------------------------------------


def _partials(run: Run, model: Model) -> Iterator[PartialRange]:
    taps = [tap for tap in forward_order(run.arrays) if tap.site in MATMUL and tap.stage == "in"]
    if not taps:
        raise RunError("A dry run needs what the matrix products took: run with --taps '*' (and save that).")
    for tap in taps:
        yield _partials_of(tap, run, list(operands(tap, run, model)))


def _partials_of(tap: Tap, run: Run, products: Sequence[Operands]) -> PartialRange:
    at = _in_float64(run.recipe.at(tap.site).precision)
    found = [partial_sums(a, b, at) for a, b in products]
    place, index = max(
        ((i, int(np.argmax(one.largest))) for i, one in enumerate(found)),
        key=lambda pair: found[pair[0]].largest.flat[pair[1]],
    )
    row, column = (int(i) for i in np.unravel_index(index, found[place].largest.shape))
    sizes = [np.abs(reduce.matmul(np.abs(_wide(a)), np.abs(_wide(b)), "storage=f32,acc=f32")) for a, b in products]
    return PartialRange(
        place=tap.name.removesuffix(".in"),
        site=tap.site,
        layer=tap.layer,
        terms=products[0][0].shape[1],
        largest_result=max(float(np.abs(one.total).max()) for one in found),
        largest_partial=float(found[place].largest.max()),
        at=(row, column) if tap.site in LINEAR else (place, row, column),
        any_order=max(float(size.max()) for size in sizes),
    )


def _wide(x: Array) -> Array:
    return np.asarray(round_to(x, f32))


def _in_float64(at: Precision) -> Precision:
    """The same terms in the same order, summed in float64; one after another where a matrix unit adds several."""
    order = "seq" if at.order.adder is not None else at.order
    return Precision(storage=at.storage, product=at.product, acc="f64", output="f64", order=order)


def operands(tap: Tap, run: Run, model: Model) -> Iterator[Operands]:
    """The matrix products of a site, from what the run kept and the model's weights.

    Of a linear layer there is one; of attention one for each group of heads, of scores for each query with its keys.
    """
    taken, storage = run.arrays[tap.name], run.recipe.at(tap.site).storage
    if tap.site in LINEAR:
        yield taken, np.asarray(round_to(weight_of(tap, model), storage)).T
        return
    which = "kv.k" if tap.site == "attn.scores" else "kv.v"
    held = _cached(run, f"layers.{tap.layer}.{which}.out", which)
    groups = held.shape[1]
    share = taken.shape[1] // groups
    for group in range(groups):
        left = taken[:, group * share : (group + 1) * share]
        right = np.asarray(round_to(held[:, group], storage))
        yield from _by_query(left, right) if which == "kv.k" else _all_queries(left, right)


def _by_query(left: Array, keys: Array) -> Iterator[Operands]:
    """Each query with the keys that it sees. left (T, R, C), keys (S, C)."""
    for t in range(len(left)):
        yield left[t], keys[: len(keys) - len(left) + t + 1].T


def _all_queries(left: Array, values: Array) -> Iterator[Operands]:
    """All queries with all values: what a query does not see has the weight 0. left (T, R, S), values (S, C)."""
    yield left.reshape(-1, left.shape[-1]), values


def _cached(run: Run, name: str, site: str) -> Array:
    """What attention gets of the cache, (S, G, C): what it holds times its scale."""
    if name not in run.arrays:
        raise RunError(f"A dry run needs what the cache held: the run does not keep {name}. Run with --taps '*'.")
    held = run.arrays[name].astype(np.float64)
    scale = float(round_to(run.recipe.at(site).number_of("scale"), f32))
    return held if scale == 1 else np.asarray(round_to(held * scale, f32))


def weight_of(tap: Tap, model: Model) -> Array:
    """The weight (N, K) of a linear layer's tap, by the names of a checkpoint."""
    if tap.site == "lm_head":
        return model.weights.lm_head
    block, name = tap.site.split(".")
    weights: Mapping[str, Array] = model.weights
    return weights[f"model.layers.{tap.layer}.{'self_attn' if block == 'attn' else block}.{name}.weight"]


def _worst_of_sites(found: Sequence[PartialRange]) -> list[PartialRange]:
    """Of each site the layer with the largest partial sum."""
    worst: dict[str, PartialRange] = {}
    for one in found:
        if one.site not in worst or one.largest_partial > worst[one.site].largest_partial:
            worst[one.site] = one
    return list(worst.values())
