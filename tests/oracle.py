"""Independent answers to hold the package against: real instructions, exact fractions, orders read from their words.

Nothing here uses the package's array code; `round_exact`, the evident scalar form, is the one thing that it borrows.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.formats import format_of

HARDWARE = Path(__file__).parent / "data" / "hardware"
HARDWARE_MODES = {
    "rne": "ties_to_even", "rd": "toward_negative", "ru": "toward_positive", "rz": "toward_zero"
}  # fmt: skip


@cache
def hardware(name):
    """The arrays of a file of real instructions' results."""
    with np.load(HARDWARE / f"{name}.npz") as arrays:
        return {key: arrays[key] for key in arrays.files}


def values_of_bits(bits, fmt):
    """Bit patterns of f16, bf16 or f32 as float64, by NumPy's views alone."""
    bits = np.asarray(bits)
    if fmt == "f16":
        values = bits.astype(np.uint16).view(np.float16)
    elif fmt == "bf16":
        values = (bits.astype(np.uint32) << 16).view(np.float32)
    else:
        values = bits.astype(np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        return values.astype(np.float64)


def differs(got, want):
    """Where two arrays of values are not the same: 0 and -0 are two values, all NaN are one."""
    with np.errstate(invalid="ignore"):
        got, want = np.broadcast_arrays(np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64))
    is_same = (got == want) & (np.signbit(got) == np.signbit(want))
    return ~(is_same | (np.isnan(got) & np.isnan(want)))


def assert_same(got, want, *inputs):
    """Every element the same; else say how many are not, and show the first with its inputs."""
    is_different = differs(got, want)
    if is_different.any():
        first = int(np.flatnonzero(is_different)[0])
        shown = [np.broadcast_to(np.asarray(i), is_different.shape).ravel()[first] for i in inputs]
        got, want = np.asarray(got).ravel()[first], np.broadcast_to(np.asarray(want), is_different.shape).ravel()[first]
        raise AssertionError(
            f"{is_different.sum()} of {is_different.size} differ; number {first}: got {float(got).hex()},"
            f" want {float(want).hex()}, inputs {shown}"
        )


# --- Rounding -------------------------------------------------------------------------------------------------------


def goes_away(mode, code, place, is_negative):
    """Whether a magnitude beyond the value of `code` rounds to the next code. place: -1 below the midpoint, 0 on it, 1.

    All from integers (or arrays of them): a code is even where its value's last significand bit is.
    """
    return {
        "ties_to_even": (place > 0) | ((place == 0) & (code % 2 == 1)),
        "ties_to_away": place >= 0,
        "toward_zero": False,
        "toward_positive": not is_negative,
        "toward_negative": is_negative,
        "to_odd": code % 2 == 0,
    }[mode]


# --- Sums: an order read from its words -----------------------------------------------------------------------------


class ExactMachine:
    """add(x, y) = R(x + y) in exact arithmetic."""

    def __init__(self, fmt, mode="ties_to_even", **options):
        self.fmt, self.mode, self.options = format_of(fmt), mode, options

    def round(self, x):
        return round_exact(x, self.fmt, self.mode, **self.options)

    def add(self, x, y):
        if not (math.isfinite(x) and math.isfinite(y)):
            return self.round(x + y)
        total = Fraction(x) + Fraction(y)
        if total:
            return self.round(total)
        signs = {math.copysign(1.0, x), math.copysign(1.0, y)} if x == 0 else {1.0, -1.0}
        is_negative = signs == {-1.0} or (self.mode == "toward_negative" and signs != {1.0})
        return self.round(-0.0 if is_negative else 0.0)


def split(order):
    head, _, inner = order.partition(">")
    word, *arguments = head.strip().split(":")
    return word, arguments, inner.strip() or "seq"


def chunks(terms, length):
    return [terms[start : start + length] for start in range(0, len(terms), length)]


