"""What a multi-operand adder cuts: the terms of one instruction, aligned to the largest exponent, in exact fractions.

The scalar twin of the model `aligned` in `numerics.fused`, for people to read; what the models mean is said at
`adders.Adder`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from softfloat_llm.numerics.exact import floor_log2, round_exact
from softfloat_llm.numerics.formats import f32
from softfloat_llm.numerics.fused import Pairs


@dataclass(frozen=True)
class Aligned:
    """One value that goes into an adder: a product, or the accumulator (`term` None).

    `kept` is what is left of it as a multiple of the unit, cut toward zero; `cut` the rest.
    """

    term: int | None
    value: Fraction
    exponent: int
    kept: Fraction

    @property
    def cut(self) -> Fraction:
        return self.value - self.kept


@dataclass(frozen=True)
class Alignment:
    """One addition of an adder: all values as multiples of `unit`, added exactly, rounded once.

    The unit is 2^(exponent - fraction_bits).
    """

    exponent: int
    fraction_bits: int
    values: tuple[Aligned, ...]
    rounding: str
    result: float

    @property
    def unit(self) -> Fraction:
        return Fraction(2) ** (self.exponent - self.fraction_bits)

    @property
    def cut(self) -> Fraction:
        """What all values lost by being cut."""
        return sum((one.cut for one in self.values), Fraction(0))

    @property
    def kept(self) -> Fraction:
        return sum((one.kept for one in self.values), Fraction(0))

    def to_dict(self) -> dict[str, Any]:
        """JSON: exact numbers as fractions in strings."""
        values = [
            {"term": v.term, "value": str(v.value), "exponent": v.exponent, "kept": str(v.kept), "cut": str(v.cut)}
            for v in self.values
        ]
        head = {"exponent": self.exponent, "fraction_bits": self.fraction_bits, "unit": str(self.unit)}
        return head | {"rounding": self.rounding, "result": self.result, "values": values}


def alignments(pairs: Pairs, c: float, ks: tuple[int, ...]) -> tuple[Alignment, ...]:
    """The additions of one instruction; empty for adders that do not align, and where a value is not finite.

    pairs: operands of one sum, as the adder reads them; c: the accumulator; ks: the terms.
    """
    adder = pairs.adder
    operands = [(float(pairs.left[k][0]), float(pairs.right[k][0])) for k in ks]
    if adder.model != "aligned" or not all(map(math.isfinite, (c, *(x for pair in operands for x in pair)))):
        return ()
    assert adder.output is not None
    register = f32 if adder.output.emin == f32.emin else adder.output
    products = {k: _product(k, *pair, pairs) for k, pair in zip(ks, operands, strict=True)}
    total, found = (c if adder.accumulator == "aligned" else 0.0), []
    for part in adder.parts(ks):
        of_total = max(floor_log2(abs(Fraction(total))), register.emin) if total else adder.zero_exponent
        values = [(None, Fraction(total), of_total), *(products[k] for k in part)]
        found.append(_aligned(values, pairs))
        total = found[-1].result
    return tuple(found)


def _product(k: int, x: float, y: float, pairs: Pairs) -> tuple[int, Fraction, int]:
    """A term, its exact product, and the exponent at which the adder takes it."""
    assert pairs.adder.input is not None
    if x == 0 or y == 0:
        return k, Fraction(0), pairs.adder.zero_exponent
    exponents = [max(floor_log2(abs(Fraction(v))), pairs.adder.input.emin) for v in (x, y)]
    return k, Fraction(x) * Fraction(y), exponents[0] + exponents[1]


def _aligned(values: list[tuple[int | None, Fraction, int]], pairs: Pairs) -> Alignment:
    adder = pairs.adder
    assert adder.output is not None
    largest = max(adder.zero_exponent, *(exponent for _, _, exponent in values))
    unit = Fraction(2) ** (largest - adder.fraction_bits)
    rows = tuple(Aligned(k, value, exponent, math.trunc(value / unit) * unit) for k, value, exponent in values)
    exact = sum((row.kept for row in rows), Fraction(0))
    is_beyond = abs(exact) >= Fraction(2) ** (adder.output.emax + 1)
    result = math.copysign(math.inf, exact) if is_beyond else round_exact(exact, adder.output, adder.rounding)
    return Alignment(largest, adder.fraction_bits, rows, adder.rounding, result)
