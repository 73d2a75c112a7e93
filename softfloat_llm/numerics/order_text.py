"""The text form of an order: what it may say, and its levels. `orders.Order` says what each of them means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from softfloat_llm.errors import FormatError, OrderError, nearest, nearest_word
from softfloat_llm.numerics import adders, mkl_orders
from softfloat_llm.numerics.adders import Adder
from softfloat_llm.numerics.formats import Format, format_of
from softfloat_llm.numerics.trees import Tree, read_tree

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
_NESTING = ("lanes", "blocked", "split-k", "perm", "swap")


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
