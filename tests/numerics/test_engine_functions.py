"""The engines' exponentials against scalar transcriptions in fractions, one float32 rounding a step."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from softfloat_llm.numerics.engine_functions import EXPONENTIALS, flash_exp_u20, sleef_exp_u10, vector_exp_u20
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.formats import f32
from softfloat_llm.numerics.functions import exp_wide

RANDOM = np.random.default_rng(5)
INPUTS = np.concatenate([
    RANDOM.normal(0, 3, 150), -RANDOM.uniform(0, 104, 150), RANDOM.uniform(0, 88, 60),
    [0.0, -0.0, 1.0, -1.0, -87.3, -87.33, -87.34, -88.0, 88.7, -0.5, 0.5, 1e-30, -1e-30, -103.9],
]).astype(np.float32).astype(np.float64)  # fmt: skip


def r(x: Fraction | float) -> Fraction:
    return Fraction(round_exact(x, f32))


def constant(x: float) -> Fraction:
    return Fraction(float(np.float32(x)))


def horner(x: Fraction, coefficients: list[float]) -> Fraction:
    total = constant(coefficients[0])
    for c in coefficients[1:]:
        total = r(total * x + constant(c))
    return total


def sleef(x: float) -> float:
    """Sleef 3, xexpf: the steps of the source in fractions."""
    d = Fraction(x)
    q = round(r(d * constant(1.4426950408889634)))  # ties to even, as rint
    s = r(q * Fraction(-0.693145751953125) + d)
    s = r(q * constant(-1.428606765330187045e-06) + s)
    u = horner(s, [0.000198527617612853646, 0.00139304355252534151, 0.00833336077630519867, 0.0416664853692054749,
                   0.166666671633720398, 0.5])  # fmt: skip
    y = r(1 + r(r(s * s) * u + s))
    half = q >> 1
    return float(r(r(y * Fraction(2) ** half) * Fraction(2) ** (q - half)))


def flash(x: float) -> float:
    """PyTorch's fexp_u20: the bits of the result are written from a cubic."""
    y = r(Fraction(x) * constant(1.4426950408889634))
    fraction = r(y - math.floor(y))
    c = horner(fraction, [-0.0792042402, -0.2243383648, 0.3035426050, 0.000107034349])
    bits = int(r(Fraction(2) ** 23 * r(y - c) + 127 * Fraction(2) ** 23))
    return float(np.array(bits, np.uint32).view(np.float32))


def vector(x: float) -> float:
    """PyTorch's exp_u20."""
    d = Fraction(x)
    n = math.floor(r(d * constant(1.4426950408889634) + Fraction(1, 2)))
    rest = r(-n * constant(0.6931471805599453) + d)
    u = horner(rest, [0.00828929059, 0.0418978221, 0.166676521, 0.499991506, 0.999999701, 1.0])
    return float(r(r(u * Fraction(2) ** (n - 1)) * 2))


@pytest.mark.parametrize(
    ("form", "scalar", "lowest"), [(sleef_exp_u10, sleef, -104), (flash_exp_u20, flash, -87.3365),
                                   (vector_exp_u20, vector, -87.3365)]
)  # fmt: skip
def test_each_exponential_follows_its_source_step_by_step(form, scalar, lowest):
    inputs = INPUTS[lowest <= INPUTS]
    np.testing.assert_array_equal(form(inputs), [scalar(float(x)) for x in inputs])


@pytest.mark.parametrize(("name", "bound"), [("sleef-u10", 2**-22), ("flash-u20", 1.2e-4), ("vector-u20", 4.6e-7)])
def test_each_exponential_is_as_near_as_its_source_says(name, bound):
    # exp_u20: 2.3e-7, and up to 115 times the 1.9e-9 that float32's ln 2 is wrong by
    x = np.linspace(-80, 80, 4096).astype(np.float32).astype(np.float64)
    exact = exp_wide(x, f32)
    assert (np.abs(EXPONENTIALS[name](x) - exact) <= bound * exact).all()


@pytest.mark.parametrize("name", EXPONENTIALS)
def test_beyond_the_range_there_are_zeros_and_infinities_and_nan_stays(name):
    x = np.array([-np.inf, -200.0, 200.0, np.inf, np.nan] + [0.0] * 11)
    got = EXPONENTIALS[name](x)
    np.testing.assert_array_equal(got[:5], [0.0, 0.0, np.inf, np.inf, np.nan])
    np.testing.assert_allclose(got[5:], 1.0, atol=1.2e-4)


def test_flash_takes_whole_vectors_of_16_and_the_exact_exponential_for_the_rest():
    x = RANDOM.normal(0, 2, (3, 37)).astype(np.float32).astype(np.float64)
    got = EXPONENTIALS["flash-u20"](x)
    np.testing.assert_array_equal(got[:, :32], flash_exp_u20(x[:, :32]))
    np.testing.assert_array_equal(got[:, 32:], exp_wide(x[:, 32:], f32))
    assert (got[:, :32] != exp_wide(x[:, :32], f32)).any()


@pytest.mark.torch
def test_silu_with_sleefs_exponential_is_pytorchs_own():
    import torch

    x = RANDOM.normal(0, 6, 1 << 14).astype(np.float32)
    with np.errstate(over="ignore"):
        e = sleef_exp_u10(-x.astype(np.float64)).astype(np.float32)
        ours = x / (np.float32(1) + e)
    theirs = torch.nn.functional.silu(torch.from_numpy(x)).numpy()
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip(f"PyTorch runs {torch.backends.cpu.get_cpu_capability()} kernels here, not Sleef's on x86")
    np.testing.assert_array_equal(ours, theirs)
