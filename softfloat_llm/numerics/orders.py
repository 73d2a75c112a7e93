"""The order of a sum as data, and the tree that it means for n terms.

`Order("blocked:32 > lanes:2")` is parsed once, by `order_text`; `.tree(n)` gives the summation tree, whose nodes are
those of `trees`. Start reading at `Order`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from softfloat_llm.errors import OrderError
from softfloat_llm.numerics import mkl_orders
from softfloat_llm.numerics.adders import Adder
from softfloat_llm.numerics.formats import Format
from softfloat_llm.numerics.order_text import Level, parse
from softfloat_llm.numerics.trees import Chain, Fused, Join, Node, Rounded, Tree, fold

_NUMPY_BLOCK = 128
_SHAPE_FREE = ("seq", "reverse", "lanes", "blocked", "swap", "fused")


class Order:
    """The shape of a summation. `Order(text)` parses the text form; equal texts are equal orders.

    `seq` `reverse` `pairwise` `tree:adj` `tree:half` `tree:@FILE` `lanes:W[:half|adj|seq][:FORMAT]`
    `blocked:B[:FORMAT]` `split-k:S[:FORMAT]` `perm:SEED`, and `A > B`: the blocks, lanes or chunks of A are each summed
    in order B. A format: chunks are rounded to it before they join; what blocks are added to is after each of them;
    lanes are, and each sum of two of them (`blocked:16 > lanes:16:f32` with acc=f64 joins vectors of float32 in f64).
    `swap:N`: the terms of each group of N neighbours in reverse (VDPBF16PS takes pairs odd first: `swap:2`).
    `lanes:WxG`: G neighbours go to one lane together. Lanes may also join by distances, `lanes:16:8.1.2.4`: lane l with
    lane l + 8, what is left at distance 1, and so on.
    As libraries sum: `vector:W` whole vectors of W lanes, then the rest one by one; `ilp:W` W partial sums of every
    W-th term, the rest to the first, joined in turn; `cascade:W` PyTorch's cascade over vectors of W lanes;
    `pairwise:8` NumPy's halves of at most 128 terms, each by 8 lanes, then its rest one by one; `dot:RxW` PyTorch's
    dot of half formats: R vectors of W lanes at once, then two at a time into one, then the rest one by one;
    `gemv:KERNEL` MKL's product of a float32 matrix and one vector (`mkl_orders.KERNELS`: gemv:t, gemv:n, ...).
    As matrix units add, L products and the accumulator at once: `fused:UNIT` names a real one (`adders.units`), and
    `fused:L[:F[:MODE[:E]]]` one by its parameters (`adders.adder_of`). It stands last: `blocked:128 > fused:UNIT`.
    Raises OrderError for a text that is none of these.

    >>> str(Order("split-k:2").tree(5))
    '(0+1+2)+(3+4)'
    """

    def __init__(self, text: str | Order) -> None:
        self.levels: tuple[Level, ...] = text.levels if isinstance(text, Order) else parse(text)
        self.text: str = text.text if isinstance(text, Order) else " > ".join(p.strip() for p in text.split(">"))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Order({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Order) and self.levels == other.levels

    def __hash__(self) -> int:
        return hash(self.levels)

    @property
    def is_shape_free(self) -> bool:
        """True where zeros added at the end change nothing but the sign of a zero: cached and whole passes agree."""
        heads = [level.head for level in self.levels]
        # zeros that are swapped before the last terms shift what an order inside would group
        is_shifted = any(outer == "swap" and inner not in ("seq", "reverse") for outer, inner in pairwise(heads))
        is_cut = self.adder is not None and not self.adder.keeps_its_accumulator
        return all(head in _SHAPE_FREE for head in heads) and not is_shifted and not is_cut

    @property
    def adder(self) -> Adder | None:
        """The multi-operand adder that adds the terms, where one does."""
        return self.levels[-1].adder

    def tree(self, n: int) -> Tree:
        """The tree of n terms. Raises OrderError where an explicit tree has another number of terms."""
        if n < 0:
            raise OrderError(f"Order {self.text!r} of {n} terms: the number of terms cannot be negative.")
        return _tree(self, n)


@lru_cache(maxsize=256)
def _tree(order: Order, n: int) -> Tree:
    return Tree(n, _build(order.levels, tuple(range(n)), order.text))


def _build(levels: tuple[Level, ...], terms: tuple[int, ...], text: str) -> Node:
    """The node that sums these terms in the order of these levels (none left: seq)."""
    level = levels[0] if levels else Level("seq")
    inner = levels[1:]
    match level.head:
        case "seq":
            return Chain(terms)
        case "reverse":
            return Chain(terms[::-1])
        case "pairwise":
            return _numpy_pairwise(terms, level.size) if level.size else _pairwise(terms)
        case "tree":
            return _explicit(level.explicit, terms, text) if level.explicit else _join_by(level.join, list(terms))
        case "lanes":
            return _join_lanes(level, [_build(inner, lane, text) for lane in _lanes(terms, level)])
        case "blocked":
            blocks = (_build(inner, block, text) for block in _chunks(terms, level.size))
            # a lone term that its own order rounds is a block of one, not a term that enters unrounded
            parts = tuple(Join((block,)) if isinstance(block, int) else block for block in blocks)
            return Chain(parts, level.partial)
        case "split-k":
            return _split(level, inner, terms, text)
        case "vector":
            whole = len(terms) // level.size * level.size
            lanes = [Chain(terms[lane : whole : level.size]) for lane in range(level.size)]
            return Chain((*([_join_by("half", list(lanes))] if whole else ()), *terms[whole:]))
        case "ilp":
            whole = len(terms) // level.size * level.size
            first = Chain((*terms[0 : whole : level.size], *terms[whole:]))
            return _join([first, *(Chain(terms[lane : whole : level.size]) for lane in range(1, level.size))])
        case "cascade":
            return _cascade(terms, level.size)
        case "dot":
            return _dot(terms, level.size, level.group)
        case "gemv":
            return mkl_orders.KERNELS[level.join](terms)
        case "fused":
            assert level.adder is not None
            node: Node = Chain(())
            for block in _chunks(terms, level.size):
                node = Fused(node, block, level.adder)
            return node
        case "swap":
            return _build(inner, tuple(k for group in _chunks(terms, level.size) for k in group[::-1]), text)
        case "perm":
            return _build(inner, tuple(terms[i] for i in permutation(len(terms), level.size)), text)
    raise AssertionError(level.head)


def _join_lanes(level: Level, lanes: list[Node]) -> Node:
    """The lanes joined; where they are kept in a format, every sum in a lane and of two lanes is rounded to it."""
    if level.partial is None:
        return _join_by(level.join, lanes)
    kept = [_kept_in(level.partial, lane) for lane in lanes]
    return _rounded_joins(_join_by(level.join, list(kept)), level.partial, set(map(id, kept)))


def _kept_in(fmt: Format, lane: Node) -> Node:
    if isinstance(lane, Chain) and lane.stored is None:
        return Chain(lane.parts, fmt)
    return Rounded(Join((lane,)) if isinstance(lane, int) else lane, fmt)


def _rounded_joins(node: Node, kept: Format, lanes: set[int]) -> Node:
    """A tree over lanes with every sum rounded; several at once are added in turn."""
    if id(node) in lanes or not isinstance(node, Join):
        return node
    total, *others = (_rounded_joins(part, kept, lanes) for part in node.parts)
    for other in others:
        total = Rounded(Join((total, other)), kept)
    return total


def _lanes(terms: tuple[int, ...], level: Level) -> Iterator[tuple[int, ...]]:
    """The terms of each lane: every W-th group of neighbours."""
    groups = list(_chunks(terms, level.group))
    return (tuple(k for group in groups[lane :: level.size] for k in group) for lane in range(level.size))


def _numpy_pairwise(terms: tuple[int, ...], lanes: int) -> Node:
    """NumPy's sum along a contiguous axis: halves down to blocks of at most 128 terms, the left of whole vectors.

    **Source:** NumPy 2.4, numpy/_core/src/umath/loops_utils.h.src, pairwise_sum, whose lanes are 8.
    """
    if len(terms) < lanes:
        return Chain(terms)
    if len(terms) <= _NUMPY_BLOCK:
        whole = len(terms) // lanes * lanes
        joined = _join_by("adj", [Chain(terms[lane:whole:lanes]) for lane in range(lanes)])
        return Chain((joined, *terms[whole:])) if whole < len(terms) else joined
    half = len(terms) // 2
    half -= half % lanes
    return Join((_numpy_pairwise(terms[:half], lanes), _numpy_pairwise(terms[half:], lanes)))


def _cascade(terms: tuple[int, ...], lanes: int) -> Node:
    """PyTorch's sum along a contiguous axis: for each lane of its vectors a cascade; the scalar tail, then the lanes.

    **Source:** PyTorch 2.13, aten/src/ATen/native/cpu/SumKernel.cpp, vectorized_inner_sum.
    """
    whole = len(terms) // lanes * lanes
    rows = [_cascade_rows(terms[lane:whole:lanes]) for lane in range(lanes)] if whole else []
    return Chain((*terms[whole:], *rows))


def _dot(terms: tuple[int, ...], registers: int, lanes: int) -> Node:
    """PyTorch's dot of bf16 or f16: all registers at once; whole vectors of halves (2 W) into one; then the rest.

    **Source:** PyTorch 2.13, aten/src/ATen/native/cpu/ReducedPrecisionFloatGemvFastPathKernel.cpp,
    dot_with_fp32_arith; equal to it for K = 1 to 200 (tests/live/test_kernels.py).
    """
    whole = len(terms) // (registers * lanes) * (registers * lanes)
    paired = len(terms) // (2 * lanes) * (2 * lanes)
    parts = ((terms[:whole], registers * lanes), (terms[whole:paired], lanes))
    sums = [_join_by("half", [Chain(part[lane::width]) for lane in range(width)]) for part, width in parts if part]
    rest = terms[max(whole, paired) :]
    return sums[0] if len(sums) == 1 and not rest else Chain((*sums, *rest))


def _cascade_rows(terms: tuple[int, ...]) -> Node:
    """row_sum: four interleaved cascades; what is left over goes to the first, then the others are added to it."""
    each = len(terms) // 4
    slots = [_cascade_levels(terms[slot : 4 * each : 4]) for slot in range(4)]
    return Chain((slots[0], *terms[4 * each :], *slots[1:]))


def _cascade_levels(terms: tuple[int, ...]) -> Node:
    """multi_row_sum: every 2^power terms a level is added to the next one and starts again at +0."""
    power = max(4, (max(len(terms), 1) - 1).bit_length() // 4)
    levels: list[list[Node]] = [[], [], [], []]
    done = 0
    while done + (1 << power) <= len(terms):
        levels[0] += terms[done : done + (1 << power)]
        done += 1 << power
        for level in range(1, 4):
            levels[level].append(Chain(tuple(levels[level - 1])))
            levels[level - 1] = []
            if done & ((1 << power) - 1) << (level * power):
                break
    levels[0] += terms[done:]
    return Chain((*levels[0], *(Chain(tuple(parts)) for parts in levels[1:])))


def _split(level: Level, inner: tuple[Level, ...], terms: tuple[int, ...], text: str) -> Node:
    length = max(1, -(-len(terms) // level.size))
    partials = [_build(inner, chunk, text) for chunk in _chunks(terms, length)]
    if level.partial is not None:
        partials = [Rounded(partial, level.partial) for partial in partials]
    return _join(partials)


def _chunks(terms: tuple[int, ...], length: int) -> Iterator[tuple[int, ...]]:
    return (terms[start : start + length] for start in range(0, len(terms), length))


def _pairwise(terms: tuple[int, ...]) -> Node:
    if len(terms) <= 1:
        return terms[0] if terms else Chain(())
    middle = (len(terms) + 1) // 2  # the left half gets the extra one
    return Join((_pairwise(terms[:middle]), _pairwise(terms[middle:])))


def _join_by(how: str, nodes: list[Node]) -> Node:
    if how == "seq" or len(nodes) <= 1:
        return _join(nodes)
    if how == "adj":
        while len(nodes) > 1:
            pairs: list[Node] = [Join((nodes[i], nodes[i + 1])) for i in range(0, len(nodes) - 1, 2)]
            nodes = pairs + nodes[len(pairs) * 2 :]
        return nodes[0]
    if how != "half":
        return _join_at([int(distance) for distance in how.split(".")], nodes)
    width = 1 << (len(nodes) - 1).bit_length()
    while width > 1:
        width //= 2
        joined = [Join((nodes[i], nodes[i + width])) if i + width < len(nodes) else nodes[i] for i in range(width)]
        nodes = list(joined)
    return nodes[0]


def _join_at(distances: list[int], nodes: list[Node]) -> Node:
    """Lane l is joined with lane l + d, for each distance in turn; what was added does not come again."""
    left = dict(enumerate(nodes))
    for distance in distances:
        left = {lane: Join((left[lane], left[lane + distance])) for lane in left if not lane & distance}
    return left[0]


def _join(nodes: Sequence[Node]) -> Node:
    if len(nodes) <= 1:
        return nodes[0] if nodes else Chain(())
    return Join(tuple(nodes))


def permutation(n: int, seed: int) -> list[int]:
    """The order of n indices by a hash of (seed, index): the same on every machine and NumPy version.

    Source: SplitMix64, Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators (OOPSLA 2014).
    """
    with np.errstate(over="ignore"):
        state = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        state += np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return [int(i) for i in np.argsort(state, kind="stable")]


def _explicit(tree: Tree, terms: tuple[int, ...], text: str) -> Node:
    if tree.n != len(terms):
        raise OrderError(f"Order {text!r}: its tree file sums {tree.n} terms, but here there are {len(terms)}.")
    return _relabelled(tree.root, terms)


def _relabelled(root: Node, terms: tuple[int, ...]) -> Node:
    def relabel(node: Node, parts: list[Node]) -> Node:
        match node:
            case int():
                return terms[node]
            case Rounded():
                return Rounded(parts[0], node.format)
            case Chain() | Join():  # as read from a file, where what is stored is a node of its own
                return type(node)(tuple(parts))
        raise AssertionError(node)  # no other node is read from a file that can be run

    relabelled: Node = fold(root, relabel)
    return relabelled
