"""The order of a sum as data: its text form, and the tree that it means for n terms.

`Order("blocked:32 > lanes:2")` is parsed once; `.tree(n)` gives the summation tree, whose nodes are those of `trees`.
Start reading at `Order`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import prod

import numpy as np

from softfloat_llm.errors import FormatError, OrderError, nearest, nearest_word
from softfloat_llm.numerics import adders, mkl_orders
from softfloat_llm.numerics.adders import Adder
from softfloat_llm.numerics.formats import Format, format_of
from softfloat_llm.numerics.trees import Chain, Fused, Join, Node, Rounded, Tree, fold, read_tree

_NAMES = (
    "seq", "reverse", "pairwise", "tree:adj", "tree:half", "lanes:W", "blocked:B", "split-k:S", "perm:SEED", "vector:W",
    "ilp:W", "cascade:W", "pairwise:W", "dot:RxW", "gemv:KERNEL", "swap:N", "fused:UNIT",
)  # fmt: skip
_HEADS = (
    "seq", "reverse", "pairwise", "tree", "lanes", "blocked", "split-k", "perm", "vector", "ilp", "cascade", "dot",
    "gemv", "swap", "fused",
)  # fmt: skip
_OTHER_NAMES = {
    "sequential": "seq", "serial": "seq", "linear": "seq", "forward": "seq", "left": "seq", "naive": "seq",
    "backward": "reverse", "binary": "pairwise", "balanced": "pairwise", "recursive": "pairwise", "random": "perm",
    "shuffle": "perm", "shuffled": "perm", "permutation": "perm", "block": "blocked", "chunk": "blocked",
    "chunks": "blocked", "chunked": "blocked", "strided": "lanes", "stride": "lanes", "simd": "lanes",
    "split": "split-k", "kahan": "acc=f32+kahan", "neumaier": "acc=f32+neumaier",
}  # fmt: skip
"""What others call an order, for hints. A compensated sum is an accumulator here."""
_JOINS = ("half", "adj", "seq")
_MOST_LANES = 65_536  # each lane is a partial sum held in memory, even where no term reaches it
_LANED = ("lanes", "vector", "ilp", "cascade", "pairwise")
_MOST_LEVELS = 16
_NUMPY_BLOCK = 128
_NESTING = ("lanes", "blocked", "split-k", "perm", "swap")
_SHAPE_FREE = ("seq", "reverse", "lanes", "blocked", "swap", "fused")


@dataclass(frozen=True)
class Level:
    """One level of an order: its head and what it takes."""

    head: str
    size: int = 0
    group: int = 1  # neighbours that go to one lane together
    join: str = "half"
    partial: Format | None = None
    explicit: Tree | None = None
    adder: Adder | None = None


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


def parse(text: str) -> tuple[Level, ...]:
    """The levels of a text form. Raises OrderError, naming the part that is wrong and what is known."""
    if not isinstance(text, str):
        raise OrderError(f"An order is named by a text such as 'lanes:8', not by {text!r}.")
    parts = text.split(">")
    if len(parts) > _MOST_LEVELS:
        raise OrderError(f"An order has at most {_MOST_LEVELS} levels; this text has {len(parts)}.")
    levels = tuple(_parse_level(part.strip(), text) for part in parts)
    if prod(level.size for level in levels if level.head == "lanes") > _MOST_LANES:
        raise OrderError(f"Order {text!r}: there can be at most {_MOST_LANES} lanes in all.")
    for outer in levels[:-1]:
        if outer.head not in _NESTING:
            raise OrderError(
                f"Order {text!r}: {outer.head!r} has no blocks, lanes or chunks that another order could sum."
                f" Before '>' stands one of {', '.join(_NESTING)}."
            )
    return levels


def _parse_level(part: str, text: str) -> Level:
    head, *arguments = part.split(":")
    if head not in _HEADS:
        where = "" if part == text else f" in {text!r}"
        raise OrderError(f"Unknown order {part!r}{where}.{_meant(head, arguments)} Known: {' '.join(_NAMES)}.")
    if head in ("seq", "reverse") or part == "pairwise":
        _expect(not arguments, part, text, f"{head!r} takes no argument")
        return Level(head)
    _expect(bool(arguments), part, text, f"{head!r} takes an argument, as in {_example(head)}")
    if head == "tree":
        return _parse_tree(":".join(arguments), part, text)
    if head == "gemv":
        kernel = ":".join(arguments)
        known = f"{nearest(kernel, mkl_orders.KERNELS)} Known: {' '.join(mkl_orders.KERNELS)}"
        _expect(kernel in mkl_orders.KERNELS, part, text, f"{kernel!r} is no kernel of MKL.{known}")
        return Level(head, join=kernel)
    if head == "fused":
        adder = adders.adder_of(":".join(arguments))
        return Level(head, adder.terms, adder=adder)
    width, times, neighbours = arguments[0].partition("x") if head in ("lanes", "dot") else (arguments[0], "", "")
    size = _parse_size(width, part, text, lowest=0 if head == "perm" else 1)
    _expect(bool(neighbours) == bool(times), part, text, "after 'x' stands how many neighbours a lane takes together")
    _expect(head != "dot" or bool(times), part, text, "registers and the lanes of each are meant, as in dot:8x8")
    group = _parse_size(neighbours, part, text, lowest=1) if neighbours else 1
    lanes = size * group if head == "dot" else size if head in _LANED else 0
    _expect(lanes <= _MOST_LANES, part, text, f"there can be at most {_MOST_LANES} lanes")
    return _parse_options(Level(head, size, group), arguments[1:], part, text)


def _meant(head: str, arguments: Sequence[str]) -> str:
    """A hint for an unknown order, with the arguments that were given to it."""
    found = nearest_word(head, _HEADS, _OTHER_NAMES)
    if found is None:
        return ""
    if found in _HEADS and found not in ("seq", "reverse"):
        found = ":".join([found, *arguments]) if arguments else found if found in _NAMES else _example(found)
    return f" Did you mean {found!r}?"


def _parse_options(level: Level, rest: Sequence[str], part: str, text: str) -> Level:
    if level.head == "lanes" and rest and (rest[0] in _JOINS or _joins_all(rest[0], level.size)):
        level, rest = replace(level, join=rest[0]), rest[1:]
    _expect(len(rest) <= (level.head in ("lanes", "blocked", "split-k")), part, text, "too many arguments")
    if not rest:
        return level
    try:
        return replace(level, partial=format_of(rest[0]))
    except FormatError as error:
        joins = f"lanes join by one of {', '.join(_JOINS)}, by distances such as 4.2.1, or in a format"
        _expect(level.head != "lanes", part, text, joins)
        raise OrderError(f"Order {text!r}: partial sums of {part!r} are stored in a format. {error}") from None


def _joins_all(distances: str, lanes: int) -> bool:
    """True for each power of two below a power of two of lanes, in some order, with dots between."""
    powers = sorted(str(1 << bit) for bit in range(lanes.bit_length() - 1))
    return lanes & (lanes - 1) == 0 and sorted(distances.split(".")) == powers


def _parse_tree(argument: str, part: str, text: str) -> Level:
    if argument.startswith("@"):
        tree = read_tree(argument[1:])
        is_runnable = all(name != "flat" for name, _ in tree.program())
        _expect(is_runnable, part, text, "a flat join does not say what is lost in it; fused:UNIT does")
        return Level("tree", join=argument, explicit=tree)
    _expect(argument in ("adj", "half"), part, text, "a tree is tree:adj, tree:half or tree:@FILE")
    return Level("tree", join=argument)


def _parse_size(word: str, part: str, text: str, lowest: int) -> int:
    _expect(re.fullmatch(r"[0-9]{1,9}", word) is not None, part, text, f"{word!r} is not a whole number")
    _expect(int(word) >= lowest, part, text, f"{word} is below {lowest}")
    return int(word)


def _expect(holds: bool, part: str, text: str, what: str) -> None:
    if not holds:
        raise OrderError(f"Order {text!r}: in {part!r}, {what}.")


def _example(head: str) -> str:
    return next(name for name in _NAMES if name.startswith(head + ":"))


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
