"""ties: where the best logits are one value in a format, which ids share it, and which one is taken."""

from __future__ import annotations

import json
import math

import pytest

from softfloat_llm.analysis.ties import ties, ties_of_prompts
from softfloat_llm.errors import FormatError, RunError
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.runs import simulate
from softfloat_llm.tiny import NEAR_TIES
from tests.analysis.made import made_run

NAN, INF = math.nan, math.inf


def stepped(*rows, recipe="f32"):
    return made_run(recipe, logits=[[0.0] * len(rows[0]), *rows], prompt=(5, 6), fed=(5, 6, *[1] * (len(rows) - 1)),
                    generated=[1] * len(rows))  # fmt: skip


def test_two_logits_within_half_an_ulp_of_one_value_tie_and_the_lower_id_is_taken():
    (tie,) = ties(stepped([20.0, 22.4375, 22.5, 1.0]), format="bf16").ties  # 22.4375 lies half way; 22.375 is odd
    assert (tie.value, [c.token for c in tie.tokens]) == (22.5, [1, 2])
    assert (tie.before.token, tie.taken.token, tie.is_flip, tie.spread) == (2, 1, True, 0.0625)
    assert [c.logit for c in tie.tokens] == [22.4375, 22.5]


def test_the_articles_two_logits_do_not_tie_in_bf16_and_do_in_e5m2():
    run = stepped([1.0, 22.371271, 22.277479, 1.0])
    assert ties(run, format="bf16").ties == ()
    assert ties(run, format="f16").ties == ()
    assert [c.token for c in ties(run, format="e5m2").ties[0].tokens] == [1, 2]
    assert ties(run).ties == ()
    assert "At 0 of 1 step the best f32 logits tie when rounded to bf16." in str(ties(run, format="bf16"))


def test_where_the_recipe_takes_the_last_of_equals_the_highest_id_is_taken():
    (tie,) = ties(stepped([7.0, 7.0, 7.0, 1.0], recipe="f32,choice.ties=last"), format="bf16").ties
    assert (tie.taken.token, tie.before.token, tie.is_flip) == (2, 2, False)
    (tie,) = ties(stepped([7.01, 7.0, 7.0, 1.0], recipe="f32,choice.ties=last"), format="bf16").ties
    assert (tie.taken.token, tie.before.token, tie.is_flip) == (2, 0, True)
    assert "the last id" in str(ties(stepped([7.01, 7.0], recipe="f32,choice.ties=last"), format="bf16"))


def test_of_a_run_that_kept_its_sums_what_tied_is_told_from_before_the_last_rounding():
    """In bf16 ' full' and ' empty' share 13.6875, and ' full' is taken; in lm_head's f32 sums ' empty' leads."""
    run = simulate("The cup is", recipe="bf16", taps=("lm_head.acc",))
    (tie,) = ties(run).ties
    sums = run["lm_head.acc"][-1].astype(float)
    assert [c.logit for c in tie.tokens] == [sums[833], sums[834]]
    assert (tie.before.token, tie.taken.token, tie.is_flip) == (834, 833, True)
    assert tie.spread == sums[834] - sums[833]
    assert "told by lm_head's f32 sums" in str(ties(run))
    found = ties(simulate("The cup is", recipe="bf16", taps=()))
    assert (found.ties[0].spread, found.sums_format) == (0.0, None)
    assert "need not have been equal before. Keep lm_head's sums" in str(found)


def test_a_tie_of_many_ids_names_all_of_them():
    found = ties(stepped([7.0] * 30 + [6.0]))
    assert [c.token for c in found.ties[0].tokens] == list(range(30))
    assert found.ties[0].taken.ties == 30
    assert "0, 1, 2, 3 and 26 more" in str(found)
    assert "28, 29" in found.text(verbose=True)


