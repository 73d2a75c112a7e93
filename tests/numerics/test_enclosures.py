"""The exact half: enclosures that shrink until they decide, constants, and powers that are exact."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from softfloat_llm.numerics import enclosures
from softfloat_llm.numerics.formats import f16, f32
from softfloat_llm.numerics.functions import FUNCTIONS, function_wide
from softfloat_llm.numerics.modes import MODES


@pytest.mark.parametrize("name", FUNCTIONS)
def test_however_few_bits_the_first_enclosure_has_the_result_is_the_same(name, monkeypatch):
    x = np.random.default_rng(1).uniform(0.01, 9, 60)
    args = (x, x[::-1] - 4) if name == "pow" else (x,)
    wanted = {mode: function_wide(name, args, f32, mode) for mode in MODES}
    monkeypatch.setattr(enclosures, "FIRST_BITS", 1)
    for mode in MODES:
        pairs = zip(*(a.tolist() for a in args), strict=True)
        assert [enclosures.settle(name, pair, f32, mode) for pair in pairs] == wanted[mode].tolist()


def test_an_enclosure_around_zero_does_not_decide_the_sign_of_a_zero(monkeypatch):
    monkeypatch.setattr(enclosures, "FIRST_BITS", 1)
    assert repr(enclosures.settle("sin", (math.pi,), f16, "ties_to_even")) == "0.0"
    assert repr(enclosures.settle("sin", (-math.pi,), f16, "ties_to_even")) == "-0.0"


def test_constants_agree_with_their_published_digits():
    half_pi = 1.5707963267948966192313216916397514420985846996875529  # DLMF 3.12.1
    ln2 = 0.69314718055994530941723212145817656807550013436025525  # OEIS A002162
    assert enclosures.half_pi(52) / 2**52 == pytest.approx(half_pi, abs=2.0**-51)
    assert enclosures.ln2(52) / 2**52 == pytest.approx(ln2, abs=2.0**-51)
    for bits in (60, 300, 2000):
        for constant in (enclosures.half_pi, enclosures.ln2):
            assert abs((constant(bits + 500) >> 500) - constant(bits)) <= 1


HALF = Fraction(1, 2)
POWERS = [
    (9, HALF, 3), (18, HALF, None), (2, HALF, None), (Fraction(1, 8), HALF, None), (4, -HALF, HALF), (3, -1, None),
    (Fraction(9, 4), Fraction(3, 2), Fraction(27, 8)), (2, -7, Fraction(1, 128)), (3, 200, None), (-3, 3, -27),
    (-3, 2, 9), (-1, 2**60 + 2, 1), (16, Fraction(3, 4), 8), (16, Fraction(1, 8), None),
]  # fmt: skip


@pytest.mark.parametrize(("x", "y", "want"), POWERS)
def test_exact_powers_are_found_and_no_others(x, y, want):
    assert enclosures._pow_exact(Fraction(x), Fraction(y)) == want
