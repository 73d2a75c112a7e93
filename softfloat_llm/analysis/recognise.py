"""A tree that was found -> the texts of orders that mean it: `blocked:288 > blocked:32 > lanes:2`.

What makes two trees the same is which sets of terms are ever summed, and what is stored of each sum; not the order of
the two operands of an addition. Start reading at `names_of`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

from softfloat_llm.errors import OrderError
from softfloat_llm.numerics import mkl_orders
from softfloat_llm.numerics.formats import Format
from softfloat_llm.numerics.orders import Order
from softfloat_llm.numerics.trees import Chain, Flat, Join, Node, Rounded, Tree, fold

_MOST_LEVELS = 4
_WIDTHS = (2, 4, 8, 16, 32, 64)
_SWAPS = (2, 3, 4, 8)
_PLAIN = (
    "seq", "reverse", "pairwise", "tree:half", "tree:adj",
    *(f"lanes:{width}{join}" for width in _WIDTHS for join in ("", ":adj", ":seq")),
    *(f"{head}:{width}" for head in ("vector", "ilp", "cascade") for width in _WIDTHS),
    *(f"pairwise:{width}" for width in (4, 8, 16)),
    *(f"dot:{registers}x{width}" for registers in (2, 4, 8) for width in (4, 8, 16)),
)  # fmt: skip

KERNELS = tuple(f"gemv:{kernel}" for kernel in mkl_orders.KERNELS)
"""Orders of single kernels: names for a whole sum that has none of at most two levels."""


class Shape:
    """What a tree of n terms sums: `stored` maps each set of terms that is a partial sum (as bits of an integer) to the
    formats that the sum is rounded to on its way; `entering`: the terms that enter a sum unrounded.

    Two trees with equal `stored` do the same additions.
    """

    def __init__(self, tree: Tree) -> None:
        self.n, self.root = tree.n, tree.shape
        self.stored: dict[int, tuple[Format, ...]] = {}
        self._nodes: dict[int, tuple[Node, int]] = {}  # a node, and how many of its parts are in the sum
        self.entering: set[int] = set()
        fold(self.root, self._noted)

    def _noted(self, node: Node, parts: list[int]) -> int:
        """The set of a node's terms, with all that is known of it put down."""
        match node:
            case int():
                held = 1 << node
            case Rounded():
                held = parts[0]
                self.stored[held] = (*self.stored.get(held, ()), node.format)
            case Flat():
                held = 0
                for part in parts:
                    held |= part
                self._note_sum(held, parts)
            case _:
                held = self._noted_fold(node, parts)
        self._nodes[held] = (node, 1 << 62)
        return held

    def node(self, held: int) -> Node:
        """What sums these terms."""
        node, count = self._nodes[held]
        return type(node)(node.parts[:count]) if isinstance(node, (Chain, Join)) else node

    def _noted_fold(self, node: Node, parts: list[int]) -> int:
        assert isinstance(node, (Chain, Join))
        held = 0
        for count, (part, below) in enumerate(zip(node.parts, parts, strict=True), 1):
            if held and isinstance(part, int) and isinstance(node, Chain):
                self.entering.add(part)
            if held and below:
                self._note_sum(held | below, (held, below))
                self._nodes.setdefault(held | below, (node, count))
            held |= below
        return held

    def _note_sum(self, held: int, parts: Sequence[int]) -> None:
        if sum(1 for part in parts if part) > 1:
            self.stored.setdefault(held, ())

    @cached_property
    def is_binary(self) -> bool:
        return not any(isinstance(node, Flat) for node, _ in self._nodes.values())

    def is_same(self, other: Shape, *, entering: bool) -> bool:
        """True where two trees do the same additions; with `entering`, and the same terms enter unrounded.

        What the whole sum is rounded to does not count: it may be the rounding to the output.
        """
        return self._below == other._below and (not entering or self.entering == other.entering)

    @cached_property
    def _below(self) -> dict[int, tuple[Format, ...]]:
        return self.stored | {(1 << self.n) - 1: ()}


