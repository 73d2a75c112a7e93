"""How numbers are written for people: a decimal that reads back, a distance with its grid, a code in hex.

Nothing here decides anything; `decimal` and `distance` are what tables and sentences use.
"""

from __future__ import annotations

import math

import numpy as np

from softfloat_llm.numerics.formats import Format, encode
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.numerics.ulps import ulp

EXACT_WIDTH = 12  # characters: an exact decimal that is no longer than this is written out


def decimal(x: float, fmt: Format) -> str:
    """x in decimal: exactly where that is short, else the shortest decimal that reads back to x in the format.

    >>> from softfloat_llm.numerics.formats import bf16, f32
    >>> decimal(22.375, bf16), decimal(22.371271133422852, f32)
    ('22.375', '22.371271')
    """
    if not math.isfinite(x):
        return str(x)
    exact = _plain(repr(float(x)))
    if len(exact) <= EXACT_WIDTH:
        return exact
    for digits in range(1, 18):
        text = f"{x:.{digits}g}"
        if round_to(float(text), fmt) == x:
            return text
    return exact


def about(x: float, digits: int = 3) -> str:
    """x to a few digits, marked with `~` where they do not give x again. Below 1e9 all digits before the point stand.

    >>> about(0.0937919616), about(0.75), about(71907.0), about(math.inf)
    ('~0.0938', '0.75', '71907', 'inf')
    """
    if not math.isfinite(x):
        return str(x)
    is_long = 10**digits <= abs(x) < 1e9
    text = f"{x:.0f}" if is_long else f"{x:.{digits}g}"
    return text if float(text) == x else f"~{text}"


def _plain(text: str) -> str:
    return text.removesuffix(".0")


def binade(x: float, fmt: Format) -> str:
    """The stretch around x in which one ulp of the format is the same: `[16, 32)`, `[0, 2^-14)` for subnormals.

    >>> from softfloat_llm.numerics.formats import f16
    >>> binade(-20.0, f16), binade(0.0, f16)
    ('[16, 32)', '[0, 2^-14)')
    """
    if not math.isfinite(x):
        return str(x)
    if abs(x) < fmt.smallest_normal:
        return f"[0, 2^{fmt.emin})"
    exponent = math.frexp(abs(x))[1] - 1
    if -4 <= exponent < 20:
        return f"[{_plain(repr(2.0**exponent))}, {_plain(repr(2.0 ** (exponent + 1)))})"
    return f"[2^{exponent}, 2^{exponent + 1})"


def distance(amount: float, at: float, fmt: Format) -> str:
    """A difference with its unit and grid, the ulp being that of the format at the value `at`.

    >>> from softfloat_llm.numerics.formats import bf16
    >>> distance(0.5, 22.375, bf16)
    '0.5 (4 bf16 ulp in [16, 32))'
    """
    if not math.isfinite(amount) or not math.isfinite(at):
        return about(amount)
    return f"{about(amount)} ({about(amount / ulp(at, fmt), 2)} {fmt} ulp in {binade(at, fmt)})"


def code(x: float, fmt: Format) -> str:
    """Hex float and code of a value of the format.

    >>> from softfloat_llm.numerics.formats import bf16
    >>> code(22.25, bf16)
    '0x1.64p+4 = bf16:0x41b2'
    """
    word = int(encode(np.array([x]), fmt)[0])
    return f"{hex_float(x)} = {fmt}:0x{word:0{-(-fmt.bits // 4)}x}"


def hex_float(x: float) -> str:
    """C's hex float without trailing zeros."""
    if not math.isfinite(x):
        return str(x)
    significand, exponent = float(x).hex().split("p")
    return f"{significand.rstrip('0').rstrip('.')}p{exponent}" if "." in significand else f"{significand}p{exponent}"


def jsonable(x: float) -> float | str:
    """A number for JSON: non-finite ones as the strings nan, inf, -inf."""
    return float(x) if math.isfinite(x) else str(float(x))
