"""Making a suite of vectors: special values against special values, then seeded cases near what can go wrong.

The operands are chosen here; the results are `cases.right_result`'s. Start reading at `suite`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import numpy as np

from softfloat_llm.errors import VectorError, nearest
from softfloat_llm.numerics.formats import Format, decode, format_of
from softfloat_llm.numerics.modes import check_mode
from softfloat_llm.vectors.cases import OPERANDS, Case, made

COUNT = 200


def suite(
    operation: str, fmt: str | Format, mode: str = "ties_to_even", *, count: int = COUNT, seed: int = 0
) -> list[Case]:
    """The vectors of an operation: every tuple of special values (of fma a third of them), then `count` seeded ones.

    fmt: a format of at most 24 bits with a sign and a zero. The same arguments give the same cases everywhere.
    **Raises** VectorError for an unknown operation or such a format, FormatError for an unknown mode.
    """
    fmt = format_of(fmt)
    check_mode(mode)
    if operation not in OPERANDS:
        raise VectorError(
            f"Unknown operation {operation!r}.{nearest(operation, OPERANDS)} Known: {', '.join(OPERANDS)}."
        )
    if not (fmt.is_signed and fmt.has_zero and fmt.precision <= 24):
        raise VectorError(f"Vectors are made for formats of at most 24 bits with a sign and a zero, not for {fmt}.")
    chosen = dict.fromkeys([*_of_specials(operation, fmt), *_seeded(operation, fmt, count, seed)])
    return [made(operation, operands, fmt, mode) for operands in chosen]


def specials(fmt: Format) -> list[float]:
    """Zeros, the ends of the subnormals, the normals and the range, ones and their neighbours, infinity, NaN."""
    one_up = 1.0 + fmt.eps
    below = fmt.smallest_normal - fmt.smallest_subnormal
    magnitudes = [0.0, fmt.smallest_subnormal, below, fmt.smallest_normal, 1.0, one_up, 3.0, fmt.max]
    if fmt.has_infinity:
        magnitudes.append(math.inf)
    held = [x for x in dict.fromkeys(magnitudes) if x <= fmt.max or math.isinf(x)]
    signed = [sign * x for x in held for sign in (1.0, -1.0) if x or sign > 0 or fmt.has_negative_zero]
    return [*signed, *([math.nan] if fmt.has_nan else [])]


def _of_specials(operation: str, fmt: Format) -> Iterator[tuple[float, ...]]:
    if operation == "round":
        yield from ((x,) for x in (*specials(fmt), *_midpoints(fmt)))
        return
    every = product(specials(fmt), repeat=OPERANDS[operation])
    yield from (operands for i, operands in enumerate(every) if operation != "fma" or i % 3 == 0)


def _midpoints(fmt: Format) -> Iterator[float]:
    """Midpoints all over the range, the one beyond the largest value too, and the float64 on either side of each."""
    for exponent in range(fmt.emin - fmt.trailing_bits - 1, fmt.emax + 1, max(1, (fmt.emax - fmt.emin) // 16)):
        for low in (1.0, 1.5, 2.0 - fmt.eps):
            value = math.ldexp(low + fmt.eps / 2, exponent)
            yield from (value, math.nextafter(value, 0.0), math.nextafter(value, math.inf), -value)
    beyond = fmt.max + math.ldexp(fmt.eps / 2, fmt.emax)
    yield from (beyond, math.nextafter(beyond, 0.0), -beyond)


def _seeded(operation: str, fmt: Format, count: int, seed: int) -> Iterator[tuple[float, ...]]:
    rng = np.random.default_rng([seed, *operation.encode(), *str(fmt).encode()])
    values = decode(np.arange(1 << fmt.bits), fmt) if fmt.bits <= 16 else None
    for _ in range(count):
        operands = [_any_value(rng, fmt, values) for _ in range(OPERANDS[operation])]
        if operation == "round":
            yield (operands[0] * (1.0 + float(rng.integers(-8, 9)) * fmt.eps / 8.0),)
        elif operation in ("add", "sub", "fma") and rng.random() < 0.5:
            yield (*operands[:-1], _near_tie(operation, operands, fmt))
        else:
            yield tuple(operands)


def _any_value(
    rng: np.random.Generator, fmt: Format, values: np.ndarray[tuple[int], np.dtype[np.float64]] | None
) -> float:
    if values is not None:
        return float(rng.choice(values))
    exponent = int(rng.integers(fmt.emin - 3, fmt.emax + 1))
    significand = int(rng.integers(1 << fmt.trailing_bits, 1 << fmt.precision))
    value = math.ldexp(significand, exponent - fmt.trailing_bits)
    grid = fmt.smallest_subnormal
    value = math.floor(value / grid) * grid if value < fmt.smallest_normal else value
    return value if rng.random() < 0.5 else -value


def _near_tie(operation: str, operands: list[float], fmt: Format) -> float:
    """A last operand so small, beside what the others make, that it decides a tie or is all but lost."""
    others = operands[:-1]
    if any(not math.isfinite(x) for x in others):
        return operands[-1]
    base = abs(math.prod(others)) if operation == "fma" else abs(others[0])
    if base == 0 or not math.isfinite(base):
        return operands[-1]
    small = Fraction(base) * Fraction(fmt.eps) / 2
    exponent = small.numerator.bit_length() - small.denominator.bit_length()
    value = math.ldexp(1.0, max(exponent, fmt.emin - fmt.trailing_bits))
    return math.copysign(min(value, fmt.max), operands[-1] if not math.isnan(operands[-1]) else 1.0)
