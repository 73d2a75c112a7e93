"""The approximations keep the error bounds that they declare, measured against the integers of `enclosures`."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from softfloat_llm.numerics import approximations, enclosures, functions

POSITIVE = ("log", "rsqrt")


@pytest.mark.parametrize("name", list(functions.FUNCTIONS))
def test_approximations_keep_their_error_bounds_with_half_to_spare(name):
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.normal(0, 20, 300), np.ldexp(rng.uniform(1, 2, 300), rng.integers(-26, 6, 300))])
    x = np.concatenate([x, 1 + np.ldexp(rng.uniform(-1, 1, 300), rng.integers(-40, -1, 300))])
    if name in ("sin", "cos"):  # small reduced arguments, and arguments that integers reduce
        x = np.concatenate([x, np.arange(1, 200) * (math.pi / 2), np.arange(1, 200) * 1e20])
    columns = (np.abs(x), rng.normal(0, 5, x.size)) if name == "pow" else (np.abs(x) if name in POSITIVE else x,)
    approximate = functions.FUNCTIONS[name].approximate(*columns)
    for args, y in zip(zip(*(c.tolist() for c in columns), strict=True), approximate.tolist(), strict=True):
        if 2.0**-180 < abs(y) < 2.0**180:  # not NaN, and not clipped
            low, high = enclosures.ENCLOSE[name](*(Fraction(a) for a in args), 160)
            error = abs(Fraction(y) - (low + high) / 2) / abs(low)
            assert error * 2 < Fraction(2) ** -approximations.ERROR_BITS[name], (name, args, float(error))
