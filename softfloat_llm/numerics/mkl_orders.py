"""The orders in which MKL multiplies a matrix by one vector in float32 (sgemm with one row, sgemv), as trees.

Its kernels carry the sum from part to part in lane 0 of a vector, so no `lanes` describes them. Start at `KERNELS`.

**Source:** measured: MKL 2024.2 in PyTorch 2.13, its AVX-512 kernels; which terms meet where by masks (two huge terms
that cancel swallow what is added between: Xu et al., FPRev, 2025), what is fused by random vectors, 0 differences.
"""

from __future__ import annotations

from collections.abc import Callable

from softfloat_llm.numerics.trees import Chain, Join, Node

_LANES = 16
Terms = tuple[int, ...]


def transposed(terms: Terms) -> Node:
    """Rows of the matrix times the vector: the first term, whole vectors of 16 lanes, the rest in one vector.

    Lane 0 of each starts with the sum so far; the lanes join at distance 8, 4, 2, 1. Seen for K = 2 to 1536.
    """
    whole = 1 + (len(terms) - 1) // _LANES * _LANES
    total: Node = Chain(terms[:1])
    for part in (terms[1:whole], terms[whole:]):
        if part:
            first, *others = (part[lane::_LANES] for lane in range(min(_LANES, len(part))))
            total = _halves([Chain((total, *first)), *(Chain(lane) for lane in others)])
    return total


def transposed_rest(terms: Terms) -> Node:
    """The same for the rows that four at a time leave over (N % 4): two vectors at once, whose sums are added; then
    the vectors that are left, one by one; then the product of the first term. Seen for K = 40 to 576.
    """
    return _rest(terms, is_fused=False)


def transposed_rest_second(terms: Terms) -> Node:
    """The same for the second of these rows: the products of its two first vectors are fused. Seen for K = 40 to 64."""
    return _rest(terms, is_fused=True)


def _rest(terms: Terms, *, is_fused: bool) -> Node:
    body = terms[1:]
    paired = len(body) // (2 * _LANES) * (2 * _LANES)
    if not paired:
        return Chain(terms)
    lanes: list[Node] = []
    for lane in range(_LANES):
        even, odd = body[lane : paired : 2 * _LANES], body[lane + _LANES : paired : 2 * _LANES]
        both: tuple[Node, ...] = (*even, *odd) if is_fused else (Join((Chain(even), Chain(odd))),)
        lanes.append(Chain((*both, *body[paired + lane :: _LANES])))
    return Join((_halves(lanes), Chain(terms[:1])))


def plain(terms: Terms) -> Node:
    """Columns of the matrix, eight at a time, upon the sum so far: ((sum + 6 + 4) + (7 + 5)) + ((2 + 0) + (3 + 1)).

    What eight at a time leave over is added one by one. Seen for K = 1 to 100.
    """
    whole = len(terms) // 8 * 8
    so_far: tuple[Node, ...] = ()
    for start in range(0, whole, 8):
        t = terms[start : start + 8]
        high = Join((Chain((*so_far, t[6], t[4])), Chain((t[7], t[5]))))
        so_far = (Join((high, Join((Chain((t[2], t[0])), Chain((t[3], t[1])))))),)
    return Chain((*so_far, *terms[whole:]))


def plain_halves(terms: Terms) -> Node:
    """Columns of a bf16 matrix, four at a time upon the sum so far: (0 + 2) + (1 + 3); the rest one by one, last first.

    Seen for K = 2 to 40, with MKL's kernels for AVX2, which it takes on an AMD CPU.
    """
    whole = len(terms) // 4 * 4
    blocks = (Join((Chain(terms[k : k + 4 : 2]), Chain(terms[k + 1 : k + 4 : 2]))) for k in range(0, whole, 4))
    return Chain((*blocks, *reversed(terms[whole:])))


def plain_edge(terms: Terms) -> Node:
    """The columns before the first aligned one: of eight terms four are added one by one, the others as a sum of four.

    What eights leave over is added one by one. Seen for f16, K = 12 to 35, on an AMD CPU.
    """
    whole = len(terms) // 8 * 8
    parts: list[Node] = []
    for k in range(0, whole, 8):
        parts += [*terms[k : k + 4], Chain(terms[k + 4 : k + 8])]
    return Chain((*parts, *terms[whole:]))


def transposed_by_four(terms: Terms) -> Node:
    """Rows of the matrix times the vector, as MKL has it on an AMD CPU: four terms one by one, then vectors of 4 lanes.

    Lane 0 starts with the sum of the four. Products are rounded before they are added (`product=f32`). Seen for K = 24
    to 1536, multiples of 4.
    """
    lanes = [terms[4 + lane :: 4] for lane in range(min(4, max(0, len(terms) - 4)))]
    if not lanes:
        return Chain(terms)
    return _halves([Chain((*terms[:4], *lanes[0])), *(Chain(lane) for lane in lanes[1:])])


def _halves(lanes: list[Node]) -> Node:
    """Lanes joined at half their number (a power of two, of which the last may be missing), then half of that, ..."""
    width = 1 << (len(lanes) - 1).bit_length()
    while width > 1:
        width //= 2
        lanes = [Join((lanes[i], lanes[i + width])) if i + width < len(lanes) else lanes[i] for i in range(width)]
    return lanes[0]


KERNELS: dict[str, Callable[[Terms], Node]] = {
    "t": transposed,
    "t-rest": transposed_rest,
    "t-rest-2": transposed_rest_second,
    "t-4": transposed_by_four,
    "n": plain,
    "n-bf16": plain_halves,
    "n-edge": plain_edge,
}
"""Name in an order's text, `gemv:t`, -> the tree of some terms."""
