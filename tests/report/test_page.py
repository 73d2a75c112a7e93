"""The HTML report: one file that is well formed, says what the analyses say, and is the same bytes each time."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from softfloat_llm.analysis.explain_step import NEEDED_TAPS
from softfloat_llm.analysis.numbers import about
from softfloat_llm.errors import ReportError, RunError
from softfloat_llm.recipe import recipe_of
from softfloat_llm.report import page as page_module
from softfloat_llm.report.figures import figures_of
from softfloat_llm.report.findings import findings_of
from softfloat_llm.report.page import MOST_STEPS, Report, report, report_of
from softfloat_llm.runs import Run, simulate
from tests.analysis.made import made_run
from tests.browser import measured, outside, overlaps
from tests.console import Console, program
from tests.pages import HOSTILE, contrast, read

MEGABYTE = 1_000_000
PROMPT = "The cup is"


@pytest.fixture(scope="module")
def runs() -> tuple[Run, Run]:
    reference = simulate(PROMPT, recipe="f32", steps=4, taps=NEEDED_TAPS)
    return simulate(PROMPT, recipe="bf16", teacher=reference, taps=NEEDED_TAPS), reference


@pytest.fixture(scope="module")
def made(runs: tuple[Run, Run]) -> Report:
    return report(*runs, budget="stage")


@pytest.fixture(scope="module")
def folders(runs: tuple[Run, Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the saved runs RUN and REF."""
    folder = tmp_path_factory.mktemp("report")
    for name, run in zip(("RUN", "REF"), runs, strict=True):
        run.save(folder / name)
    return folder


def check(html: str) -> None:
    """What holds of every page: it is well formed, stands alone, and can be used without eyes, mouse or script."""
    page = read(html)
    assert len(html.encode()) < MEGABYTE
    assert html.startswith('<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">')
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "b"}
    assert not any(name.startswith("on") for _, given in page.found for name in given)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    targets = page.values("href") + page.values("xlink:href")
    assert all(target.startswith("#") and target[1:] in ids for target in targets)
    assert set(page.values("aria-labelledby")) <= set(ids)
    assert not re.search(r"url\((?!#)|@import", html)
    assert all("scope" in given for tag, given in page.found if tag == "th")
    assert [tag for tag, _ in page.found].count("figcaption") == [tag for tag, _ in page.found].count("figure")
    for tag, given in page.found:
        if tag == "div":
            assert given["role"] == "region"
            assert given["tabindex"] == "0"
            assert given["aria-label"]
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'\"" in html


# --- bytes ------------------------------------------------------------------------------------------------------------


def test_the_same_runs_give_the_same_bytes(runs, made):
    assert report(*runs, budget="stage").html == made.html


def test_the_same_command_gives_the_same_bytes_in_another_process(folders):
    """And no date, time or place of this machine is in them."""
    there = program("report", "RUN", "REF", cwd=folders, PYTHONHASHSEED="54321").stdout.decode()
    assert there == report(folders / "RUN", folders / "REF", command="softfloat-llm report RUN REF").html
    assert not re.search(r"20[0-9]{2}-[0-9]{2}|[0-9]{2}:[0-9]{2}:[0-9]{2}", there)
    assert str(folders) not in there
    assert str(Path(page_module.__file__).parent) not in there


# --- form -------------------------------------------------------------------------------------------------------------


def test_a_page_is_well_formed_and_ends_with_its_command(made):
    check(made.html)
    assert read(made.html).text.rstrip().endswith("softfloat-llm report RUN REF --budget")


@pytest.mark.parametrize("is_dark", [False, True])
def test_the_words_of_a_page_can_be_read_on_it(is_dark):
    css = (Path(page_module.__file__).parent / "templates" / "report.css").read_text()
    light, dark = (
        dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", block)) for block in re.findall(r":root \{(.*?)\}", css, re.S)
    )
    at = dark if is_dark else light
    for ink in ("ink", "quiet", "link", "flip"):
        assert min(contrast(at[ink], at[ground]) for ground in ("paper", "wash")) >= 4.5, ink


def test_the_sections_stand_in_their_order(made):
    titles = re.findall(r"<h2[^>]*>([^<]+)</h2>", made.html)
    assert titles == [
        "Answer", "Recipe", "Steps", "Where the two part", "Error by site and layer", "Budget of step 0",
        "Step 0 explained", "Made by",
    ]  # fmt: skip
    assert list(made.pictures) == ["margin-ladder", "number-line", "heat-map", "accumulation-path", "tree"]
    assert made.html.count("<svg") == 5


