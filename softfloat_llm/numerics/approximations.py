"""exp, log, sin, cos, tanh, sigmoid, rsqrt and pow of float64 arrays, each with a proven relative error bound.

This is the fast half of `functions`. Only + - * / sqrt, comparisons, rounding to an integer and bit operations are
used, which IEEE 754 defines to the last bit, so every machine computes the same approximation; and its bits never reach
a result, because `functions` rounds both ends of the interval that the bound leaves and asks `enclosures` where they
differ. NumPy contracts no a*b + c into an fma: each operation is one ufunc call.

One float64, not a pair of two, is enough here: a relative error of 2^-49 leaves about 2^-24 of the f32 results
undecided, and a pair would make every element pay for those few.

Bounds: u = 2^-53 is the relative error of one operation. The tables come from `enclosures`' integers when first used,
as a double and the double of what is left (relative error 2^-106); the Taylor coefficients are quotients of exact
integers, one rounding each. Each bound in `ERROR_BITS` exceeds the derived one by a factor of at least two.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from softfloat_llm.numerics import enclosures
from softfloat_llm.numerics.exact import floor_log2
from softfloat_llm.numerics.formats import Float64Array
from softfloat_llm.numerics.rounding import two_sum

Int64Array = npt.NDArray[np.int64]
Pair = tuple[Float64Array, Float64Array]

_STEPS = 128  # table entries a binade, for exp and log: a step of 2^-7 makes Taylor series of degree 5 and 7 enough
_SIGNIFICAND = np.int64((1 << 52) - 1)
_ONE = np.int64(1023 << 52)  # the bits of 1.0
_HALF_SPLIT = np.int64(-1 << 27)  # keeps 26 significand bits
_EXPM1 = tuple(1.0 / k for k in (1, 2, 6, 24, 120))  # 1/k!
_SIN = tuple(-1.0 / k for k in (6, -120, 5040, -362880, 39916800, -6227020800, 1307674368000, -355687428096000))
_COS = tuple(1.0 / k for k in (24, -720, 40320, -3628800, 479001600, -87178291200, 20922789888000))

ERROR_BITS = {"exp": 50, "log": 49, "sin": 49, "cos": 49, "tanh": 49, "sigmoid": 49, "rsqrt": 50, "pow": 42}
"""The relative error of each function here lies below 2^-bits."""

COARSE_SIN_COS = 2.0**-40  # a reduced argument below this may have a larger error: sin and cos give NaN there


class _Tables(NamedTuple):
    """Constants and tables, as doubles and what is left of them."""

    exp_high: Float64Array  # 2^(j/128), j = 0 ... 127
    exp_low: Float64Array
    inverse: Float64Array  # about 1/m in the middle of each interval of m, in 1024ths, and exactly 1 around m = 1
    log_high: Float64Array  # -log(inverse)
    log_low: Float64Array
    ln2_step: tuple[float, float]  # log(2) / 128: 34 bits, and the rest
    ln2: tuple[float, float]  # log(2): 42 bits, and the rest
    half_pi: tuple[float, float, float]  # pi/2: 33 bits, 33 bits, and the rest


@cache
def _tables() -> _Tables:
    """All tables, from integers (about 10 ms, once a process)."""
    ln2 = Fraction(enclosures.ln2(200), 1 << 200)
    powers = [_middle(enclosures.exp_enclosure(ln2 * j / _STEPS, 128)) for j in range(_STEPS)]
    inverses = [_inverse(i) for i in range(_STEPS)]
    logs = [Fraction(0) if c == 1 else -_middle(enclosures.log_enclosure(c, 128)) for c in inverses]
    exp_high, exp_low = _as_pairs(powers)
    log_high, log_low = _as_pairs(logs)
    return _Tables(
        exp_high, exp_low, np.array([float(c) for c in inverses]), log_high, log_low,
        _split(ln2 / _STEPS, 34), _split(ln2, 42), _split_half_pi(),
    )  # fmt: skip


def _middle(ends: enclosures.Enclosure) -> Fraction:
    return (ends[0] + ends[1]) / 2


def _as_pairs(values: list[Fraction]) -> Pair:
    """Each value as the nearest double and the double nearest to what is left (int / int divides correctly rounded)."""
    high = [float(v) for v in values]
    low = [float(v - Fraction(h)) for v, h in zip(values, high, strict=True)]
    return np.array(high), np.array(low)


def _split(value: Fraction, bits: int) -> tuple[float, float]:
    """The value's first `bits` significand bits, and the double nearest to the rest."""
    quantum = Fraction(2) ** (floor_log2(value) + 1 - bits)
    head = value // quantum * quantum
    return float(head), float(value - head)


def _split_half_pi() -> tuple[float, float, float]:
    value = Fraction(enclosures.half_pi(256), 1 << 256)
    first, _ = _split(value, 33)
    return (first, *_split(value - Fraction(first), 33))


