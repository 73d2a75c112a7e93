"""The sums that a forward pass of a Llama makes in PyTorch, shape by shape, each revealed: what a recipe's rules need.

Start reading at `revealed_sums`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from softfloat_llm.analysis.recognise import KERNELS, Shape
from softfloat_llm.errors import LiveError, ProbeError
from softfloat_llm.live.attention_kernels import Flash, SoftmaxSum
from softfloat_llm.live.attention_orders import PlacedTree, score_orders, softmax_order, value_orders
from softfloat_llm.live.kernels import LiveKernel, place_conditions, reveal_places
from softfloat_llm.live.torch_kernels import torch_linear, torch_mean, torch_pv, torch_scores
from softfloat_llm.llama.config import Config
from softfloat_llm.numerics.formats import Format, f32
from softfloat_llm.numerics.orders import Order
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.trees import Tree
from softfloat_llm.sites import LINEAR

Progress = Callable[[str, int, int], None]
_QUERIES = ((768, 256), (192, 64), (0, 32))  # flash attention: from so many queries on, blocks of so many


@dataclass(frozen=True)
class Way:
    """How the sums at some places of a product are made: the words of a rule. order None: the tree has no name.

    `entering`: which terms enter a sum unrounded makes a difference here.
    """

    place: str
    order: str | None
    tree: Tree
    product: str = "exact"
    subnormals: str = "keep"
    entering: bool = False


@dataclass(frozen=True)
class ShapeFound:
    """A site's sums at one shape, and the ways in which they are made: the most frequent one last, for all places."""

    sites: tuple[str, ...]
    dims: Mapping[str, int]
    ways: tuple[Way, ...]


@dataclass(frozen=True)
class _Wanted:
    """Sums that are to be revealed: `reveal` gives their ways, for what was learned before (precisions)."""

    what: str
    sites: tuple[str, ...]
    dims: Mapping[str, int]
    reveal: Callable[[list[Precision]], tuple[Way, ...]]


def revealed_sums(
    config: Config, fmt: Format, attention: str, lengths: Iterable[int], progress: Progress | None = None
) -> tuple[list[ShapeFound], list[str]]:
    """The sums of prefills of these lengths, and of one cached step after each, with a batch of one.

    Also what could not be revealed, in words. PyTorch runs as it is set up here (`torch_host.configured`).
    """
    found, known = [], list[Precision]()
    has_bias = config.attention_bias or config.qkv_bias or config.mlp_bias
    problems = ["linear layers have a bias here, and were revealed without it"] if has_bias else []
    wanted = list(_wanted(config, fmt, attention, sorted(set(lengths))))
    for place, each in enumerate(wanted):
        if progress is not None:
            progress("kernels", place, len(wanted))
        try:
            found.append(ShapeFound(each.sites, each.dims, each.reveal(known)))
        except (ProbeError, LiveError) as error:
            problems.append(f"{each.what}: {error}")
    return [shape for alike in _by_sites(found) for shape in _renamed(alike)], problems


def _by_sites(shapes: Sequence[ShapeFound]) -> list[list[ShapeFound]]:
    sites = dict.fromkeys(shape.sites for shape in shapes)
    return [[shape for shape in shapes if shape.sites == own] for own in sites]


def _wanted(config: Config, fmt: Format, attention: str, lengths: Sequence[int]) -> Iterator[_Wanted]:
    rows = sorted({1, *lengths})
    for sites, columns, terms in _linear_shapes(config):
        for m in rows:
            yield _product(sites, {"M": m, "N": columns, "K": terms}, torch_linear(m, columns, terms, fmt))
    for m in rows:
        yield _product(("norm",), {"M": m, "K": config.hidden_size}, torch_mean(m, config.hidden_size, f32))
    heads, size = config.num_attention_heads, config.head_dim
    for site, count in (("norm.q", heads), ("norm.k", config.num_key_value_heads)) if config.qk_norm else ():
        for m in rows:
            yield _product((site,), {"M": m, "K": size}, torch_mean(m * count, size, f32))
    for m, keys in _passes(lengths):
        if attention == "eager":
            shape = {"M": m, "N": keys, "K": size, "B": heads}
            yield _product(("attn.scores",), shape, torch_scores(heads, m, keys, size, fmt))
            yield _product(("attn.pv",), shape | {"N": size, "K": keys}, torch_pv(heads, m, size, keys, fmt))
            yield _softmax(heads, m, keys)
        elif keys > 1:
            yield from _flash(config, m, keys, fmt)


