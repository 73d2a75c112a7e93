"""bisect: each answer is a pass that can be made by hand; the turn of the chain is one; what is refused."""

from __future__ import annotations

import json

import pytest

from softfloat_llm.analysis.bisect import Search, bisect, bisect_of
from softfloat_llm.analysis.budget import budget_of
from softfloat_llm.analysis.chains import Move, chain, differences, moves
from softfloat_llm.analysis.step_logits import question
from softfloat_llm.errors import RunError
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.recipe import recipe_of
from softfloat_llm.runs import simulate

F32, BF16 = recipe_of("f32"), recipe_of("bf16")


@pytest.fixture(scope="module")
def tiny():
    return open_model("tiny")


def asked(tiny, prompt="The cup is", recipe="f32", step=0):
    return question(simulate(prompt, model=tiny, recipe=recipe, steps=step + 1, taps=()), step, model=tiny)


@pytest.fixture(scope="module")
def cup(tiny):
    return bisect_of(asked(tiny), BF16)


@pytest.fixture(scope="module")
def anna(tiny):
    """A flip that needs two sites: no site alone makes it, and undoing either brings the token back."""
    return bisect_of(asked(tiny, "Anna likes"), BF16)


def test_the_head_s_rounding_alone_flips_the_cup_and_alone_brings_it_back(cup):
    assert (cup.reference.piece, cup.run.piece) == (" empty", " full")
    assert [suspect.move.name for suspect in cup.suspects if suspect.brings_back] == ["lm_head"]
    assert [suspect.move.name for suspect in cup.suspects if suspect.makes_flip] == ["lm_head"]
    assert cup.turn.name == "lm_head"
    assert "lm_head brings ' empty' back" in str(cup)
    assert "lm_head makes it flip" in str(cup)


def test_a_flip_may_need_two_sites(anna):
    back = [suspect.move.name for suspect in anna.suspects if suspect.brings_back]
    assert "lm_head" in back
    assert len(back) > 1
    assert not any(suspect.makes_flip for suspect in anna.suspects)
    assert "each of " in str(anna)
    assert "no site makes it flip" in str(anna)


def test_budget_and_bisect_may_name_two_sites_and_each_says_what_it_asks(tiny, anna):
    """`Anna likes` in bf16: the largest share is one site's, and others too bring the token back alone."""
    told = budget_of(asked(tiny, "Anna likes"), BF16, by="site")
    assert "asks     by how much each change moves the lead, made after those above it" in str(told)
    assert "asks     which site, changed alone, turns the token" in str(anna)
    largest = max(told.shares, key=lambda share: abs(share.change or 0)).move.name
    assert {suspect.move.name for suspect in anna.suspects if suspect.brings_back} != {largest}


def test_each_answer_is_a_pass_of_a_recipe_that_can_be_spelled_out(tiny, anna):
    one = asked(tiny, "Anna likes")
    for name, undone in (("mlp.act", "bf16,mlp.act.storage=f32,mlp.act.output=f32"),
                         ("norm.final", "bf16,norm.final=f32"), ("kv.k", "bf16,kv.k=f32")):  # fmt: skip
        (suspect,) = [s for s in anna.suspects if s.move.name == name]
        row = one.logits(recipe_of(undone))
        assert suspect.undone.choice.token == row.token
        assert suspect.undone.lead == row.lead(anna.reference.token, anna.run.token)
        made = one.logits(recipe_of(f"f32,{name}=bf16"))
        assert (suspect.made.choice.token, suspect.made.lead) == (
            made.token,
            made.lead(anna.reference.token, anna.run.token),
        )


def test_before_the_turn_the_reference_s_token_is_chosen_and_after_it_another(tiny, anna):
    one = asked(tiny, "Anna likes")
    links = chain(F32, BF16, "site")
    place = [link.move.name for link in links].index(anna.turn.name)
    before = F32 if place == 0 else links[place - 1].recipe
    assert one.logits(before).token == anna.reference.token
    assert one.logits(links[place].recipe).token != anna.reference.token


def test_every_difference_of_the_recipes_is_suspected_once(cup):
    suspected = [change for suspect in cup.suspects for change in suspect.move.changes]
    assert set(suspected) == set(differences(F32, BF16))
    assert len(suspected) == len(set(suspected))


def test_fast_asks_groups_first_and_then_the_sites_of_those_that_matter(tiny, anna):
    fast = bisect_of(asked(tiny, "Anna likes"), BF16, is_fast=True)
    assert fast.runs < anna.runs
    groups = {move.name for move in moves(F32, BF16, "group")}
    assert groups <= {suspect.move.name for suspect in fast.suspects}
    whole = {s.move.name: s for s in anna.suspects}
    for suspect in fast.suspects:
        if suspect.move.name in whole:
            assert suspect.to_dict() == whole[suspect.move.name].to_dict()


def test_the_passes_are_counted(tiny):
    told = []
    one = question(simulate("The cup is", model=tiny, taps=()), 0, model=tiny, before=told.append)
    assert bisect_of(one, "f32,mlp.act=bf16,lm_head.output=bf16").runs == len(told)


def test_a_later_step_is_asked_with_the_tokens_fed_before_it(tiny):
    reference = simulate("Tom drinks", model=tiny, steps=5, taps=())
    run = simulate(model=tiny, recipe="bf16", teacher=reference, taps=())
    found = bisect(run, is_fast=True, model=tiny)  # steps 0 to 3 do not flip
    assert (found.step, found.position) == (4, 5)
    assert (found.reference.token, found.run.token) == (reference.generated[4], run.generated[4])


def test_a_step_that_does_not_flip_is_refused(tiny):
    with pytest.raises(RunError, match="both recipes choose ' empty': no token flips"):
        bisect_of(asked(tiny), "f16")


def test_rows_of_nan_are_refused(tiny):
    with pytest.raises(RunError, match="The run's logits at step 0 hold NaN"):
        bisect_of(asked(tiny), "storage=e3m4,acc=e3m4")
    with pytest.raises(RunError, match="The reference's logits at step 0 hold NaN"):
        bisect_of(asked(tiny), "f32", "storage=e3m4,acc=e3m4")


def test_a_rule_for_ties_alone_can_flip_a_token(tiny):
    """' empty' and ' full' tie in bf16: the lowest id and the last are two tokens."""
    found = bisect_of(asked(tiny), "bf16,choice.ties=last", "bf16")
    assert [suspect.move.name for suspect in found.suspects] == ["choice"]
    assert found.suspects[0].brings_back
    assert found.suspects[0].makes_flip
    assert found.reference_lead == found.run_lead == 0


def test_what_has_no_meaning_alone_is_said_to_be_so(tiny):
    search = Search(asked(tiny), F32, BF16)
    half = Move("embed", tuple(change for change in differences(F32, BF16) if change.site == "embed"))
    (suspect,) = search.suspects([half])
    assert suspect.made.choice is None
    assert "adds in f32 but gets the residual stream in bf16" in suspect.made.problem
    assert not suspect.is_decisive
    json.dumps(suspect.to_dict(), allow_nan=False)


def test_text_html_and_json_name_the_same_sites(cup):
    names = [suspect["move"] for suspect in cup.to_dict()["suspects"]]
    html = cup._repr_html_()
    text = cup.text(verbose=True)
    assert all(f"<td>{name}</td>" in html and f"| {name} " in text for name in names)
    assert len(str(cup).splitlines()) < 25
