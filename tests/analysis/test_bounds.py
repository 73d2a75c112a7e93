"""Bounds and bands: no order leaves the bounds, judged by exact fractions; a band is what the orders really give."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softfloat_llm.analysis.bands import orders_of, sum_band
from softfloat_llm.analysis.bounds import gamma, sum_bounds, unit_roundoff
from softfloat_llm.analysis.logit_bands import model_band, reordered
from softfloat_llm.analysis.site_bands import site_band
from softfloat_llm.analysis.step_logits import question
from softfloat_llm.errors import PrecisionError, RecipeError, RunError
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.exact import dot_exact
from softfloat_llm.numerics.formats import bf16, f16
from softfloat_llm.numerics.precision import precision_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.recipe import recipe_of
from softfloat_llm.runs import simulate

PRECISIONS = [
    "storage=bf16,acc=f32", "storage=bf16,acc=f32,output=f32", "storage=f16,acc=f16", "storage=bf16,acc=bf16",
    "storage=f16,product=f16,acc=f16", "storage=f16,product=bf16,acc=f32,output=f32", "storage=bf16,acc=exact",
    "storage=f16,acc=f16,rounding=toward_zero", "storage=e4m3fn,acc=f16,output=f16",
    "storage=f16,acc=f16,acc.subnormals=ftz,product=f16,product.subnormals=ftz",
]  # fmt: skip
ORDERS = ["seq", "reverse", "pairwise", "lanes:4", "blocked:3", "perm:5", "ilp:2"]


@pytest.fixture(scope="module")
def tiny():
    return open_model("tiny")


def small(storage):
    return st.floats(-8, 8, width=32).map(lambda x: float(round_to(x, storage)))


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", PRECISIONS)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_no_order_leaves_the_a_priori_bound_and_none_its_own_running_bound(text, data):
    at = precision_of(text)
    rows = data.draw(st.lists(st.tuples(small(at.storage), small(at.storage)), min_size=1, max_size=20))
    scale = data.draw(st.sampled_from([1.0, 2.0**-9]))  # small enough for products below the normal range
    a, b = (np.asarray(round_to(np.array(x) * scale, at.storage)) for x in zip(*rows, strict=True))
    exact = dot_exact(a.astype(float), b.astype(float))
    for order in ORDERS:
        there = precision_of({key: word for key, word in at.items() if key != "order"} | {"order": order})
        found = sum_bounds(a[None], b[:, None], there)
        error = abs(Fraction(float(found.value.item())) - exact)
        assert error <= Fraction(found.a_priori.item()), order
        if found.running is not None:
            assert error <= Fraction(found.running.item()), order


def test_the_formula_is_gamma_times_the_sum_of_magnitudes():
    a, b = [[3.0, -2.0, 1.0]], [[1.0], [1.0], [2.0]]
    found = sum_bounds(a, b, "storage=bf16,acc=f32,output=f32")
    assert (found.terms, found.gamma) == (3, 3 * 2.0**-24 / (1 - 3 * 2.0**-24))
    assert found.magnitude.item() == pytest.approx(7.0, rel=2**-40)
    assert found.a_priori.item() == pytest.approx(found.gamma * 7 + 2.0**-24 * 3, rel=1e-6)
    # s_1 = 3, s_2 = 1, s_3 = 3: u times 7 again, and the output
    assert found.running.item() == pytest.approx(2.0**-24 * 7 + 2.0**-24 * 3, rel=1e-6)


def test_the_running_bound_sees_that_terms_cancel_early():
    a = [[100.0, -100.0, *[1.0] * 50]]
    found = sum_bounds(a, [[1.0]] * 52, "storage=f16,acc=f16")
    assert found.running.item() < found.a_priori.item() / 5


def test_gamma_and_the_unit_roundoff():
    assert (unit_roundoff(bf16), unit_roundoff(f16, "toward_negative")) == (2.0**-8, 2.0**-10)
    assert gamma(0, 0.5) == 0
    assert gamma(2, 0.5) == gamma(256, 2.0**-8) == math.inf


def test_nothing_is_derived_where_the_terms_are_too_many_or_a_sum_may_overflow():
    ones = np.ones((1, 300))
    assert sum_bounds(ones, ones.T, "storage=bf16,acc=bf16").a_priori.item() == math.inf
    assert math.isfinite(sum_bounds(ones, ones.T, "storage=bf16,acc=bf16").running.item())
    big = [[40000.0, 40000.0, -40000.0]]
    assert sum_bounds(big, [[1.0]] * 3, "storage=f16,acc=f16").a_priori.item() == math.inf
    assert sum_bounds(big, [[1.0]] * 3, "storage=f16,acc=f32,output=f32").a_priori.item() < 0.1


@pytest.mark.parametrize("text", [
    "storage=f16,acc=f32+kahan", "storage=bf16,acc=f32,order=fused:nvidia-hopper-bf16", "storage=f32,acc=f64",
    "storage=bf16,acc=f32,order=split-k:2:bf16",
])  # fmt: skip
def test_the_formulas_are_not_said_of_sums_that_they_are_not_about(text):
    with pytest.raises(PrecisionError, match="No bound of this kind"):
        sum_bounds([[1.0, 2.0]], [[1.0], [2.0]], text)


# --- bands of sums ----------------------------------------------------------------------------------------------------


def test_a_band_is_the_least_and_the_most_of_the_orders():
    rng = np.random.default_rng(1)
    a, b = (round_to(rng.standard_normal(shape), "f16") for shape in ((3, 40), (40, 4)))
    at = "storage=f16,acc=f16"
    found = sum_band(a, b, at, orders=6)
    every = np.stack(
        [reduce.matmul(a, b, at), *(reduce.matmul(a, b, f"{at},order=perm:{s}") for s in range(6))]
    ).astype(float)
    widths = every.max(0) - every.min(0)
    assert found.orders == tuple(f"perm:{seed}" for seed in range(6))
    assert (found.seen, found.moved) == (widths.max(), np.count_nonzero(widths))
    one = found.widest
    assert (one.low, one.high, one.value) == tuple(f[one.index] for f in (every.min(0), every.max(0), every[0]))
    assert one.results == len(set(every[(slice(None), *one.index)]))
    assert found.seen <= found.safe
    assert "a test must allow at least that" in str(found)


def test_more_orders_only_widen_a_band():
    rng = np.random.default_rng(2)
    a, b = round_to(rng.standard_normal(200), "bf16"), round_to(rng.standard_normal(200), "bf16")
    widths = [sum_band(a, b, "storage=bf16,acc=bf16", orders=n).seen for n in (1, 4, 16)]
    assert widths == sorted(widths)


def test_256_and_ones_in_bf16_have_two_right_sums():
    found = sum_band([256.0, 1.0, 1.0], [1.0, 1.0, 1.0], "storage=bf16,acc=bf16", orders=["seq", "reverse"])
    assert (found.widest.value, found.widest.low, found.widest.high, found.widest.results) == (256.0, 256.0, 258.0, 2)
    assert "moved by some: 1 of 1 sum." in str(found)
    assert "one dot product of 3 terms" in str(found)


def test_an_exact_accumulator_has_no_band():
    rng = np.random.default_rng(3)
    a, b = (round_to(rng.standard_normal(shape), "bf16") for shape in ((2, 50), (50, 2)))
    found = sum_band(a, b, "storage=bf16,acc=exact")
    assert (found.moved, found.seen) == (0, 0)
    assert "a test must allow" not in str(found)


def test_a_matrix_unit_has_a_band_and_no_derived_bound():
    rng = np.random.default_rng(4)
    a, b = (round_to(rng.standard_normal(shape), "bf16") for shape in ((2, 64), (64, 2)))
    found = sum_band(a, b, "storage=bf16,acc=f32,output=f32,order=fused:nvidia-hopper-bf16", orders=3)
    assert found.moved > 0
    assert (found.safe, found.widest.a_priori, found.widest.running) == (None, None, None)
    assert "No bound is derived" in str(found)
    json.dumps(found.to_dict(), allow_nan=False)


def test_orders_that_overflow_make_the_band_infinite():
    found = sum_band(
        [60000.0, 60000.0, -60000.0, -60000.0], [1.0] * 4, "storage=f16,acc=f16", orders=["seq", "reverse", "lanes:2"]
    )
    assert found.widest.high == math.inf
    assert found.safe == math.inf
    assert "Derived: nothing" in str(found)
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["safe"] == "inf"


def test_sums_that_cannot_be_asked_for_are_refused():
    with pytest.raises(PrecisionError, match="at least one other order"):
        orders_of(0)
    with pytest.raises(PrecisionError, match="at least one"):
        orders_of([])
    for a, b in (([1.0], [1.0, 2.0]), (1.0, 1.0), ([], []), (np.ones((1, 2)), np.ones((3, 1)))):
        with pytest.raises(PrecisionError, match="A band takes"):
            sum_band(a, b, "storage=f16,acc=f16")


def test_a_place_s_band_is_that_of_its_own_operands(tiny):
    run = simulate("The cup is", model=tiny, recipe="f16,acc=f16", taps=("*",))
    found = site_band(run, "layers.3.mlp.down_proj", tiny, orders=2)
    assert (found.shape, found.terms) == ((3, 96), 256)
    assert found.widest.value == float(run["layers.3.mlp.down_proj.out"][found.widest.index])
    assert site_band(run, "lm_head", tiny, orders=1).shape == (3, 960)
    with pytest.raises(RunError, match="no linear layer"):
        site_band(run, "layers.0.mlp.act", tiny)
    with pytest.raises(RunError, match=r"does not keep layers\.9"):
        site_band(run, "layers.9.mlp.up_proj", tiny)


# --- bands of logits --------------------------------------------------------------------------------------------------


def asked(tiny, recipe="f32", prompt="The cup is"):
    return question(simulate(prompt, model=tiny, recipe=recipe, taps=()), 0, model=tiny)


def test_the_band_of_logits_is_that_of_passes_in_these_orders(tiny):
    names = ["lanes:8", "pairwise", "perm:3"]
    found = model_band(asked(tiny), "f32", orders=names)
    rows = [
        simulate("The cup is", model=tiny, recipe=f"f32,order={o}", taps=())["logits"][-1].astype(float)
        for o in ("seq", *names)
    ]
    widths = np.ptp(np.stack(rows), axis=0)
    assert found.seen == widths.max()
    assert found.moved == np.count_nonzero(widths)
    assert [c.token for c in found.chosen] == [int(row.argmax()) for row in rows[1:]]
    assert found.logits[-1].token.token == int(widths.argmax())
    assert found.logits[0].token.token == int(rows[0].argmax())
    assert found.flips == ()
    assert "All choose ' empty'" in str(found)


def test_the_head_s_band_alone_stays_within_twice_its_bounds(tiny):
    found = model_band(asked(tiny), "f16,acc=f16", orders=6, at="lm_head")
    assert found.seen > 0
    for one in found.logits:
        assert one.width <= 2 * one.a_priori
        assert one.token.logit - one.low <= one.a_priori + one.running


def test_an_order_can_decide_a_token(tiny):
    """f16 sums: ' no' and ' yes' 0.00005 apart in f32 lie within the band of right results."""
    found = model_band(asked(tiny, prompt="The answer is no. The answer is"), "f16,acc=f16", orders=8)
    assert found.flips
    assert f"{len(found.flips)} of the orders choose another token" in str(found)
    assert found.margin < found.seen
    json.dumps(found.to_dict(), allow_nan=False)


def test_other_orders_are_put_at_the_selected_sites_only():
    base = recipe_of("bf16")
    words = reordered(base, "mlp.down_proj", "perm:1").words()
    assert words["mlp.down_proj"]["order"] == "perm:1"
    assert words["lm_head"]["order"] == "seq"
    unit = reordered(recipe_of("nvidia-hopper-bf16"), "matmul", "perm:1").words()
    assert unit["lm_head"]["order"] == "perm:1 > fused:nvidia-hopper-bf16"
    with pytest.raises(RecipeError):
        reordered(base, "mlp.dwon_proj", "perm:1")


def test_a_row_that_is_not_finite_has_no_band(tiny):
    with pytest.raises(RunError, match="not all finite"):
        model_band(asked(tiny), "storage=e3m4,acc=e3m4", orders=1)


def test_verbose_says_what_each_order_chooses_and_text_and_html_agree(tiny):
    found = model_band(asked(tiny), "bf16", orders=2)
    text, html = found.text(verbose=True), found._repr_html_()
    assert "| perm:1 |" in text
    assert "<td>perm:1</td>" in html
    assert all(f"{one.token.logit:g}" in text for one in found.logits[:2])