def _passes(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """(queries, keys) of each prefill, and of the cached step after it."""
    return [*((n, n) for n in lengths), *((1, n + 1) for n in lengths if n + 1 not in lengths or n + 1 > 1)]


def _linear_shapes(config: Config) -> list[tuple[tuple[str, ...], int, int]]:
    """(sites, N, K) of the linear layers, those of one shape together."""
    hidden, mlp = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    shared = config.num_key_value_heads * config.head_dim
    shapes = {
        "attn.q_proj": (queries, hidden), "attn.k_proj": (shared, hidden), "attn.v_proj": (shared, hidden),
        "attn.o_proj": (hidden, queries), "mlp.gate_proj": (mlp, hidden), "mlp.up_proj": (mlp, hidden),
        "mlp.down_proj": (hidden, mlp), "lm_head": (config.vocab_size, hidden),
    }  # fmt: skip
    assert set(shapes) == set(LINEAR)
    grouped: dict[tuple[int, int], tuple[str, ...]] = {}
    for site, shape in shapes.items():
        grouped[shape] = (*grouped.get(shape, ()), site)
    return [(sites, *shape) for shape, sites in grouped.items()]


# --- sums that are asked in bits ------------------------------------------------------------------------------------


def _product(sites: tuple[str, ...], dims: Mapping[str, int], kernel: LiveKernel) -> _Wanted:
    def ways(known: list[Precision]) -> tuple[Way, ...]:
        sets = reveal_places(kernel, known)
        for each in sets:
            if each.precision is None:
                findings = each.revealed.findings if each.revealed else ()
                raise ProbeError("; ".join(findings) or "nothing was confirmed")
            if each.precision not in known and each.precision.order.text != "tree:@revealed":
                known.insert(0, each.precision)
        shape = kernel.shape[1:3] if kernel.takes == "products" else (kernel.shape[0], 1)
        places = [each.places for each in sets]
        told = [(place, each.precision) for place, each in zip(place_conditions(places, shape), sets, strict=True)]
        return tuple(_way(place, at, kernel.terms) for place, at in reversed(told) if at is not None)

    return _Wanted(kernel.what, sites, dims, ways)


def _way(place: str, at: Precision, terms: int) -> Way:
    words = set(at.subnormals)
    if len(words) > 1:
        raise LiveError(f"What is flushed differs from stage to stage, {at.subnormals}: no rule can speak of it.")
    named = at.order.text != "tree:@revealed"
    name = at.order.text if named else None
    word, is_wide = words.pop(), at.acc.format is None or 2 * at.storage.precision <= at.acc.format.precision
    entering = at.product is None and (word != "keep" or not is_wide)
    return Way(place, name, at.order.tree(terms), str(at.product or "exact"), word, entering)


# --- sums inside attention ------------------------------------------------------------------------------------------


def _softmax(heads: int, rows: int, keys: int) -> _Wanted:
    kernel = SoftmaxSum(heads, rows, keys)
    dims = {"M": rows, "K": keys}
    return _Wanted(kernel.what, ("attn.softmax",), dims, lambda _: _placed([softmax_order(kernel)], ()))


def _flash(config: Config, rows: int, keys: int, fmt: Format) -> Iterator[_Wanted]:
    """The products of each block of queries of flash attention, but for those over one key."""
    block = next(size for least, size in _QUERIES if rows >= least)
    heads, groups, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    for first in range(0, rows, block):
        kernel = Flash(heads, groups, rows, keys, size, fmt, first, min(first + block, rows) - 1)
        if kernel.seen > 1:
            yield from _of_block(kernel)


def _of_block(kernel: Flash) -> Iterator[_Wanted]:
    dims = {"M": kernel.shape[1], "B": kernel.heads, "T": kernel.rows}
    scores, values = dims | {"N": kernel.seen, "K": kernel.size}, dims | {"N": kernel.size, "K": kernel.seen}
    yield _Wanted(
        f"{kernel.what}, scores", ("attn.scores",), scores, lambda _: _placed(score_orders(kernel), kernel.shape[1:])
    )
    yield _Wanted(
        f"{kernel.what}, values", ("attn.pv",), values, lambda _: _placed(_of_all_rows(kernel), (1, kernel.size))
    )


def _of_all_rows(kernel: Flash) -> list[PlacedTree]:
    """The last row of the block stands for all of it."""
    found = value_orders(kernel)
    return [PlacedTree(each.places * np.array([1, 0, 1]), each.tree) for each in found if each.places is not None]


def _placed(found: Sequence[PlacedTree], shape: Sequence[int]) -> tuple[Way, ...]:
    conditions = place_conditions([each.places for each in found if each.places is not None], shape) if shape else [""]
    ways = [Way(words, each.name, each.tree) for words, each in zip(conditions, found, strict=True)]
    return tuple(reversed(ways))


# --- one name for many shapes ---------------------------------------------------------------------------------------


def _renamed(shapes: Sequence[ShapeFound]) -> list[ShapeFound]:
    """The shapes of the same sites with as few different orders as there can be: short sums have many names."""
    wanted = {id(way): way for shape in shapes for way in shape.ways}
    names = list(dict.fromkeys([*(way.order for way in wanted.values() if way.order is not None), *KERNELS]))
    fitting = {name: {key for key, way in wanted.items() if _fits(name, way)} for name in names}
    chosen: dict[int, str] = {}
    while len(chosen) < len(wanted) and fitting:
        name = max(names, key=lambda name: len(fitting[name] - chosen.keys()))
        if not fitting[name] - chosen.keys():
            break
        chosen |= dict.fromkeys(fitting[name] - chosen.keys(), name)
    return [
        replace(shape, ways=tuple(replace(way, order=chosen.get(id(way))) for way in shape.ways)) for shape in shapes
    ]


def _fits(name: str, way: Way) -> bool:
    return way.order == name or Shape(Order(name).tree(way.tree.n)).is_same(Shape(way.tree), entering=way.entering)
