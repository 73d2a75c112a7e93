"""S19: another order of the sums gives other bits; run-to-run noise is another thing, and there is none here.

Batch size, split-K and fusion change the order. The same request under two orders: the first difference is named.
"""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.analysis.compare import compare
from softfloat_llm.analysis.logit_bands import model_band
from softfloat_llm.analysis.step_logits import question
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.llama.forward import forward
from softfloat_llm.recipe import recipe_of
from softfloat_llm.runs import simulate

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def tiny():
    return open_model("tiny")


@pytest.mark.parametrize(("order", "first"), [
    ("split-k:4", "layers.0.attn.q_proj.acc"), ("lanes:8", "layers.0.attn.q_proj.acc"),
    ("blocked:16", "layers.0.attn.q_proj.acc"), ("perm:1", "layers.0.attn.q_proj.acc"),
])  # fmt: skip
def test_s19_the_same_request_under_two_orders_first_differs_where_the_first_sum_is_made(tiny, order, first):
    one, other = (simulate(PROMPT, model=tiny, recipe=r, taps=("*",)) for r in ("f32", f"f32,order={order}"))
    found = compare(other, one)
    print(f"{order}: {found.first_divergence.tap.name}, largest difference of a logit {found.max_abs:.3g}")
    assert found.first_divergence.tap.name == first
    assert 0 < found.max_abs < 1e-4
    assert one.generated == other.generated


def test_s19_a_sum_alone_in_another_order_is_the_first_difference(tiny):
    one, other = (
        simulate(PROMPT, model=tiny, recipe=r, taps=("*",)) for r in ("f32", "f32,mlp.down_proj.order=split-k:2")
    )
    assert compare(other, one).first_divergence.tap.name == "layers.0.mlp.down_proj.acc"


def test_s19_the_same_order_gives_the_same_bits_however_often_it_is_run(tiny):
    digests = {simulate(PROMPT, model=tiny, recipe="bf16,order=split-k:4", workers=w).digest for w in (1, 2, 1)}
    assert len(digests) == 1


def test_s19_the_batch_changes_no_bit_unless_a_rule_changes_the_order_with_it(tiny):
    tokens = [simulate(PROMPT, model=tiny, taps=()).prompt_tokens] * 3
    alone = forward(tiny.weights, tokens[:1], recipe_of("f32"))
    batched = forward(tiny.weights, tokens, recipe_of("f32"))
    assert all(row.tobytes() == alone[0].tobytes() for row in batched)
    engine = recipe_of(
        {"base": "f32", "site": {"linear": {"order if M >= 10": "split-k:4"}}}
    )  # more rows: split the sum
    alone, batched = (forward(tiny.weights, part, engine) for part in (tokens[:1], tokens))
    apart = np.abs(batched[0].astype(float) - alone[0].astype(float)).max()
    print(f"a batch of 3 moves the logits of its first row by up to {apart:.3g}")
    assert apart > 0


def test_s19_the_band_of_right_results_is_what_a_test_must_allow(tiny):
    asked = question(simulate(PROMPT, model=tiny, taps=()), 0, model=tiny)
    found = {recipe: model_band(asked, recipe, orders=6) for recipe in ("f32", "f16,acc=f16")}
    print({recipe: band.seen for recipe, band in found.items()})
    assert 0 < found["f32"].seen < 2.0**-16
    assert found["f16,acc=f16"].seen > 2.0**-8
