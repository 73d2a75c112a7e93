"""What is lost at each node of a tree that has been found: bits of partial sums and terms, rounding, flushing.

Each probe puts terms at a few places of the tree and zeros elsewhere, so that one node's rounding decides the result.
Start reading at `found_traits`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from softfloat_llm.analysis.joins import Joined, inner_nodes, parents, terms_below
from softfloat_llm.analysis.probes import Mask, Subject
from softfloat_llm.numerics.formats import Array, Float64Array, Format, bf16, f16, f32, f64, format_of, tf32

_SIX = ("000000", "001001", "011011", "111000", "000111", "111111")
_MODES = dict(
    zip(
        _SIX,
        ("toward_zero", "ties_to_even", "ties_to_away", "toward_positive", "toward_negative", "to_odd"),
        strict=True,
    )
)
"""What 1 + h/2, 1 + h, 1 + 3h/2 round to, h half an ulp, then their negatives: 0 down to +-1, 1 away from it."""

_SIGNS = np.repeat([1.0, -1.0], 3)
_SMALL = np.tile([1.0, 2.0, 3.0], 2)


@dataclass(frozen=True)
class Traits:
    """What a tree's nodes and terms keep. None: not to be seen from outside.

    `node_bits`: significand bits of each partial sum that lies below another one, and of the whole where that can be
    seen. `term_bits`: bits of a product that enters its sum, EXACT where it keeps all. `mode`: the rounding of partial
    sums; `output_mode`: that of the whole. `fraction_bits`: of a multi-operand adder, those kept below the largest
    term. `is_narrow`: sums beyond float16's range are infinite. `operand_bits`: bits of an operand that come through,
    where they are fewer than the storage has.
    """

    node_bits: dict[Joined, int | None] = field(default_factory=dict)
    term_bits: dict[int, int] = field(default_factory=dict)
    mode: str | None = None
    output_mode: str | None = None
    fraction_bits: int | None = None
    is_narrow: bool | None = None
    starts_at_zero: bool | None = None
    operand_bits: int | None = None
    flushes_operands: bool | None = None
    flushes_sums: bool | None = None
    flushes_output: bool | None = None

    @property
    def acc_bits(self) -> int | None:
        """Bits of the accumulator: of the widest partial sum; of two terms, those of the one that is rounded first."""
        seen = [bits for bits in self.node_bits.values() if bits is not None]
        return max(seen or [bits for bits in self.term_bits.values() if bits != EXACT], default=None)


EXACT = 1 << 10
"""Term bits where a product enters its sum unrounded."""


def found_traits(subject: Subject, mask: Mask | None, root: Joined | int) -> Traits:
    """All traits of a kernel whose tree is known; of one that swallows nothing (mask None) those that need no mask."""
    tree = _Tree(root)
    mask = mask and replace(mask, modulus=0)  # no ulps of M come into these results
    bits = {} if mask is None else _node_bits(subject, mask, tree)
    seen = [b for b in bits.values() if b is not None]
    widest = max(seen, default=None)
    if mask is not None and widest is not None:
        bits |= _root_bits(subject, mask, tree, widest)
        widest = max(widest, *(b for b in bits.values() if b is not None))
    is_narrow = _is_narrow(subject, tree)
    acc = None if widest is None else accumulator_format(widest, is_narrow=bool(is_narrow))
    flushes_sums = None if acc is None else _flushes_sums(subject, tree, acc)
    term_bits = _term_bits(subject, tree, widest, min(seen, default=None))
    if flushes_sums and acc is not None and not term_bits:
        term_bits = _term_bits_by_flushing(subject, tree, acc)
    return Traits(
        node_bits=bits,
        term_bits=term_bits,
        mode=None if mask is None or widest is None else _mode(subject, mask, tree, bits, widest),
        output_mode=None if mask is None or widest is None else _output_mode(subject, mask, tree, widest),
        fraction_bits=None if mask is None else _fraction_bits(subject, mask, tree),
        is_narrow=is_narrow,
        starts_at_zero=_starts_at_zero(subject),
        operand_bits=_operand_bits(subject),
        flushes_operands=_flushes_operands(subject),
        flushes_sums=flushes_sums,
        flushes_output=_flushes_output(subject),
    )


def accumulator_format(bits: int, *, is_narrow: bool) -> Format:
    """The format of sums of so many significand bits: f64 beyond f32, f16 or tf32, bf16, else 8 exponent bits."""
    if bits == 11:
        return f16 if is_narrow else tf32
    return f64 if bits > 24 else {24: f32, 8: bf16}.get(bits) or format_of(f"e8m{bits - 1}")


class _Tree:
    """A tree, with one term of each part of each node, and one beside the node where there is one."""

    def __init__(self, root: Joined | int) -> None:
        self.nodes = inner_nodes(root)
        self.above = parents(root)
        self.firsts = {node: [terms[0] for terms in parts] for node, parts in terms_below(root).items()}

    def beside(self, part: Joined | int) -> int | None:
        """A term of another part of the node above."""
        above = self.above.get(part)
        if above is None:
            return None
        return next(f for p, f in zip(above.parts, self.firsts[above], strict=True) if p is not part)

    def lower(self) -> list[tuple[Joined, int, int, int]]:
        """For each node below another: terms of two of its parts, and one beside it."""
        held = []
        for node in self.nodes:
            z = self.beside(node)
            if z is not None:
                held.append((node, self.firsts[node][0], self.firsts[node][1], z))
        return held


def _rows(n: int, count: int, *placed: tuple[Sequence[int] | Array, float | Array]) -> Float64Array:
    rows = np.zeros((count, n))
    for places, values in placed:
        rows[np.arange(count), np.asarray(places)] += values
    return rows


def _largest(low: int, high: int, count: int, holds: Callable[[Array], Array]) -> Array:
    """For each of `count` cases, the largest number up to `high` for which `holds`, which holds at `low`; by halves."""
    top = np.full(count, high)
    is_top = holds(top)
    lows, highs = np.where(is_top, high, low), top + is_top
    while (highs - lows > 1).any():
        middles = (lows + highs) // 2
        held = holds(middles)
        lows, highs = np.where(held, middles, lows), np.where(held, highs, middles)
    return lows


# --- bits -----------------------------------------------------------------------------------------------------------


def _node_bits(subject: Subject, mask: Mask, tree: _Tree) -> dict[Joined, int | None]:
    """x + y - x, x = 2^q y: y comes through where the node that adds x and y keeps q + 1 bits."""
    lower = tree.lower()
    if not lower:
        return {}
    _, x, y, z = (list(column) for column in zip(*lower, strict=True))
    unit = 2.0**mask.unit

    def keeps(q: Array) -> Array:
        large = np.ldexp(unit, q)
        return np.equal(subject.counts(_rows(subject.n, len(x), (x, large), (y, unit), (z, -large)), mask), 1)

    limit = mask.big - mask.unit
    kept = _largest(0, limit, len(x), keeps)
    return {node: None if q == limit else int(q) + 1 for (node, *_), q in zip(lower, kept, strict=True)}


def _root_bits(subject: Subject, mask: Mask, tree: _Tree, widest: int) -> dict[Joined, int | None]:
    """2^q + 1 at the root: the bits that come out, where they are more than other sums have, or fewer than the output.

    As many as the output has say nothing: it may have rounded a wider sum.
    """
    most = min(subject.output.precision, mask.big - mask.unit)
    x, y = tree.firsts[tree.nodes[0]][:2]
    unit = 2.0**mask.unit

    def keeps(q: Array) -> Array:
        large = np.ldexp(unit, q)
        is_whole: Array = subject.ask(_rows(subject.n, 1, ([x], large), ([y], unit))) == (large + unit)
        return is_whole

    kept = int(_largest(0, most - 1, 1, keeps)[0]) + 1
    return {tree.nodes[0]: kept} if subject.factor == 1.0 and (kept > widest or kept < min(most, widest)) else {}


def _term_bits(subject: Subject, tree: _Tree, acc_bits: int | None, least: int | None) -> dict[int, int]:
    """A product of t bits and its leading part, negative, beside it: the rest comes through where t bits enter.

    (2^h + 1)(2^g + 1) has h + g + 1 bits; without (2^h + 1) 2^g it is 2^h + 1, which every partial sum (of `least`
    bits) and the output must hold. Not asked inside a node of many parts. Empty where all products enter as they are:
    an accumulator that holds them all does not change them.
    """
    narrow = min(subject.output.trailing_bits, subject.storage.trailing_bits, (least or subject.output.precision) - 1)
    most = narrow + subject.storage.precision
    if subject.takes == "terms" or (acc_bits is None and subject.n != 2):
        return {}
    terms = [k for k, node in tree.above.items() if isinstance(k, int) and len(node.parts) == 2]
    beside = [z for z in map(tree.beside, terms) if z is not None]
    if not terms:
        return {}

    def is_whole(bits: Array) -> Array:
        h = np.minimum(bits // 2, narrow)
        g = bits - 1 - h
        left, right = 1 + np.ldexp(1.0, -h), 1 + np.ldexp(1.0, -g)
        b = _rows(subject.n, len(terms), (terms, right), (beside, -1.0))
        a = np.broadcast_to(left[:, None], b.shape)
        enters: Array = subject.ask_operands(a, b) == subject.factor * left * np.ldexp(1.0, -g)
        return enters

    kept = _largest(2, most, len(terms), is_whole)
    if (kept == most).all():
        return {}
    return {k: EXACT if t == most else int(t) for k, t in zip(terms, kept, strict=True)}


def _term_bits_by_flushing(subject: Subject, tree: _Tree, acc: Format) -> dict[int, int]:
    """Which products enter unrounded where a rounding flushes: half of 2^emin comes through beside 2^emin, or not."""
    if subject.takes == "terms":
        return {}
    terms = [k for k, node in tree.above.items() if isinstance(k, int) and len(node.parts) == 2]
    beside = [z for z in map(tree.beside, terms) if z is not None]
    t = 2.0**acc.emin
    come = subject.ask(_rows(subject.n, len(terms), (terms, t / 2), (beside, t)))
    return {k: EXACT if is_whole else acc.precision for k, is_whole in zip(terms, come == 1.5 * t, strict=True)}


def _fraction_bits(subject: Subject, mask: Mask, tree: _Tree) -> int | None:
    """In a node of three parts or more: x - x + y, all at once, where y is 2^-F x and the next smaller one is lost."""
    nodes = [node for node in tree.nodes if len(node.parts) > 2]
    if not nodes:
        return None
    i, j, k = tree.firsts[max(nodes, key=lambda node: len(node.parts))][:3]
    unit = 2.0**mask.unit

    def keeps(q: Array) -> Array:
        large = np.ldexp(unit, q)
        return np.equal(subject.counts(_rows(subject.n, 1, ([i], large), ([j], -large), ([k], unit)), mask), 1)

    limit = mask.big - mask.unit
    kept = int(_largest(0, limit, 1, keeps)[0])
    return None if kept == limit else kept


def _mode(subject: Subject, mask: Mask, tree: _Tree, bits: dict[Joined, int | None], acc_bits: int) -> str | None:
    """How a partial sum rounds: where 1 + h/2, 1 + h, 1 + 3h/2 and their negatives end. None where it is no mode."""
    lower = [(x, y, z) for node, x, y, z in tree.lower() if bits[node] == acc_bits]
    if not lower or mask.unit + acc_bits + 1 > mask.big:
        return None
    x, y, z = lower[0]
    large, unit = 2.0 ** (mask.unit + acc_bits + 1), 2.0**mask.unit  # h is two units
    rows = _rows(subject.n, 6, ([x] * 6, _SIGNS * large), ([y] * 6, _SIGNS * _SMALL * unit), ([z] * 6, -_SIGNS * large))
    return _mode_of(_SIGNS * subject.counts(rows, mask) / 4)


def _output_mode(subject: Subject, mask: Mask, tree: _Tree, acc_bits: int) -> str | None:
    """How the whole sum, two terms that the accumulator holds, is rounded to the output. None where it is not."""
    bits = subject.output.precision
    if bits + 2 > acc_bits or mask.unit + bits + 1 > mask.big:
        return None
    x, y = tree.firsts[tree.nodes[0]][:2]
    large, unit = 2.0 ** (mask.unit + bits + 1), 2.0**mask.unit  # h is two units
    rows = _rows(subject.n, 6, ([x] * 6, _SIGNS * large), ([y] * 6, _SIGNS * _SMALL * unit))
    return _mode_of((_SIGNS * subject.ask(rows, mask.left) / subject.factor - large) / (4 * unit))


def _mode_of(ends: Float64Array) -> str | None:
    if not np.isin(ends, (0.0, 1.0)).all():
        return None
    return _MODES.get("".join("1" if end else "0" for end in ends))


# --- range ----------------------------------------------------------------------------------------------------------


def _exponents_of_products(subject: Subject) -> tuple[int, int]:
    """Exponents of terms that can be made of normal operands, the least and the largest."""
    fmt = subject.storage
    return (fmt.emin, fmt.emax) if subject.takes == "terms" else (2 * fmt.emin, 2 * fmt.emax)


def _is_narrow(subject: Subject, tree: _Tree) -> bool | None:
    """True where 2^15 + 2^15 - 2^15 is infinite or NaN in a node below the root: sums have float16's range."""
    lower = tree.lower()
    if not lower or _exponents_of_products(subject)[1] < f16.emax:
        return None
    _, x, y, z = lower[0]
    big = 2.0**f16.emax
    with np.errstate(all="ignore"):
        return not bool(np.isfinite(subject.ask(_rows(subject.n, 1, ([x], big), ([y], big), ([z], -big))))[0])


