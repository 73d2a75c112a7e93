"""The order of a sum as data: its text form, its tree, and the program that a machine runs to follow it.

`Order("blocked:32 > lanes:2")` is parsed once; `.tree(n)` gives the summation tree of n terms. A tree is made of

* an `int` k: term k. On its own it means R(term);
* `Chain(parts)`: acc = +0 (or the initial value, in the outermost chain); then for each part acc = R(acc + part).
  A term enters as it is, unrounded where the product is exact; a node enters as its value;
* `Join(parts)`: the value of the first part, then R(... + value of the next). A term inside a join is rounded first;
* `Rounded(node, format)`: the node's value rounded to a format before it goes on.

`Tree.program()` flattens a tree into instructions for a stack machine, so that neither depth nor Python calls matter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from softfloat_llm.errors import FormatError, OrderError, nearest
from softfloat_llm.numerics.formats import Format, format_of


@dataclass(frozen=True)
class Chain:
    """acc = +0, then each part in turn: terms enter unrounded, nodes as their value."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Join:
    """The first part's value, then each next part's value added to it."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Rounded:
    """The value of a node, rounded to a format (a partial sum that was stored)."""

    node: Node
    format: Format


Node = int | Chain | Join | Rounded
Instruction = tuple[Literal["init", "zero", "term", "enter", "add", "round"], Any]
"""A step of the stack machine. R is the accumulator's rounding.

init: push the initial value (+0 where none is given), the start of an outermost chain. zero: push +0. term k: push
R(term k). enter ks: for each k, top = R(top + term k). add: pop y, top = R(top + y). round f: top = top rounded to f.
"""


@dataclass(frozen=True, eq=False, repr=False)
class Tree:
    """The summation tree of n terms. Two trees are equal where a machine does the same additions for both.

    Nothing here recurses: a tree may be as deep as it has terms.
    """

    n: int
    root: Node

    def __str__(self) -> str:
        return _text(self.root)

    def __repr__(self) -> str:
        return f"Tree({self.n}, {self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and (self.n, self.program()) == (other.n, other.program())

    def __hash__(self) -> int:
        return hash((self.n, self.program()))

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """The terms in the order in which they are met."""
        return tuple(_leaves(self.root))

    def survivors(self, i: int, j: int) -> int:
        """How many terms lie outside the smallest subtree that holds terms i and j.

        It is what remains of ones when a huge +M stands at i and -M at j: the mask probe that reveals an order.
        Source: Xie et al., FPRev: Revealing the Order of Floating-Point Summations (2024).
        """
        return self.n - _smallest_subtree(self.root, i, j)

    def program(self) -> tuple[Instruction, ...]:
        """The tree as instructions for a stack machine; a run of terms that enter one sum is one instruction."""
        return self._program

    @cached_property
    def _program(self) -> tuple[Instruction, ...]:
        return tuple(_merge_enters(_compile(self.root)))


_NAMES = ("seq", "reverse", "pairwise", "tree:adj", "tree:half", "lanes:W", "blocked:B", "split-k:S", "perm:SEED")
_HEADS = ("seq", "reverse", "pairwise", "tree", "lanes", "blocked", "split-k", "perm")
_JOINS = ("half", "adj", "seq")
_MOST_LANES = 65_536  # each lane is a partial sum held in memory, even where no term reaches it
_NESTING = ("lanes", "blocked", "split-k", "perm")
_SHAPE_FREE = ("seq", "reverse", "lanes", "blocked")


@dataclass(frozen=True)
class Level:
    """One level of an order: its head and what it takes."""

    head: str
    size: int = 0
    join: str = "half"
    partial: Format | None = None
    explicit: Tree | None = None


class Order:
    """The shape of a summation. `Order(text)` parses the text form; equal texts are equal orders.

    `seq` `reverse` `pairwise` `tree:adj` `tree:half` `tree:@FILE` `lanes:W[:half|adj|seq]` `blocked:B`
    `split-k:S[:FORMAT]` `perm:SEED`, and `A > B`: the blocks, lanes or chunks of A are each summed in order B.
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
        """True where zeros added at the end change nothing, so that a cached pass and a whole pass agree."""
        return all(level.head in _SHAPE_FREE for level in self.levels)

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
    levels = tuple(_parse_level(part.strip(), text) for part in text.split(">"))
    for outer in levels[:-1]:
        if outer.head not in _NESTING:
            raise OrderError(
                f"Order {text!r}: {outer.head!r} has no blocks, lanes or chunks that another order could sum."
                f" Before '>' stands one of {', '.join(_NESTING)}."
            )
    return levels


