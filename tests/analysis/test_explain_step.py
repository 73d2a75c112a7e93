"""The story of a step: its verdict, the errors and the layer that they come from, for runs whose answer is known."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from softfloat_llm.analysis.compare import compare
from softfloat_llm.analysis.explain_step import NEEDED_TAPS, explain_step, rerun
from softfloat_llm.errors import RunError, WordError
from softfloat_llm.runs import Run, simulate
from tests.analysis.made import made_run

TIE = "The coin shows heads. The coin shows"
FLIP = "The cup is"


@pytest.fixture(scope="module")
def tie() -> Run:
    return simulate(TIE, recipe="bf16", steps=2, taps=NEEDED_TAPS)


@pytest.fixture(scope="module")
def flip() -> Run:
    return simulate(FLIP, recipe="f16,acc=f16", steps=1, taps=NEEDED_TAPS)


def test_a_tie_is_decided_by_the_last_rounding(tie: Run) -> None:
    story = explain_step(tie, 0)
    first, rival = story.contest
    assert (story.kind, story.decider) == ("tie", "lm_head output")
    assert (first.token, rival.token) == (850, 849)
    assert first.run == rival.run
    assert first.before_output > rival.before_output
    text = str(story)
    assert "2 ids have the logit 13.3125 (849 ' heads', 850 ' tails'), and the lowest id, 849, is taken" in text
    assert len(text.splitlines()) < 25


def test_a_flip_by_the_accumulator_of_lm_head_is_told_from_an_inherited_one(flip: Run) -> None:
    story = explain_step(flip, 0)
    assert (story.kind, story.decider) == ("error above the margin", "lm_head sum")
    assert story.exact_lead > 0 > story.summed_lead
    assert "the products and accumulator of lm_head decide" in str(story)
    inherited = simulate(FLIP, recipe="f16,acc=f16,lm_head.acc=f32", steps=1, taps=NEEDED_TAPS)
    found = explain_step(inherited, 0)
    assert found.decider in (None, "before lm_head")
    assert found.verdict.is_flip == (found.decider == "before lm_head")


def test_the_lead_in_the_run_is_that_of_the_reference_and_the_two_errors(flip: Run) -> None:
    first, rival = explain_step(flip, 0).contest
    assert first.run - rival.run == pytest.approx(
        first.reference - rival.reference + first.error - rival.error, abs=2**-45
    )  # logits below 32: each float64 difference is right to 2^-49


def test_a_clear_step_is_called_so(tie: Run) -> None:
    story = explain_step(tie, 1, against="f32")
    assert story.kind == "clear"
    assert story.decider is None
    assert not story.verdict.is_flip


def test_the_first_parting_and_the_verdict_are_those_of_compare(flip: Run) -> None:
    reference = rerun(flip, 0, "f32")
    story, whole = explain_step(flip, 0, against=reference), compare(flip, reference)
    assert story.first == whole.first_divergence
    assert story.verdict == whole.steps[0]


def test_only_what_lies_before_the_step_counts() -> None:
    """The runs part at position 3 only: for the step at position 2 they are the same."""
    ref = simulate(FLIP, recipe="f32", steps=3)
    arrays = dict(ref.arrays)
    name = "layers.1.mlp.act.out"
    arrays[name] = arrays[name].copy()
    arrays[name][3, 0] += np.float32(1)
    other = replace(ref, arrays=arrays)
    assert explain_step(other, 0, against=ref).first is None
    assert "the same values at every tap" in str(explain_step(other, 0, against=ref))
    assert explain_step(other, 1, against=ref).first.tap.name == name


def test_the_stream_grows_where_an_error_is_put_in() -> None:
    ref = simulate(FLIP, recipe="f32", steps=1)
    arrays = {key: array.copy() for key, array in ref.arrays.items()}
    for key in ("layers.2.mlp.residual.out", "layers.3.attn.residual.out", "layers.3.mlp.residual.out"):
        arrays[key][2] += np.float32(8)
    story = explain_step(replace(ref, arrays=arrays), 0, against=ref)
    assert story.most_grown.tap == "layers.2.mlp.residual.out"
    assert [one.max_abs > 0 for one in story.stream] == [False] * 6 + [True] * 3


def test_words_in_place_of_a_reference_feed_the_runs_own_tokens() -> None:
    teacher = simulate(TIE, recipe="f32", steps=4)
    taught = simulate(recipe="bf16", teacher=teacher, taps=NEEDED_TAPS)
    again = rerun(taught, 2, "f32")
    assert again.fed == taught.fed[: len(again.fed)]
    assert len(again.fed) == len(taught.prompt_tokens) + 2
    np.testing.assert_array_equal(again["logits"], teacher["logits"][: len(again.fed)])


def test_a_run_without_taps_says_the_command_that_keeps_them() -> None:
    bare = simulate(FLIP, recipe="bf16", steps=1, taps=())
    story = explain_step(bare, 0)
    assert not story.stream
    assert story.exact_lead is None
    assert story.missing == (
        "softfloat-llm simulate --tokens 260,445,259 --model tiny --recipe bf16 --steps 1 --taps '*.out'"
        " --taps lm_head.in --taps lm_head.acc --against none --save RUN"
    )
    assert explain_step(rerun(bare, 0, "bf16"), 0).missing == ""


def test_a_saved_run_and_a_saved_reference_tell_the_same(tmp_path: Path, flip: Run) -> None:
    reference = rerun(flip, 0, "f32")
    places = flip.save(tmp_path / "run"), reference.save(tmp_path / "ref")
    assert str(explain_step(places[0], 0, against=places[1])) == str(explain_step(flip, 0, against=reference))
    assert str(explain_step(str(places[0]), 0, against=str(places[1]))) == str(explain_step(flip, 0))


def test_rows_with_nan_are_told_first_and_no_token_is_taken() -> None:
    run = made_run(logits=[[1.0, 2.0, 3.0, 0.5], [math.nan, 1.0, 2.0, 3.0]], generated=(0,))
    story = explain_step(run, 0, against=made_run())
    assert story.kind == "no token"
    assert story.sentences()[0].startswith("NaN in the run, first at lm_head.out")
    json.dumps(story.to_dict(), allow_nan=False)


def test_infinite_logits_do_not_break_the_story() -> None:
    run = made_run(logits=[[1.0, 2.0, 3.0, 0.5], [math.inf, -math.inf, 2.0, 3.0]])
    story = explain_step(run, 0, against=made_run())
    json.dumps(story.to_dict(), allow_nan=False)
    assert story.verdict.is_flip
    assert str(story)


def test_a_vocabulary_of_one_id_has_no_contest() -> None:
    run = made_run(logits=[[1.0], [2.0]])
    assert explain_step(run, 0, against=run).contest is None


@pytest.mark.parametrize("step", [-1, 2, 99])
def test_a_step_that_the_run_does_not_have_is_refused(tie: Run, step: int) -> None:
    with pytest.raises(RunError, match="steps 0 to 1"):
        explain_step(tie, step)


def test_runs_that_cannot_be_held_against_each_other_are_refused(tie: Run) -> None:
    with pytest.raises(RunError, match="two models"):
        explain_step(tie, 0, against=made_run())
    with pytest.raises(RunError, match="different prompts"):
        explain_step(tie, 0, against=simulate(FLIP, recipe="f32"))
    with pytest.raises(RunError, match="no token"):
        explain_step(replace(tie, generated=()), 0)
    with pytest.raises(WordError, match="Unknown recipe"):
        explain_step(tie, 0, against="f23")
    other = replace(tie, fed=(*tie.fed[:-1], 5), generated=(5, 5))
    with pytest.raises(RunError, match="different tokens before it"):
        explain_step(tie, 1, against=other)


def test_json_is_plain_and_html_is_made(flip: Run) -> None:
    story = explain_step(flip, 0)
    body = json.loads(json.dumps(story.to_dict(), allow_nan=False))
    assert (body["what"], body["kind"], body["decider"]) == ("step", "error above the margin", "lm_head sum")
    assert story._repr_html_().startswith("<div>")
    assert len(story.text(verbose=True).splitlines()) > len(story.text().splitlines())


def test_masked_scores_of_later_keys_are_nothing_that_is_not_finite() -> None:
    """A step of a longer run: its rows of scores go on to keys that came later."""
    reference = simulate("The cup is", recipe="f32", steps=4)
    run = simulate("The cup is", recipe="bf16", teacher=reference)
    for step in range(4):
        assert explain_step(run, step, against=reference).nonfinite == ()
