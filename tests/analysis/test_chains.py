"""Chains of recipes: every difference is made once, in order, and what must lie in one format moves together."""

from __future__ import annotations

import pytest

from softfloat_llm.analysis.chains import BY, STAGES, between, chain, differences, moves
from softfloat_llm.errors import RecipeError
from softfloat_llm.recipe import recipe_names, recipe_of
from softfloat_llm.runs import simulate
from softfloat_llm.sites import SITES

F32 = recipe_of("f32")
SHIPPED = ("candle-f16-cpu-neon", "transformers-sdpa-bf16-cpu-amx", "nvidia-volta-f16", "exact")
PAIRS = [(F32, recipe_of(name)) for name in SHIPPED] + [
    (recipe_of("bf16"), recipe_of("f16,acc=f16,order=lanes:8")),
    (recipe_of("nvidia-hopper-bf16"), F32),
    (F32, recipe_of("bf16,rope.table=f32,attn.rope.form=once")),
    (recipe_of("bf16,rope.table=f32,attn.rope.form=once"), F32),
    (F32, recipe_of("bf16,rounding=toward_zero,subnormals=ftz,kv=e4m3fn,choice.ties=last")),
    (recipe_of("transformers-sdpa-bf16-cpu-amx"), recipe_of("transformers-eager-f16-cpu-amx")),
]
IDS = [f"{a.name}->{b.name}" for a, b in PAIRS]


@pytest.mark.parametrize(("reference", "run"), PAIRS, ids=IDS)
@pytest.mark.parametrize("by", BY)
def test_every_difference_belongs_to_one_move(reference, run, by):
    made = [change for move in moves(reference, run, by) for change in move.changes]
    assert sorted(map(str, made)) == sorted(map(str, differences(reference, run)))
    names = [move.name for move in moves(reference, run, by)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("reference", "run"), PAIRS, ids=IDS)
@pytest.mark.parametrize(("by", "is_reversed"), [("stage", False), ("stage", True), ("each", False), ("site", True)])
def test_a_chain_ends_at_the_run_and_each_recipe_on_the_way_has_a_meaning(reference, run, by, is_reversed):
    links = chain(reference, run, by, is_reversed=is_reversed)
    for link in links:
        link.recipe.check_fit()
    if links:
        assert differences(links[-1].recipe, run) == ()
    assert sum(len(link.move.changes) for link in links) == len(differences(reference, run))


@pytest.mark.parametrize("by", BY)
def test_each_link_adds_the_changes_of_its_move_and_no_other(by):
    reference, run = F32, recipe_of("f16,acc=f16,order=lanes:8,norm.root=one-over-sqrt")
    before = reference
    for link in chain(reference, run, by):
        assert set(map(str, differences(before, link.recipe))) == set(map(str, link.move.changes))
        before = link.recipe


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_is_reached_from_f32_by_stages(name):
    links = chain(F32, recipe_of(name))
    assert {stage for link in links for stage in link.move.name.split(" + ")} <= set(STAGES)


def test_between_nothing_and_everything_lie_the_two_recipes():
    run = recipe_of("transformers-sdpa-bf16-cpu-amx")
    assert between(F32, run, ()).words() == F32.words()
    assert between(F32, run, differences(F32, run)).words() == run.words()
    assert simulate(recipe=between(F32, run, differences(F32, run)), taps=()).digest == simulate(
        recipe=run, taps=()
    ).digest  # fmt: skip


def test_a_mode_of_all_stages_moves_stage_by_stage():
    run = recipe_of("f32,rounding=toward_zero")
    assert [move.name for move in moves(F32, run)] == ["storage", "product", "accumulation", "output"]
    words = between(F32, run, moves(F32, run)[0].changes).words()["lm_head"]
    assert words["storage.rounding"] == "toward_zero"
    assert "rounding" not in words
    assert differences(between(F32, run, differences(F32, run)), run) == ()


def test_stages_and_sites_stand_in_the_order_of_a_sum_and_of_the_forward_pass():
    run = recipe_of("f16,product=f16,acc=f16,norm.compute=f16")
    assert [move.name for move in moves(F32, run)] == list(STAGES)
    places = [list(SITES).index(move.sites[0]) for move in moves(F32, run, "site")]
    assert places == sorted(places)
    reverse = [link.move.name for link in chain(F32, run, "site", is_reversed=True)]
    assert reverse == [move.name for move in moves(F32, run, "site")][::-1]


def test_the_residual_stream_and_the_rope_table_move_with_what_takes_them():
    by_site = {move.name: move for move in moves(F32, recipe_of("bf16"), "site")}
    assert by_site["residual stream"].sites == ("embed", "attn.residual", "mlp.residual")
    assert by_site["rope"].sites == ("rope.table", "attn.rope")
    by_stage = {move.name: move for move in moves(F32, recipe_of("bf16"))}
    stored = {str(change).split(":")[0] for change in by_stage["storage"].changes}
    assert {"embed.output", "mlp.residual.output", "rope.table.output", "kv.k.storage"} <= stored
    assert "attn.q_proj.output" not in stored


def test_a_change_of_form_that_a_format_needs_moves_with_it():
    storage = moves(F32, recipe_of("bf16,rope.table=f32,attn.rope.form=once"))[0]
    assert "attn.rope.form: each -> once" in map(str, storage.changes)


def test_a_move_that_has_no_meaning_alone_is_made_with_the_next():
    # a fused adder of f16 does not read f32: the storage cannot go first
    names = [link.move.name for link in chain(recipe_of("nvidia-volta-f16"), F32)]
    assert any(" + " in name for name in names)


def test_recipes_that_say_the_same_have_no_chain():
    assert chain(F32, recipe_of("f32")) == ()


def test_ends_that_have_no_meaning_themselves_are_refused():
    wrong = recipe_of("bf16,rope.table=f32")
    for ends in ((F32, wrong), (wrong, F32)):
        with pytest.raises(RecipeError, match="dtype mismatch in rope"):
            chain(*ends)


def test_an_unknown_word_suggests_the_nearest():
    with pytest.raises(RecipeError, match="Did you mean 'stage'"):
        moves(F32, recipe_of("bf16"), "stages")
