"""budget and step_logits: shares are exact and sum to the whole change; each pass is the pass that it claims to be."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from softfloat_llm.analysis.answers import shown_prompt
from softfloat_llm.analysis.budget import budget, budget_of, pair_of, telling_step
from softfloat_llm.analysis.chains import chain
from softfloat_llm.analysis.step_logits import StepLogits, fed_again, is_shape_free, question
from softfloat_llm.analysis.verdicts import Choice
from softfloat_llm.errors import RecipeError, RunError
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.numerics.formats import bf16, f32
from softfloat_llm.recipe import recipe_of
from softfloat_llm.runs import simulate

CUP = "The cup is"  # bf16 takes ' full', f32 ' empty': 0.47 bf16 ulp apart


@pytest.fixture(scope="module")
def tiny():
    return open_model("tiny")


@pytest.fixture(scope="module")
def taught(tiny):
    """A bf16 run of three steps, fed what f32 chose."""
    return simulate(model=tiny, recipe="bf16", teacher=simulate(CUP, model=tiny, steps=3, taps=()), taps=())


def asked(tiny, recipe="f32", *, steps=1, step=0, prompt=CUP):
    return question(simulate(prompt, model=tiny, recipe=recipe, steps=steps, taps=()), step, model=tiny)


# --- the rows of a step -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "recipe", ["bf16", "f16,acc=f16,order=lanes:8", "bf16,attn.pv.acc=bf16,attn.pv.order=pairwise"]
)
def test_the_row_of_a_step_is_that_of_a_cached_decode(tiny, recipe):
    run = simulate(CUP, model=tiny, recipe=recipe, steps=4, taps=())
    for step in range(4):
        row = question(run, step, model=tiny).logits(recipe_of(recipe))
        assert row.values.tobytes() == run.step_logits[step].astype(np.float64).tobytes()
        assert row.token == run.generated[step]


def test_one_pass_is_made_where_no_order_depends_on_the_shape():
    assert is_shape_free(recipe_of("bf16"))
    assert is_shape_free(recipe_of("f16,acc=f16,linear.order=pairwise"))  # their sums have one length
    assert not is_shape_free(recipe_of("bf16,attn.pv.order=pairwise"))
    assert not is_shape_free(recipe_of("bf16,attn.softmax.order=vector:16"))
    assert not is_shape_free(recipe_of("transformers-sdpa-bf16-cpu-amx"))  # rules by shape


def test_a_run_made_here_lends_its_own_row(tiny):
    told = []
    run = simulate(CUP, model=tiny, steps=2, taps=())
    mine = replace(question(run, 1, model=tiny, before=told.append), is_ours=True)
    again = question(run, 1, model=tiny)
    assert mine.logits(run.recipe).values.tobytes() == again.logits(run.recipe).values.tobytes()
    assert told == []
    mine.logits(recipe_of("bf16"))
    assert told == ["bf16"]


def test_steps_that_were_not_fed_and_other_weights_are_refused(tiny):
    run = simulate(CUP, model=tiny, steps=2, taps=())
    with pytest.raises(RunError, match="There is no step 2: the run was fed its prompt and 1 tokens"):
        question(run, 2, model=tiny)
    with pytest.raises(RunError, match="no step -1"):
        question(run, -1, model=tiny)
    with pytest.raises(RunError, match="has other weights now"):
        question(replace(run, model_digest="sha256:other"), 0, model=tiny)


def test_a_run_without_steps_can_be_asked_at_step_0(tiny):
    run = simulate(CUP, model=tiny, recipe="bf16", steps=0, taps=())
    assert budget(run, model=tiny).is_flip


def test_a_lead_is_exact_and_none_where_a_logit_is_not_finite():
    row = StepLogits(np.array([1e30, 1.0, np.inf, np.nan]), f32, Choice(None, 0.0))
    assert row.lead(0, 1) == Fraction(1e30) - 1
    assert row.lead(0, 2) is None
    assert row.lead(3, 1) is None


# --- budgets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("by", "is_reversed"), [("stage", False), ("stage", True), ("group", True)])
def test_shares_sum_to_the_whole_change_exactly(tiny, taught, by, is_reversed):
    found = budget(taught, step=0, by=by, is_reversed=is_reversed, model=tiny)
    assert sum((share.change for share in found.shares), Fraction(0)) == found.change
    assert found.change == found.run_lead - found.reference_lead
    assert found.shares[-1].lead == found.run_lead
    assert [s["change_exact"] for s in found.to_dict()["shares"]] == [str(share.change) for share in found.shares]


def test_the_changes_of_every_logit_telescope_too(tiny):
    one = asked(tiny)
    reference, run = recipe_of("f32"), recipe_of("f16,acc=f16")
    rows = [one.logits(r).values for r in (reference, *(link.recipe for link in chain(reference, run)))]
    assert rows[-1].tobytes() == one.logits(run).values.tobytes()
    for token in range(len(rows[0])):
        steps = [Fraction(after[token]) - Fraction(before[token]) for before, after in pairwise(rows)]
        assert sum(steps, Fraction(0)) == Fraction(rows[-1][token]) - Fraction(rows[0][token])


def test_each_share_is_the_difference_of_two_passes_that_can_be_made_by_hand(tiny):
    """f32 -> f16,acc=f16 by stages, each recipe between spelled out."""
    one = asked(tiny)
    found = budget_of(one, "f16,acc=f16")
    stored = "embed=f16,attn.residual=f16,mlp.residual=f16,rope.table.output=f16,*.storage=f16"
    head = "f32," + stored
    by_hand = [
        "f32", head, f"{head},matmul.product=exact", f"{head},matmul.product=exact,matmul.acc=f16", "f16,acc=f16"
    ]  # fmt: skip
    assert [share.move.name for share in found.shares] == ["storage", "product", "accumulation", "output"]
    leads = [one.logits(recipe_of(text)).lead(found.first.token, found.second.token) for text in by_hand]
    assert [found.reference_lead, *(share.lead for share in found.shares)] == leads


def test_the_pair_is_the_reference_s_token_and_the_run_s_where_it_flips(tiny, taught):
    found = budget(taught, step=0, model=tiny)
    assert found.is_flip
    assert (found.first.piece, found.second.piece) == (" empty", " full")
    assert (found.first.token, found.second.token) == (found.reference.token, found.run.token)
    assert found.reference_lead > 0
    assert found.run_lead == 0  # a tie, which the lower id wins
    assert found.format == bf16
    assert "At step 0 the token flips: ' empty' -> ' full'." in str(found)
    assert "The token first changes when output moves." in str(found)


def test_without_a_flip_the_pair_is_the_reference_s_two_best(tiny):
    found = budget_of(asked(tiny), "f16")
    assert not found.is_flip
    assert (found.first.token, found.second.token) == (834, 833)
    assert "the token stays ' empty'" in str(found)


def test_any_pair_can_be_asked_for(tiny):
    one = asked(tiny)
    found = budget_of(one, "bf16", pair=(5, 7))
    x, y = (one.logits(recipe_of(name)) for name in ("f32", "bf16"))
    assert (found.reference_lead, found.run_lead) == (x.lead(5, 7), y.lead(5, 7))
    for pair in ((5, 5), (5, 960), (-1, 5)):
        with pytest.raises(RunError, match="no two ids"):
            budget_of(one, "bf16", pair=pair)


def test_the_flip_of_the_cup_is_the_output_of_the_head(tiny, taught):
    """The tie is made by the last rounding: lm_head's share is nearly all, every other below a tenth of an ulp."""
    found = budget(taught, step=0, by="site", model=tiny)
    shares = {share.move.name: abs(float(share.change) / found.unit) for share in found.shares}
    assert shares.pop("lm_head") > 0.46
    assert max(shares.values()) < 0.1


