"""Where the functions need no approximation: exact results, special values, and numbers that stand in for a result.

A **stand-in** is a float64 that rounds as the exact value does, to every format of at most 24 significand bits and in
every mode. It is the value itself; or the value rounded to odd, where that lies strictly between two neighbouring
float64 (Boldo and Melquiond, 2008); or the float64 beside 1, where the value lies between 1 and the next number or
midpoint of those formats. Start reading at `_beside`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from softfloat_llm.numerics import approximations
from softfloat_llm.numerics.formats import Array, Float64Array

TINY = 2.0**-40  # 1 +- 2^-40: no number and no midpoint of p <= 24 bits lies between it and 1
LINEAR = 2.0**-27  # below it x^3 / 3 < ulp(x) / 2 in float64, so sin x and tanh x lie between x and its neighbour
FLAT = 2.0**-20.5  # below it 1 - cos x < x^2 / 2 < 2^-42


def is_not_finite(x: Float64Array) -> Array:
    return ~np.isfinite(x)


def is_not_positive(x: Float64Array) -> Array:
    is_positive: Array = (x > 0) & (x < np.inf)
    return ~is_positive


def is_zero_or_not_finite(x: Float64Array) -> Array:
    is_either: Array = ~np.isfinite(x) | (x == 0)
    return is_either


def _pick(*choices: tuple[Array, Any]) -> Float64Array:
    """The value of the first condition that holds, element by element; NaN where none does."""
    picked: Float64Array = np.full(np.shape(choices[0][0]), np.nan)
    for condition, value in reversed(choices):
        picked = np.where(condition, np.asarray(value, np.float64), picked)
    return picked


def _beside(value: float | Float64Array, direction: Float64Array) -> Float64Array:
    """A number strictly between `value` and its float64 neighbour, rounded to odd; `value` itself where direction is 0.

    The sign of direction says on which side the number lies. Of the two float64, the one with an odd last bit is taken.
    """
    start = np.zeros_like(direction) + value
    neighbour = np.nextafter(start, np.copysign(np.inf, direction))
    is_kept: Array = (direction == 0) | (start.view(np.int64) & 1 == 1)
    return np.where(is_kept, start, neighbour)


def exp_stand_in(x: Float64Array) -> Float64Array:
    """1 + tiny."""
    return _pick((np.abs(x) < TINY, _beside(1.0, x)))


def sigmoid_stand_in(x: Float64Array) -> Float64Array:
    """1/2 + tiny/4; and 1 - e^-x beyond 30, where e^-30 < 2^-43."""
    return _pick((np.abs(x) < TINY, _beside(0.5, x)), (x > 30, _beside(1.0, -np.ones_like(x))))


def sin_stand_in(x: Float64Array) -> Float64Array:
    """x - x^3/6, just nearer to zero than x."""
    return _pick((np.abs(x) < LINEAR, _beside(x, -x)))


def tanh_stand_in(x: Float64Array) -> Float64Array:
    """x - x^3/3, just nearer to zero than x; and 1 - 2 e^-2x beyond 15, where 2 e^-30 < 2^-42."""
    one = np.copysign(1.0, x)
    return _pick((np.abs(x) < LINEAR, _beside(x, -x)), (np.abs(x) > 15, _beside(one, -one)))


def cos_stand_in(x: Float64Array) -> Float64Array:
    """1 - x^2/2."""
    return _pick((np.abs(x) < FLAT, _beside(1.0, -np.abs(x))))


def rsqrt_stand_in(x: Float64Array) -> Float64Array:
    """Exact where x is a power of four: its root is a power of two, and squares to x."""
    root = np.sqrt(x)
    significand, _ = np.frexp(root)
    return _pick(((significand == 0.5) & (root * root == x), 1.0 / root))


def no_stand_in(x: Float64Array) -> Float64Array:
    return np.full_like(x, np.nan)


def _is_odd(y: Float64Array) -> Array:
    half = y * 0.5
    is_odd: Array = (y == np.floor(y)) & (half != np.floor(half)) & np.isfinite(y)
    return is_odd


def _signed(magnitude: Float64Array, x: Float64Array, y: Float64Array) -> Float64Array:
    """The magnitude with the sign of (-1)^y where x is negative (-0 included)."""
    return np.where(np.signbit(x) & _is_odd(y), -magnitude, magnitude)


def signed_pow(x: Float64Array, y: Float64Array) -> Float64Array:
    return _signed(approximations.pow(x, y), x, y)


def is_pow_special(x: Float64Array, y: Float64Array) -> Array:
    has_no_power = (x < 0) & (y != np.floor(y))
    is_special: Array = is_zero_or_not_finite(x) | is_zero_or_not_finite(y) | (x == 1) | has_no_power
    return is_special


def pow_special(x: Float64Array, y: Float64Array) -> Float64Array:
    size = np.abs(x)
    to_infinity = (size > 1) == (y > 0)
    return _pick(
        ((y == 0) | (x == 1), 1.0),
        (np.isnan(x) | np.isnan(y), np.nan),
        (np.isinf(y) & (size == 1), 1.0),
        (np.isinf(y) | (size == 0) | np.isinf(x), _signed(np.where(to_infinity, np.inf, 0.0), x, y)),
    )


def pow_stand_in(x: Float64Array, y: Float64Array) -> Float64Array:
    """+-(1 + tiny). The direction is that of log|x| times y, whose product may underflow."""
    direction = np.sign(approximations.log(np.abs(x))) * np.sign(y)
    is_tiny = np.abs(approximations.pow_exponent(x, y)) < TINY / 2
    return _pick((is_tiny, _signed(_beside(1.0, direction), x, y)))


def exp_special(x: Float64Array) -> Float64Array:
    return _pick((x == -np.inf, 0.0), (x == np.inf, np.inf))


def log_special(x: Float64Array) -> Float64Array:
    return _pick((x == 0, -np.inf), (x == np.inf, np.inf))


def rsqrt_special(x: Float64Array) -> Float64Array:
    return _pick((x == 0, np.copysign(np.inf, x)), (x == np.inf, 0.0))


def sin_special(x: Float64Array) -> Float64Array:
    return _pick((x == 0, x))


def tanh_special(x: Float64Array) -> Float64Array:
    return _pick((np.isinf(x), np.copysign(1.0, x)))


def sigmoid_special(x: Float64Array) -> Float64Array:
    return _pick((x == -np.inf, 0.0), (x == np.inf, 1.0))