def names_of(tree: Tree, *, entering: bool = False, adders: Sequence[str] = ()) -> Iterator[str]:
    """The texts of few levels that do the additions of a tree; none where the language has none.

    `entering`: which terms enter a sum unrounded counts too. `adders`: the multi-operand adders that may be meant, as
    in `fused:8:24`.

    >>> next(names_of(Order("blocked:8 > lanes:2").tree(20)))
    'blocked:8 > lanes:2'
    """
    shape, told = Shape(tree), set()
    for texts in (
        _names(shape, tuple(adders), 2, entering),
        KERNELS,
        _names(shape, tuple(adders), _MOST_LEVELS, entering),
    ):
        for text in texts:
            if text not in told and _means(text, shape, entering):
                told.add(text)
                yield text
        if told:
            return


def _means(text: str, shape: Shape, entering: bool) -> bool:
    meant = _shape_of(text, shape.n)
    return meant is not None and meant.is_same(shape, entering=entering)


@lru_cache(maxsize=512)
def _shape_of(text: str, n: int) -> Shape | None:
    try:
        return Shape(Order(text).tree(n))
    except OrderError:  # a form that this version has not, or a size that it refuses
        return None


def _names(shape: Shape, adders: tuple[str, ...], levels: int, entering: bool) -> Iterator[str]:
    """Texts that may mean a tree: what is plain; else each way to take it apart, with the names of its first part."""
    plain = _plain(shape, adders)
    found = [text for text in plain if _means(text, shape, entering)]
    yield from found
    if found:
        return
    for size in _SWAPS:
        turned = Shape(_turned(shape, size))
        inner = [text for text in plain if _means(text, turned, entering)]
        yield from (f"swap:{size}" if name == "seq" else f"swap:{size} > {name}" for name in inner)
    for outer, part in _taken_apart(shape) if levels > 1 else ():
        names = _names(Shape(part), adders, levels - 1, entering)
        yield from (outer if name == "seq" else f"{outer} > {name}" for name in names)


def _plain(shape: Shape, adders: tuple[str, ...]) -> tuple[str, ...]:
    if not shape.is_binary:
        return tuple(f"fused:{adder}" for adder in adders)
    return _PLAIN[:3] if shape.n < 3 else _PLAIN  # of so few terms the others say nothing else


def _turned(shape: Shape, size: int) -> Tree:
    """The tree with the terms of each group of neighbours in reverse."""
    groups = (range(start, min(start + size, shape.n)) for start in range(0, shape.n, size))
    return _part(shape.root, [k for group in groups for k in reversed(group)])


def _part(root: Node, terms: Sequence[int]) -> Tree:
    """A node as a tree of its own: its terms are numbered as they stand in `terms`."""
    place = {term: at for at, term in enumerate(terms)}

    def renumbered(node: Node, parts: list[Any]) -> Node:
        match node:
            case int():
                return place[node]
            case Rounded():
                return Rounded(parts[0], node.format)
            case Chain() | Join() | Flat():
                return type(node)(tuple(parts))
        raise AssertionError(node)

    return Tree(len(terms), fold(root, renumbered))


# --- blocks, chunks and lanes ---------------------------------------------------------------------------------------


def _taken_apart(shape: Shape) -> Iterator[tuple[str, Tree]]:
    """Outer levels that the tree may have, each with the tree of its first block, chunk or lane."""
    for terms in _sums_with_first(shape):
        if terms == list(range(len(terms))):
            yield from _blocks(shape, len(terms))
    for terms in _sums_with_first(shape):
        yield from _lanes(shape, terms)


def _sums_with_first(shape: Shape) -> Iterator[list[int]]:
    """The terms of each partial sum that term 0 is in, and of term 0 alone."""
    yield [0]
    for held in shape.stored:
        if held & 1 and held.bit_count() < shape.n:
            yield _terms(held)


def _terms(held: int) -> list[int]:
    return [place for place, digit in enumerate(bin(held)[:1:-1]) if digit == "1"]


def _held(terms: Sequence[int]) -> int:
    return sum(1 << term for term in terms)


