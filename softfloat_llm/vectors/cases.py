"""Conformance vectors: operation, operands and the right result, one case a line, results by exact rationals alone.

    add  bf16  ties_to_even  0x1p+8 0x1p+0  -> 0x1p+8  inexact

Operands and results are hexadecimal floats (C99, as Python's `float.hex` has them; `nan`, `inf`, `-0x0p+0`). Flags are
those of IEEE 754-2019, section 7, tininess after rounding: inexact overflow underflow invalid divide_by_zero. A line
that begins with # says something to people. Start reading at `right_result`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

from softfloat_llm.errors import FormatError, VectorError, nearest
from softfloat_llm.numerics.exact import floor_log2, round_exact
from softfloat_llm.numerics.formats import Format, format_of
from softfloat_llm.numerics.modes import MODES, OTHER_NAMES

OPERANDS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3, "round": 1}
"""Operation -> its number of operands. `round` takes any real (a float64) to the format."""
FLAGS = ("divide_by_zero", "inexact", "invalid", "overflow", "underflow")


@dataclass(frozen=True)
class Case:
    """One line: an operation on values, rounded to a format in a mode, and what it must give."""

    operation: str
    format: Format
    mode: str
    operands: tuple[float, ...]
    result: float
    flags: frozenset[str] | None = None
    """None where the line says nothing of flags."""

    def __str__(self) -> str:
        operands = " ".join(hex_of(x) for x in self.operands)
        flags = "" if self.flags is None else "  " + (" ".join(sorted(self.flags)) or "exact")
        return f"{self.operation}  {self.format}  {self.mode}  {operands}  -> {hex_of(self.result)}{flags}"


def hex_of(x: float) -> str:
    """A float as text that reads back to it: hexadecimal, without trailing zeros of the significand."""
    if math.isnan(x):
        return "nan"
    if math.isinf(x):
        return "inf" if x > 0 else "-inf"
    significand, _, exponent = x.hex().partition("p")
    if "." in significand:
        significand = significand.rstrip("0").rstrip(".")
    return f"{significand}p{exponent}"


# --- the right result -------------------------------------------------------------------------------------------------


def right_result(operation: str, operands: tuple[float, ...], fmt: Format, mode: str) -> tuple[float, frozenset[str]]:
    """What IEEE 754 demands, and the flags that it raises: the exact value by rationals, rounded once.

    Signs of zeros as in section 6.3; an invalid operation gives NaN; NaN in gives NaN out, quietly. A format
    without NaN has -0 in its place (`exact.round_exact` of +NaN).
    """
    if any(math.isnan(x) for x in operands):
        return round_exact(math.nan, fmt, mode), frozenset()
    special = _special(operation, operands, mode)
    if special is not None:
        value, flag = special
        return round_exact(value, fmt, mode), frozenset({flag} if flag else ())
    exact = _EXACT[operation](*(Fraction(x) for x in operands))
    result = round_exact(exact, fmt, mode)
    return result, _flags(exact, result, fmt, mode)


def _flags(exact: Fraction, result: float, fmt: Format, mode: str) -> frozenset[str]:
    if math.isfinite(result) and Fraction(result) == exact:
        return frozenset()
    flags = {"inexact"}
    unbounded = _unbounded(exact, fmt, mode)
    if abs(unbounded) > Fraction(fmt.max):
        flags.add("overflow")
    if abs(unbounded) < Fraction(2) ** fmt.emin:
        flags.add("underflow")
    return frozenset(flags)


def _unbounded(exact: Fraction, fmt: Format, mode: str) -> Fraction:
    """The exact value rounded to the format's precision as if its exponent had no bounds: by way of [1, 2)."""
    scale = Fraction(2) ** floor_log2(abs(exact))
    return Fraction(round_exact(exact / scale, fmt, mode)) * scale


def _special(operation: str, operands: tuple[float, ...], mode: str) -> tuple[float, str | None] | None:
    """The result and flag of infinite operands, zero divisors, negative radicands and exact zeros; None elsewhere."""
    match operation, operands:
        case ("add", (x, y)):
            return _sum(x, y, mode)
        case ("sub", (x, y)):
            return _sum(x, -y, mode)
        case ("fma", (x, y, z)):
            return _special_fma(x, y, z, mode)
        case ("mul", (x, y)):
            return _special_product(x, y)
        case ("div", (x, y)):
            return _special_quotient(x, y)
        case ("sqrt", (x,)):
            if x == 0:
                return x, None
            return (math.nan, "invalid") if x < 0 else (x, None) if math.isinf(x) else None
    (x,) = operands
    return (x, None) if x == 0 or math.isinf(x) else None


def _sum(x: float, y: float, mode: str) -> tuple[float, str | None] | None:
    if math.isinf(x) or math.isinf(y):
        return (math.nan, "invalid") if math.isinf(x) and x == -y else (x if math.isinf(x) else y, None)
    return (_zero_sum(x, y, mode), None) if Fraction(x) + Fraction(y) == 0 else None


def _zero_sum(x: float, y: float, mode: str) -> float:
    """Zeros of one sign keep it; any other zero sum is +0, toward_negative -0."""
    if x == 0 and y == 0 and math.copysign(1, x) == math.copysign(1, y):
        return x
    return -0.0 if mode == "toward_negative" else 0.0


