"""PyTorch's float32 sine and cosine on x86, bit for bit, as they were found from their outputs.

They compute in float64 and round once to float32: the multiple of pi nearest to x, chosen in float32, then an odd
polynomial of degree 9 that is wrong by up to 6.1e-9, so that one result in twenty is not the correctly rounded one.
Beyond 10,000 PyTorch takes another path, which is not known here: there these functions are correctly rounded.

**Source:** found from outside, PyTorch 2.13.0 (CPU, AVX-512): the errors of its results, as a function of the distance
to the nearest multiple of pi, are those of the polynomial of least relative error for the sine on (0, pi/2] with the
coefficient 1 of r: five extrema of one size. Equal on each of the 2,352,513,026 float32 values up to 10,000 in
magnitude. The coefficients are those of a Remez iteration, moved by at most 2.2e-14 for the sake of one cosine, that
of 0.1322608.
"""

from __future__ import annotations

import numpy as np

from softfloat_llm.numerics.formats import Float64Array, f32
from softfloat_llm.numerics.functions import function_wide
from softfloat_llm.numerics.rounding import round_wide

LIMIT = 10_000.0
"""The largest magnitude of an argument for which the bits are PyTorch's."""
_INVERSE_PI = float(np.float32(1 / np.pi))
_HALF_PI = float(np.float32(np.pi / 2))
# pi in three parts, 33 and 33 bits and the rest: their products with the multiples that are met are exact
_PI_PARTS = tuple(map(float.fromhex, ("0x1.921fb544p+1", "0x1.0b4611a6p-33", "0x1.3198a2e037073p-68")))
_SINE = tuple(
    map(
        float.fromhex,
        ("-0x1.55554bc836648p-3", "0x1.110ed3804f388p-7", "-0x1.9f6ffeeaf000fp-13", "0x1.5dbdf0eba0d2ep-19"),
    )
)


def sin(x: Float64Array) -> Float64Array:
    """The sine of float32 values: (-1)^k P(|x| - k pi) with the sign of x, k = rint(R32(|x| R32(1/pi)))."""
    size = np.abs(x)
    k = np.rint(round_wide(size * _INVERSE_PI, f32))
    near = np.where(np.signbit(x), -1.0, 1.0) * _of_rest(size, k, k)
    return _within("sin", x, near)


def cos(x: Float64Array) -> Float64Array:
    """The cosine of float32 values: (-1)^n P(|x| - (n - 1/2) pi), n = rint(R32(R32(|x| + R32(pi/2)) R32(1/pi)))."""
    size = np.abs(x)
    n = np.rint(round_wide(round_wide(size + _HALF_PI, f32) * _INVERSE_PI, f32))
    return _within("cos", x, _of_rest(size, n - 0.5, n))


def _of_rest(size: Float64Array, multiple: Float64Array, n: Float64Array) -> Float64Array:
    with np.errstate(invalid="ignore", over="ignore"):  # beyond LIMIT
        r = size
        for part in _PI_PARTS:
            r = r - multiple * part
        s = r * r
        p = _SINE[0] + s * (_SINE[1] + s * (_SINE[2] + s * _SINE[3]))
        return round_wide(np.where(n % 2 == 0, 1.0, -1.0) * (r + (r * s) * p), f32)


def _within(name: str, x: Float64Array, near: Float64Array) -> Float64Array:
    is_far = ~(np.abs(x) <= LIMIT)
    if is_far.any():
        near[is_far] = function_wide(name, (x[is_far],), f32)
    return near
