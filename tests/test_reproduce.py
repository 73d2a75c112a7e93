"""reproduce: ids, verdicts and words; what a model of SmolLM2's shape is taken for; the articles' own numbers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from softfloat_llm.claims import arithmetic, model_runs
from softfloat_llm.claims.articles import articles
from softfloat_llm.claims.bench import SMOLLM2, Bench
from softfloat_llm.claims.outcome import Outcome, between, equal, holds, of_size, shown
from softfloat_llm.claims.reproduce import CLAIMS, Reproduction, reproduce
from softfloat_llm.errors import WordError
from softfloat_llm.io.checkpoint import open_model
from tests.smollm2 import bench


@pytest.fixture(scope="module")
def tiny():
    return open_model("tiny")


def test_there_are_twenty_claims_in_their_order():
    assert list(CLAIMS) == [f"S{n}" for n in range(1, 21)]
    assert len({claim.what for claim in CLAIMS.values()}) == 20


def test_a_claim_is_named_in_any_spelling(tiny):
    assert [one.id for one in reproduce("s2", model=tiny).outcomes] == ["S2"]
    assert [one.id for one in reproduce("S02", model=tiny).outcomes] == ["S2"]
    with pytest.raises(WordError, match=r"no claim 'S21'\. Did you mean 'S2"):
        reproduce("S21", model=tiny)


def test_lines_are_judged_and_shown():
    assert [line.verdict for line in (equal("", [1.0], [1.0]), equal("", 1, 2), shown("", 3))] == [
        "holds", "fails", "shown",
    ]  # fmt: skip
    assert between("", 1, 2, [1.0, 2.5]).verdict == "fails"
    assert (between("", 1, 2, [1.0, 1.5]).obtained, between("", 1.0, 2.0, 1.25).expected) == ("1 to 1.5", "1 to 2")
    assert [of_size("", [2.0, 3.0], x).verdict for x in (0.99, 1.0, 6.0, 6.01)] == ["fails", "holds", "holds", "fails"]
    assert holds("", "some", True, if_=False).obtained == "yes"
    kinds = [(shown("", 1),), (shown("", 1), equal("", 1, 1)), (equal("", 1, 2), equal("", 1, 1))]
    assert [Outcome("S1", "", lines).verdict for lines in kinds] == ["shown", "holds", "fails"]


def test_a_claim_that_fails_is_told_and_the_rest_stands():
    outcomes = (Outcome("S1", "one", (equal("a", 1, 2),)), Outcome("S2", "two", (equal("b", 1, 1),)))
    found = Reproduction("made", "0", "other", outcomes)
    assert not found.is_reproduced
    text = str(found)
    assert "1 of 2 claims hold, in 2 checks." in text
    assert "Not: S1." in text
    assert "x does not hold" in text
    assert "| S1: one | expected | obtained | verdict         |" in found.text(verbose=True)


def test_a_long_cell_is_cut_but_not_when_all_is_asked_for():
    found = Reproduction("made", "0", "other", (Outcome("S1", "one", (equal("a", "x" * 60, "x" * 60),)),))
    assert "x" * 60 not in str(found)
    assert "x" * 60 in found.text(verbose=True)


# --- which model it is ------------------------------------------------------------------------------------------------


def test_the_built_in_model_is_known_and_a_model_of_another_shape_is_another(tiny):
    assert Bench(tiny).kind == "tiny"
    renamed = SimpleNamespace(name="elsewhere", config=tiny.config, weights=tiny.weights)
    assert Bench(renamed).kind == "other"


def test_a_model_of_smollm2_s_shape_that_fetch_did_not_make_is_taken_for_the_original():
    weights = {"model.layers.0.self_attn.k_proj.weight": np.zeros((192, 576), np.float16)}
    model = SimpleNamespace(name="./original", config=SimpleNamespace(**SMOLLM2), weights=weights)
    assert Bench(model).kind == "original"


@pytest.mark.smollm2
def test_the_fetched_model_is_known():
    assert bench().kind == "smollm2"


# --- the articles' numbers, on runs that are made up to have them ----------------------------------------------------


class Made:
    """What the original weights would have to give, as far as the claims look; `error` is put on each number."""

    kind, steps, prompts = "original", 20, ("",)

    def __init__(self, error=0.0, flips=(4, 11, 17, 18)):
        self.error, self.flips = error, flips

    def compared(self, recipe, prompt=None):
        margins = [margin + self.error for margin in articles()["S6"]["margins"]]
        steps = [
            SimpleNamespace(step=n, margin=m, error=0.3, is_flip=n in self.flips, run=SimpleNamespace(ties=1))
            for n, m in enumerate(margins)
        ]
        return SimpleNamespace(steps=steps, flipped=[steps[n] for n in self.flips], flips=len(self.flips))

    def reference(self, prompt=None):
        best = [x + self.error for x in articles()["S4"]["logits"]]
        return SimpleNamespace(step_logits=np.array([[*best, 0.0]] * 20, np.float32))

    def taught(self, recipe):
        row = np.zeros(300, np.float32)
        row[[253, 260]] = 22.25 + self.error
        return SimpleNamespace(step_logits=np.array([row] * 20))

    def run(self, recipe, **_):
        top = articles()["S8"]["max_reference"] + self.error
        off = {"f32": 0.0, "f16": 0.05, "bf16": 0.55}.get(recipe, 0.43) * (1 + 10 * self.error)
        return {"logits": np.array([[top, 1.0 - off]])}


@pytest.mark.parametrize(("claim", "count"), [(arithmetic.s04, 4), (arithmetic.s05, 6), (model_runs.s06, 5),
                                             (model_runs.s08, 5)])  # fmt: skip
def test_on_the_original_weights_the_articles_own_numbers_are_expected(claim, count):
    lines = claim(Made())
    assert len(lines) == count
    assert [line for line in lines if line.verdict == "fails"] == []
    assert [line.what for line in claim(Made(error=0.1, flips=(0, 4))) if line.verdict == "fails"]


def test_a_flip_at_a_step_with_a_clear_margin_breaks_the_claim():
    failing = [line.what for line in model_runs.s06(Made(flips=(3, 4))) if line.verdict == "fails"]
    assert "bf16 sdpa flips only at the steps with a margin below 0.1" in failing


def test_the_articles_numbers_agree_with_themselves():
    told = articles()
    assert [n for n, margin in enumerate(told["S6"]["margins"]) if margin < 0.1] == told["S6"]["flips"]
    first, second = told["S4"]["logits"]
    assert round(first - second, 3) == told["S6"]["margins"][told["S4"]["step"]]
    assert 40 < told["S7"]["f16"] / told["S7"]["f32"] < 45
