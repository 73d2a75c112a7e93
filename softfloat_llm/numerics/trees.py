"""Summation trees: the nodes, what can be asked of a tree, the program that a machine runs to follow it, tree files.

A tree is made of

* an `int` k: term k. On its own it means R(term);
* `Chain(parts)`: acc = +0 (or the initial value, in the outermost chain); then for each part acc = R(acc + part).
  A term enters as it is, unrounded where the product is exact; a node enters as its value. `Chain(parts, stored)`:
  acc is rounded to that format after each part too (it is stored between two blocks of a sum);
* `Join(parts)`: the value of the first part, then R(... + value of the next). A term inside a join is rounded first;
* `Rounded(node, format)`: the node's value rounded to a format before it goes on;
* `Fused(node, terms, adder)`: the node's value and the terms, added by a multi-operand adder. What that joins with what
  is the adder's business (`adders`); `Tree.shape` has `Flat(parts)` there: parts that are added all at once.

`Tree.program()` flattens a tree into instructions for a stack machine, so that neither depth nor Python calls matter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from softfloat_llm.errors import FormatError, OrderError, why
from softfloat_llm.numerics.formats import Format, format_of


@dataclass(frozen=True)
class Chain:
    """acc = +0, then each part in turn: terms enter unrounded, nodes as their value; acc is rounded to `stored`."""

    parts: tuple[Node, ...]
    stored: Format | None = None


@dataclass(frozen=True)
class Join:
    """The first part's value, then each next part's value added to it."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Rounded:
    """The value of a node, rounded to a format (a partial sum that was stored)."""

    node: Node
    format: Format


@dataclass(frozen=True)
class Flat:
    """Parts that are added all at once: no order among them. It says a shape, not what is lost."""

    parts: tuple[Node, ...]


class Shaped(Protocol):
    """What a tree asks of a multi-operand adder."""

    def shape(self, node: Node, terms: tuple[int, ...]) -> Node: ...


@dataclass(frozen=True)
class Fused:
    """The value of a node, and terms that a multi-operand adder adds to it."""

    node: Node
    terms: tuple[int, ...]
    adder: Shaped


Node = int | Chain | Join | Rounded | Flat | Fused
Instruction = tuple[Literal["init", "zero", "term", "enter", "add", "round", "fuse", "flat"], Any]
"""A step of the stack machine. R is the accumulator's rounding.

init: push the initial value (+0 where none is given), the start of an outermost chain. zero: push +0. term k: push
R(term k). enter ks: for each k, top = R(top + term k). add: pop y, top = R(top + y). round f: top = top rounded to f.
fuse ks: top = what the order's adder makes of top and the terms ks. flat n: of a shape only; no machine runs it.
"""


@dataclass(frozen=True, eq=False, repr=False)
class Tree:
    """The summation tree of n terms. Two trees are equal where a machine does the same additions for both.

    Of a multi-operand adder only its shape counts there.

    Nothing here recurses: a tree may be as deep as it has terms.
    """

    n: int
    root: Node

    def __str__(self) -> str:
        return _text(self.shape)

    def __repr__(self) -> str:
        return f"Tree({self.n}, {self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and (self.n, self._additions) == (other.n, other._additions)

    def __hash__(self) -> int:
        return hash((self.n, self._additions))

    @cached_property
    def shape(self) -> Node:
        """The root, with what each multi-operand adder joins instead of its name, and each stored sum as `Rounded`."""
        is_plain = all(name not in ("fuse", "round") for name, _ in self.program())
        return self.root if is_plain else fold(self.root, _shape_of)

    @cached_property
    def _additions(self) -> tuple[Instruction, ...]:
        return self._program if self.shape is self.root else tuple(_merge_enters(_compile(self.shape)))

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """The terms in the order in which they are met."""
        return tuple(_leaves(self.root))

    def survivors(self, i: int, j: int) -> int:
        """How many terms lie outside the smallest subtree that holds terms i and j.

        It is what remains of ones when a huge +M stands at i and -M at j: the mask probe that reveals an order.
        Source: Xie et al., FPRev: Revealing the Order of Floating-Point Summations (2024).
        """
        return self.n - _smallest_subtree(self.shape, i, j)

    def program(self) -> tuple[Instruction, ...]:
        """The tree as instructions for a stack machine; a run of terms that enter one sum is one instruction."""
        return self._program

    @cached_property
    def _program(self) -> tuple[Instruction, ...]:
        return tuple(_merge_enters(_compile(self.root)))


# --- walking a tree -------------------------------------------------------------------------------------------------


def _children(node: Node) -> tuple[Node, ...]:
    match node:
        case int():
            return ()
        case Rounded():
            return (node.node,)
        case Fused():
            return (node.node, *node.terms)
        case _:
            return node.parts


def fold(root: Node, step: Callable[[Node, list[Any]], Any]) -> Any:
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


def _shape_of(node: Node, parts: list[Node]) -> Node:
    match node:
        case int():
            return node
        case Fused():
            return node.adder.shape(parts[0], node.terms)
        case Rounded():
            return Rounded(parts[0], node.format)
        case Chain(stored=Format() as fmt) if parts:
            running: Node = Rounded(parts[0], fmt)
            for part in parts[1:]:
                running = Rounded(Chain((running, part)) if isinstance(part, int) else Join((running, part)), fmt)
            return running
        case _:
            return type(node)(tuple(parts))


