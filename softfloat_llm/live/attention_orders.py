"""The orders of sums inside PyTorch's attention, by the kernels of `attention_kernels`: place by place, not in bits."""

from __future__ import annotations

from dataclasses import dataclass

from softfloat_llm.analysis.guesses import tree_of
from softfloat_llm.analysis.joins import Joined, found_joins
from softfloat_llm.analysis.probes import Kernel, Mask, Subject, Takes
from softfloat_llm.analysis.recognise import names_of
from softfloat_llm.analysis.reveal import Revealed
from softfloat_llm.analysis.traits import Traits
from softfloat_llm.analysis.triples import joins_by_triples
from softfloat_llm.errors import LiveError
from softfloat_llm.live.attention_kernels import Flash, SoftmaxSum
from softfloat_llm.live.kernels import Places
from softfloat_llm.numerics.formats import Format, f32, format_of
from softfloat_llm.numerics.trees import Tree

OPERATIONS = {"softmax": "B,M,K", "sdpa-scores": "H,G,T,S,C", "sdpa-values": "H,G,T,S,C"}
"""Name -> what its sizes are: heads, rows, keys; query and kv heads, queries, keys, size of a head."""
NOT_IN_BITS = "read from what comes out of attention, to the nearest unit: the tree, not what is rounded in it"


@dataclass(frozen=True)
class PlacedTree:
    """Places of a result whose sums have one tree; places None: all of them."""

    places: Places | None
    tree: Tree

    @property
    def name(self) -> str | None:
        return next(names_of(self.tree), None)


def softmax_order(kernel: SoftmaxSum) -> PlacedTree:
    """The tree of a softmax's row sums. Raises ProbeError where its answers are those of none."""
    return PlacedTree(None, _tree(kernel.terms, joins_by_triples(kernel.meets, kernel.terms)))


def score_orders(kernel: Flash) -> list[PlacedTree]:
    """The trees of the scores of a block of queries, the most frequent first. Raises ProbeError as above."""
    return [
        PlacedTree(
            places, _read(kernel.scores_at(places), kernel.size, kernel.format, kernel.score_mask, "products", 1)
        )
        for places in kernel.score_places()
    ]


def value_orders(kernel: Flash) -> list[PlacedTree]:
    """The trees of the weighted values of the last query of a block, the most frequent first."""
    mask, terms = kernel.value_mask, kernel.seen
    return [
        PlacedTree(places, _read(kernel.values_at(places), terms, kernel.format, mask, "terms", 1 / terms))
        for places in kernel.value_places()
    ]


def _read(kernel: Kernel, terms: int, fmt: Format, mask: Mask, takes: Takes, factor: float) -> Tree:
    """The tree of sums that are read to the nearest unit."""
    about = factor * (1 + 1e-12)  # so that they are not read in bits
    return _tree(terms, found_joins(Subject(kernel, terms, fmt, fmt, takes=takes, factor=about), mask))


def _tree(terms: int, root: Joined | int) -> Tree:
    return tree_of(terms, root, Traits(starts_at_zero=True))


# --- as an answer ---------------------------------------------------------------------------------------------------


def reveal_inside(operation: str, sizes: tuple[int, ...], fmt: str) -> tuple[str, list[tuple[Places | None, Revealed]]]:
    """(what was asked, places and what was revealed there) of an operation of `OPERATIONS`.

    Raises LiveError for other sizes or a format that flash attention is not asked in.
    """
    wanted = OPERATIONS[operation]
    if len(sizes) != wanted.count(",") + 1 or min(sizes) < 1:
        raise LiveError(f"torch {operation} takes sizes {wanted} of at least 1; found {', '.join(map(str, sizes))}.")
    if operation == "softmax":
        kernel = SoftmaxSum(*sizes)
        return kernel.what, [(None, _told(softmax_order(kernel).tree, "terms", f32))]
    held = format_of(fmt)
    if held.name not in ("bf16", "f16"):
        raise LiveError(f"torch {operation} is asked in bf16 or f16; not in {held}.")
    heads, groups, rows, keys, size = sizes
    if heads % groups or rows > keys:
        raise LiveError(f"torch {operation} takes heads in groups, and no more queries than keys; found {sizes}.")
    flash = Flash(heads, groups, rows, keys, size, held, 0, min(rows, 32) - 1)
    found = score_orders(flash) if operation == "sdpa-scores" else value_orders(flash)
    takes: Takes = "products" if operation == "sdpa-scores" else "terms"
    return flash.what, [(each.places, _told(each.tree, takes, held)) for each in found]


def _told(tree: Tree, takes: Takes, fmt: Format) -> Revealed:
    name = next(names_of(tree), None)
    return Revealed(tree.n, takes, fmt, f32, tree, name, None, Traits(), findings=(NOT_IN_BITS,))