def _starts_at_zero(subject: Subject) -> bool | None:
    """True where a sum of terms that are all -0 is +0: a zero was added to them."""
    if not (subject.storage.has_negative_zero and subject.output.has_negative_zero):
        return None
    minus = np.full((1, subject.n), -0.0)
    result = subject.ask_operands(np.ones_like(minus), minus) if subject.takes == "products" else subject.ask(minus)
    return not bool(np.signbit(result)[0])


def _operand_bits(subject: Subject) -> int | None:
    """Bits of the one operand that is not zero or a one, up to those of the output; None where all come through."""
    most = min(subject.storage.precision, subject.output.precision)
    bits = np.arange(2, most + 1)
    values = np.zeros((len(bits), subject.n))
    values[:, 0] = 1.0 + 2.0 ** (1.0 - bits)
    with np.errstate(all="ignore"):
        come = (
            subject.ask_operands(np.ones_like(values), values) if subject.takes == "products" else subject.ask(values)
        )
    is_whole = come == values[:, 0]
    return None if subject.factor != 1.0 or is_whole.all() else int(bits[~is_whole][0]) - 1


def _flushes_operands(subject: Subject) -> bool | None:
    """True where a subnormal operand counts as zero, though its product (or its sum with another term) is normal."""
    fmt, n = subject.storage, subject.n
    tiny = 2.0 ** (fmt.emin - 1)
    if fmt.trailing_bits == 0:
        return None
    if subject.takes == "products":
        large = 2.0 ** min(fmt.emax, 40)
        b = np.zeros((2, n))
        b[:, 0] = tiny, fmt.smallest_normal
        is_seen = subject.ask_operands(np.full((2, n), large), b) != 0
        return bool(not is_seen[0]) if is_seen[1] else None
    if n < 2 or subject.output.trailing_bits < 1:
        return None
    rows = _rows(n, 1, ([0], 2 * tiny), ([1], tiny))
    return bool(subject.ask(rows)[0] == 2 * tiny * subject.factor)


def _flushes_sums(subject: Subject, tree: _Tree, acc: Format) -> bool | None:
    """True where a partial sum below the accumulator's normal values is lost: 1.5 t - t + t is t."""
    lower, (lowest, _) = tree.lower(), _exponents_of_products(subject)
    if not lower or acc.emin <= lowest or subject.storage.trailing_bits < 1:
        return None
    _, x, y, z = lower[0]
    t = 2.0**acc.emin
    result = subject.ask(_rows(subject.n, 1, ([x], 1.5 * t), ([y], -t), ([z], t)))[0]
    return bool(result == t * subject.factor)


def _flushes_output(subject: Subject) -> bool | None:
    """True where a sum below the output's normal values comes out as zero, and the smallest normal one does not."""
    lowest, _ = _exponents_of_products(subject)
    if subject.output.trailing_bits < 1 or subject.output.emin - 1 < lowest:
        return None
    rows = np.zeros((2, subject.n))
    rows[:, 0] = subject.output.smallest_normal / 2, subject.output.smallest_normal
    is_seen = subject.ask(rows) != 0
    return bool(not is_seen[0]) if is_seen[1] else None
