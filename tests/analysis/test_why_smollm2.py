"""Why a token of SmolLM2 moves: "The meaning of life is" goes on with ' not' in f32 and with ' a' in bf16.

In f32 ' not' leads by 0.0781, 0.63 bf16 ulp: both logits become 21.375 in bf16, and the lower id wins the tie.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from softfloat_llm.analysis.budget import budget_of
from softfloat_llm.analysis.logit_bands import model_band
from softfloat_llm.analysis.margins import margins
from softfloat_llm.analysis.names import named
from softfloat_llm.analysis.step_logits import question
from softfloat_llm.analysis.ties import ties
from softfloat_llm.runs import simulate
from tests.smollm2 import smollm2

pytestmark = pytest.mark.smollm2
PROMPT = "The meaning of life is"


@pytest.fixture(scope="module")
def runs():
    """The reference in f32, and the run in bf16: one token each."""
    return [named(simulate(PROMPT, model=smollm2(), recipe=recipe, taps=()), smollm2()) for recipe in ("f32", "bf16")]


def test_the_margin_of_the_reference_is_below_one_bf16_ulp_and_the_run_ties(runs):
    (wide,), (narrow,) = (margins(run, format="bf16").steps for run in runs)
    print(wide.margin, wide.margin_ulp, narrow.first.logit)
    assert (wide.first.piece, wide.second.piece) == (" not", " a")
    assert wide.margin_ulp == pytest.approx(0.625, abs=0.01)
    (tie,) = ties(runs[1]).ties
    assert [one.piece for one in tie.tokens] == [" a", " not"]
    assert (tie.value, tie.taken.piece, narrow.margin) == (21.375, " a", 0.0)
    assert tie.taken.token < tie.tokens[1].token
    assert ties(runs[0], format="bf16").ties == ()  # the reference's own logits, rounded, would not tie


def test_the_output_rounding_makes_most_of_the_change_and_turns_the_token(runs):
    asked = replace(question(runs[0], 0, model=smollm2()), is_ours=True)
    found = budget_of(asked, "bf16")
    print(found)
    assert found.is_flip
    assert sum((share.change for share in found.shares), Fraction(0)) == found.change == -found.reference_lead
    by_name = {share.move.name: share for share in found.shares}
    assert by_name["output"].change < 3 * by_name["storage"].change < 0
    assert by_name["storage"].choice.piece == " not"
    assert by_name["output"].choice.piece == " a"


def test_the_order_of_the_sums_alone_decides_which_of_the_two_is_chosen(runs):
    """Every order is a right one: under lanes:8 the token is ' a' as under seq, under split-k:4 it is ' not'."""
    asked = replace(question(runs[1], 0, model=smollm2()), is_ours=True)
    found = model_band(asked, "bf16", orders=["lanes:8", "split-k:4"])
    print(found)
    assert [choice.piece for choice in found.chosen] == [" a", " not"]
    assert found.flips == ("split-k:4",)
    assert found.moved > 49_000
    assert found.seen > 0.3