def _parse_level(part: str, text: str) -> Level:
    head, *arguments = part.split(":")
    if head == "fused":
        raise OrderError(f"Order {text!r}: multi-operand adders (fused:L) are not available in this version.")
    if head not in _HEADS:
        raise OrderError(f"Unknown order {part!r} in {text!r}.{nearest(head, _HEADS)} Known: {' '.join(_NAMES)}.")
    if head in ("seq", "reverse", "pairwise"):
        _expect(not arguments, part, text, f"{head!r} takes no argument")
        return Level(head)
    _expect(bool(arguments), part, text, f"{head!r} takes an argument, as in {_example(head)}")
    if head == "tree":
        return _parse_tree(":".join(arguments), part, text)
    size = _parse_size(arguments[0], part, text, lowest=0 if head == "perm" else 1)
    _expect(head != "lanes" or size <= _MOST_LANES, part, text, f"there can be at most {_MOST_LANES} lanes")
    return _parse_options(Level(head, size), arguments[1:], part, text)


def _parse_options(level: Level, rest: Sequence[str], part: str, text: str) -> Level:
    _expect(len(rest) <= (1 if level.head in ("lanes", "split-k") else 0), part, text, "too many arguments")
    if not rest:
        return level
    if level.head == "lanes":
        _expect(rest[0] in _JOINS, part, text, f"lanes join by one of {', '.join(_JOINS)}")
        return Level(level.head, level.size, join=rest[0])
    try:
        return Level(level.head, level.size, partial=format_of(rest[0]))
    except FormatError as error:
        raise OrderError(f"Order {text!r}: partial sums of {part!r} are stored in a format. {error}") from None


def _parse_tree(argument: str, part: str, text: str) -> Level:
    if argument.startswith("@"):
        return Level("tree", join=argument, explicit=read_tree(argument[1:]))
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
            return _pairwise(terms)
        case "tree":
            return _explicit(level.explicit, terms, text) if level.explicit else _join_by(level.join, list(terms))
        case "lanes":
            lanes = [_build(inner, terms[lane :: level.size], text) for lane in range(level.size)]
            return _join_by(level.join, lanes)
        case "blocked":
            blocks = (_build(inner, block, text) for block in _chunks(terms, level.size))
            # a lone term that its own order rounds is a block of one, not a term that enters unrounded
            return Chain(tuple(Join((block,)) if isinstance(block, int) else block for block in blocks))
        case "split-k":
            return _split(level, inner, terms, text)
        case "perm":
            return _build(inner, tuple(terms[i] for i in permutation(len(terms), level.size)), text)
    raise AssertionError(level.head)


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
    width = 1 << (len(nodes) - 1).bit_length()
    while width > 1:
        width //= 2
        joined = [Join((nodes[i], nodes[i + width])) if i + width < len(nodes) else nodes[i] for i in range(width)]
        nodes = list(joined)
    return nodes[0]


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
            case _:
                return type(node)(tuple(parts))

    relabelled: Node = _fold(root, relabel)
    return relabelled


# --- walking a tree -------------------------------------------------------------------------------------------------


def _children(node: Node) -> tuple[Node, ...]:
    match node:
        case int():
            return ()
        case Rounded():
            return (node.node,)
        case _:
            return node.parts


def _fold(root: Node, step: Callable[[Node, list[Any]], Any]) -> Any:
    """step(node, results of its children), from the leaves up; by an explicit stack."""
    nodes, stack = [], [root]
    while stack:  # each node before its children, the last child first
        nodes.append(stack.pop())
        stack.extend(_children(nodes[-1]))
    results: list[Any] = []
    for node in reversed(nodes):
        split = len(results) - len(_children(node))
        results[split:] = [step(node, results[split:])]
    return results[0]


def _leaves(node: Node) -> Iterator[int]:
    stack: list[Node] = [node]
    while stack:
        top = stack.pop()
        if isinstance(top, int):
            yield top
        stack.extend(reversed(_children(top)))


def _smallest_subtree(root: Node, i: int, j: int) -> int:
    """The number of terms of the smallest subtree with both i and j; chains and joins fold from the left."""

    def step(node: Node, parts: list[tuple[int, set[int], int]]) -> tuple[int, set[int], int]:
        """Its terms, which of i and j are among them, and the size of the smallest subtree that holds both (or 0)."""
        count, held, smallest = (1, {node} & {i, j}, 0) if isinstance(node, int) else (0, set(), 0)
        for part_count, part_held, part_smallest in parts:
            count, held = count + part_count, held | part_held
            smallest = smallest or part_smallest or (count if len(held) == 2 else 0)
        return count, held, smallest

    size: int = _fold(root, step)[2]
    return size


def _compile(root: Node) -> Iterator[Instruction]:
    """Post-order, by an explicit stack: trees of thousands of levels are fine."""
    stack: list[Node | Instruction] = [root]
    while stack:
        top = stack.pop()
        match top:
            case tuple():
                yield top
            case int():
                yield ("term", top)
            case Rounded():
                stack += [("round", top.format), top.node]
            case Chain():
                yield ("init" if top is root else "zero", None)
                stack.extend(reversed([step for part in top.parts for step in _chain_steps(part)]))
            case Join():
                stack.extend(reversed([top.parts[0], *(step for p in top.parts[1:] for step in (p, ("add", None)))]))


