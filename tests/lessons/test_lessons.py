"""Every lesson runs, says the right thing, fits a page, and is a notebook that runs too.

What the answers are is worked out here a second time, with fractions and Python's `round`, without the package.
"""

from __future__ import annotations

import io
import os
import pty
import re
import sys
from contextlib import redirect_stdout
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from safetensors import safe_open

from softfloat_llm import tiny
from softfloat_llm.errors import ReportError, WordError
from softfloat_llm.lessons import NAMES, lesson
from softfloat_llm.lessons.lesson import Answer, Command, Next, Picture, Predict, Python
from softfloat_llm.lessons.notebook import notebook_of, notebook_text, write_notebook
from softfloat_llm.lessons.predictions import filled, is_right, judged, plain
from softfloat_llm.lessons.telling import MOST, Told, folded, run_program, told, words_of
from softfloat_llm.recipe import Recipe
from softfloat_llm.runs import simulate
from tests.console import Console, command, output

# --- the answers, by fractions ----------------------------------------------------------------------------------------


def nearest(x: Fraction | int, p: int, *, emin: int = -126, largest: int | None = None) -> Fraction | float:
    """x to p bits, ties to even: Python's round does that for fractions."""
    x, exponent = Fraction(x), 0
    while abs(x) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while x and abs(x) < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, emin) - p + 1)
    rounded = round(x / quantum) * quantum
    return rounded if largest is None or abs(rounded) <= largest else float("inf")


def running(terms: list[Any], p: int) -> Any:
    """Terms added from left to right, each sum rounded to p bits."""
    total: Any = Fraction(0)
    for term in terms:
        total = nearest(total + term, p)
    return total


def in_lanes(terms: list[Any], width: int, p: int) -> Any:
    """Strided running sums, folded at half their number."""
    lanes = [running(terms[lane::width], p) for lane in range(width)]
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [nearest(a + b, p) for a, b in zip(lanes[:half], lanes[half:], strict=True)]
    return lanes[0]


BF16, F16, F32 = 8, 11, 24
BIG = [2**24, *[1] * 7]
X = 1 + Fraction(1, 2**8) + Fraction(1, 2**12)
FOUR_BITS = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]


def of_four_bits(x: Fraction) -> Fraction:
    """The element nearest to x; no tie occurs here."""
    return min(FOUR_BITS, key=lambda value: abs(value - x))


SCALE = Fraction(2) ** ((100).bit_length() - 1 - 2)  # the power of two that brings 100 into [4, 8)
INFINITE_SQUARE = nearest(300 * 300, F16, largest=65504)
ANSWERS = {
    "value": nearest(Fraction("22.277479"), BF16),
    "ulp": Fraction(2) ** ((1000).bit_length() - BF16),
    "ties": (nearest(257, BF16), nearest(259, BF16)),
    "stages": (running([256, 1, 1, 1], BF16), nearest(running([256, 1, 1, 1], F32), BF16)),
    "accumulator": running([1] * 4096, F16),
    "order": (running(BIG, F32), in_lanes(BIG, 2, F32)),
    "batch": "no" if running([*BIG, 1], F32) != in_lanes([*BIG, 1, *[0] * 7], 8, F32) else "yes",
    "margins": min(
        (253, Fraction("22.27")), (260, Fraction("22.30")), key=lambda one: (-nearest(one[1], BF16), one[0])
    )[0],
    "islands": 300 / float(INFINITE_SQUARE) ** 0.5,
    "range": (min(Fraction(600), Fraction(448)), nearest(Fraction("0.0004"), 4, emin=-6)),
    "double-rounding": (nearest(X, BF16), nearest(nearest(X, F16), BF16)),
    "stochastic": (Fraction("256.5") - 256) / 2,
    "blocks": (of_four_bits(100 / SCALE) * SCALE, of_four_bits(1 / SCALE) * SCALE),
}


def midpoints_of_f16() -> int:
    """How many of 1 + n/2^14 change when f16 lies between them and bf16."""
    grid = [1 + Fraction(n, 2**14) for n in range(2**14)]
    return sum(nearest(nearest(x, F16), BF16) != nearest(x, BF16) for x in grid)


NUMBERS: dict[str, list[Any]] = {
    "ties": [sum(nearest(n, BF16) - n for n in range(257, 512, 2)), sum(1 for _ in range(257, 512, 2))],
    "stages": [256 + 3],
    "accumulator": [in_lanes([1] * 4096, 8, F16), 4096],
    "order": [in_lanes(BIG, 4, F32), running(BIG[::-1], F32)],
    "islands": [running([1] * 512, BF16), Fraction(1, 256), 512 * Fraction(1, 256)],
    "double-rounding": [nearest(X, F16), midpoints_of_f16(), 0],
    "blocks": [SCALE, of_four_bits(Fraction(4)) / 4],
}
"""Further numbers that the text of an answer says."""


@cache
def story(name: str) -> Told:
    return told(lesson(name), lambda words: output(*words))


def answer_text(name: str) -> str:
    return next(part.text for part in story(name).parts if isinstance(part.step, Answer))