# --- what it says -----------------------------------------------------------------------------------------------------


def test_text_json_and_page_have_the_same_numbers(made):
    page, body = read(made.html).text, made.to_dict()
    for line in made.comparison.sentences():
        assert line in page
    for step in body["comparison"]["steps"]:
        for key in ("margin", "margin_ulp", "error_ulp"):
            assert about(step[key]) in page
            assert about(step[key]) in made.text(verbose=True)
    for share in body["budget"]["shares"]:
        assert f"{share['move']}{about(share['lead'])}{about(share['change'])}" in page
    for candidate in body["step"]["candidates"]:
        assert f"{candidate['token']}" in page
    for tap in body["comparison"]["taps"]:
        assert f"{tap['tap']}{tap['format']}" in page
    assert body["bytes"] == len(made.html.encode())


def test_the_recipe_is_told_in_full(made):
    rows = read(made.html).text
    for site, words in made.findings.run.recipe.words().items():
        for key, word in words.items():
            theirs = made.findings.reference.recipe.words()[site].get(key, "")
            assert f"{site}{key}{word}{theirs}" in rows


def test_every_flip_is_marked_by_a_word_and_a_cross(made):
    flips = [step for step in made.comparison.steps if step.is_flip]
    assert made.html.count('<td class="x">x flip') == len(flips) == 1


def test_the_sums_of_lm_head_are_the_runs_logits_bit_for_bit(made):
    own, story = made.findings.sums[:2], made.findings.story
    row = made.findings.run["logits"][story.verdict.position].astype(np.float64)
    assert [one.found.result for one in own] == [row[c.token] for c in story.contest]
    assert [one.name for one in made.findings.sums] == ["' empty' in f32", "' full' in f32", "' empty' in f16",
                                                        "' empty' in bf16"]  # fmt: skip


@pytest.mark.parametrize("step", [0, 2])
def test_the_sums_are_told_where_their_order_depends_on_the_shape_of_a_pass(step):
    recipe = "transformers-sdpa-bf16-cpu-amx"
    assert any(" if " in key for key in recipe_of(recipe).words()["lm_head"])
    run = simulate(PROMPT, recipe=recipe, steps=3, taps=NEEDED_TAPS)
    found = findings_of(run, run, step=step)
    assert [one.found.result for one in found.sums[:2]] == [
        float(run["logits"][2 + step][c.token]) for c in found.story.contest
    ]


def test_sums_that_do_not_give_the_logits_are_not_told_of(runs):
    run, reference = runs
    logits = run["logits"].copy()
    logits[2, 834] = logits[2, 834] * 2  # the position of step 0
    other = replace(run, arrays={**run.arrays, "lm_head.out": logits})
    assert findings_of(other, reference).sums == ()


def test_each_site_is_fed_the_references_values_where_the_model_is_at_hand(made, runs):
    assert made.comparison.local
    assert "local error" in made.html
    unknown = [replace(run, model="/nowhere") for run in runs]
    found = findings_of(*unknown)
    assert found.comparison.local is None
    assert found.sums == ()
    check(report_of(found, "made").html)


def test_without_a_reference_the_tokens_are_fed_again(runs):
    run, reference = runs
    found = report(run)
    assert found.findings.reference.fed == reference.fed
    assert np.array_equal(found.findings.reference["logits"], reference["logits"])
    assert read(found.html).text.rstrip().endswith("softfloat-llm report RUN")
    own = simulate(PROMPT, recipe="bf16", steps=2, taps=NEEDED_TAPS)  # free running
    assert report(own, against="f16").findings.reference.fed == own.fed


def test_the_step_that_is_explained_can_be_chosen(runs):
    assert "Step 2 explained" in report(*runs, step=2).html
    with pytest.raises(RunError, match="Step 9"):
        report(*runs, step=9)


def test_a_run_of_other_weights_is_refused(runs):
    with pytest.raises(RunError, match="other weights"):
        report(replace(runs[0], model_digest="sha256:other"))


# --- runs that are unlike others --------------------------------------------------------------------------------------


