"""total: what `math.fsum` gives, for every kind of sum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softfloat_llm.analysis import exact_totals
from softfloat_llm.analysis.exact_totals import total


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300), max_size=40))
def test_it_is_the_sum_rounded_once(values):
    assert total(np.array(values)).hex() == math.fsum(values).hex()


@pytest.mark.parametrize("spread", [0, 1, 30, 100])
@pytest.mark.parametrize("size", [1, 2, 3, 1000, 4097])
def test_terms_that_cancel_and_ties_are_rounded_as_by_fsum(size, spread):
    rng = np.random.default_rng(size)
    x = rng.standard_normal(size) * np.exp(spread * rng.standard_normal(size))
    for values in (x, np.abs(x), np.concatenate([x, -x[: size // 2], [1e-9]]), np.append(np.rint(4 * x), 2.0**53)):
        assert total(values).hex() == math.fsum(values).hex()


def test_a_sum_of_probabilities_needs_no_fsum(monkeypatch):
    x = np.abs(np.random.default_rng(0).standard_normal((3, 5000)))
    wanted = math.fsum(x.ravel())
    monkeypatch.setattr(exact_totals, "math", None)
    assert total(x) == wanted


def test_what_is_not_finite_ends_as_with_fsum():
    assert total(np.array([1.0, math.inf])) == math.inf
    assert math.isnan(total(np.array([1.0, math.nan])))
    assert total(np.array([])) == 0
    with pytest.raises(ValueError, match="inf"):
        total(np.array([math.inf, -math.inf]))
    with pytest.raises(OverflowError):
        total(np.full(4, 1e308))