# --- each lesson ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_of_a_lesson_is_what_fractions_say(name: str) -> None:
    assert story(name).answer == ANSWERS[name]
    said = answer_text(name)
    values = ANSWERS[name] if isinstance(ANSWERS[name], tuple) else (ANSWERS[name],)
    for value in (*values, *NUMBERS.get(name, [])):
        assert re.search(rf"(?<![\d.]){re.escape(plain(value))}(?![\d]|\.\d)", said, re.I), (plain(value), said)


def test_the_engine_of_the_lesson_batch_sums_as_it_is_said_to() -> None:
    name = "layers.0.attn.q_proj"
    recipe = Recipe("f32", at={"linear.order if M == 1": "lanes:8"})
    stepwise = simulate("The cup is", recipe=recipe, steps=2, taps=(f"{name}.*",))
    at_once = simulate(tokens=stepwise.tokens[:-1], recipe=recipe, taps=(f"{name}.*",))
    row = [Fraction(float(x)) for x in stepwise[f"{name}.in"][-1]]  # the decoded position
    assert row == [Fraction(float(x)) for x in at_once[f"{name}.in"][-1]]
    with safe_open(tiny.FOLDER / "model.safetensors", framework="numpy") as file:
        weights = file.get_tensor("model.layers.0.self_attn.q_proj.weight")[:16]
    products = [[nearest(x * Fraction(float(w)), F32) for x, w in zip(row, ws, strict=True)] for ws in weights]
    assert [in_lanes(terms, 8, F32) for terms in products] == stepwise[f"{name}.out"][-1, :16].tolist()
    assert [running(terms, F32) for terms in products] == at_once[f"{name}.out"][-1, :16].tolist()
    assert (stepwise[f"{name}.out"][-1] != at_once[f"{name}.out"][-1]).any()


@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_asks_first_answers_later_and_ends_with_where_to_go_on(name: str) -> None:
    one = lesson(name)
    assert one.name == name
    assert isinstance(one.steps[0], Predict)
    assert isinstance(one.steps[-1], Next)
    assert isinstance(one.steps[-2], Answer)
    for kind in (Python, Command, Picture):
        assert one.of(kind), kind
    for kind in (Predict, Answer, Next):
        assert len(one.of(kind)) == 1
    (leads_to,) = re.findall(r"lesson `([a-z-]+)`", one.steps[-1].read)
    assert leads_to == NAMES[(NAMES.index(name) + 1) % len(NAMES)]


@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_fits_a_page_and_tells_the_same_twice(name: str) -> None:
    text = str(story(name))
    assert max(map(len, text.split("\n"))) <= MOST
    assert "Traceback" not in text
    assert not re.search(r" at 0x[0-9a-f]{6,}", text)  # the address of an object
    assert str(told(lesson(name), lambda words: output(*words))) == text


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_that_a_lesson_recommends_run(console: Console, name: str) -> None:
    for line in lesson(name).steps[-1].run:
        assert console(*words_of(line)).code in (0, 1), line


def test_the_pictures_of_a_lesson_are_svg_in_a_page_and_text_in_a_terminal() -> None:
    for name in NAMES:
        page, pictures = story(name)._repr_html_(), [p.picture for p in story(name).parts if p.picture is not None]
        assert page.count("<svg ") == len(pictures)
        assert all(repr(picture).split("\n")[0] in str(story(name)) for picture in pictures)


def test_a_lesson_that_is_not_there_is_refused_with_the_nearest() -> None:
    with pytest.raises(WordError, match=r"Unknown lesson 'tie'. Did you mean 'ties'\?"):
        lesson("tie")


# --- predictions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_right_prediction_is_right_and_another_is_not(name: str) -> None:
    answer = ANSWERS[name]
    assert is_right(plain(answer), answer)
    assert not is_right("17", answer)
    assert not is_right("", answer)
    assert not is_right("I do not know", answer)


@pytest.mark.parametrize(
    ("prediction", "answer", "said"),
    [
        ("256, 260", (256.0, 260.0), "Right: 256, 260."),
        ("256 260", (256.0, 260.0), "Right: 256 260."),
        ("(256; 260)", (256.0, 260.0), "Right: (256; 260)."),
        ("260, 256", (256.0, 260.0), "You predicted 260, 256. It is 256, 260."),
        ("256", (256.0, 260.0), "You predicted 256. It is 256, 260."),
        ("2^11", 2048.0, "Right: 2^11."),
        ("25 %", Fraction(1, 4), "You predicted 25 %. It is 0.25."),
        ("inf", float("inf"), "Right: inf."),
        ("nan", float("inf"), "You predicted nan. It is inf."),
        (" No. ", "no", "Right: No."),
        ("", (256.0, 260.0), "The answer is: 256, 260."),
    ],
)
def test_a_prediction_is_judged_exactly(prediction: str, answer: Any, said: str) -> None:
    assert judged(prediction, answer) == said


def test_the_fields_of_an_answer_are_filled_exactly() -> None:
    assert filled("{a} and {b}", {"a": 2.0**24 + 4, "b": Fraction(1, 3), "c": 0}) == "16777220 and 1/3"