def _inverse(i: int) -> Fraction:
    """1/m in the middle of the interval [1 + i/128, 1 + (i+1)/128) of a significand, in 1024ths.

    Significands from 1.5 on are halved (see `log`), so those intervals are of m/2; the two that touch m = 1 give 1.
    """
    if i in (0, _STEPS - 1):
        return Fraction(1)
    middle = (1 + Fraction(2 * i + 1, 2 * _STEPS)) / (2 if i >= _STEPS // 2 else 1)
    return Fraction(round(1024 / middle), 1024)


def _horner(x: Float64Array, coefficients: tuple[float, ...]) -> Float64Array:
    """The polynomial of the coefficients, lowest first."""
    *others, second, first = coefficients
    total = x * first
    total += second
    for c in reversed(others):
        total *= x
        total += c
    return total


# --- exp and what is made of it -------------------------------------------------------------------------------------


def _exp_parts(x: Float64Array) -> tuple[Float64Array, Float64Array, Float64Array]:
    """(scale, head, tail): e^x = scale (head + tail), |x| <= 708; scale a power of two, |tail| < 2^-8 head.

    x = n log(2)/128 + r, |r| <= 2^-8.5. n has 17 bits and the first part of log(2)/128 34, so their product is exact,
    and so is its difference from x (Sterbenz); the second product is below 2^-24, so r is within 2^-61.
    The series to r^5 leaves r^6/720 < 2^-60. tail = low + head (e^r - 1) has a relative error below 4u.
    """
    t = _tables()
    first, second = t.ln2_step
    n = np.rint(x * (1 / (first + second)))
    r = x - n * first
    r -= n * second
    index = n.astype(np.int64)
    scale = (((index >> 7) << 52) + _ONE).view(np.float64)
    index &= _STEPS - 1
    head = t.exp_high.take(index)
    tail = _horner(r, _EXPM1)
    tail *= r
    tail *= head
    tail += t.exp_low.take(index)
    return scale, head, tail


def exp(x: Float64Array) -> Float64Array:
    """e^x, x clipped to +-700. Error: one rounding of head + tail, 2^-60 from the tail, so below 2^-52."""
    scale, head, tail = _exp_parts(np.minimum(np.maximum(x, -700.0), 700.0))  # shorter calls than clip
    head += tail
    head *= scale
    return head


def _expm1(x: Float64Array) -> Float64Array:
    """e^x - 1 for 0 <= x <= 60; relative error below 2^-51.

    scale head - 1 is exact for scale = 1, and 0 where n = 0: there e^x - 1 is the series itself. Elsewhere the sum is
    at least 2^-8 and no part of it exceeds it by more than a factor of two.
    """
    scale, head, tail = _exp_parts(x)
    tail *= scale
    head *= scale
    head -= 1.0
    head += tail
    return head


def tanh(x: Float64Array) -> Float64Array:
    """t / (t + 2), t = e^2|x| - 1, |x| clipped to 30. Error: that of t, at most once, and two roundings."""
    t = _expm1(np.minimum(np.abs(x), 30.0) * 2.0)
    return np.copysign(t / (t + 2.0), x)


def sigmoid(x: Float64Array) -> Float64Array:
    """1 / (1 + e^-x). Error: that of e^-x, at most once, and two roundings."""
    t = exp(-x)
    t += 1.0
    return np.divide(1.0, t, out=t)


# --- log, pow, rsqrt ------------------------------------------------------------------------------------------------


def log(x: Float64Array) -> Float64Array:
    """log x = k log(2) - log(c) + log(1 + r), x = 2^k m, 3/4 <= m < 3/2, r = m c - 1, |r| < 2^-6.9. x > 0.

    The product of c (11 bits) and the first 26 bits of m is exact, and so is the rest times c, so r has one rounding.
    The series to r^8 leaves r^9/9 < 2^-58 r. With k = 0 and c = 1 the result is the series: 4u. Otherwise the
    sum is at least 2^-8.1 and at least a third of each part; k times the first 42 bits of log(2) is exact: 8u.
    """
    t = _tables()
    k, m, index = _significand(x)
    c = t.inverse.take(index)
    upper = (m.view(np.int64) & _HALF_SPLIT).view(np.float64)
    r = upper * c
    r -= 1.0
    m -= upper
    m *= c
    r += m
    series = _horner(r, (-1 / 2, 1 / 3, -1 / 4, 1 / 5, -1 / 6, 1 / 7, -1 / 8))
    series *= r
    series *= r
    series += t.log_low.take(index)
    series += k * t.ln2[1]
    return (k * t.ln2[0] + t.log_high.take(index)) + (r + series)


def _significand(x: Float64Array) -> tuple[Float64Array, Float64Array, Int64Array]:
    """(k, m, i): x = 2^k m, 3/4 <= m < 3/2, and i the first 7 trailing bits of the significand of x. x > 0."""
    is_subnormal = x < 2.0**-1022
    bits = np.where(is_subnormal, x * 2.0**54, x).view(np.int64)
    index = (bits >> 45) & (_STEPS - 1)
    is_halved = index >> 6
    m = ((bits & _SIGNIFICAND) + (_ONE - (is_halved << 52))).view(np.float64)
    k = ((bits >> 52) - 1023 + is_halved - 54 * is_subnormal).astype(np.float64)
    return k, m, index


def pow_exponent(x: Float64Array, y: Float64Array) -> Float64Array:
    """y log|x| for finite nonzero x, clipped to +-128 (e^128 is beyond every format here). Error: 2^-50, relative."""
    return np.clip(y * log(np.abs(x)), -128.0, 128.0)


def pow(x: Float64Array, y: Float64Array) -> Float64Array:
    """|x|^y = e^(y log|x|). Error: 128 times that of the exponent, 2^-43, and that of exp."""
    return exp(pow_exponent(x, y))


def rsqrt(x: Float64Array) -> Float64Array:
    """1 / sqrt x, x > 0. Error: two roundings."""
    return 1.0 / np.sqrt(x)


# --- sin and cos ----------------------------------------------------------------------------------------------------

_NEAR = 2.0**20  # below this, n = x / (pi/2) has 20 bits, and n times 33 bits of pi/2 is exact
_TWO_OVER_PI_BITS = 1280  # x < 2^1024 leaves 2^-250 of x / (pi/2)
_FRACTION_BITS = 160


def sin(x: Float64Array) -> Float64Array:
    """sin x; NaN where the reduced argument is below 2^-40."""
    return _sin_cos(x, 0)


def cos(x: Float64Array) -> Float64Array:
    """cos x = sin(x + pi/2); NaN where the reduced argument is below 2^-40."""
    return _sin_cos(x, 1)


def _sin_cos(x: Float64Array, shift: int) -> Float64Array:
    """sin(x + shift pi/2), from the Taylor series of the reduced argument high + low, |high| < 0.79.

    sin: high + (high^3 S + low (1 - high^2/2)), the series to high^17, which leaves 2^-62 high. The bracket is at most
    a ninth of the sum and within 6u, and the sum rounds once: 2u.
    cos: 1 - (high^2/2 - (high^4 C - high low)), the series to high^16, which leaves 2^-58. high^2/2 is at most 0.32
    and within 2u, the bracket rounds once, the sum once, and it is at least 0.69: 3u.
    The reduced argument is within 2^-97, so within 2^-57 of its size where it is not below 2^-40.
    """
    quadrant, high, low = _reduced(x)
    square = high * high
    half = 0.5 * square
    sine = high + (high * square * _horner(square, _SIN) + low * (1.0 - half))
    cosine = 1.0 - (half - (square * square * _horner(square, _COS) - high * low))
    quadrant += shift
    result = np.where(quadrant & 1, cosine, sine)
    np.negative(result, out=result, where=(quadrant & 2).astype(bool))
    is_coarse = np.abs(high) < COARSE_SIN_COS
    return np.where(is_coarse, np.nan, result) if is_coarse.any() else result


def _reduced(x: Float64Array) -> tuple[Int64Array, Float64Array, Float64Array]:
    """(n, high, low): x = n pi/2 + high + low, within 2^-97. n only modulo 4.

    Cody and Waite's three parts: n p1 is exact, and so is x - n p1 (Sterbenz for n != 0); n p2 is exact, below 2^-13,
    and subtracted with its error kept (either may be the smaller of the two, so TwoSum); n p3 is below 2^-46 and within
    2^-99. Arguments of 2^20 and more are reduced by integers, one by one.
    """
    is_far = np.abs(x) >= _NEAR
    near = np.where(is_far, 0.0, x)
    p1, p2, p3 = _tables().half_pi
    n = np.rint(near * (1 / p1))
    high, low = two_sum(near - n * p1, -(n * p2))
    low -= n * p3
    high, low = two_sum(high, low)
    quadrant = n.astype(np.int64)
    for i in np.flatnonzero(is_far):
        quadrant[i], high[i], low[i] = _reduced_by_integers(float(x[i]))
    return quadrant, high, low


@cache
def _two_over_pi() -> int:
    """2/pi in fixed point, within 2 units."""
    return (1 << 2 * _TWO_OVER_PI_BITS) // enclosures.half_pi(_TWO_OVER_PI_BITS)


def _reduced_by_integers(x: float) -> tuple[int, float, float]:
    """(n mod 4, high, low) for 2^20 <= |x| < 2^1024: x times 2/pi in fixed point, as Payne and Hanek (1983) do.

    |x| is below 2^1024 and 2/pi within 2^-1278, so the product is within 2^-254 and, cut to 160 bits, within 2^-160.
    """
    numerator, denominator = x.as_integer_ratio()
    turns = numerator * _two_over_pi() // denominator >> (_TWO_OVER_PI_BITS - _FRACTION_BITS)
    n = (turns + (1 << (_FRACTION_BITS - 1))) >> _FRACTION_BITS
    r = (turns - (n << _FRACTION_BITS)) * enclosures.half_pi(_FRACTION_BITS) >> _FRACTION_BITS
    high = float(r)
    return n & 3, high * 2.0**-_FRACTION_BITS, float(r - int(high)) * 2.0**-_FRACTION_BITS