def test_the_largest_change_of_any_logit_is_told_beside_the_lead(tiny):
    one = asked(tiny)
    found = budget_of(one, "bf16")
    x, y = (one.logits(recipe_of(name)).values for name in ("f32", "bf16"))
    assert found.max_abs == np.abs(y - x).max()
    assert all(share.max_abs >= 0 for share in found.shares)


def test_recipes_that_say_the_same_have_no_shares(tiny):
    found = budget_of(asked(tiny), "f32")
    assert (found.shares, found.change, found.is_flip) == ((), 0, False)
    assert "the token stays" in str(found)


def test_a_run_of_nan_chooses_no_token_and_has_shares_up_to_where_that_began(tiny):
    found = budget_of(asked(tiny), "storage=e3m4,acc=e3m4")  # mlp sums beyond 15.5
    assert (found.run.token, found.run_lead, found.change, found.is_flip) == (None, None, None, True)
    assert [share.change for share in found.shares] == [None] * 4
    assert [share.max_abs for share in found.shares] == [np.inf, 0, 0, 0]
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (told["change"], told["shares"][0]["max_abs"], told["run"]["logit"]) == (None, "inf", "nan")
    text = str(found)
    assert "At step 0 the run's logits hold NaN: it chooses no token. The reference chooses ' empty'." in text
    assert "The token first changes when storage moves." in text