def test_a_long_line_of_an_output_is_folded_and_nothing_is_lost() -> None:
    sentence = "answer   " + "a word or two " * 12
    assert folded(sentence).split() == sentence.split()
    assert all(len(line) <= MOST for line in folded(sentence).split("\n"))
    assert re.match(r" {9}\S", folded(sentence).split("\n")[1])
    assert folded("short") == "short"


# --- notebooks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_of_a_lesson_is_valid_and_its_cells_give_the_answer(name: str) -> None:
    book = nbformat.from_dict(notebook_of(lesson(name)))
    nbformat.validate(book)
    ids = [cell.id for cell in book.cells]
    assert len(set(ids)) == len(ids)
    assert notebook_text(lesson(name)) == notebook_text(lesson(name))
    names: dict[str, Any] = {"__name__": "__main__"}
    with redirect_stdout(io.StringIO()) as out:
        for cell in book.cells:
            if cell.cell_type == "code" and not cell.source.startswith("!"):
                exec(cell.source, names)
    assert " ".join(answer_text(name).split()[1:]) in " ".join(out.getvalue().split())
    assert judged("", ANSWERS[name]) in out.getvalue()


def test_a_notebook_runs_in_a_kernel_with_its_commands_and_pictures(tmp_path: Path) -> None:
    path = tmp_path / "margins.ipynb"
    write_notebook(lesson("margins"), path)
    book = nbformat.read(path, as_version=4)
    prediction = next(cell for cell in book.cells if cell.source.startswith("prediction ="))
    prediction.source = 'prediction = "253"'
    nbclient.NotebookClient(book, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [one for cell in book.cells for one in cell.get("outputs", [])]
    printed = "".join(one.get("text", "") for one in outputs)
    assert "Right: 253." in printed
    assert "share the logit" in printed or "the bf16 logits tie" in printed
    assert " ".join(answer_text("margins").split()[1:]) in " ".join(printed.split())
    shown = [one.data for one in outputs if one.output_type in ("display_data", "execute_result")]
    (picture,) = [data for data in shown if "image/svg+xml" in data]
    assert picture["image/svg+xml"].startswith("<svg ")
    assert "o: margin, X: margin of a flip" in picture["text/plain"]


def test_a_notebook_that_is_there_is_replaced_only_where_asked(tmp_path: Path) -> None:
    path = tmp_path / "ties.ipynb"
    path.write_text("mine")
    with pytest.raises(ReportError, match=r"ties\.ipynb is there already"):
        write_notebook(lesson("ties"), path)
    assert path.read_text() == "mine"
    write_notebook(lesson("ties"), path, replace=True)
    assert path.read_text() == notebook_text(lesson("ties"))


# --- the verb ---------------------------------------------------------------------------------------------------------


def test_without_a_name_all_lessons_are_listed(console: Console) -> None:
    listed = console("lesson").out
    assert [line.split("|")[1].strip() for line in listed.split("\n") if line.startswith("| ")][1:] == list(NAMES)


def test_where_no_terminal_watches_a_lesson_is_told_at_once(console: Console) -> None:
    assert console("lesson", "ties").out == f"{story('ties')}\n"
    assert console("lesson", "ties", "--answer").out == f"{story('ties')}\n"


def test_a_notebook_is_written_by_the_verb_and_not_over_another(console: Console, tmp_path: Path) -> None:
    words = ["lesson", "ulp", "--notebook", tmp_path / "ulp.ipynb"]
    assert console(*words).code == 0
    assert (tmp_path / "ulp.ipynb").read_text() == notebook_text(lesson("ulp"))
    refused = console(*words)
    assert (refused.code, refused.out) == (3, "")
    assert "--replace" in refused.err
    assert console(*words, "--replace").code == 0
    assert console("lesson", "--notebook", tmp_path / "all.ipynb").code == 2


def test_commands_run_in_a_process_of_their_own_too() -> None:
    assert run_program(["formats", "bf16"]) == output("formats", "bf16")
    with pytest.raises(RuntimeError, match="exit code 2"):
        run_program(["formats", "bf61"])


def test_in_a_terminal_it_waits_for_a_prediction_and_says_whether_it_was_right() -> None:
    shown = in_a_terminal(command("lesson", "ties"), "256 and 260\n")
    question, rest = shown.split("your prediction", maxsplit=1)
    assert "What do 257 and 259 round to?" in " ".join(question.split())
    assert "answer   257" not in question
    assert "Right: 256 and 260." in rest
    assert rest.index("Right") < rest.index("answer   257 goes down to 256")
    assert "You predicted 17. It is 256, 260." in in_a_terminal(command("lesson", "ties"), "17\n")


def in_a_terminal(words: list[str], typed: str) -> str:
    """What a program shows in a terminal of its own, where this is typed."""
    process, terminal = pty.fork()
    if process == 0:
        os.environ["NO_COLOR"] = "1"
        os.execv(sys.executable, words)
    os.write(terminal, typed.encode())
    shown = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux says so where the other side is gone
            break
        if not piece:
            break
        shown += piece
    os.waitpid(process, 0)
    return shown.decode().replace("\r\n", "\n")
