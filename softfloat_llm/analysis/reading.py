"""Numbers as people write them, read without any rounding: decimals, hex floats, fractions, powers of two, codes.

`22.277479` is the rational 22277479/1000000, not the float64 nearest to it. Start reading at `number_of`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from softfloat_llm.errors import WordError
from softfloat_llm.numerics.exact import Real
from softfloat_llm.numerics.formats import Format, decode, format_of

MOST_CHARACTERS = 1000
MOST_POWER = 2000  # of two or ten: the values of every format lie far within
MOST_BITS = 14_000  # of numerator and denominator: Python writes integers of at most 4300 digits

_POWER = r"2(?:\^|\*\*)(?P<power>[+-]?\d+)"
_HEX = r"0x(?=\.?[0-9a-f])(?P<hex>[0-9a-f]*)(?:\.(?P<hex_rest>[0-9a-f]*))?(?:p(?P<binary>[+-]?\d+))?"
_DECIMAL = r"(?P<decimal>\d+\.?\d*|\.\d+)(?:e(?P<ten>[+-]?\d+))?(?:/(?P<divisor>\d+))?"
_FACTOR = re.compile(rf"{_POWER}|{_HEX}|{_DECIMAL}", re.ASCII)
_CODE = re.compile(r"(?P<format>[a-z0-9_]+):(?P<code>0x[0-9a-f]+|0b[01]+)")
_SPECIAL = re.compile(r"(?P<sign>[+-]?)(?:(?P<inf>inf|infinity)|nan)")
EXPECTED = (
    "a decimal (0.1, 1e-3), a hex float (0x1.64p+4), a fraction (1/3), powers of two (1 + 3*2^-11), a code"
    " (f32:0x41b2372d), inf or nan"
)


@dataclass(frozen=True)
class Number:
    """A number as it was written, and the number that it is.

    `value` is a Fraction; a float for NaN, the infinities and -0. `format` is that of a code.
    """

    text: str
    value: Fraction | float
    format: Format | None = None

    @property
    def is_finite(self) -> bool:
        return isinstance(self.value, Fraction) or math.isfinite(self.value)

    @property
    def exact(self) -> Fraction:
        """The value of a finite number."""
        return Fraction(self.value)


def number_of(text: str | Real | Number) -> Number:
    """The number that a text means, exactly; a number is itself.

    Raises WordError for a text that is none, FormatError for a code that its format does not have.

    >>> number_of("22.277479").value, number_of("1 + 3*2^-2").value, number_of("bf16:0x41b2").value
    (Fraction(22277479, 1000000), Fraction(7, 4), Fraction(89, 4))
    """
    if isinstance(text, Number):
        return text
    if not isinstance(text, str):
        return _of_real(text)
    word = text.strip().lower()
    if len(word) > MOST_CHARACTERS:
        raise WordError(f"Reading a number of {len(word)} characters: at most {MOST_CHARACTERS} are read.")
    if (match := _CODE.fullmatch(word)) is not None:
        return _of_code(text.strip(), match["format"], int(match["code"], 0))
    if (match := _SPECIAL.fullmatch(word)) is not None:
        magnitude = math.inf if match["inf"] else math.nan
        return Number(text.strip(), -magnitude if match["sign"] == "-" else magnitude)
    total, is_negative_zero = _sum_of(word, text)
    if max(total.numerator.bit_length(), total.denominator.bit_length()) > MOST_BITS:
        raise WordError(f"Reading {word[:40]!r}: numerator and denominator have at most {MOST_BITS} bits.")
    return Number(text.strip(), -0.0 if is_negative_zero else total)


def numbers_of(texts: Iterable[str | Real]) -> list[Number]:
    """Several numbers; a text may hold several, with commas between.

    >>> [str(n.value) for n in numbers_of(["256, 1", "2^-1"])]
    ['256', '1', '1/2']
    """
    found: list[Number] = []
    for text in texts:
        parts = re.split(r"[,;\n]", text.strip(" ,;\t\n[]()")) if isinstance(text, str) else [text]
        found += [number_of(part) for part in parts]
    return found


def _of_real(x: Real) -> Number:
    is_plain = isinstance(x, (Fraction, int)) or (math.isfinite(x) and (x != 0 or math.copysign(1.0, x) > 0))
    return Number(str(x), Fraction(x) if is_plain else float(x))


def _of_code(text: str, name: str, code: int) -> Number:
    fmt = format_of(name)
    if code >> fmt.bits:
        raise WordError(f"Reading {text!r}: a code of {fmt} has {fmt.bits} bits, this one {code.bit_length()}.")
    return Number(text, _of_real(float(decode(code, fmt))).value, fmt)


def _sum_of(word: str, text: str) -> tuple[Fraction, bool]:
    """The sum of signed products that a word spells, and whether it is a zero with a minus before it."""
    total, place, terms, sign = Fraction(0), 0, 0, 1
    while place < len(word) or terms == 0:
        match = re.compile(r"\s*([+-]?)\s*").match(word, place)
        assert match is not None
        if terms and not match[1]:
            raise _no_number(text)
        sign, place = (-1 if match[1] == "-" else 1), match.end()
        product, place = _product(word, place, text)
        total, terms = total + sign * product, terms + 1
    return total, total == 0 and terms == 1 and sign < 0


def _product(word: str, place: int, text: str) -> tuple[Fraction, int]:
    value = Fraction(1)
    while True:
        match = _FACTOR.match(word, place)
        if match is None:
            raise _no_number(text)
        value, place = value * _factor(match, text), match.end()
        if word[place : place + 1] != "*":
            return value, place
        place += 1


def _factor(match: re.Match[str], text: str) -> Fraction:
    if match["power"]:
        return _power(2, match["power"], text)
    if match["hex"] is not None:
        rest = match["hex_rest"] or ""
        return int(match["hex"] + rest, 16) * _power(2, match["binary"] or "0", text) / (1 << 4 * len(rest))
    if match["divisor"] and int(match["divisor"]) == 0:
        raise WordError(f"Reading {text!r}: it divides by zero.")
    return Fraction(match["decimal"]) * _power(10, match["ten"] or "0", text) / int(match["divisor"] or 1)


def _power(base: int, exponent: str, text: str) -> Fraction:
    if len(exponent) > 6 or abs(int(exponent)) > MOST_POWER:
        raise WordError(f"Reading {text!r}: powers from {base}^-{MOST_POWER} to {base}^{MOST_POWER} are read.")
    power: Fraction = Fraction(base) ** int(exponent)
    return power


def _no_number(text: str) -> WordError:
    shown = text if len(text) <= 40 else f"{text[:37]}..."
    return WordError(f"{shown!r} is no number. Expected {EXPECTED}.")