def hostile(run: Run, model: str = "</title><script>alert(1)</script>") -> Run:
    return replace(run, model=model, pieces=dict(enumerate(HOSTILE[:4])), prompt_tokens=(0, 1), fed=(0, 1))


LOGITS = [[1.0, 2.0, 3.0, 0.5], [20.0, 22.375, 22.25, -4.0]]
NAN = [[1.0, 2.0, 3.0, 0.5], [np.nan, 1.0, np.inf, 3.0]]
UNLIKE = {
    "as it is": (LOGITS, [[1.0, 2.0, 3.0, 0.5], [20.0, 22.25, 22.375, -4.0]]),
    "NaN in the run": (LOGITS, NAN),
    "NaN in the reference": (NAN, LOGITS),
    "NaN in both": (NAN, NAN),
    "identical": (LOGITS, LOGITS),
    "tiny": ([[1e-40, 0.0, -1e-40, 0.0]] * 2, [[-0.0, 0.0, 2e-40, 0.0]] * 2),
}


@pytest.mark.parametrize("name", UNLIKE)
@pytest.mark.parametrize("recipe", ["bf16", "f32"])
def test_a_page_can_be_made_of_any_two_runs_with_hostile_names(name, recipe):
    theirs, ours = UNLIKE[name]
    run = hostile(made_run(recipe, logits=ours, generated=(1,)))
    reference = hostile(made_run("f32", logits=theirs, generated=(1,)))
    found = report(run, reference, command="softfloat-llm report '<script>' \x1b[31m")
    check(found.html)
    page = read(found.html)
    assert "alert(1)" in page.text
    assert "\\x1b[31m" in page.text
    assert "\x1b" not in found.html


@pytest.mark.parametrize("text", HOSTILE)
def test_no_token_breaks_a_page(text):
    pieces = {0: text, 1: text + "1", 2: text + "2"}
    run, reference = (replace(made_run(r), pieces=pieces) for r in ("bf16", "f32"))
    html = report(
        replace(run, prompt_tokens=(0, 1), fed=(0, 1)), replace(reference, prompt_tokens=(0, 1), fed=(0, 1))
    ).html
    check(html)
    assert max(len(word) for word in re.split(r"[\s<>]", html)) < 3000


def test_runs_without_steps_have_a_page_without_steps():
    found = report(*[made_run(r, generated=()) for r in ("bf16", "f32")])
    check(found.html)
    assert found.findings.story is None
    assert "Step " not in found.html
    assert "margin-ladder" not in found.pictures


def test_a_run_of_many_layers_and_steps_stays_under_a_megabyte():
    """80 layers with 20 sites each, 1000 steps of which half flip: the tables are cut, and say so."""
    steps = 1000
    rows = np.tile([[20.0, 22.375, 22.25, -4.0]], (steps, 1)) + np.arange(steps)[:, None] % 7
    other = rows.copy()
    other[::2] = other[::2, [0, 2, 1, 3]]
    act = np.linspace(0.1, 1, steps)[:, None]
    more = {f"layers.{layer}.mlp.act{'_mul' * (i % 2)}.out": act for layer in range(80) for i in range(2)}
    sites = ("norm.input", "attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.rope", "kv.k", "kv.v", "attn.pv",
             "attn.o_proj", "attn.residual", "norm.post_attention", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
             "mlp.residual")  # fmt: skip
    more |= {f"layers.{layer}.{site}.out": act for layer in range(80) for site in sites}
    given = {"prompt": (0,), "fed": tuple([0] * steps), "generated": tuple([1] * steps), "act": act, "more": more}
    found = report(made_run("bf16", logits=other, **given), made_run("f32", logits=rows, **given))
    check(found.html)
    assert found.html.count('<td class="x">x flip') == MOST_STEPS
    assert "further row" in found.html


@pytest.mark.smollm2
def test_a_page_of_smollm2_stays_under_a_megabyte():
    run = simulate("The capital of France is", model="smollm2", recipe="bf16", taps=NEEDED_TAPS)
    found = report(run)
    check(found.html)
    assert list(found.pictures) == ["margin-ladder", "number-line", "heat-map", "accumulation-path", "tree"]


# --- files and words --------------------------------------------------------------------------------------------------


