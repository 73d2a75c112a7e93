"""margins: how far top1 and top2 lie apart, in ulps of any format, and what log-probabilities make of it."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softfloat_llm.analysis.log_probabilities import log_softmax
from softfloat_llm.analysis.margins import EDGES, margins, two_best
from softfloat_llm.errors import FormatError, RunError, WordError
from softfloat_llm.numerics.enclosures import exp_enclosure, log_enclosure
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.formats import bf16, f32
from softfloat_llm.runs import simulate
from softfloat_llm.tiny import NEAR_TIES
from tests.analysis.made import made_run

NAN, INF = math.nan, math.inf


def stepped(*rows, recipe="f32"):
    """A run whose steps choose from these rows."""
    return made_run(recipe, logits=[[0.0] * len(rows[0]), *rows], prompt=(5, 6), fed=(5, 6, *[1] * (len(rows) - 1)),
                    generated=[1] * len(rows))  # fmt: skip


def strict_json(found):
    return json.loads(json.dumps(found.to_dict(), sort_keys=True, allow_nan=False))


# --- margins ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ("bf16", "Keep lm_head's sums"), ("bf16,acc=exact", "Of an exact accumulator"), ("f16,acc=f16", None),
        ("f32", None), ("bf16,lm_head.output=f32", None),
    ],
)  # fmt: skip
def test_of_logits_that_were_rounded_already_it_is_said_and_what_to_do(recipe, says):
    assert (says in str(margins(simulate("The cup is", recipe=recipe, taps=())))) if says else True
    assert says or "already" not in str(margins(simulate("The cup is", recipe=recipe, taps=())))


def test_of_a_run_that_kept_its_sums_the_lead_before_the_last_rounding_is_told():
    run = simulate("The cup is", recipe="bf16", taps=("lm_head.acc",), steps=2)
    first, second = margins(run).steps
    sums = run["lm_head.acc"][2].astype(float)
    assert (first.first.token, first.margin, first.lead_before) == (833, 0.0, sums[833] - sums[834])
    assert first.lead_before < 0 < second.lead_before
    assert "At step 0 ' full' was behind by ~0.0304 before it: that rounding alone chose the token." in str(
        margins(run)
    )
    assert margins(simulate("The cup is", recipe="f32", taps=("lm_head.acc",))).steps[0].lead_before is None


def test_a_margin_is_told_in_ulps_of_any_format():
    run = made_run(logits=[[0.0] * 4, [20.0, 22.371271, 22.277479, -4.0]])
    exact = float(np.float32(22.371271)) - float(np.float32(22.277479))
    for fmt, unit in (("bf16", 2.0**-3), ("f16", 2.0**-6), ("f32", 2.0**-19), ("e4m3fn", 2.0)):
        (step,) = margins(run, format=fmt).steps
        assert (step.margin, step.margin_ulp, str(step.format)) == (exact, exact / unit, fmt)
    assert margins(run).steps[0].format == f32
    assert (step.first.token, step.second.token, step.first.piece, step.second.piece) == (1, 2, " the", " a")
    assert "The smallest is at step 0, ' the' before ' a': ~0.0938 (~0.75 bf16 ulp in [16, 32))." in str(
        margins(run, format="bf16")
    )


def test_a_tie_has_margin_0_and_names_both_ids():
    run = stepped([1.0, 22.25, 3.0, 22.25], recipe="bf16")
    (step,) = margins(run).steps
    assert (step.margin, step.margin_ulp, step.first.token, step.second.token) == (0.0, 0.0, 1, 3)
    assert step.first.ties == step.second.ties == 2


def test_many_ids_that_tie_are_counted_and_the_two_lowest_named():
    found = margins(stepped([7.0] * 50)).steps[0]
    assert (found.first.token, found.second.token, found.first.ties, found.margin) == (0, 1, 50, 0.0)


def test_where_the_recipe_takes_the_last_of_equals_so_do_the_margins():
    run = stepped([1.0, 22.25, 3.0, 22.25], recipe="bf16,choice.ties=last")
    (step,) = margins(run).steps
    assert (step.first.token, step.second.token, step.log_probs.token, step.ranking) == (3, 1, 3, "same")
    assert [c.token for c in two_best(np.array([2.0, 1.0, 1.0]), "last")] == [0, 2]
    assert [c.token for c in two_best(np.array([1.0, 1.0, 2.0]), "last")] == [2, 1]


def test_a_row_with_nan_has_no_margin_and_is_told():
    found = margins(stepped([1.0, NAN, 2.0], [1.0, 3.0, 2.0]))
    bad, good = found.steps
    assert math.isnan(bad.margin)
    assert bad.first.token is bad.second.token is None
    assert (bad.ranking, good.ranking) == ("no token: NaN", "same")
    assert found.least is good
    assert strict_json(found)["steps"][0]["margin"] == "nan"
    assert sum(part.count for part in found.histogram) == 1
    assert "no token: NaN" in str(found)


def test_only_nan_gives_no_margin_at_all():
    found = margins(stepped([NAN, NAN]))
    assert found.least is None
    assert "No margin can be given" in str(found)


def test_infinite_logits_have_the_margins_that_they_have():
    first, second, both = margins(stepped([INF, 1.0], [-INF, 1.0], [INF, INF])).steps
    assert (first.margin, first.first.token, first.second.token) == (INF, 0, 1)
    assert (second.margin, second.first.token, second.second.token) == (INF, 1, 0)
    assert (both.margin, both.first.token, both.second.token) == (0.0, 0, 1)


def test_all_but_one_minus_infinity_still_has_a_runner_up():
    assert [c.token for c in two_best(np.array([-INF, 5.0, -INF]))] == [1, 0]
    assert [c.token for c in two_best(np.array([5.0, -INF, -INF]))] == [0, 1]


def test_a_vocabulary_of_one_token_has_no_runner_up():
    found = margins(stepped([3.0], [4.0]))
    assert [step.second for step in found.steps] == [None, None]
    assert all(math.isnan(step.margin) for step in found.steps)
    assert strict_json(found)["steps"][0]["second"] is None
    assert "none" in str(found)


def test_a_run_without_steps_is_looked_at_position_by_position():
    run = simulate(recipe="bf16", steps=0, taps=())
    found = margins(run)
    assert [(m.step, m.position) for m in found.steps] == [(None, i) for i in range(len(run.fed))]
    assert "5 positions" in str(found)


def test_steps_stand_at_their_positions():
    run = simulate(recipe="bf16", steps=3, taps=())
    found = margins(run)
    assert [(m.step, m.position) for m in found.steps] == [(0, 4), (1, 5), (2, 6)]
    assert tuple(m.first.token for m in found.steps) == run.generated


def test_within_gives_the_smallest_margins_first():
    run = stepped([1.0, 3.0], [1.0, 1.5], [1.0, 2.0], [4.0, 4.0])
    found = margins(run, format="bf16", within=64)
    assert [m.step for m in found.steps] == [3, 1, 2]
    assert found.total == 4
    assert "3 of 4 steps have a margin of at most 64 bf16 ulp." in str(found)
    assert margins(run, within=0).steps[0].step == 3
    for wrong in (-1.0, NAN):
        with pytest.raises(WordError, match="0 or more"):
            margins(run, within=wrong)


def test_nothing_within_the_bound_is_an_answer_too():
    found = margins(stepped([1.0, 3.0]), within=0)
    assert found.steps == ()
    assert str(found).count("|") == 0
    assert strict_json(found)["steps"] == []


def test_the_histogram_counts_each_margin_once_at_the_bins_edges():
    widths = [0.0, 0.5, 1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 1e6]  # in ulps of bf16 in [16, 32): 1/8
    run = stepped(*([16.0, 16.0 + w / 8] if w < 128 else [-1e6, 16.0] for w in widths))
    counts = [part.count for part in margins(run, format="bf16").histogram]
    assert counts == [1, 1, 2, 1, 2, 2]
    assert len(counts) == len(EDGES) + 1


def test_an_infinite_margin_falls_into_the_last_bin():
    assert [part.count for part in margins(stepped([-INF, 1.0])).histogram][-1] == 1


def test_long_runs_show_their_smallest_margins_and_say_how_many_more_there_are():
    run = stepped(*([1.0, 2.0 + i] for i in range(20)))
    text = str(margins(run))
    assert "(14 wider margins are not shown: -v)" in text
    assert len(text.splitlines()) < 25
    assert "wider" not in margins(run).text(verbose=True)


def test_text_and_html_say_the_same_numbers():
    found = margins(simulate(NEAR_TIES[14], recipe="f32", steps=3, taps=()), format="bf16")
    html = found._repr_html_()
    for step in found.steps:
        for text in (str(found), html):
            assert f"{step.margin:.3g}" in text
    assert html.startswith("<div><p>")


def test_an_unknown_format_or_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(FormatError, match="bf61"):
        margins(made_run(), format="bf61")
    with pytest.raises(FormatError, match="at most 32 bits"):
        margins(made_run(), compute="f64")
    with pytest.raises(RunError):
        margins(tmp_path)


def test_a_saved_run_is_read(tmp_path):
    run = made_run()
    assert margins(run.save(tmp_path / "run")).to_dict() == margins(run).to_dict()


# --- log-probabilities ------------------------------------------------------------------------------------------------


def exact_steps(row, compute):
    """log_softmax of a row in fractions and integers, each step rounded once; the sum one after another."""
    top = max(row)
    lowered = [round_exact(Fraction(x) - Fraction(top), compute) for x in row]
    total = 0.0
    for x in lowered:
        term = round_exact(exp_enclosure(Fraction(x), 128)[0], compute) if x else 1.0
        total = round_exact(Fraction(total) + Fraction(term), compute)
    logarithm = 0.0 if total == 1 else round_exact(log_enclosure(Fraction(total), 128)[0], compute)
    return [round_exact(Fraction(x) - Fraction(logarithm), compute) for x in lowered]


@pytest.mark.parametrize("compute", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("fmt", ["f32", "bf16", "f16", "e4m3fn"])
def test_log_softmax_is_its_steps_each_rounded_once(compute, fmt):
    rng = np.random.default_rng(3)
    for row in (4 * rng.standard_normal((6, 11))).astype(np.float32).tolist():
        wanted = [round_exact(x, fmt) for x in exact_steps(row, compute)]
        assert log_softmax(row, fmt, compute=compute).astype(np.float64).tolist() == wanted


@given(
    st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=12),
    st.sampled_from(["f32", "bf16", "f16"]),
    st.sampled_from(["f32", "bf16", "f16", "e5m2"]),
)
def test_no_log_probability_passes_another_one(row, compute, fmt):
    logs = log_softmax(row, fmt, compute=compute).astype(np.float64)
    ranked = logs[np.argsort(row, kind="stable")]
    assert (np.diff(ranked) >= 0).all()


def test_two_logits_one_bf16_ulp_apart_tie_as_log_probabilities_and_the_lower_id_is_taken():
    row = [-200.0, 1.0, 1.0078125] + [8.0] * 2  # far below the top: ulps of log-probabilities near -7.7 are coarser
    logs = log_softmax(row, "bf16").astype(np.float64)
    assert logs[1] == logs[2]
    found = margins(stepped([22.25, 22.375] + [21.0] * 4000, recipe="bf16"))
    (step,) = found.steps
    assert (step.margin_ulp, step.first.token) == (1.0, 1)
    assert (step.log_probs.token, step.log_probs.ties) == (1, 1)  # -7.0 and -7.125: finer there than the logits are
    few_bits = margins(stepped([22.25, 22.375] + [21.0] * 4000, recipe="bf16"), log_format="e4m3fn")
    assert few_bits.steps[0].ranking == "x tie of 2: takes id 0"
    assert "As log-probabilities in e4m3fn, 1 step tie; 1 of them then take another token by the rule for ties." in str(
        few_bits
    )


def test_a_tie_among_log_probabilities_that_keeps_the_token_is_told_apart():
    found = margins(stepped([22.375, 22.25] + [21.0] * 4000, recipe="bf16"), log_format="e4m3fn")
    assert found.steps[0].ranking == "tie of 2, same token"


def test_a_hidden_token_keeps_minus_infinity_and_a_row_with_infinity_is_nan():
    assert log_softmax([0.0, -INF], "bf16").astype(float).tolist() == [0.0, -INF]
    assert np.isnan(log_softmax([0.0, INF], "f32")).all()


# --- tokens that move on tiny -----------------------------------------------------------------------------------------


def test_a_token_of_tiny_flips_in_bf16_where_the_margin_is_below_half_an_ulp():
    """ "The cup is": ' empty' 13.7076 before ' full' 13.6783 in f32, 0.468 bf16 ulp apart; bf16 takes ' full'."""
    reference, run = (simulate("The cup is", recipe=r, taps=()) for r in ("f32", "bf16"))
    (wide,), (narrow,) = (margins(r, format="bf16").steps for r in (reference, run))
    assert reference.generated != run.generated
    assert 0.46 < wide.margin_ulp < 0.48
    assert {wide.first.token, wide.second.token} == {narrow.first.token, narrow.second.token}
    assert narrow.format == bf16


def test_a_token_of_tiny_ties_in_bf16_and_the_lower_id_wins():
    """ "The light is on. The light is": ' on' and ' off', 0.38 bf16 ulp apart in f32, are both 13 in bf16."""
    reference, run = (simulate("The light is on. The light is", recipe=r, taps=()) for r in ("f32", "bf16"))
    (wide,), (narrow,) = (margins(r, format="bf16").steps for r in (reference, run))
    assert wide.margin_ulp < 1
    assert (narrow.margin, narrow.first.ties, narrow.first.logit) == (0.0, 2, 13.0)
    assert narrow.first.token < narrow.second.token
    assert (wide.first.token == narrow.second.token) == (reference.generated != run.generated)