def test_logits_beyond_the_formats_range_all_tie_at_its_largest_value():
    (tie,) = ties(stepped([500.0, 1000.0, 70000.0, 1.0]), format="e4m3fn").ties
    assert (tie.value, [c.token for c in tie.tokens], tie.is_flip) == (448.0, [0, 1, 2], True)


def test_infinities_tie_without_a_spread():
    (tie,) = ties(stepped([INF, 1.0, INF])).ties
    assert (tie.spread, tie.value) == (0.0, INF)
    assert json.loads(json.dumps(ties(stepped([INF, INF])).to_dict(), allow_nan=False))["ties"][0]["value"] == "inf"


def test_a_row_with_nan_chooses_nothing_and_is_counted():
    found = ties(stepped([NAN, 1.0, 1.0], [1.0, 1.0, 0.0]))
    assert (len(found.ties), found.without_token, found.total) == (1, 1, 2)
    assert "At 1 step the logits hold NaN" in str(found)


def test_a_vocabulary_of_one_token_never_ties():
    assert ties(stepped([3.0]), format="e2m1fn").ties == ()


def test_a_run_without_steps_is_looked_at_position_by_position():
    found = ties(made_run(logits=[[1.0, 1.0], [2.0, 2.5]], generated=()))
    assert [(tie.step, tie.position) for tie in found.ties] == [(None, 0)]
    assert found.total == 2


def test_a_format_that_holds_the_logits_asks_whether_they_tie_as_they_are():
    assert "the bf16 logits tie as they are" in str(ties(stepped([1.0, 1.0], recipe="bf16")))
    assert "the bf16 logits tie as they are" in str(ties(stepped([1.0, 1.0], recipe="bf16"), format="f32"))


def test_prompts_that_nearly_tie_in_f32_tie_in_bf16():
    found = ties_of_prompts(NEAR_TIES, format="bf16")
    assert found.total == len(NEAR_TIES)
    assert len(found.ties) == 15
    by_prompt = {tie.prompt: tie for tie in found.ties}
    one = by_prompt["Mia has a"]
    assert [c.piece for c in one.tokens] == [" dog", " cat"]
    assert (one.before.piece, one.taken.piece) == (" cat", " dog")
    assert len(found.flips) == 7
    for tie in found.ties:
        assert {round_exact(c.logit, "bf16") for c in tie.tokens} == {tie.value}
        assert tie.spread < 0.0625  # two values one ulp apart cannot round to one
        assert tie.taken.token == min(c.token for c in tie.tokens)


def test_the_flips_of_rounding_alone_stand_first_where_the_table_is_cut():
    text = str(ties_of_prompts(NEAR_TIES))
    words = [line.rsplit("|", 2)[1].strip()[:1] for line in text.splitlines() if line.startswith("| 'T")]
    assert words == sorted(words, key=lambda word: word != "x")
    assert "(5 further rows are not shown: -v)" in text
    assert len(text.splitlines()) < 25


def test_each_step_of_each_prompt_is_looked_at():
    found = ties_of_prompts(["The cup is", "The door is"], recipe="bf16", steps=3)
    assert found.total == 6
    assert {tie.step for tie in found.ties} <= {0, 1, 2}
    run = simulate("The cup is", recipe="bf16", steps=3, taps=())
    assert [(t.step, t.value) for t in found.ties if t.prompt == "The cup is"] == [
        (t.step, t.value) for t in ties(run).ties
    ]


def test_no_prompts_and_unknown_formats_are_refused():
    with pytest.raises(RunError, match="no prompts"):
        ties_of_prompts([])
    with pytest.raises(FormatError):
        ties(made_run(), format="bf61")


def test_text_and_html_hold_the_same_cells():
    found = ties_of_prompts(NEAR_TIES[:3])
    html = found._repr_html_()
    assert all(f"<td>{c.token}" in html or f" {c.token}</td>" in html for tie in found.ties for c in tie.tokens)
    assert "&#x27; dog&#x27;" in html
