"""Exact numbers in words: fractions, decimals that are not cut, the fields of a code, the bits that a format cuts."""

from __future__ import annotations

import math
from fractions import Fraction

from softfloat_llm.analysis.numbers import about, decimal
from softfloat_llm.numerics.formats import Format, encode

EXACT_WIDTH = 24  # characters: an exact number that is no longer is written out in a table
_SHOWN_BITS = 16
_MOST_PLACES = 1200  # of a decimal: enough for the smallest float64


def exact_decimal(x: Fraction) -> str | None:
    """x in decimal, to its last digit; None where it has none (1/3), or too many digits.

    >>> exact_decimal(Fraction(89, 4)), exact_decimal(Fraction(1, 3))
    ('22.25', None)
    """
    rest, places = x.denominator, 0
    for prime in (2, 5):
        count = 0
        while rest % prime == 0:
            rest, count = rest // prime, count + 1
        places = max(places, count)
    if rest != 1 or places > _MOST_PLACES:
        return None
    digits = str(abs(x.numerator) * 10**places // x.denominator).rjust(places + 1, "0")
    whole, part = digits[: len(digits) - places], digits[len(digits) - places :]
    return ("-" if x < 0 else "") + whole + (f".{part}" if part else "")


def shown(x: Fraction, width: int = EXACT_WIDTH, digits: int = 3) -> str:
    """x as a table has it: exactly, as a decimal or a fraction, where that is short; else `~` and so many digits."""
    candidates = [text for text in (exact_decimal(x), str(x)) if text is not None and len(text) <= width]
    return candidates[0] if candidates else nearly(x, digits)


def nearly(x: Fraction, digits: int = 3) -> str:
    """x to a few digits, marked with `~` where they do not give x again, also where float64 has no such number.

    >>> nearly(Fraction(1, 3)), nearly(Fraction(3, 4)), nearly(Fraction(1, 10**400))
    ('~0.333', '0.75', '~1e-400')
    """
    try:
        value = float(x)
    except OverflowError:
        value = math.inf
    if math.isfinite(value) and (value != 0 or x == 0):
        text = about(value, digits)
        return text if text.startswith("~") or Fraction(text) == x else f"~{text}"
    magnitude = abs(x)
    exponent = len(str(magnitude.numerator)) - len(str(magnitude.denominator))
    scaled = magnitude / Fraction(10) ** exponent
    exponent, scaled = (exponent - 1, scaled * 10) if scaled < 1 else (exponent, scaled)
    return f"~{'-' if x < 0 else ''}{float(scaled):.{digits}g}e{exponent:+d}"


def value_text(x: float, fmt: Format) -> str:
    """A value of a format, as `numbers.decimal` has it, marked with `~` where that is not all of it."""
    text = decimal(x, fmt)
    return text if not math.isfinite(x) or Fraction(text) == Fraction(x) else f"~{text}"


def exactly(x: float, fmt: Format, width: int = EXACT_WIDTH) -> str:
    """A value of a format to its last digit: in decimal where that is short, else as an integer times a power of two.

    >>> from softfloat_llm.numerics.formats import bf16, f32
    >>> exactly(0.10009765625, bf16), exactly(0.10000000149011612, f32)
    ('0.10009765625', '13421773*2^-27 (~0.1)')
    """
    if not math.isfinite(x) or x == 0:
        return decimal(x, fmt)
    exact = exact_decimal(Fraction(x))
    if exact is not None and len(exact) <= width:
        return exact
    top, bottom = abs(Fraction(x)).as_integer_ratio()
    zeros = (top & -top).bit_length() - 1
    power = zeros - (bottom.bit_length() - 1)
    return f"{'-' if x < 0 else ''}{top >> zeros}*2^{power} ({value_text(x, fmt)})"


def fields(x: float, fmt: Format) -> tuple[str, str, str]:
    """The code of a value in its three fields, as bits: sign, exponent, trailing significand (empty where it has none).

    >>> from softfloat_llm.numerics.formats import bf16
    >>> fields(22.25, bf16)
    ('0', '10000011', '0110010')
    """
    word = f"{int(encode(x, fmt)):0{fmt.bits}b}"
    split = int(fmt.is_signed)
    return word[:split], word[split : split + fmt.exponent_bits], word[split + fmt.exponent_bits :]


def code_word(x: float, fmt: Format) -> str:
    """The code of a value: `bf16:0x41b2`."""
    return f"{fmt}:0x{int(encode(x, fmt)):0{-(-fmt.bits // 4)}x}"


def cut_bits(rest: Fraction) -> str:
    """The bits of 0 <= rest < 1 behind the point, `...` where more follow; empty for 0.

    >>> cut_bits(Fraction(1, 2)), cut_bits(Fraction(1, 3))
    ('1', '0101010101010101...')
    """
    bits = ""
    while rest and len(bits) < _SHOWN_BITS:
        rest *= 2
        bits += "1" if rest >= 1 else "0"
        rest -= rest >= 1
    return bits + ("..." if rest else "")


def power_text(exponent: int) -> str:
    """2^exponent, in decimal where that is short."""
    return str(2**exponent) if 0 <= exponent <= 20 else f"2^{exponent}"
