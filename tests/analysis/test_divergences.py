"""kl: against fractions and enclosures of exp and log; small divergences keep their digits; what is infinite or NaN."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softfloat_llm.analysis.divergences import exp_minus_line, kl, log_one_plus, softmax
from softfloat_llm.errors import RunError
from softfloat_llm.runs import simulate

LIMIT = Decimal(2) ** -40


def kl_in_decimal(run, reference):
    """The definition, in 80 digits."""
    with localcontext() as context:
        context.prec = 80
        x, y = ([Decimal(float(v)) for v in row] for row in (run, reference))
        total_x, total_y = (sum(v.exp() for v in row) for row in (x, y))
        p = [v.exp() / total_y for v in y]
        return sum(
            (pi * (yi - xi) for pi, xi, yi in zip(p, x, y, strict=True)), Decimal(0)
        ) + total_x.ln() - total_y.ln()  # fmt: skip


@pytest.mark.parametrize("scale", [1e-9, 1e-4, 0.1, 1.0, 30.0])
def test_it_is_the_definition_to_40_bits_however_small_it_is(scale):
    rng = np.random.default_rng(7)
    for size in (2, 5, 300):
        reference = (8 * rng.standard_normal(size)).astype(np.float32)
        run = (reference + scale * rng.standard_normal(size)).astype(np.float32)
        found, wanted = Decimal(float(kl(run, reference))), kl_in_decimal(run, reference)
        assert abs(found - wanted) <= LIMIT * abs(wanted)


def test_rows_that_differ_by_a_constant_mean_the_same_distribution():
    row = np.array([1.0, 2.0, 3.0])
    assert kl([row + 4, row, row - 0.5], [row] * 3).tolist() == [0.0, 0.0, 0.0]


@given(st.lists(st.tuples(st.floats(-40, 40, width=32), st.floats(-40, 40, width=32)), min_size=1, max_size=9))
def test_it_is_never_negative(pairs):
    run, reference = zip(*pairs, strict=True)
    assert kl(run, reference) >= 0


def test_the_reference_is_the_one_that_weighs():
    run, reference = [0.0, 3.0], [0.0, 0.0]
    assert kl(run, reference) != kl(reference, run)


def test_one_token_has_no_divergence_and_two_vocabularies_have_none_in_common():
    assert kl([[3.0]], [[-100.0]]).tolist() == [0.0]
    with pytest.raises(RunError, match=r"shape \(4,\), the reference's \(3,\)"):
        kl([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0])
    with pytest.raises(RunError):
        kl([], [])
    with pytest.raises(RunError):
        kl(1.0, 1.0)


@pytest.mark.parametrize(("run", "reference", "wanted"), [
    ([1.0, np.nan], [1.0, 2.0], np.nan),
    ([1.0, 2.0], [np.nan, 2.0], np.nan),
    ([np.inf, 2.0], [1.0, 2.0], np.nan),
    ([-np.inf, -np.inf], [1.0, 2.0], np.nan),
    ([1.0, -np.inf], [1.0, 2.0], np.inf),
    ([1.0, -np.inf], [1.0, -np.inf], 0.0),
    ([0.0, 0.0, -np.inf], [5.0, 5.0, -1000.0], 0.0),  # e^-1005 is no part of any float64 sum
])  # fmt: skip
def test_what_is_not_finite(run, reference, wanted):
    np.testing.assert_equal(float(kl(run, reference)), wanted)


def test_logits_that_lie_a_thousand_apart():
    assert float(kl([0.0, 3000.0], [0.0, 0.0])) == pytest.approx(1500 - np.log(2), rel=2**-40)
    assert float(kl([0.0, -3000.0], [0.0, 0.0])) == pytest.approx(1500 - np.log(2), rel=2**-40)


def test_the_softmax_of_logits_that_are_logs_of_small_numbers_is_their_share():
    assert softmax(np.array([0.0, 0.0, 0.0, 0.0])).tolist() == [0.25] * 4
    assert softmax(np.array([-2000.0, 0.0])).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("x", [-0.25, -0.2499999, 1e-9, -1e-9, 0.25, 0.2499999, -5.0, 20.0])
def test_e_to_x_less_its_tangent_keeps_its_digits(x):
    with localcontext() as context:
        context.prec = 60
        wanted = Decimal(x).exp() - 1 - Decimal(x)
    found = Decimal(float(exp_minus_line(np.array([x]))[0]))
    assert abs(found - wanted) <= wanted * Decimal(2) ** -44


@pytest.mark.parametrize("x", [0.0, 1e-300, 1e-20, 2.0**-40, 2.0**-40 * 0.999, 1e-5, 0.5, 3.0, 1e16, 1e200])
def test_log_of_one_plus_x_keeps_the_digits_of_x(x):
    with localcontext() as context:
        context.prec = 400
        wanted = (1 + Decimal(x)).ln()
        assert abs(Decimal(log_one_plus(x)) - wanted) <= wanted * Decimal(2) ** -46


def test_bf16_lies_further_from_f32_than_f16_does():
    reference = simulate(recipe="f32", taps=())["logits"]
    bf16, f16 = (kl(simulate(recipe=r, taps=())["logits"], reference) for r in ("bf16", "f16"))
    assert bf16.shape == (len(reference),)
    assert (bf16 > 8 * f16).all()
    assert (f16 > 0).all()
    assert Fraction(float(kl(reference, reference).max())) == 0