def _leaves(node: Node) -> Iterator[int]:
    stack: list[Node] = [node]
    while stack:
        top = stack.pop()
        if isinstance(top, int):
            yield top
        stack.extend(reversed(_children(top)))


def _smallest_subtree(root: Node, i: int, j: int) -> int:
    """The number of terms of the smallest subtree with both i and j.

    Chains and joins fold from the left; a flat join has no subtree but itself.
    """

    def step(node: Node, parts: list[tuple[int, set[int], int]]) -> tuple[int, set[int], int]:
        """Its terms, which of i and j are among them, and the size of the smallest subtree that holds both (or 0)."""
        count, held, smallest = (1, {node} & {i, j}, 0) if isinstance(node, int) else (0, set(), 0)
        for part_count, part_held, part_smallest in parts:
            count, held = count + part_count, held | part_held
            is_complete = len(held) == 2 and not isinstance(node, Flat)
            smallest = smallest or part_smallest or (count if is_complete else 0)
        return count, held, smallest or (count if len(held) == 2 else 0)

    size: int = fold(root, step)[2]
    return size


def _compile(root: Node) -> Iterator[Instruction]:
    """Post-order, by an explicit stack: trees of thousands of levels are fine."""
    stack: list[Node | Instruction] = [root]
    outermost = root
    while isinstance(outermost, Fused):
        outermost = outermost.node
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
                yield ("init" if top is outermost else "zero", None)
                stack.extend(reversed([step for part in top.parts for step in _chain_steps(part, top.stored)]))
            case Join():
                stack.extend(reversed([top.parts[0], *(step for p in top.parts[1:] for step in (p, ("add", None)))]))
            case Fused():
                stack += [("fuse", top.terms), top.node]
            case Flat():
                in_turn = sorted(top.parts, key=lambda part: part if isinstance(part, int) else -1)
                stack.extend(reversed([*in_turn, ("flat", len(in_turn))]))


def _chain_steps(part: Node, stored: Format | None) -> list[Node | Instruction]:
    steps: list[Node | Instruction] = [("enter", (part,))] if isinstance(part, int) else [part, ("add", None)]
    return [*steps, ("round", stored)] if stored is not None else steps


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
    text: str = fold(root, _text_of)
    return text[1:-1] if text.startswith("(") else text


def _text_of(node: Node, parts: list[str]) -> str:
    """A sum of several parts stands in brackets."""
    match node:
        case int():
            return str(node)
        case Rounded():
            inner = parts[0][1:-1] if parts[0].startswith("(") else parts[0]
            return f"{node.format}({inner})"
        case Flat():
            return f"[{', '.join(parts)}]"
    return f"({'+'.join(parts)})" if parts else "0"


# --- tree files -----------------------------------------------------------------------------------------------------

TREE_SCHEMA = "softfloat-llm/tree/1"


def write_tree(tree: Tree, path: str | Path) -> None:
    """Write a tree as JSON: {"schema", "n", "tree"}; a term is a number, a node {"chain"|"join"|"flat": [parts]}."""
    body = fold(tree.shape, _to_json)
    Path(path).write_text(f'{{"schema": "{TREE_SCHEMA}", "n": {tree.n}, "tree": {body}}}\n')


def _to_json(node: Node, parts: list[str]) -> str:
    match node:
        case int():
            return str(node)
        case Rounded():
            return f'{{"round": "{node.format}", "node": {parts[0]}}}'
    return f'{{"{type(node).__name__.lower()}": [{", ".join(parts)}]}}'


def read_tree(path: str | Path) -> Tree:
    """Read what `write_tree` wrote. Raises OrderError where the file is missing, malformed, or no tree of 0 … n-1."""
    try:
        *inner, body = _objects(Path(path).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise OrderError(f"Reading the tree file {path}: {why(error)}. `trees.write_tree` writes one.") from None
    if body.get("schema") != TREE_SCHEMA or not _is_integer(body.get("n")):
        raise OrderError(f"Reading the tree file {path}: expected an object with schema {TREE_SCHEMA!r} and n.")
    nodes: list[Node] = []
    try:
        for each in inner:
            nodes.append(_from_json(each, nodes))
        tree = Tree(body["n"], _node(body.get("tree"), nodes))
    except ValueError as error:
        raise OrderError(f"Reading the tree file {path}: {error}.") from None
    if len(tree.leaves) != tree.n or sorted(tree.leaves) != list(range(tree.n)):
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
        raise ValueError("a node is a number or an object with chain, join, flat or round")
    return nodes[int(match[1])]


def _from_json(body: dict[str, Any], nodes: Sequence[Node]) -> Node:
    if isinstance(body.get("round"), str):
        try:
            return Rounded(_node(body.get("node"), nodes), format_of(body["round"]))
        except FormatError as error:
            raise ValueError(str(error).rstrip(".")) from None
    for key, kind in (("chain", Chain), ("join", Join), ("flat", Flat)):
        if isinstance(body.get(key), list):
            parts = tuple(_node(part, nodes) for part in body[key])
            if parts or kind is Chain:
                return kind(parts)
    raise ValueError("a node is a number or an object with chain, join, flat or round")
