"""expf, cosf and sinf of the GNU C library, bit for bit: what engines call where they have no vectors of their own.

They compute in float64 and round once to float32, so they are almost always correctly rounded: expf up to 0.502 ulp,
cosf and sinf up to 0.56. The steps here are float64 additions, multiplications and tables, the same on every machine.
Inputs are float32 values in float64 arrays, the results too.

**Source:** glibc 2.36, sysdeps/ieee754/flt-32/{e_expf,s_sinf,s_cosf}.c, in the x86-64 form with fused multiply-adds.
Equal to it where it was tried (tests/numerics/test_glibc.py has a sample, and says what the whole was).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from softfloat_llm.numerics import enclosures
from softfloat_llm.numerics.carriers import carry
from softfloat_llm.numerics.formats import Float64Array, f32
from softfloat_llm.numerics.rounding import round_wide

Int64Array = npt.NDArray[np.int64]

# --- expf -------------------------------------------------------------------------------------------------------------

_STEPS = 32  # 2^EXP2F_TABLE_BITS
_PER_STEP = float.fromhex("0x1.71547652b82fep+0") * _STEPS  # 32 / ln 2
_EXP_CUBIC = (
    float.fromhex("0x1.c6af84b912394p-5") / _STEPS**3,
    float.fromhex("0x1.ebfce50fac4f3p-3") / _STEPS**2,
    float.fromhex("0x1.62e42ff0c52d6p-1") / _STEPS,
)
_LARGEST = float.fromhex("0x1.62e42ep6")  # above it, infinity
_SMALLEST = float.fromhex("-0x1.9fe368p6")  # below it, 0

# The two float32 of which the fused steps give another float32 than separate ones (of all 2,239,836,979 in range).
_FUSED_ELSEWHERE = {
    float.fromhex("0x1.04845ep+5"): float.fromhex("0x1.f93e38p+46"),
    float.fromhex("-0x1.f8cbb2p+5"): float.fromhex("0x1.f45326p-92"),
}


def exp(x: Float64Array) -> Float64Array:
    """expf: 2^(k/32) from a table, times a cubic of the rest r of x 32 / ln 2 = k + r."""
    inner = np.clip(np.where(np.isnan(x), 0.0, x), _SMALLEST, _LARGEST)
    z = inner * _PER_STEP
    k = np.rint(z)
    r = z - k
    whole = k.astype(np.int64)
    scale = np.ldexp(_POWERS[whole % _STEPS], whole // _STEPS)
    cubic = (_EXP_CUBIC[0] * r + _EXP_CUBIC[1]) * (r * r) + (_EXP_CUBIC[2] * r + 1.0)
    result = round_wide(cubic * scale, f32)
    for argument, value in _FUSED_ELSEWHERE.items():
        result[inner == argument] = value
    return np.where(np.isnan(x), np.nan, np.where(x < _SMALLEST, 0.0, np.where(x > _LARGEST, np.inf, result)))


def _powers() -> Float64Array:
    """2^(i/32) rounded to float64: five square roots of 2^i, in integers."""
    powers = []
    for i in range(_STEPS):
        fixed = 1 << (i + 200)  # 200 bits after the point
        for _ in range(5):
            fixed = math.isqrt(fixed << 200)
        powers.append(fixed / (1 << 200))  # the division of integers rounds once
    return np.array(powers)


_POWERS = _powers()

# --- sinf and cosf ----------------------------------------------------------------------------------------------------

_HALF_PI = float.fromhex("0x1.921fb54442d18p0")
_HALF_PI_PARTS = (
    float.fromhex("0x1.921fb544p0"),
    float.fromhex("0x1.0b46p-34"),
)  # few bits each: n times them is exact
_TURNS = float.fromhex("0x1.45f306dc9c883p+23")  # 2/pi times 2^24
_COS = tuple(map(float.fromhex, ("-0x1.ffffffd0c621cp-2", "0x1.55553e1068f19p-5", "-0x1.6c087e89a359dp-10",
                                 "0x1.99343027bf8c3p-16")))  # fmt: skip
_SIN = tuple(map(float.fromhex, ("-0x1.555545995a603p-3", "0x1.1107605230bc4p-7", "-0x1.994eb3774cf24p-13")))
_FAR = 120.0  # from here on the quadrant comes from 2/pi in integers
_WINDOWS = np.array([((1 << 8 * i + 208) // enclosures.half_pi(200)) & 0xFFFFFFFF for i in range(24)], np.uint64)
_PI_64 = float.fromhex("0x1.921fb54442d18p-62")  # pi 2^-64 (twice that of a turn's quarter)


def sin(x: Float64Array) -> Float64Array:
    """sinf: the quadrant, then a polynomial of degree 7 or 8 in float64."""
    return _sin_cos(x, 0)


def cos(x: Float64Array) -> Float64Array:
    """cosf: as `sin`, a quadrant on."""
    return _sin_cos(x, 1)


def _sin_cos(x: Float64Array, shift: int) -> Float64Array:
    finite = np.where(np.isfinite(x), x, 0.0)
    quadrant, rest = _reduced(finite)
    is_cosine = (quadrant & 1) != (shift & 1)  # in odd quadrants sine and cosine change places
    turned = np.where((quadrant + shift) & 2, -1.0, 1.0)
    result = round_wide(turned * np.where(is_cosine, _cosine(rest), _sine(rest)), f32)
    tiny = np.abs(finite) < 2.0**-12
    result = np.where(tiny, finite if shift == 0 else 1.0, result)
    return np.where(np.isfinite(x), result, np.nan)


def _sine(x: Float64Array) -> Float64Array:
    square = x * x
    cube = x * square
    return (x + cube * _SIN[0]) + (cube * square) * (_SIN[1] + square * _SIN[2])


def _cosine(x: Float64Array) -> Float64Array:
    square = x * x
    fourth = square * square
    return ((1.0 + square * _COS[0]) + fourth * _COS[1]) + (fourth * square) * (_COS[2] + square * _COS[3])


def _reduced(x: Float64Array) -> tuple[Int64Array, Float64Array]:
    """The quadrant of x, and x less so many pi/2, rounded once."""
    near = np.where(np.abs(x) < _FAR, x, 0.0)
    quadrant = (np.trunc(near * _TURNS).astype(np.int64) + 0x800000) >> 24
    quadrant = np.where(np.abs(x) < np.float64(np.float32(_HALF_PI / 2)), 0, quadrant)
    rest = (near - quadrant * _HALF_PI_PARTS[0]) - quadrant * _HALF_PI_PARTS[1]
    far = np.abs(x) >= _FAR
    if far.any():
        quadrant[far], rest[far] = _reduced_far(x[far])
    return quadrant, rest


def _reduced_far(x: Float64Array) -> tuple[Int64Array, Float64Array]:
    """The same for |x| >= 120: the significand times 96 bits of 2/pi, of which the leading ones are whole turns."""
    words = carry(np.abs(x), f32).view(np.uint32).astype(np.uint64)
    place = ((words >> 26) & 15).astype(np.int64)
    significand = ((words & 0xFFFFFF) | 0x800000) << ((words >> 23) & 7)
    first, second, third = (significand * _WINDOWS[place + step] for step in (0, 4, 8))
    turns = (third >> 32 | first << 32) + second
    quadrant = (turns + (1 << 61)) >> 62
    rest = (turns - (quadrant << 62)).view(np.int64).astype(np.float64) * _PI_64
    is_negative = np.signbit(x)
    return np.where(is_negative, -quadrant.astype(np.int64), quadrant.astype(np.int64)), np.where(
        is_negative, -rest, rest
    )
