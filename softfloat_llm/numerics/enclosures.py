"""exp, log, sin, cos, tanh, sigmoid, rsqrt and pow of one number, enclosed between two fractions by integers alone.

This is the slow and evident half of `functions`: where a float64 evaluation cannot tell which way a result rounds, the
exact value is caught between two fractions at 2^-128, 2^-256, ... until both ends round alike (Ziv, Fast evaluation of
elementary mathematical functions with correctly rounded last bit, ACM TOMS 17(3), 1991). Start reading at `settle`.

A number in **fixed point** with b bits is an integer N that stands for N / 2^b; a **unit** is 2^-b. Every bound below
counts units: each floor division or shift loses less than one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache

from softfloat_llm.numerics.exact import floor_log2, round_exact
from softfloat_llm.numerics.formats import Format

Enclosure = tuple[Fraction, Fraction]
FIRST_BITS = 128  # a p = 24 result is undecided at 128 bits with probability 2^-103; hard cases of f32 need about 60
MOST_BITS = 1 << 13
_GUARD = 32  # working bits beyond those asked for: no bound below reaches 2^20 units


def settle(name: str, args: tuple[float, ...], fmt: Format, mode: str, subnormals: str = "keep") -> float:
    """The named function of finite float64 arguments, rounded once to the format. Any argument, any mode.

    The functions are transcendental at every rational argument but the ones that `functions` and `_pow_exact` treat
    (Lindemann and Weierstrass; Gelfond and Schneider for pow; rsqrt is irrational but at powers of four), so the value
    is never a number or a midpoint of a format, and the loop ends.

    >>> from softfloat_llm.numerics.formats import bf16
    >>> settle("exp", (1.0,), bf16, "toward_positive"), settle("exp", (1.0,), bf16, "toward_negative")
    (2.71875, 2.703125)
    """
    if name == "pow":
        exact = _pow_exact(Fraction(args[0]), Fraction(args[1]))
        if exact is not None:
            return round_exact(exact, fmt, mode, subnormals=subnormals)
    bits = FIRST_BITS
    while bits <= MOST_BITS:
        ends = ENCLOSE[name](*(Fraction(a) for a in args), bits)
        low, high = (round_exact(end, fmt, mode, subnormals=subnormals) for end in ends)
        if ends[0] * ends[1] > 0 and (low == high or (math.isnan(low) and math.isnan(high))):
            return low
        bits *= 2
    raise AssertionError(f"{name}{args} is still undecided at {MOST_BITS} bits.")


# --- Constants in fixed point ---------------------------------------------------------------------------------------


@cache
def ln2(bits: int) -> int:
    """log(2) in fixed point, within 1 unit.

    18 atanh(1/26) - 2 atanh(1/4801) + 8 atanh(1/8749). Each series loses one unit a term, fewer than `bits` terms of
    weight 18 at most: below 2^32 units of the guard bits for every size used here.
    Source: Brent and Zimmermann, Modern Computer Arithmetic, section 4.8.5 (Machin-like formulae for logarithms).
    """
    b = bits + _GUARD
    return sum(weight * _inverse_series(n, b, 1) for weight, n in ((18, 26), (-2, 4801), (8, 8749))) >> _GUARD


@cache
def half_pi(bits: int) -> int:
    """pi / 2 in fixed point, within 1 unit: 8 atan(1/5) - 2 atan(1/239), Machin's formula; bounded as `ln2`."""
    b = bits + _GUARD
    return (8 * _inverse_series(5, b, -1) - 2 * _inverse_series(239, b, -1)) >> _GUARD


