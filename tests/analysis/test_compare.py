"""compare: NaN first, then tokens, then distances with their grid, then where the runs part."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from softfloat_llm.analysis import distances
from softfloat_llm.analysis.compare import compare
from softfloat_llm.errors import RunError, WordError
from softfloat_llm.numerics.formats import bf16, f32
from softfloat_llm.runs import simulate
from softfloat_llm.trace import Event
from tests.analysis.made import ACT, LOGITS, changed, made_run

TIES = [711, 456, 440, 14, 419, 456]  # "Anna likes red. Anna likes": red / blue 0.0052 apart


def strict_json(found):
    """The comparison through JSON, which must be valid: no bare NaN or Infinity."""
    return json.loads(json.dumps(found.to_dict(), sort_keys=True, allow_nan=False))


# --- values -----------------------------------------------------------------------------------------------------------


def test_a_run_is_identical_to_itself():
    found = compare(made_run(), made_run())
    assert found.is_identical
    assert (found.max_abs, found.max_ulp, found.flips, found.first_divergence) == (0.0, 0.0, 0, None)
    assert found.logits.max_steps == 0
    assert "The logits of all 2 positions are identical." in str(found)
    assert "All 3 taps are identical." in str(found)


def test_one_ulp_is_one_ulp_of_the_runs_format():
    found = compare(made_run("bf16", logits=changed(LOGITS, (1, 0), 20.125)), made_run("bf16"))
    assert (found.max_abs, found.max_ulp, found.logits.max_steps, found.format) == (0.125, 1.0, 1, bf16)
    assert found.logits.max_ulp_at.index == (1, 0)
    assert (found.logits.first.run, found.logits.first.reference) == (20.125, 20.0)
    assert "0.125 (1 bf16 ulp in [16, 32))" in str(found)


@pytest.mark.parametrize("special", [1.0, -0.0, np.inf, np.nan])
def test_a_long_context_is_compared_some_rows_after_the_others(monkeypatch, special):
    """Of equal distances the first one is told, whether all rows are compared at once, or one, or three."""
    rng = np.random.default_rng(0)
    for change in (0, 0.1, 1):
        reference = np.round(rng.standard_normal((8, 5)) * 4).astype(np.float32)
        run = (reference + (rng.random((8, 5)) < change)).astype(np.float32)
        run[2, 3], reference[5, 1] = special, -special
        told = []
        for at_once in (1, 15, 1 << 20):
            monkeypatch.setattr(distances, "AT_ONCE", at_once)
            told.append(repr(distances.difference("lm_head.out", run, reference, f32, f32)))
        assert told[0] == told[1] == told[2]


def test_an_ulp_is_taken_in_the_binade_of_the_reference():
    logits = [[1.0, 2.0, 3.0, 0.5], [20.0, 22.375, 22.25, 16.0]]
    found = compare(made_run("bf16", logits=changed(logits, (1, 3), 15.9375)), made_run("bf16", logits=logits))
    assert (found.max_abs, found.max_ulp) == (0.0625, 0.5)  # half of an ulp in [16, 32), one step below 16
    assert found.logits.max_steps == 1


def test_two_formats_differ_by_their_exact_values():
    exact = changed(LOGITS, (1, 1), 22.371271133422852)
    found = compare(made_run("bf16", logits=exact), made_run("f32", logits=exact))
    assert (found.format, found.logits.reference_format) == (bf16, f32)
    assert found.max_abs == 22.375 - 22.371271133422852
    assert found.max_ulp == found.max_abs / 0.125
    assert found.logits.max_steps == 0  # the reference, rounded to bf16, is the run's value
    assert not found.is_identical


def test_equal_values_in_two_formats_are_not_called_identical():
    found = compare(made_run("bf16"), made_run("f32"))
    assert found.max_abs == 0
    assert found.first_divergence is None
    assert not found.is_identical
    assert found.verdict("tokens") == "same tokens"
    assert "same values (bf16 against f32)" in str(found)


def test_the_sign_of_a_zero_is_a_difference_of_bits():
    logits = changed(LOGITS, (0, 3), 0.0)
    found = compare(made_run(logits=changed(logits, (0, 3), -0.0)), made_run(logits=logits))
    assert not found.is_identical
    assert found.logits.count == 1
    assert found.max_abs == 0
    assert math.copysign(1, found.first_divergence.at.run) == -1


def test_the_last_position_is_told_apart_from_all():
    found = compare(made_run(logits=changed(LOGITS, (0, 0), 9.0)), made_run())
    assert (found.max_abs, found.last.max_abs) == (8.0, 0.0)
    assert found.last.is_identical


# --- where the runs part ----------------------------------------------------------------------------------------------


def test_the_first_divergence_is_first_in_forward_order_with_both_values():
    found = compare(made_run(act=changed(ACT, (1, 0), 2.5), logits=changed(LOGITS, (0, 0), 1.5)), made_run())
    part = found.first_divergence
    assert (part.tap.name, part.tap.layer, part.tap.site) == ("embed.out", None, "embed")
    assert (part.at.index, part.at.run, part.at.reference) == ((1, 0), 2.5, 2.0)
    assert "First different value: embed.out, position 1, element [0]: 2.5 against 2." in str(found)


def test_forward_order_does_not_depend_on_the_order_of_the_arrays():
    names = [f"layers.{i}.attn.{s}.out" for i in (10, 2) for s in ("o_proj", "q_proj")]
    run = made_run(more=dict.fromkeys(names, ACT))
    found = compare(run, made_run(more=dict.fromkeys(reversed(names), ACT)))
    assert [tap.tap for tap in found.taps] == [
        "embed.out", "layers.0.mlp.act.out", "layers.2.attn.q_proj.out", "layers.2.attn.o_proj.out",
        "layers.10.attn.q_proj.out", "layers.10.attn.o_proj.out", "lm_head.out",
    ]  # fmt: skip


def test_only_taps_that_both_keep_are_compared():
    found = compare(made_run(more={"norm.final.out": ACT}), made_run())
    assert [tap.tap for tap in found.taps] == ["embed.out", "layers.0.mlp.act.out", "lm_head.out"]


def test_names_choose_taps_and_a_name_that_fits_none_is_refused():
    assert [tap.tap for tap in compare(made_run(), made_run(), names=["layers.*"]).taps] == ["layers.0.mlp.act.out"]
    with pytest.raises(RunError, match=r"'embd.out'.* Did you mean 'embed.out'"):
        compare(made_run(), made_run(), names=["embd.out"])


def test_what_lies_after_the_query_is_no_difference():
    scores = np.zeros((2, 1, 2))
    hidden = np.where(np.array([[[False, True]], [[False, False]]]), 7.0, scores)
    one, other = ({"layers.0.attn.scores.out": values.tolist()} for values in (scores, hidden))
    assert compare(made_run(more=one), made_run(more=other)).first_divergence is None
    seen = {"layers.0.attn.scores.out": np.where(scores == 0, 7.0, 0.0).tolist()}
    assert compare(made_run(more=seen), made_run(more=other)).first_divergence.at.index == (0, 0, 0)


def test_the_last_axis_of_scaled_queries_is_not_the_keys():
    """Two positions, two elements: as scores, the second of the first position would lie after the query."""
    given = [[[1.0, 2.0]], [[3.0, 4.0]]]
    more = [{"layers.0.attn.scale.out": values} for values in (changed(given, (0, 0, 1), 9.0), given)]
    for words, found in (("attn.scale.on=query", 1), ("attn.scale.on=scores", 0)):
        one, other = (made_run(f"f32,{words}", more=taps) for taps in more)
        (tap,) = compare(one, other, names=["*.attn.scale.out"]).taps
        assert tap.count == found


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_a_flip_names_both_tokens_the_margin_and_the_error():
    found = compare(made_run("bf16", logits=changed(LOGITS, (1, 2), 22.5)), made_run("f32"))
    (step,) = found.steps
    assert (found.flips, step.is_flip, step.words) == (1, True, "flip")
    assert (step.reference.token, step.run.token, step.position) == (1, 2, 1)
    assert (step.margin, step.margin_ulp, step.error, step.error_ulp) == (0.125, 1.0, 0.25, 2.0)
    text = str(found)
    assert "The token flips: ' the' in the reference, ' a' in the run." in text
    assert "leads by 0.125; errors reach 0.25 (1 and 2 bf16 ulp in [16, 32)): enough to turn it." in text
    assert "| x flip" in str(found)


def test_a_tie_goes_to_the_lowest_id_and_is_told():
    reference = made_run("f32", logits=changed(LOGITS, (1, 2), 22.376))
    found = compare(made_run("bf16", logits=changed(LOGITS, (1, 2), 22.376)), reference)
    (step,) = found.steps
    assert (step.reference.token, step.run.token, step.run.ties) == (2, 1, 2)
    assert step.words == "flip (tie, lowest id 1 wins)"
    assert [one.token for one in step.tied] == [1, 2]
    assert [one["piece"] for one in strict_json(found)["steps"][0]["tied"]] == [" the", " a"]
    assert "In the run the ids 1 ' the', 2 ' a' share the logit 22.375: the lowest id is taken." in str(found)


def test_each_run_follows_its_own_rule_for_ties():
    """The same row, 22.375 at ids 1 and 2: one recipe takes the lowest id, the other the last."""
    logits = [[1.0, 2.0, 3.0, 0.5], [20.0, 22.375, 22.375, -4.0]]
    last = made_run("bf16,choice.ties=last", logits=logits)
    found = compare(last, made_run("bf16", logits=logits))
    step = found.steps[0]
    assert (step.reference.token, step.run.token, found.logits.is_identical) == (1, 2, True)
    assert step.words == "flip (tie, last id 2 wins)"
    assert "errors reach 0 (0 and 0 bf16 ulp in [16, 32)): the two take another one of equals." in str(found)
    assert compare(last, last).steps[0].words == "same (tie, last id 2 wins)"
    assert last.generated == (2,)


def test_a_tie_that_changes_no_token_is_told_too():
    logits = changed(LOGITS, (1, 2), 22.375)
    (step,) = compare(made_run("bf16", logits=logits), made_run("f32")).steps
    assert step.words == "same (tie, lowest id 1 wins)"


def test_a_shared_top_of_the_reference_has_no_margin():
    (step,) = compare(made_run(), made_run(logits=changed(LOGITS, (1, 2), 22.375))).steps
    assert (step.margin, step.reference.ties) == (0.0, 2)


def test_runs_without_steps_have_no_verdicts():
    one = made_run(generated=())
    found = compare(one, made_run("bf16", generated=()))
    assert found.steps == ()
    assert found.flips == 0
    assert "At the last position, the logits have the same values" in str(found)


def test_many_steps_show_the_flips_and_the_smallest_margins():
    rows = [[1.0, 2.0 + step, 0.0, 0.0] for step in range(20)]
    moved = changed(rows, (17, 0), 40.0)
    fed = (5, *[1] * 19)
    one, other = (made_run(logits=logits, prompt=(5,), fed=fed) for logits in (moved, rows))
    text = str(compare(one, other))
    shown = [
        int(line.split("|")[1]) for line in text.splitlines() if line.startswith("| ") and line[2:6].strip().isdigit()
    ]
    assert shown == [0, 1, 2, 6, 14, 17]  # 17 flips; the others have the smallest margins in ulps
    assert "(14 further steps are not shown: none of them flips)" in text
    assert "1 of 20 steps flips: step 17" in text
    assert len(text.splitlines()) < 25
    assert len(compare(one, other).text(verbose=True).splitlines()) > 45


# --- what is not finite -----------------------------------------------------------------------------------------------


def test_nan_is_told_before_any_distance():
    run = made_run(act=changed(ACT, (1, 1), math.nan), logits=changed(LOGITS, (1, 0), math.nan), generated=())
    found = compare(run, made_run())
    first = found.nonfinite[0]
    assert (first.whose, first.tap.name, first.position) == ("run", "embed.out", 1)
    answer = str(found).index("answer")
    assert str(found)[answer:].startswith("answer   NaN in the run, first at embed.out, position 1, element [1].")
    assert found.max_abs == math.inf
    assert found.logits.max_steps is None
    assert found.steps[0].words == "no token: NaN in the run"
    assert found.flips == 1
    told = strict_json(found)
    assert (told["max_abs"], told["max_ulp"], told["nonfinite"][0]["value"]) == ("inf", "inf", "nan")


def test_an_event_that_came_before_the_first_kept_tap_is_the_first():
    event = Event("layers.0.mlp.down_proj.acc", (1, 1), math.inf, "f16", 17, 256)
    found = compare(made_run(logits=changed(LOGITS, (1, 0), math.inf), events=[event]), made_run())
    assert found.nonfinite[0].tap.site == "mlp.down_proj"
    assert "its f16 sum left the range after 17 of 256 terms" in str(found)


def test_what_the_site_took_is_told_with_its_largest_value():
    """The tap `in` of the site where it was kept, else the last tap before it; at that position, finite values only."""
    logits = changed(LOGITS, (1, 0), math.inf)
    first = compare(made_run(logits=logits), made_run()).nonfinite[0]
    assert (first.before.tap, first.before.largest) == ("layers.0.mlp.act.out", 4.0)
    assert str(first).endswith("element [0]; layers.0.mlp.act.out reaches 4 there")
    taken = made_run(logits=logits, more={"lm_head.in": [[1.0, 9.0], [-7.5, math.inf]]})
    found = compare(taken, made_run())
    assert found.nonfinite[0].tap.name == "lm_head.in"  # which is itself the first
    assert found.nonfinite[0].before.tap == "layers.0.mlp.act.out"
    whole = made_run(logits=logits, more={"lm_head.in": [[1.0, 9.0], [-7.5, 2.0]]})
    assert strict_json(compare(whole, made_run()))["nonfinite"][0]["before"] == {"tap": "lm_head.in", "largest": 7.5}
    assert compare(made_run(act=changed(ACT, (0, 0), math.nan)), made_run()).nonfinite[0].before is None


def test_nan_in_both_is_the_same_and_told_of_both():
    logits = changed(LOGITS, (0, 0), math.nan)
    found = compare(made_run(logits=logits), made_run(logits=logits))
    assert found.is_identical
    assert [one.whose for one in found.nonfinite] == ["run", "reference"]


def test_infinities_of_one_sign_are_the_same_of_two_are_not():
    logits = changed(LOGITS, (0, 0), math.inf)
    assert compare(made_run(logits=logits), made_run(logits=logits)).max_abs == 0
    found = compare(made_run(logits=logits), made_run(logits=changed(LOGITS, (0, 0), -math.inf)))
    assert found.max_abs == math.inf


def test_masked_scores_are_not_reported():
    scores = [[[1.0, -math.inf]], [[1.0, 2.0]]]
    more = {"layers.0.attn.softmax.in": scores}
    assert compare(made_run(more=more), made_run(more=more)).nonfinite == ()


# --- what cannot be compared ------------------------------------------------------------------------------------------


def test_two_models_are_refused_with_both_digests():
    with pytest.raises(RunError, match=r"two models[\s\S]*sha256:other[\s\S]*sha256:weights"):
        compare(made_run(digest="sha256:other"), made_run())


def test_two_prompts_are_refused_at_the_first_different_token():
    with pytest.raises(RunError, match="at position 1 the run was fed token 2 ' a', the reference 6 '<6>'"):
        compare(made_run(prompt=(5, 2)), made_run())


def test_free_running_runs_are_compared_up_to_where_they_were_fed_other_tokens():
    rows = [*LOGITS, [0.0, 1.0, 2.0, 3.0]]
    one = made_run(logits=changed(rows, (2, 0), 50.0), fed=(5, 6, 2))
    other = made_run(logits=rows, fed=(5, 6, 1))
    found = compare(one, other)
    assert (found.positions, len(found.steps)) == (2, 1)
    assert found.max_abs == 0  # what differs lies behind
    assert not found.is_identical
    assert "fed different tokens from position 2 on (free running), so 2 of 3 positions are compared" in str(found)


def test_a_shorter_run_is_compared_as_far_as_it_goes():
    found = compare(made_run(), made_run(logits=[*LOGITS, LOGITS[1]], fed=(5, 6, 1)))
    assert found.positions == 2
    assert "The run has 2 positions, the reference 3: 2 are compared." in found.notes


def test_a_claim_is_held_against_the_largest_difference():
    found = compare(made_run("bf16", logits=changed(LOGITS, (1, 0), 20.25)), made_run("bf16"))
    assert [found.verdict(w) for w in ("identical", "tokens", 1, 2, "2")] == [
        "differs", "same tokens", "differs", "within 2 bf16 ulp", "within 2 bf16 ulp",
    ]  # fmt: skip
    for word in ("close", "-1", "nan"):
        with pytest.raises(WordError, match="expected identical, tokens, or a number of ulps"):
            found.holds(word)


# --- real runs --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference():
    return simulate(tokens=TIES, recipe="f32", steps=4, taps=("*",))


@pytest.fixture(scope="module")
def narrow(reference):
    return simulate(recipe="bf16,acc=bf16", teacher=reference, taps=("*",))


def test_saved_folders_compare_as_the_runs_do(reference, narrow, tmp_path):
    narrow.save(tmp_path / "run")
    reference.save(tmp_path / "ref")
    found = compare(str(tmp_path / "run"), tmp_path / "ref")
    assert found.to_dict() == compare(narrow, reference).to_dict()
    assert str(found) == str(compare(narrow, reference))
    with pytest.raises(RunError):
        compare(tmp_path / "nowhere", reference)


def test_the_json_has_its_keys_and_every_ulp_its_format(reference, narrow):
    told = strict_json(compare(narrow, reference))
    assert told["schema"] == "softfloat-llm/compare/1"
    assert told.keys() >= {
        "max_abs",
        "max_ulp",
        "flips",
        "first_divergence",
        "ulp_format",
        "steps",
        "taps",
        "nonfinite",
    }
    assert told["flips"] == sum(step["is_flip"] for step in told["steps"])
    for row in (*told["steps"], *told["taps"], told["logits"], told["last"]):
        assert row["ulp_format"]
    assert told["first_divergence"].keys() >= {"tap", "layer", "site", "index", "run", "reference", "format"}


def test_a_real_comparison_measures_what_numpy_measures(reference, narrow):
    found = compare(narrow, reference)
    apart = np.abs(narrow["logits"].astype(np.float64) - reference["logits"].astype(np.float64))
    assert found.max_abs == apart.max()
    assert found.last.max_abs == apart[-1].max()
    assert [step.run.token for step in found.steps] == list(narrow.generated)
    assert [step.reference.token for step in found.steps] == list(reference.generated)


def test_one_pass_is_identical_to_cached_steps(reference):
    whole = simulate(tokens=reference.fed, recipe="f32", steps=0, taps=("*",))
    found = compare(whole, reference)
    assert found.is_identical
    assert found.first_divergence is None
    assert len(found.steps) == 4


def test_the_answer_is_plain_and_the_notebook_form_is_escaped(reference, narrow):
    found = compare(narrow, reference)
    lines = str(found).splitlines()
    labels = [line[:9].strip() for line in lines if line[:1].isalpha()]
    assert labels == ["recipe", "against", "answer", "next", "digest"]
    assert len(lines) < 25
    table = [line for line in lines if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert len(table[0].split("|")) - 2 <= 7
    assert "<|endoftext|>" not in found._repr_html_()
    assert found._repr_html_().count("<tr>") == 4 + 2 * len(found.steps) + len(found.sites) + len(found.taps)
    assert found._repr_html_().count("<details>") == 1
