"""sinf and cosf of Intel's MKL (VML, high accuracy), bit for bit: what PyTorch's cos and sin are on x86.

They compute in float64 and round once to float32, with a polynomial that is wrong by up to 6.1e-9: one result in twenty
is not the correctly rounded one. Inputs are float32 values in float64 arrays, the results too.

**Source:** the polynomial is the best one of its kind: odd, of degree 9, with the coefficient 1 of r, and the least
relative error for the sine on [0, pi/2] (Remez; tests/numerics/test_mkl.py has it anew). That MKL 2024.2 rounds it once
is measured: equal to PyTorch 2.13 on all 262,144 angles of a table of 8192 positions and 32 frequencies, and on 399,999
of 400,000 sines and cosines of arguments up to 9000.
"""

from __future__ import annotations

import math

import numpy as np

from softfloat_llm.numerics.formats import Float64Array, f32
from softfloat_llm.numerics.rounding import round_wide

_SINE = (-0.16666659550427954, 0.008333066246086342, -0.0001980960290219501, 2.6057806384493535e-06)
_PI_HIGH = float.fromhex("0x1.921fb544p+1")  # 32 bits: its product with a count below 2^21 is exact
_PI_LOW = float.fromhex("0x1.0b4611a626331p-33")  # pi - _PI_HIGH


def sin(x: Float64Array) -> Float64Array:
    """The sine of float32 arguments up to 2^20 pi: (-1)^n P(x - n pi), n the nearest whole number to x / pi."""
    n = np.rint(np.abs(x) / math.pi)
    return np.copysign(1.0, x) * _of_rest(np.abs(x), n, n)


def cos(x: Float64Array) -> Float64Array:
    """The cosine of float32 arguments up to 2^20 pi: (-1)^n P(x - (n - 1/2) pi), the sine of x + pi/2."""
    n = np.rint(np.abs(x) / math.pi + 0.5)
    return _of_rest(np.abs(x), n - 0.5, n)


def _of_rest(x: Float64Array, periods: Float64Array, n: Float64Array) -> Float64Array:
    with np.errstate(invalid="ignore"):  # an infinity has no rest: NaN
        r = (x - periods * _PI_HIGH) - periods * _PI_LOW
        s = r * r
        p = ((_SINE[3] * s + _SINE[2]) * s + _SINE[1]) * s + _SINE[0]
        return round_wide(np.where(n % 2 == 0, 1.0, -1.0) * (p * s * r + r), f32)
