"""Products whose order changes between rows or columns: each piece is what a product of that order gives."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.errors import RecipeError
from softfloat_llm.llama import attention, blocks
from softfloat_llm.llama.products import product
from softfloat_llm.numerics import reduce
from softfloat_llm.recipe import Recipe

RULES = {
    "linear.order": "seq",
    "linear.order if n == N - N % 4 + 1": "reverse",
    "linear.order if n >= N - N % 4": "pairwise",
    "linear.order if m >= M - M % 3 and K == 40": "lanes:4",
}
RNG = np.random.default_rng(8)
A, B = (RNG.standard_normal(shape).astype(np.float32) for shape in ((5, 40), (40, 7)))


def recipe(**more):
    return Recipe(storage="f32", acc="f32", at={**RULES, **more})


def whole(order, a=A, b=B, init=None):
    return reduce.matmul(a, b, f"storage=f32,acc=f32,output=f32,order={order}", init=init)


def put_together(init=None):
    """The first rule that holds decides."""
    expected = whole("seq", init=init)
    expected[3:] = whole("lanes:4", init=init)[3:]
    expected[:, 4:] = whole("pairwise", init=init)[:, 4:]
    expected[:, 5] = whole("reverse", init=init)[:, 5]
    return expected


@pytest.mark.parametrize("init", [None, np.ones((5, 7))])
def test_a_product_is_put_together_from_its_pieces(init):
    spec = recipe().at("lm_head").shaped(M=5, N=7, K=40)
    assert len(spec.pieces(5, 7)) == 2 * 4
    np.testing.assert_array_equal(product(A, B, spec, init=init).out, put_together(init))
    assert spec.precision_at({"M": 5, "N": 7}, 0, 5).order.text == "reverse"
    assert spec.precision_at({"M": 5, "N": 7}, 4, 0).order.text == "lanes:4"


def test_a_linear_layer_follows_the_rules_of_places_and_one_of_whole_groups_has_no_pieces():
    spec = recipe().at("lm_head")
    np.testing.assert_array_equal(blocks.linear(A, np.ascontiguousarray(B.T), spec).out, put_together())
    assert len(spec.shaped(M=6, N=8, K=40).pieces(6, 8)) == 1
    assert len(spec.shaped(M=5, N=8, K=39).pieces(5, 8)) == 1  # the rule on rows is for K = 40


def test_scores_count_queries_as_rows_whatever_the_heads_of_a_group():
    at = {f"attn.scores.{key.partition('.')[2]}": word for key, word in RULES.items()}
    spec = Recipe(storage="f32", acc="f32", at=at).at("attn.scores")
    q, k = RNG.standard_normal((5, 4, 40)).astype(np.float32), RNG.standard_normal((7, 2, 40)).astype(np.float32)
    scores = attention.scores(q, k, spec).out
    for head in range(4):
        a, b = q[:, head], k[:, head // 2].T
        expected = whole("seq", a, b)
        expected[3:] = whole("lanes:4", a, b)[3:]
        expected[:, 4:] = whole("pairwise", a, b)[:, 4:]
        expected[:, 5] = whole("reverse", a, b)[:, 5]
        seen = np.arange(7)[None] <= np.arange(5)[:, None] + 2
        np.testing.assert_array_equal(scores[:, head][seen], expected[seen])


@pytest.mark.parametrize(
    ("rule", "says"),
    [("lm_head.acc if n >= N - N % 4", "only the order"), ("norm.order if m >= M - M % 4", "have rows and columns")],
)
def test_only_the_order_of_a_product_depends_on_places(rule, says):
    with pytest.raises(RecipeError, match=says):
        recipe(**{rule: "f32" if ".acc" in rule else "seq"})