def _chain_steps(part: Node) -> list[Node | Instruction]:
    return [("enter", (part,))] if isinstance(part, int) else [part, ("add", None)]


def _merge_enters(instructions: Iterator[Instruction]) -> Iterator[Instruction]:
    run: list[int] = []
    for name, argument in instructions:
        if name == "enter":
            run += argument
            continue
        if run:
            yield ("enter", tuple(run))
            run = []
        yield (name, argument)
    if run:
        yield ("enter", tuple(run))


def _text(root: Node) -> str:
    text: str = _fold(root, _text_of)
    return text[1:-1] if text.startswith("(") else text


def _text_of(node: Node, parts: list[str]) -> str:
    """A sum of several parts stands in brackets."""
    match node:
        case int():
            return str(node)
        case Rounded():
            inner = parts[0][1:-1] if parts[0].startswith("(") else parts[0]
            return f"{node.format}({inner})"
    return f"({'+'.join(parts)})" if parts else "0"


# --- tree files -----------------------------------------------------------------------------------------------------

TREE_SCHEMA = "softfloat-llm/tree/1"


def write_tree(tree: Tree, path: str | Path) -> None:
    """Write a tree as JSON: {"schema", "n", "tree"}; a term is a number, a node {"chain"|"join": [parts]}."""
    body = _fold(tree.root, _to_json)
    Path(path).write_text(f'{{"schema": "{TREE_SCHEMA}", "n": {tree.n}, "tree": {body}}}\n')


def _to_json(node: Node, parts: list[str]) -> str:
    match node:
        case int():
            return str(node)
        case Rounded():
            return f'{{"round": "{node.format}", "node": {parts[0]}}}'
    return f'{{"{"chain" if isinstance(node, Chain) else "join"}": [{", ".join(parts)}]}}'


def read_tree(path: str | Path) -> Tree:
    """Read what `write_tree` wrote. Raises OrderError where the file is missing, malformed, or no tree of 0 … n-1."""
    try:
        *inner, body = _objects(Path(path).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise OrderError(f"Reading the tree file {path}: {error}.") from None
    if body.get("schema") != TREE_SCHEMA or not _is_integer(body.get("n")):
        raise OrderError(f"Reading the tree file {path}: expected an object with schema {TREE_SCHEMA!r} and n.")
    nodes: list[Node] = []
    try:
        for each in inner:
            nodes.append(_from_json(each, nodes))
        tree = Tree(body["n"], _node(body.get("tree"), nodes))
    except ValueError as error:
        raise OrderError(f"Reading the tree file {path}: {error}.") from None
    if sorted(tree.leaves) != list(range(tree.n)):
        raise OrderError(f"Reading the tree file {path}: each of the terms 0 to {tree.n - 1} must stand in it once.")
    return tree


def _objects(text: str) -> list[dict[str, Any]]:
    """The objects of a JSON text as they close, the outermost last; within one, "{k}" stands for object k.

    So that the depth does not matter: `json.loads` recurses. Raises ValueError for what is no JSON object.
    """
    closed: list[dict[str, Any]] = []
    stack: list[list[str]] = [[]]
    for piece in re.split(r'("(?:[^"\\]|\\.)*"|[{}])', text):
        if piece == "{":
            stack.append([])
        elif piece == "}" and len(stack) > 1:
            closed.append(json.loads("{" + "".join(stack.pop()) + "}"))
            stack[-1].append(f'"{{{len(closed) - 1}}}"')
        elif piece.startswith('"{'):
            raise ValueError(f"unexpected {piece}")
        else:
            stack[-1].append(piece)
    if len(stack) > 1 or not closed or "".join(stack[0]).strip() != f'"{{{len(closed) - 1}}}"':
        raise ValueError("it is not one JSON object")
    return closed


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _node(value: Any, nodes: Sequence[Node]) -> Node:
    """A term number, or one of the nodes read so far. Raises ValueError."""
    if _is_integer(value):
        return int(value)
    match = re.fullmatch(r"\{([0-9]+)\}", value) if isinstance(value, str) else None
    if match is None or int(match[1]) >= len(nodes):
        raise ValueError("a node is a number or an object with chain, join or round")
    return nodes[int(match[1])]


def _from_json(body: dict[str, Any], nodes: Sequence[Node]) -> Node:
    if isinstance(body.get("round"), str):
        try:
            return Rounded(_node(body.get("node"), nodes), format_of(body["round"]))
        except FormatError as error:
            raise ValueError(str(error).rstrip(".")) from None
    for key, kind in (("chain", Chain), ("join", Join)):
        if isinstance(body.get(key), list):
            parts = tuple(_node(part, nodes) for part in body[key])
            if parts or kind is Chain:
                return kind(parts)
    raise ValueError("a node is a number or an object with chain, join or round")