def _has(shape: Shape, terms: Sequence[int]) -> bool:
    return len(terms) == 1 or _held(terms) in shape.stored


def _blocks(shape: Shape, length: int) -> Iterator[tuple[str, Tree]]:
    blocks = [list(range(start, min(start + length, shape.n))) for start in range(0, shape.n, length)]
    sums = [list(range(block[-1] + 1)) for block in blocks]
    if length == 1 or not all(_has(shape, terms) for terms in (*blocks, *sums)):
        return
    chunks = -(-shape.n // length)
    whole, second = shape.stored.get(_held(sums[1]), ()), shape.stored.get(_held(blocks[1]), ())
    running = f":{whole[-1]}" if whole else ""
    node = shape.node(_held(blocks[0]))
    yield f"blocked:{length}{running}", _part(node if second else _within(node), blocks[0])
    if not running and -(-shape.n // chunks) == length:
        partial = f":{second[-1]}" if second else ""
        yield f"split-k:{chunks}{partial}", _part(_within(node), blocks[0])


def _within(node: Node) -> Node:
    """What a stored partial sum was before it was rounded."""
    while isinstance(node, Rounded):
        node = node.node
    return node


def _unkept(root: Node, formats: Sequence[Format]) -> Node:
    """A lane without the roundings to the format that all of it is kept in."""

    def unrounded(node: Node, parts: list[Any]) -> Node:
        match node:
            case int():
                return node
            case Rounded():
                return parts[0] if node.format in formats else Rounded(parts[0], node.format)
            case Chain() | Join() | Flat():
                return type(node)(tuple(parts))
        raise AssertionError(node)

    bare: Node = fold(root, unrounded)
    return bare


def _lanes(shape: Shape, first: list[int]) -> Iterator[tuple[str, Tree]]:
    """The lanes of which `first` may be lane 0: groups of neighbours, one group in every `lanes`."""
    group = next((place for place, term in enumerate(first) if term != place), len(first))
    if group == len(first):  # a lane of one group: any number of lanes that leaves each with one
        counts = [-(-shape.n // group)]
    else:
        counts = [first[group] // group] if first[group] % group == 0 else []
    for count in counts:
        lanes = [
            [
                k
                for start in range(lane * group, shape.n, count * group)
                for k in range(start, min(start + group, shape.n))
            ]
            for lane in range(count)
        ]
        if count > 1 and lanes[0] == first and all(_has(shape, lane) for lane in lanes if lane):
            head = f"lanes:{count}" if group == 1 else f"lanes:{count}x{group}"
            node, kept = shape.node(_held(first)), shape.stored.get(_held(first), ())[-1:]
            for join in _joins(shape, lanes):
                yield from ((f"{head}{join}:{fmt}", _part(_unkept(node, kept), first)) for fmt in kept)
                yield head + join, _part(node, first)


def _joins(shape: Shape, lanes: list[list[int]]) -> Iterator[str]:
    """How the lanes are joined: the words that `lanes` takes, or distances."""
    held = [_held(lane) for lane in lanes]
    for join in ("", ":adj", ":seq", *_distances(shape, held)):
        joins = _shape_of(f"lanes:{len(lanes)}{join}", len(lanes))
        if joins and all(_has(shape, [lane for k in _terms(each) for lane in lanes[k]]) for each in joins.stored):
            yield join


def _distances(shape: Shape, held: list[int]) -> Iterator[str]:
    """The distances at which a power of two of lanes may be joined."""
    if len(held) & (len(held) - 1) or not all(held):
        return
    joined, distances = {0}, []
    while len(joined) < len(held):
        left = [1 << bit for bit in range(len(held).bit_length() - 1) if 1 << bit not in joined]
        wider = [(d, {lane + step for lane in joined for step in (0, d)}) for d in left]
        grown = [(d, lanes) for d, lanes in wider if sum(held[lane] for lane in lanes) in shape.stored]
        if not grown:
            return
        distances.append(grown[0][0])
        joined = grown[0][1]
    if distances not in (sorted(distances), sorted(distances, reverse=True)):  # adj and half
        yield ":" + ".".join(map(str, distances))
