"""expf, cosf and sinf of the GNU C library: against the library itself where there is one, and against exact values.

Compared once with glibc 2.36 on x86-64 (a processor with FMA): every seventh of the 2^32 float32, and the same steps
written in C on every one of them; no bit differed.
"""

from __future__ import annotations

import ctypes
import platform

import numpy as np
import pytest

from softfloat_llm.numerics import glibc
from softfloat_llm.numerics.formats import f32
from softfloat_llm.numerics.functions import function_wide
from softfloat_llm.numerics.ulps import ulp_distance

RANDOM = np.random.default_rng(11)
OURS = {"exp": glibc.exp, "cos": glibc.cos, "sin": glibc.sin}
FUSED = [float.fromhex(x) for x in ("0x1.04845ep+5", "-0x1.f8cbb2p+5")]
EXPONENTS = np.concatenate([
    RANDOM.normal(0, 3, 1500), RANDOM.uniform(-104, 89, 1500), FUSED,
    [0.0, -0.0, 88.72, 88.73, -103.9, -103.98, -87.3, -87.4, 1e-40, np.inf, -np.inf, np.nan],
]).astype(np.float32)  # fmt: skip
ANGLES = np.concatenate([
    RANDOM.uniform(-4, 4, 800), RANDOM.uniform(0, 119, 1000), RANDOM.uniform(120, 8192, 1000),
    RANDOM.choice([-1, 1], 400) * 2.0 ** RANDOM.uniform(-40, 127, 400),
    [0.0, -0.0, 119.99, 120.0, 120.01, 500.0, -500.0, 0.7853981, 0.7853982, 2.0**-12, 1e-5, np.inf, np.nan],
]).astype(np.float32)  # fmt: skip
INPUTS = {"exp": EXPONENTS, "cos": ANGLES, "sin": ANGLES}


def ours(name):
    with np.errstate(all="ignore"):
        return OURS[name](INPUTS[name].astype(np.float64))


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or platform.machine() != "x86_64", reason="no glibc for x86-64 here"
)
@pytest.mark.parametrize("name", OURS)
def test_each_function_is_the_librarys_bit_for_bit(name):
    """In glibc from 2.28 on, on a processor with FMA; signs of zero count too."""
    function = getattr(ctypes.CDLL("libm.so.6"), f"{name}f")
    function.argtypes, function.restype = [ctypes.c_float], ctypes.c_float
    wanted = np.array([function(float(x)) for x in INPUTS[name]])
    np.testing.assert_array_equal(ours(name), wanted)
    is_number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(ours(name))[is_number], np.signbit(wanted)[is_number])


@pytest.mark.parametrize(("name", "share"), [("exp", 0.003), ("cos", 0.05), ("sin", 0.05)])
def test_each_is_correctly_rounded_but_for_a_small_share_that_is_one_ulp_away(name, share):
    """glibc's own bounds: 0.502 ulp for expf, 0.56 for the others; so each is one of the two values around."""
    exact = function_wide(name, (INPUTS[name].astype(np.float64),), f32)
    distance = ulp_distance(ours(name), exact, f32)
    assert distance.max() <= 1
    assert 0 < np.count_nonzero(distance) <= share * len(distance)


def test_two_exponentials_are_those_of_fused_steps():
    wanted = [float.fromhex("0x1.f93e38p+46"), float.fromhex("0x1.f45326p-92")]
    assert glibc.exp(np.array(FUSED)).tolist() == wanted


def test_the_table_of_powers_is_of_correctly_rounded_ones():
    assert glibc._POWERS[16] == 2.0**0.5
    assert (np.abs(glibc._POWERS**32 / 2.0 ** np.arange(32) - 1) < 40 * 2.0**-53).all()  # 32 factors, half an ulp each