def _special_product(x: float, y: float) -> tuple[float, str | None] | None:
    sign = math.copysign(1, x) * math.copysign(1, y)
    if math.isinf(x) or math.isinf(y):
        return (math.nan, "invalid") if x == 0 or y == 0 else (sign * math.inf, None)
    return (math.copysign(0.0, sign), None) if x == 0 or y == 0 else None


def _special_quotient(x: float, y: float) -> tuple[float, str | None] | None:
    sign = math.copysign(1, x) * math.copysign(1, y)
    if math.isinf(x):
        return (math.nan, "invalid") if math.isinf(y) else (sign * math.inf, None)
    if y == 0:
        return (math.nan, "invalid") if x == 0 else (sign * math.inf, "divide_by_zero")
    return (math.copysign(0.0, sign), None) if x == 0 or math.isinf(y) else None


def _special_fma(x: float, y: float, z: float, mode: str) -> tuple[float, str | None] | None:
    product = _special_product(x, y)
    if product is not None:
        value, flag = product
        return (value, flag) if flag else _sum(value, z, mode)
    if math.isinf(z):
        return z, None
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    return (-0.0 if mode == "toward_negative" else 0.0, None) if exact == 0 else None


def _sqrt(x: Fraction) -> Fraction:
    """The root, or where it is irrational a number beside it that rounds alike to any format of at most 100 bits.

    With 2^2k x between 2^200 and 2^202, its root has 101 bits before the point; half of one more is added to what
    isqrt leaves of an inexact one, so that it is neither a value nor a midpoint.
    """
    k = 100 - floor_log2(x) // 2
    scaled = x * Fraction(4) ** k
    root = isqrt(int(scaled))
    whole = Fraction(root) if root * root == scaled else root + Fraction(1, 2)
    return whole / Fraction(2) ** k


_EXACT: dict[str, Callable[..., Fraction]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "fma": lambda x, y, z: x * y + z,
    "sqrt": _sqrt,
    "round": lambda x: x,
}


def made(operation: str, operands: tuple[float, ...], fmt: Format, mode: str) -> Case:
    """The case of these operands, its result worked out."""
    result, flags = right_result(operation, operands, fmt, mode)
    return Case(operation, fmt, mode, operands, result, flags)


# --- reading ----------------------------------------------------------------------------------------------------------


def read_cases(lines: Iterable[str], where: str = "the vectors") -> Iterator[Case]:
    """The cases of lines of text. Raises VectorError, with the line's number, for what is no case."""
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield _case_of(line, f"{where}, line {number}")


def _case_of(line: str, where: str) -> Case:
    left, arrow, right = line.partition("->")
    words, results = left.split(), right.split()
    if not arrow or len(words) < 4 or not results:
        raise VectorError(
            f"{where}: expected OPERATION FORMAT MODE OPERANDS -> RESULT [FLAGS], found {line.strip()!r}."
        )
    operation, name, mode, *operands = words
    if operation not in OPERANDS:
        raise VectorError(f"{where}: unknown operation {operation!r}.{nearest(operation, OPERANDS)}")
    if mode not in MODES:
        raise VectorError(f"{where}: unknown rounding mode {mode!r}.{nearest(mode, MODES, OTHER_NAMES)}")
    if len(operands) != OPERANDS[operation]:
        raise VectorError(f"{where}: {operation} takes {OPERANDS[operation]} operands, found {len(operands)}.")
    flags = frozenset(results[1:]) - {"exact"}
    if unknown := flags - set(FLAGS):
        raise VectorError(f"{where}: unknown flag {min(unknown)!r}. Known: {', '.join(FLAGS)}, exact.")
    try:
        fmt = format_of(name)
    except FormatError as error:
        raise VectorError(f"{where}: {error}") from None
    values = tuple(_value(word, where) for word in operands)
    result = _value(results[0], where)
    of_format = [*zip(operands, values, strict=True)] if operation != "round" else []
    for word, value in (*of_format, (results[0], result)):
        if not _is_held(value, fmt):
            raise VectorError(f"{where}: {word} is no value of {fmt}: operands (but of round) and results must be.")
    return Case(operation, fmt, mode, values, result, flags if len(results) > 1 else None)


def _is_held(x: float, fmt: Format) -> bool:
    """True where the format has this value, the sign of a zero included."""
    if math.isnan(x):
        return fmt.has_nan
    is_of_sign = math.copysign(1, x) > 0 or (fmt.has_negative_zero if x == 0 else fmt.is_signed)
    if x == 0 or math.isinf(x):
        return is_of_sign and (fmt.has_zero if x == 0 else fmt.has_infinity)
    return is_of_sign and round_exact(Fraction(x), fmt, "toward_zero") == x


_HEX = re.compile(r"[+-]?(?:0x)?(?P<whole>[0-9a-f]*)\.?(?P<part>[0-9a-f]*)(?:p(?P<power>[+-]?[0-9]+))?", re.IGNORECASE)


def _value(word: str, where: str) -> float:
    """The float that a word is exactly: `float.fromhex` rounds what float64 cannot hold."""
    try:
        value = float.fromhex(word)
    except (ValueError, OverflowError):
        raise VectorError(f"{where}: {word!r} is no hexadecimal float such as 0x1.8p+3.") from None
    match = _HEX.fullmatch(word)
    if match is not None:
        power = int(match["power"] or 0) - 4 * len(match["part"])
        exact = int(match["whole"] + match["part"], 16)
        if exact and (value == 0 or exact != abs(Fraction(value)) / Fraction(2) ** power):
            raise VectorError(f"{where}: {word!r} has more bits than float64 holds; no format here has so many.")
    return value