def sum_in_order(order, terms, machine, init=None, permute=None):
    """The sum of exactly given terms in an order, straight from the table of orders; `init` where the sum starts.

    A chain (seq, reverse, blocked) starts at init; to the result of any other order, init is added. An order with one
    lane or one chunk is that lane's order.
    """
    word, arguments, inner = split(order)
    if word == "perm":
        return sum_in_order(inner, permute(terms, int(arguments[0])), machine, init, permute)
    if word == "swap":
        swapped = [t for group in chunks(terms, int(arguments[0])) for t in group[::-1]]
        return sum_in_order(inner, swapped, machine, init, permute)
    if word == "reverse":
        return sum_in_order("seq", terms[::-1], machine, init)
    if word == "seq":
        return add_up(terms, machine, init)
    if word == "blocked":
        blocks = [sum_in_order(inner, b, machine, None, permute) for b in chunks(terms, int(arguments[0]))]
        return add_up(blocks, machine, init, *arguments[1:])
    if word in ("lanes", "split-k"):
        size, _, neighbours = arguments[0].partition("x")
        size, groups = int(size), chunks(terms, int(neighbours or 1))
        lanes = [[t for group in groups[i::size] for t in group] for i in range(size)]
        parts = lanes if word == "lanes" else chunks(terms, -(-len(terms) // size) or 1)
        if word == "lanes" and arguments[1:] and arguments[-1] not in ("half", "adj", "seq"):
            if len(lanes) == 1 and inner == "seq":
                return add_up(lanes[0], machine, init, arguments[-1])
            total = in_kept_lanes(lanes, inner, arguments[1:], machine, permute)
            return total if init is None else machine.add(init, total)
        if len(parts) <= 1 and not (word == "split-k" and arguments[1:] and parts):
            return sum_in_order(inner, parts[0] if parts else [], machine, init, permute)
        values = [sum_in_order(inner, part, machine, None, permute) for part in parts]
        if word == "split-k" and arguments[1:]:
            values = [round_exact(v, arguments[1], machine.mode) for v in values]
        join = "seq" if word == "split-k" else (arguments[1:] or ["half"])[0]
        total = joined(values, join, machine)
    elif word == "pairwise":
        total = in_halves(terms, machine) if terms else 0.0
    else:
        total = joined([machine.round(t) for t in terms], arguments[0], machine) if terms else 0.0
    return total if init is None else machine.add(init, total)


def in_kept_lanes(lanes, inner, arguments, machine, permute):
    """Lanes that are kept in a format: every sum in a lane, and of two of them, is rounded to it."""
    *join, kept = arguments

    class Kept:
        def add(self, x, y):
            return round_exact(machine.add(x, y), kept, machine.mode)

    if inner == "seq":
        values = [add_up(lane, machine, None, kept) for lane in lanes]
    else:
        values = [round_exact(sum_in_order(inner, lane, machine, None, permute), kept, machine.mode) for lane in lanes]
    return joined(values, (join or ["half"])[0], Kept())


def add_up(values, machine, init=None, stored=None):
    total = 0.0 if init is None else init
    for value in values:
        total = machine.add(total, value)
        if stored is not None:
            total = round_exact(total, stored, machine.mode)
    return total


def in_halves(terms, machine):
    if len(terms) == 1:
        return machine.round(terms[0])
    middle = -(-len(terms) // 2)
    return machine.add(in_halves(terms[:middle], machine), in_halves(terms[middle:], machine))


def joined(values, how, machine):
    """Values joined by seq, adj or half."""
    if how == "seq":
        total = values[0]
        for value in values[1:]:
            total = machine.add(total, value)
        return total
    if how == "adj":
        while len(values) > 1:
            odd = values[-1:] if len(values) % 2 else []
            values = [machine.add(x, y) for x, y in list(pairwise(values))[::2]] + odd
        return values[0]
    width = 1
    while width < len(values):
        width *= 2
    while width > 1:
        width //= 2
        values = [machine.add(v, values[i + width]) if i + width < len(values) else v for i, v in enumerate(values)]
        values = values[:width]
    return values[0]


# --- Compensated sums, as their papers have them --------------------------------------------------------------------


def kahan_sum(terms, machine):
    s = c = 0.0
    for term in terms:
        y = machine.add(machine.round(term), -c)
        t = machine.add(s, y)
        c = machine.add(machine.add(t, -s), -y)
        s = t
    return s


def neumaier_sum(terms, machine):
    s = c = 0.0
    for term in terms:
        x = machine.round(term)
        t = machine.add(s, x)
        if abs(s) >= abs(x):
            c = machine.add(c, machine.add(machine.add(s, -t), x))
        else:
            c = machine.add(c, machine.add(machine.add(x, -t), s))
        s = t
    return machine.add(s, c)
