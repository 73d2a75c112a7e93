"""The tree of a sum whose terms cannot be negative, such as the exponentials of a softmax, from triples of terms.

A 1 at one place, u at two others, u less than half an ulp of 1 and 2u more: where the two meet before either meets the
1, the sum is more than 1; where not, each is swallowed. So it is seen which two of three terms are added first, and
that tells the tree. Start reading at `joins_by_triples`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from softfloat_llm.analysis.joins import Joined, parents
from softfloat_llm.errors import ProbeError
from softfloat_llm.numerics.formats import Array

Meets = Callable[[Array], Array]
"""meets(triples (R, 3)) -> (R,) bool: are the second and the third term added before either meets the first?"""

_SEED = 20240917
_CHECKS = 512


def joins_by_triples(meets: Meets, n: int) -> Joined | int:
    """The tree of n terms, two parts a node. Asks about n^2 triples at every depth.

    Raises ProbeError where the answers are those of no such tree.
    """
    rng = np.random.default_rng(_SEED)
    root = _joined(meets, list(range(n)), rng)
    if n > 2:
        _check(meets, n, root, rng)
    return root


def _joined(meets: Meets, terms: list[int], rng: np.random.Generator) -> Joined | int:
    """The tree of some terms that are one subtree: what lies beside the path from one of them up, from below."""
    if len(terms) == 1:
        return terms[0]
    pivot = int(rng.choice(terms))
    groups = _beside(meets, pivot, [term for term in terms if term != pivot])
    node: Joined | int = pivot
    for group in _from_below(meets, pivot, groups):
        node = Joined([node, _joined(meets, group, rng)])
    return node


def _beside(meets: Meets, pivot: int, others: list[int]) -> list[list[int]]:
    """The other terms in groups: those that meet each other before they meet the pivot."""
    pairs = list(combinations(others, 2))
    together = meets(np.array([(pivot, *pair) for pair in pairs])) if pairs else np.zeros(0, bool)
    groups: dict[int, list[int]] = {term: [term] for term in others}
    for (first, second), is_met in zip(pairs, together, strict=True):
        if is_met and groups[first] is not groups[second]:
            groups[first] += groups[second]
            groups.update(dict.fromkeys(groups[second], groups[first]))
    found = list({id(group): group for group in groups.values()}.values())
    same = {frozenset(pair) for group in found for pair in combinations(group, 2)}
    if {frozenset(pair) for pair, is_met in zip(pairs, together, strict=True) if is_met} != same:
        raise ProbeError(f"the terms that meet before term {pivot} do are in no groups")
    return found


def _from_below(meets: Meets, pivot: int, groups: list[list[int]]) -> list[list[int]]:
    """The groups as the pivot meets them. It meets one first where a term of another is the last of the three."""
    pairs = [(x, y) for x in range(len(groups)) for y in range(len(groups)) if x != y]
    triples = np.array([(groups[x][0], pivot, groups[y][0]) for x, y in pairs])
    is_later = meets(triples) if pairs else np.zeros(0, bool)
    ranks = [0] * len(groups)
    for (x, _), later in zip(pairs, is_later, strict=True):
        ranks[x] += bool(later)
    if sorted(ranks) != list(range(len(groups))):
        raise ProbeError(f"the terms that term {pivot} meets come in no sequence")
    return [groups[ranks.index(rank)] for rank in range(len(groups))]


def _check(meets: Meets, n: int, root: Joined | int, rng: np.random.Generator) -> None:
    """Raises ProbeError where triples at random are not as the tree says."""
    triples = np.array([rng.permutation(n)[:3] for _ in range(_CHECKS)])
    wrong = np.flatnonzero(meets(triples) != _as_told(root, triples.tolist()))
    if len(wrong):
        raise ProbeError(f"terms {triples[wrong[0]].tolist()} are added otherwise when asked again")


def _as_told(root: Joined | int, triples: Sequence[Sequence[int]]) -> Array:
    above = parents(root)

    def depth_of_meeting(i: int, j: int) -> int:
        over_i, over_j = (_path(above, term) for term in (i, j))
        return sum(node in over_i for node in over_j)

    return np.array([depth_of_meeting(j, k) > depth_of_meeting(i, j) for i, j, k in triples])


def _path(above: dict[int | Joined, Joined], term: int) -> set[Joined]:
    nodes: set[Joined] = set()
    node = above.get(term)
    while node is not None:
        nodes.add(node)
        node = above.get(node)
    return nodes