def _inverse_series(n: int, bits: int, sign: int) -> int:
    """atanh(1/n) (sign 1) or atan(1/n) (sign -1): the sum of sign^j / ((2j+1) n^(2j+1))."""
    total, power, j = 0, (1 << bits) // n, 0
    while power:
        total += sign**j * (power // (2 * j + 1))
        power //= n * n
        j += 1
    return total


def to_fixed(x: Fraction, bits: int) -> int:
    """floor(x 2^bits)."""
    return (x.numerator << bits) // x.denominator


# --- Series in fixed point ------------------------------------------------------------------------------------------


def _exp_series(r: int, b: int) -> int:
    """e^r for |r| <= 1, the Taylor series.

    A term's error is at most 2 units more than |r|/k times the last one's, so at most 4 units; there are fewer than b
    terms; the tail beyond the last is below 2 units. So the sum is within 4b + 2 units.
    """
    total = term = 1 << b
    k = 1
    while abs(term) > 1:
        term = (term * r >> b) // k
        total += term
        k += 1
    return total


def _sin_cos_series(r: int, b: int, is_sin: bool) -> int:
    """sin r or cos r for |r| <= 1, the Taylor series; within 4b + 2 units, as `_exp_series`."""
    square = r * r >> b
    total = term = r if is_sin else 1 << b
    k = 2 if is_sin else 1
    while abs(term) > 1:
        term = -(term * square >> b) // (k * (k + 1))
        total += term
        k += 2
    return total


def _atanh_series(t: int, b: int) -> int:
    """atanh(t) for |t| <= 1/5: the sum of t^(2j+1) / (2j+1); at most 3 units a term, fewer than b terms."""
    square = t * t >> b
    total = power = t
    j = 1
    while abs(power) > 1:
        power = power * square >> b
        total += power // (2 * j + 1)
        j += 1
    return total


def _around(value: int, units: int, exponent: int) -> Enclosure:
    """[value - units, value + units] 2^exponent."""
    scale = Fraction(2) ** exponent
    return (value - units) * scale, (value + units) * scale


# --- Enclosures: each has a width of at most 2^-bits, relative to a result that is not smaller than about 1 ---------


def exp_enclosure(x: Fraction, bits: int) -> Enclosure:
    """e^x = 2^n e^r with r = x - n log 2, |x| < 2^12, relative width below 2^-bits.

    x and n log 2 are taken with 16 more bits: r is within 2 units. e^r is then within 4b + 2 + 3 units.
    """
    assert abs(x) < 1 << 12  # a larger result overflows or underflows every format: `functions` has decided it
    b = bits + _GUARD
    log2 = ln2(b + 16)
    fixed = to_fixed(x, b + 16)
    n = (fixed + (log2 >> 1)) // log2
    return _around(_exp_series((fixed - n * log2) >> 16, b), 8 * b, n - b)


def log_enclosure(x: Fraction, bits: int) -> Enclosure:
    """log x = k log 2 + 2 atanh((m - 1) / (m + 1)), x = 2^k m, 2/3 <= m < 4/3; relative width below 2^-bits.

    64 more bits make up for a small |x - 1| (2^-53 at least, as x is a float64). k log 2 is within |k| < 2^11 units.
    """
    b = bits + _GUARD + 64
    k = floor_log2(x * Fraction(3, 2))
    m = x / Fraction(2) ** k
    t = to_fixed((m - 1) / (m + 1), b)
    return _around(k * ln2(b) + 2 * _atanh_series(t, b), 8 * b + (1 << 12), -b)


def _reduced(x: Fraction, b: int) -> tuple[int, int]:
    """(n, r): x = n pi/2 + r, |r| < 0.8, r in fixed point within 3 units. x >= 0 of any size (Payne and Hanek, 1983).

    pi/2 has as many more bits as n has, and 8: n times its error stays below one unit.
    """
    more = max(0, floor_log2(x) + 1) + 8
    quarter = half_pi(b + more)
    fixed = to_fixed(x, b + more)
    n = (fixed + (quarter >> 1)) // quarter
    return n, (fixed - n * quarter) >> more


def _sin_cos_enclosure(x: Fraction, shift: int, bits: int) -> Enclosure:
    """sin(x + shift pi/2), x >= 0; absolute width 2^-bits, so a small result asks `settle` for more bits."""
    b = bits + _GUARD
    n, r = _reduced(x, b)
    quadrant = (n + shift) % 4
    value = _sin_cos_series(r, b, quadrant % 2 == 0)
    return _around(value if quadrant < 2 else -value, 8 * b, -b)


def sin_enclosure(x: Fraction, bits: int) -> Enclosure:
    """sin x, by the odd symmetry for x < 0."""
    return _sin_cos_enclosure(x, 0, bits) if x > 0 else _negated(_sin_cos_enclosure(-x, 0, bits))


def cos_enclosure(x: Fraction, bits: int) -> Enclosure:
    """cos x = sin(|x| + pi/2)."""
    return _sin_cos_enclosure(abs(x), 1, bits)


def _negated(ends: Enclosure) -> Enclosure:
    return -ends[1], -ends[0]


def tanh_enclosure(x: Fraction, bits: int) -> Enclosure:
    """tanh x = 1 - 2 / (e^2x + 1), which rises with e^2x; for x > 0 with the bits that cancel added."""
    if x < 0:
        return _negated(tanh_enclosure(-x, bits))
    low, high = exp_enclosure(2 * x, bits + max(0, -floor_log2(x)))
    return 1 - 2 / (low + 1), 1 - 2 / (high + 1)


def sigmoid_enclosure(x: Fraction, bits: int) -> Enclosure:
    """1 / (1 + e^-x) = 1 - 1 / (e^x + 1), as e^x / (e^x + 1), which rises with e^x."""
    low, high = exp_enclosure(x, bits)
    return low / (low + 1), high / (high + 1)


def rsqrt_enclosure(x: Fraction, bits: int) -> Enclosure:
    """1 / sqrt x between two neighbouring integers over 2^b: the integer square root of 2^2b / x."""
    b = bits + max(0, floor_log2(x))
    root = math.isqrt((1 << 2 * b) * x.denominator // x.numerator)
    return _around(2 * root + 1, 1, -b - 1)


def pow_enclosure(x: Fraction, y: Fraction, bits: int) -> Enclosure:
    """x^y = e^(y log |x|), negative where x < 0 and y is odd; |y log x| < 2^11, so log gets 12 more bits."""
    if x < 0:
        ends = pow_enclosure(-x, y, bits)
        return _negated(ends) if y % 2 == 1 else ends
    low, high = sorted(y * end for end in log_enclosure(x, bits + 12))
    return exp_enclosure(low, bits)[0], exp_enclosure(high, bits)[1]


def _pow_exact(x: Fraction, y: Fraction) -> Fraction | None:
    """x^y where it is a binary fraction of at most 64 significand bits, else None. x != 0, y dyadic.

    |x| = m 2^e with m odd, y = n / 2^f in lowest terms. m^y 2^(ey) is a binary fraction only if m and 2^e are 2^f-th
    powers, and only if n > 0 or the root of m is 1.
    """
    if x < 0:
        exact = _pow_exact(-x, y)
        return exact if exact is None or y % 2 == 0 else -exact
    e = (x.numerator & -x.numerator).bit_length() - x.denominator.bit_length()
    m = int(x / Fraction(2) ** e)
    for _ in range(y.denominator.bit_length() - 1):
        root = math.isqrt(m)
        if root * root != m or e % 2:
            return None
        m, e = root, e // 2
    n = y.numerator
    if m > 1 and not 0 <= n * (m.bit_length() - 1) <= 64:
        return None
    return Fraction(m) ** n * Fraction(2) ** max(-(1 << 12), min(1 << 12, e * n))


ENCLOSE: dict[str, Callable[..., Enclosure]] = {
    "exp": exp_enclosure,
    "log": log_enclosure,
    "sin": sin_enclosure,
    "cos": cos_enclosure,
    "tanh": tanh_enclosure,
    "sigmoid": sigmoid_enclosure,
    "rsqrt": rsqrt_enclosure,
    "pow": pow_enclosure,
}
