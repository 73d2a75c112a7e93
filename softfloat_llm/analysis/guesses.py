"""From a tree and its traits to precisions that may be meant: what is held against the kernel next.

Start reading at `guesses`. Nothing here is certain: an adder's rounding, or an accumulator that two terms do not show,
is tried in each of its forms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from softfloat_llm.analysis.joins import Joined, inner_nodes
from softfloat_llm.analysis.probes import Subject
from softfloat_llm.analysis.recognise import names_of
from softfloat_llm.analysis.traits import EXACT, Traits, accumulator_format
from softfloat_llm.errors import SoftfloatError
from softfloat_llm.numerics.adders import units
from softfloat_llm.numerics.formats import Format, f16, f32, f64, tf32
from softfloat_llm.numerics.order_text import Level
from softfloat_llm.numerics.orders import Order
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.trees import Chain, Flat, Join, Node, Rounded, Tree

_UNSEEN = ("f32", "f64", "f16", "bf16", "exact")
"""Accumulators to try where no partial sum shows its own, the usual one first."""
_OPAQUE = ("f32+kahan", "f32+neumaier", "exact")
"""Accumulators whose sums are no tree."""


_NAMES_TRIED = 3


@dataclass(frozen=True)
class Guess:
    """A claim about a kernel: an order by name, or a tree without one; and its stages where they can be computed."""

    order: str | None
    tree: Tree | None
    precision: Precision | None


def guesses(subject: Subject, traits: Traits, root: Joined | int | None) -> Iterator[Guess]:
    """Claims to try, those that say least first. root None: the answers were those of no tree."""
    if root is None:
        yield from _opaque(subject)
        return
    tree = tree_of(subject.n, root, traits)
    has_flat = any(len(node.parts) > 2 for node in inner_nodes(root))
    entering = EXACT in traits.term_bits.values()
    names = names_of(tree, entering=entering, adders=_adders(subject, root, traits) if has_flat else ())
    if has_flat:
        for name in names:
            yield from _fused(subject, name, tree)
        yield Guess(None, tree, None)
        return
    orders: list[str | Order] = [*islice(names, _NAMES_TRIED), explicit(tree)]  # they may differ in the sign of a zero
    for order in orders:
        text = order if isinstance(order, str) else None
        for acc in _accumulators(traits):
            tried = [_precision(subject, each, order, acc) for each in (traits, replace(traits, output_mode=None))]
            yield from (Guess(text, tree, precision) for precision in dict.fromkeys(tried))
    yield from _opaque(subject)


def explicit(tree: Tree) -> Order:
    """A tree as an order without a name."""
    order = Order("seq")
    order.levels, order.text = (Level("tree", join="@revealed", explicit=tree),), "tree:@revealed"
    return order


# --- the tree -------------------------------------------------------------------------------------------------------


def tree_of(n: int, root: Joined | int, traits: Traits) -> Tree:
    """The tree with an order among the parts of each node: the older sum first, then what is added to it."""
    acc_bits = traits.acc_bits
    built: dict[Joined, Node] = {}
    for joined in reversed(inner_nodes(root)):
        parts = [_term(part, traits) if isinstance(part, int) else built[part] for part in joined.parts]
        node = _joined(parts, traits)
        bits = traits.node_bits.get(joined)
        if bits is not None and acc_bits is not None and bits < acc_bits and len(parts) == 2:
            node = Rounded(node, accumulator_format(bits, is_narrow=True))
        built[joined] = node
    return Tree(n, root if isinstance(root, int) else built[root])


def _term(term: int, traits: Traits) -> Node:
    """A term; where some enter unrounded and this one has fewer bits than a sum, as it is rounded."""
    bits = traits.term_bits.get(term, EXACT)
    is_alone = EXACT in traits.term_bits.values() and bits < (traits.acc_bits or 0)
    return Rounded(Join((term,)), accumulator_format(bits, is_narrow=True)) if is_alone else term


def _joined(parts: list[Node], traits: Traits) -> Node:
    """One node: a chain where a term enters unrounded, a join of values else; all at once where there are many."""
    parts = sorted(parts, key=_rank)
    if len(parts) > 2:
        return Flat(tuple(parts))
    first, second = parts
    enters = isinstance(second, int) and _enters(second, traits)
    if isinstance(first, int) and not enters and _enters(first, traits):
        first, second, enters = second, first, True
    if not enters:
        return Join((*first.parts, second)) if isinstance(first, Join) else Join((first, second))
    return Chain((*first.parts, second)) if isinstance(first, Chain) else Chain((first, second))


def _enters(term: int, traits: Traits) -> bool:
    """True where a term enters its sum as it is: that was seen, or it makes no difference and sums start at +0."""
    if traits.term_bits:
        return traits.term_bits.get(term) == EXACT
    return traits.starts_at_zero is not False


def _rank(part: Node) -> tuple[bool, int]:
    """Sums before terms, terms in their order; of two sums the one that holds the earlier term."""
    top = part
    while not isinstance(top, int):
        top = top.node if isinstance(top, Rounded) else top.parts[0]  # type: ignore[union-attr]
    return isinstance(part, int), top


# --- the stages -----------------------------------------------------------------------------------------------------


def _accumulators(traits: Traits) -> tuple[str, ...]:
    bits = traits.acc_bits
    if bits is None:
        return _UNSEEN
    ranges = (True, False) if traits.is_narrow is None else (traits.is_narrow,)
    return tuple(dict.fromkeys(str(accumulator_format(bits, is_narrow=narrow)) for narrow in ranges))


def _precision(subject: Subject, traits: Traits, order: str | Order, acc: str) -> Precision | None:
    words: dict[str, Any] = {
        "storage": subject.storage, "product": _product(subject, traits, acc), "acc": acc, "order": order,
        "output": subject.output, "subnormals": _subnormals(traits),
    }  # fmt: skip
    found = {"acc": traits.mode, "product": traits.mode, "output": traits.output_mode}
    words["rounding"] = {stage: mode for stage, mode in found.items() if mode is not None}
    return _made(words)


def _product(subject: Subject, traits: Traits, acc: str) -> str | None:
    if subject.takes == "terms":
        return str(f64) if subject.storage is f64 else None
    bits = set(traits.term_bits.values())
    if not bits or EXACT in bits:
        return None
    return acc if max(bits) == traits.acc_bits else str(accumulator_format(max(bits), is_narrow=True))


def _subnormals(traits: Traits) -> dict[str, str]:
    words = {}
    if traits.flushes_operands:
        words["storage"] = "daz"
    if traits.flushes_sums or (traits.flushes_sums is None and traits.flushes_operands):
        words |= {"acc": "ftz+daz", "product": "ftz"}
    if traits.flushes_output:
        words["output"] = "ftz"
    if {"storage", "acc", "output"} <= set(words):
        return dict.fromkeys(("storage", "product", "acc", "output"), "ftz+daz")
    return words


def _made(words: dict[str, Any]) -> Precision | None:
    """The precision of these stages, or None where this package computes no such thing (fused products of f64)."""
    try:
        return Precision(**words)
    except SoftfloatError:
        return None


# --- many at once ---------------------------------------------------------------------------------------------------


def _adders(subject: Subject, root: Joined | int, traits: Traits) -> list[str]:
    """Adders to try: by parameters, in the shortest words; then each real unit that reads such operands."""
    terms = max(sum(isinstance(part, int) for part in node.parts) for node in inner_nodes(root))
    bits = traits.fraction_bits or 24
    plain = [str(terms)] if bits == 24 else []
    plain += [f"{terms}:{bits}"] if bits != 24 else []
    plain += [f"{terms}:{bits}:ties_to_even", f"{terms}:{bits}:toward_zero:-133", f"{terms}:{bits}:ties_to_even:-21"]
    return plain + [name for name, unit in units().items() if _reads(unit.input, subject.storage)]


def _reads(operand: Format | None, storage: Format) -> bool:
    return operand is None or storage == operand or (operand is tf32 and storage is f32)


def _fused(subject: Subject, name: str, tree: Tree) -> Iterator[Guess]:
    """An adder with each register that its sums may be kept in."""
    adder = Order(name).adder
    assert adder is not None
    registers = ("f32", "f16", "e8m13") if adder.output is None else (str(f16 if adder.output is f16 else f32),)
    for acc in registers:
        words = {"storage": subject.storage, "acc": acc, "order": name, "output": subject.output}
        yield Guess(name, tree, _made(words))


def _opaque(subject: Subject) -> Iterator[Guess]:
    """What shows no tree: exact and compensated sums, and adders, of which some lose nothing at once."""
    for acc in _OPAQUE:
        made = _made({"storage": subject.storage, "acc": acc, "output": subject.output})
        yield from [Guess("seq", None, made)] if made is not None else []
    for name, unit in units().items():
        if _reads(unit.input, subject.storage):
            yield from _fused(subject, f"fused:{name}", Order(f"fused:{name}").tree(subject.n))