def test_a_page_is_written_whole_and_never_over_another_file(made, tmp_path):
    target = tmp_path / "page.html"
    assert made.save(target).read_text() == made.html
    with pytest.raises(ReportError, match="there already"):
        made.save(target)
    made.save(target, replace=True)
    with pytest.raises(ReportError, match="no folder"):
        made.save(tmp_path / "none" / "page.html")
    with pytest.raises(ReportError, match="there already"):
        made.save(tmp_path, replace=True)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_the_verb_writes_what_the_function_makes(capsys, folders, tmp_path):
    console, out = Console(capsys), tmp_path / "page.html"
    told = console("report", folders / "RUN", folders / "REF", "--out", out)
    assert told.code == 0, told.err
    words = f"softfloat-llm report {folders / 'RUN'} {folders / 'REF'} --out {out}"
    assert out.read_text() == report(folders / "RUN", folders / "REF", command=words).html
    assert f"{len(out.read_bytes())} bytes, sha256:" in told.out
    assert len(told.out.splitlines()) < 30
    assert console("report", folders / "RUN", folders / "REF", "--out", out).code == 3
    body = json.loads(console("report", folders / "RUN", folders / "REF", "--json", "--out", out, "--replace").out)
    assert body["saved"] == str(out)
    assert body["bytes"] == len(out.read_bytes())


def test_a_prompt_is_run_first_and_words_that_do_not_fit_are_refused(capsys, folders):
    console = Console(capsys)
    told = console("report", PROMPT, "--acc", "bf16", "--step", "0")
    assert told.code == 0, told.err
    assert read(told.out).text.rstrip().endswith("softfloat-llm report 'The cup is' --acc bf16 --step 0")
    for words in (
        [PROMPT, folders / "REF"], [folders / "RUN", folders / "REF", "--against", "f16"], ["--by", "stages"],
        [folders / "RUN", "--storage", "f16"],
    ):  # fmt: skip
        assert console("report", *words).code == 2


def test_without_jinja2_the_extra_is_named(monkeypatch, runs):
    page_module._environment.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    with pytest.raises(ReportError, match=r"\.\[report\]"):
        report(*runs)
    page_module._environment.cache_clear()


# --- in a browser -----------------------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.parametrize(("width", "is_dark"), [(400, True), (1200, False)])
def test_in_a_browser_nothing_sticks_out_and_no_words_meet(made, tmp_path, width, is_dark):
    seen = measured(made.html, tmp_path, width, is_dark=is_dark)
    assert seen["width"] == seen["scrollWidth"] == width
    assert seen["wide"] == []
    assert len(seen["pictures"]) == 5
    for picture in seen["pictures"]:
        assert overlaps(picture) == [], picture["name"]
        assert outside(picture) == [], picture["name"]
    assert seen["smallest"] >= 9
    assert seen["paper"] == ("rgb(20, 23, 28)" if is_dark else "rgb(255, 255, 255)")


@pytest.mark.browser
def test_in_a_browser_long_and_foreign_names_do_not_stick_out_either(tmp_path):
    pieces = {0: "a" * 10_000, 1: "\u05e9\u05dc\u05d5\u05dd", 2: "\u4f60\u597d" * 40}
    run, reference = (replace(made_run(r), pieces=pieces, model="m" * 500) for r in ("bf16", "f32"))
    shown = [replace(one, prompt_tokens=(0, 1), fed=(0, 1)) for one in (run, reference)]
    seen = measured(report(*shown, command="softfloat-llm " + "x" * 4000).html, tmp_path, 400)
    assert seen["scrollWidth"] == 400
    assert seen["wide"] == []
    assert all(overlaps(picture) == [] for picture in seen["pictures"])


@pytest.mark.browser
def test_the_measure_sees_what_sticks_out_and_what_overlaps(tmp_path):
    page = (
        "<!doctype html><body><p style='width:900px'>wide</p><svg width='200' height='50' viewBox='0 0 200 50'>"
        "<text x='0' y='20'>one</text><text x='4' y='20'>two</text><text x='190' y='20'>three</text></svg></body>"
    )
    seen = measured(page, tmp_path, 400)
    assert seen["scrollWidth"] > 400
    assert [name for name, *_ in seen["wide"]] == ["P"]
    assert overlaps(seen["pictures"][0]) == [("one", "two")]
    assert outside(seen["pictures"][0]) == ["three"]


def test_figures_that_have_nothing_to_draw_are_left_out(runs):
    found = findings_of(*runs)
    assert list(figures_of(replace(found, sums=()))) == ["margin-ladder", "number-line", "heat-map"]