def test_infinite_logits_have_no_lead_but_choose_a_token(tiny):
    found = budget_of(asked(tiny), "f16,lm_head.output=e2m3")  # all logits above 3.75 are infinite: the lowest id
    assert found.run.logit == np.inf
    assert found.run.ties > 2
    assert found.shares[-1].change is None
    assert all(share.change is not None for share in found.shares[:-1])
    assert "Of the shares that are finite, the largest is that of" in str(found)


def test_a_reference_of_nan_is_refused(tiny):
    with pytest.raises(RunError, match="The reference's logits at step 0 hold NaN"):
        budget_of(asked(tiny), "f32", "storage=e3m4,acc=e3m4")


def test_a_vocabulary_of_one_token_has_no_budget():
    row = StepLogits(np.array([1.0]), f32, Choice(0, 1.0))
    with pytest.raises(RunError, match="has one id"):
        pair_of(0, row, row, None)


def test_a_saved_run_that_was_made_elsewhere_is_told(tiny):
    run = simulate(CUP, model=tiny, recipe="bf16", taps=())
    logits = run["logits"].copy()
    logits[-1, 3] += 1
    found = budget(replace(run, arrays={**run.arrays, "lm_head.out": logits}), model=tiny)
    assert "differ from what its recipe gives here by up to 1" in found.note
    assert "note     The run's own logits" in str(found)
    assert budget(run, model=tiny).note == ""


def test_the_step_that_is_looked_at_is_the_first_flip_or_the_smallest_margin(tiny):
    reference = simulate("The capital of France is", model=tiny, steps=6, taps=())
    same = simulate(model=tiny, recipe="f16", teacher=reference, taps=())
    top = np.sort(same.step_logits.astype(np.float64))
    assert telling_step(same, recipe_of("f32"), tiny) == int(np.argmin(top[:, -1] - top[:, -2]))
    late = simulate("The cup is empty. The", model=tiny, steps=8, taps=())
    taught = simulate(model=tiny, recipe="bf16", teacher=late, taps=())
    flips = [i for i, (a, b) in enumerate(zip(late.generated, taught.generated, strict=True)) if a != b]
    if flips:
        assert telling_step(taught, recipe_of("f32"), tiny) == flips[0]


def test_words_that_are_wrong_are_told(tiny):
    with pytest.raises(RecipeError, match="Did you mean 'site'"):
        budget_of(asked(tiny), "bf16", by="sites")
    with pytest.raises(RecipeError):
        budget_of(asked(tiny), "bf61")


def test_many_moves_show_the_largest_and_what_the_others_come_to(tiny):
    found = budget_of(asked(tiny), "bf16", by="site")
    text = str(found)
    assert "further moves change it by at most" in text
    assert len(text.splitlines()) < 25
    assert all(share.move.name in found.text(verbose=True) for share in found.shares)
    html = found._repr_html_()
    assert all(f"<td>{share.move.name}</td>" in html for share in found.shares)


def test_tokens_fed_again_have_the_positions_of_the_run(tiny, taught):
    again = fed_again(taught, taught.fed, recipe_of("bf16"), tiny)
    assert again["logits"].tobytes() == taught["logits"].tobytes()
    assert again.prompt_tokens == taught.prompt_tokens


def test_a_long_prompt_is_cut_where_it_is_shown():
    assert shown_prompt("x" * 60) == repr("x" * 60)
    assert shown_prompt("x" * 61) == repr("x" * 60) + "..."
