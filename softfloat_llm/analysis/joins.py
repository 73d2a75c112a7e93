"""Which terms are joined before which: the shape of a summation tree, from the survivors of mask probes.

+M at i, -M at j and units elsewhere: what survives counts the terms outside the smallest subtree that holds i and j.
Start reading at `found_joins`.

**Source:** Xie et al., FPRev: Revealing the Order of Floating-Point Summations (2024), algorithm 3; here with a random
pivot, all questions of one depth in one batch, and nodes of more than two children.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from softfloat_llm.analysis.probes import Mask, Subject
from softfloat_llm.errors import ProbeError
from softfloat_llm.numerics.formats import Array, Float64Array

_SEED = 20240917
_CHECKS = 512  # pairs asked again, of the whole tree


@dataclass(eq=False)
class Joined:
    """A node that joins its parts at once: terms, or nodes. Two parts but where an adder takes more."""

    parts: list[int | Joined] = field(default_factory=list)


@dataclass
class _Question:
    """A set of terms that are one part of `parent`, or several; `guard` is a term of an earlier part of it."""

    terms: Array
    parent: Joined
    guard: int | None


def found_joins(subject: Subject, mask: Mask) -> Joined | int:
    """The tree of the kernel's sums, without an order among the parts of a node.

    Asks between n and n^2/2 rows, about 2 n log n for the trees of real kernels. Raises ProbeError where the answers
    are those of no tree.
    """
    if subject.n == 1:
        return 0
    rng = np.random.default_rng(_SEED)
    top = Joined()
    questions = [_Question(np.arange(subject.n), top, None)]
    while questions:
        pivots = [int(rng.choice(question.terms)) for question in questions]
        pairs = [(pivot, int(j)) for q, pivot in zip(questions, pivots, strict=True) for j in q.terms if j != pivot]
        owners = [place for place, q in enumerate(questions) for _ in range(len(q.terms) - 1)]
        sizes = _sizes(subject, mask, pairs, [_counted(questions[owner]) for owner in owners])
        ends = list(accumulate(len(question.terms) - 1 for question in questions))
        parted = zip(questions, pivots, np.split(sizes, ends[:-1]), strict=True)
        questions = [again for q, pivot, of_pivot in parted for again in _parted(q, pivot, of_pivot)]
    root = top.parts[0]
    _check(subject, mask, root, rng)
    return root


def _counted(question: _Question) -> Array:
    """Where units stand: at the terms in question, and at the guard."""
    return question.terms if question.guard is None else np.append(question.terms, question.guard)


def _sizes(subject: Subject, mask: Mask, pairs: Sequence[tuple[int, int]], counted: Sequence[Array]) -> Array:
    """For each pair, how many of the counted terms are in the smallest subtree that holds it."""
    rows, owners = [], []
    for place, ((i, j), places) in enumerate(zip(pairs, counted, strict=True)):
        for start in range(0, len(places), mask.most):
            row = np.zeros(subject.n)
            row[places[start : start + mask.most]] = 2.0**mask.unit
            row[i], row[j] = 2.0**mask.big, -(2.0**mask.big)
            rows.append(row)
            owners.append(place)
    survivors = np.bincount(owners, _asked(subject, mask, rows), len(pairs))
    return np.array([len(places) for places in counted]) - survivors.astype(np.int64)


def _asked(subject: Subject, mask: Mask, rows: list[Float64Array]) -> Float64Array:
    survivors = subject.counts(np.array(rows), mask)
    if not ((survivors >= 0) & (survivors <= subject.n)).all():
        raise ProbeError("a probe came to no number of units that there are")
    return survivors


def _parted(question: _Question, pivot: int, sizes: Array) -> Iterator[_Question]:
    """Put the path from the pivot up into `question.parent`; give what is to be asked about the parts beside it."""
    others = question.terms[question.terms != pivot]
    node: int | Joined = pivot
    done = 1
    for size in np.unique(sizes[sizes <= len(question.terms)]):
        beside = others[sizes == size]
        done += len(beside)
        if size != done:
            raise ProbeError(f"term {pivot} and {len(beside)} others lie in a subtree of {int(size)} terms, not {done}")
        above = Joined([node])
        yield from _placed(beside, above, pivot)
        node = above
    question.parent.parts.append(node)
    rest = others[sizes > len(question.terms)]  # the guard is lost with them: further parts of the same node
    if len(rest) and (question.guard is None or (sizes > len(question.terms) + 1).any()):
        raise ProbeError(f"a subtree of {len(question.terms)} terms seems to hold more")
    yield from _placed(rest, question.parent, question.guard)


def _placed(terms: Array, parent: Joined, guard: int | None) -> Iterator[_Question]:
    if len(terms) == 1:
        parent.parts.append(int(terms[0]))
    elif len(terms):
        yield _Question(terms, parent, guard)


# --- what a tree says -----------------------------------------------------------------------------------------------


def inner_nodes(root: Joined | int) -> list[Joined]:
    """The nodes, each before the nodes below it."""
    nodes, stack = [], [root]
    while stack:
        top = stack.pop()
        if isinstance(top, Joined):
            nodes.append(top)
            stack.extend(top.parts)
    return nodes


def terms_below(root: Joined | int) -> dict[Joined, list[list[int]]]:
    """For each node, the terms of each of its parts."""
    below: dict[Joined, list[list[int]]] = {}
    for node in reversed(inner_nodes(root)):
        below[node] = [[part] if isinstance(part, int) else terms_of(below[part]) for part in node.parts]
    return below


def terms_of(parts: Sequence[Sequence[int]]) -> list[int]:
    """All terms of some parts."""
    return [term for part in parts for term in part]


def parents(root: Joined | int) -> dict[int | Joined, Joined]:
    """Each term and node but the root -> the node that it is a part of."""
    return {part: node for node in inner_nodes(root) for part in node.parts}


def _check(subject: Subject, mask: Mask, root: Joined | int, rng: np.random.Generator) -> None:
    """Raises ProbeError where pairs asked of the whole, at random, are not as the tree says."""
    pairs = [(int(i), int(j)) for i, j in (rng.permutation(subject.n)[:2] for _ in range(min(_CHECKS, subject.n**2)))]
    held = _smallest(root, pairs)
    sizes = _sizes(subject, mask, pairs, [np.arange(subject.n)] * len(pairs))
    wrong = np.flatnonzero(sizes != held)
    if len(wrong):
        i, j = pairs[wrong[0]]
        raise ProbeError(
            f"terms {i} and {j} lie in a subtree of {int(sizes[wrong[0]])} terms when asked again, not of"
            f" {int(held[wrong[0]])}; so with {len(wrong)} of {len(pairs)} pairs"
        )


def _smallest(root: Joined | int, pairs: Sequence[tuple[int, int]]) -> Array:
    """The number of terms of the smallest subtree that holds each pair."""
    above = parents(root)
    sizes = {node: len(terms_of(parts)) for node, parts in terms_below(root).items()}
    held = []
    for i, j in pairs:
        over_i = set(_path(above, i))
        held.append(next(sizes[node] for node in _path(above, j) if node in over_i))
    return np.array(held)


def _path(above: dict[int | Joined, Joined], term: int) -> Iterator[Joined]:
    """The nodes over a term, from below."""
    node = above.get(term)
    while node is not None:
        yield node
        node = above.get(node)
