"""HTML of answers: what comes from outside is text in it, and text and HTML say the same."""

from __future__ import annotations

import re
from html import unescape

import numpy as np
import pytest

from softfloat_llm.analysis.answers import Answer, Table
from softfloat_llm.analysis.budget import budget
from softfloat_llm.analysis.compare import compare
from softfloat_llm.analysis.explain_round import explain_round
from softfloat_llm.analysis.explain_step import explain_step
from softfloat_llm.analysis.explain_sum import explain_dot
from softfloat_llm.analysis.golden_report import GoldenReport
from softfloat_llm.analysis.margins import margins
from softfloat_llm.analysis.markup import escaped, html_labels, html_table, html_text
from softfloat_llm.analysis.ranges import ranges
from softfloat_llm.analysis.reveal import reveal
from softfloat_llm.analysis.reveal_text import revealed_text
from softfloat_llm.analysis.ties import ties
from softfloat_llm.analysis.wording import SHOWN_PIECE, token_words
from softfloat_llm.numerics.reduce import dot
from softfloat_llm.runs import simulate
from tests.analysis.made import made_run
from tests.pages import HOSTILE, read


@pytest.mark.parametrize("text", HOSTILE)
def test_what_comes_from_outside_is_text_and_not_markup(text):
    page = read(escaped(text))
    assert page.tags <= {"bdi"}
    assert page.text == text.replace("\n", "\ue000").translate(SPELLED).replace("\ue000", "\n")


SPELLED = {
    place: chr(place).encode("unicode_escape").decode()
    for place in (*range(0x20), 0x202E, 0x2028, 0xD800)
}  # fmt: skip


def test_all_code_points_but_the_printable_ones_are_spelled_out_in_ascii():
    for start in range(0, 0x30000, 0x1000):
        shown = unescape(re.sub("</?bdi>", "", escaped("".join(map(chr, range(start, start + 0x1000))))))
        assert all(c.isprintable() or c == "\n" for c in shown)


def test_text_from_right_to_left_cannot_move_what_stands_around_it():
    assert escaped("'אב' -> 'גד'") == "&#x27;<bdi>אב</bdi>&#x27; -&gt; &#x27;<bdi>גד</bdi>&#x27;"
    assert escaped("אב גד 5") == "<bdi>אב גד</bdi> 5"


@pytest.mark.parametrize("text", HOSTILE)
def test_tables_and_labels_hold_hostile_cells(text):
    for html in (html_table([text, "b"], [[text, text]]), html_labels([(text, text)]), html_text(text)):
        assert read(html).tags <= {"table", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "br", "pre", "bdi"}


def test_a_long_token_is_cut_and_a_short_one_is_whole():
    assert token_words(" the", 1) == "' the'"
    assert token_words("a" * SHOWN_PIECE, 1) == repr("a" * SHOWN_PIECE)
    assert token_words("a" * 1000, 1) == f"{'a' * SHOWN_PIECE!r}..."


def test_columns_on_the_right_have_their_class_and_headers_their_scope():
    html = Table(("a", "b"), (("1", "2"),), right=(1,), note="more").as_html()
    assert '<th scope="col">a</th><th scope="col" class="n">b</th>' in html
    assert '<td>1</td><td class="n">2</td>' in html
    assert html.endswith("<p>more</p>")


def hostile_run(recipe, **given):
    run = made_run(recipe, **given)
    object.__setattr__(run, "pieces", dict(enumerate(HOSTILE[:4])))
    object.__setattr__(run, "model", HOSTILE[0])
    return run


def run_and_reference():
    return hostile_run("bf16"), hostile_run("f32")


def run_with_nan():
    return hostile_run("bf16", logits=[[1.0, 2.0, 3.0, 0.5], [np.nan, 1.0, 2.0, 3.0]], generated=(0,))


TEXTS = {"reveal": lambda found: revealed_text(found, "revealed")}
RESULTS = {
    "compare": lambda: compare(*run_and_reference()),
    "compare, NaN": lambda: compare(run_with_nan(), hostile_run("f32")),
    "margins": lambda: margins(hostile_run("bf16")),
    "margins, NaN": lambda: margins(run_with_nan()),
    "ties": lambda: ties(hostile_run("bf16")),
    "ranges, NaN": lambda: ranges(run_with_nan()),
    "step": lambda: explain_step(hostile_run("bf16"), 0, against=hostile_run("f32"), missing=""),
    "step, NaN": lambda: explain_step(run_with_nan(), 0, against=hostile_run("f32"), missing=""),
    "round": lambda: explain_round("257", "bf16"),
    "dot": lambda: explain_dot([256, 1, 1], [1, 1, 1], "storage=bf16,acc=bf16"),
    "reveal": lambda: reveal(lambda a, b: dot(a, b, "storage=bf16,order=lanes:2"), 6, storage="bf16"),
    "golden": lambda: GoldenReport("<made>", "&", 3, (), ("<problem>",)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_the_html_of_a_result_is_well_formed_and_has_every_number_of_its_text(name):
    found = RESULTS[name]()
    page = read(found._repr_html_())
    assert not page.tags & {"script", "b"}
    said = found.sentences() if isinstance(found, Answer) else TEXTS.get(name, str)(found).splitlines()
    tables = found.tables(verbose=True) if isinstance(found, Answer) else []
    cells = [cell for table in tables for row in table.rows for cell in row]
    for word in re.findall(r"[~0-9][0-9.e+-]+", " ".join([*said, *cells])):
        assert word in page.text


def test_a_budget_says_its_shares_in_html_too():
    run = simulate("The cup is", recipe="bf16", taps=())
    found = budget(run)
    page = read(found._repr_html_())
    for share in found.shares:
        assert share.move.name in page.text
    assert str(found.recipe.at("lm_head").precision.acc) in page.text
