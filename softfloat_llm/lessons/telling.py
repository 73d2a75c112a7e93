"""Runs a lesson and gives it as text: nothing that is shown as an output was written down before.

Start reading at `told`.
"""

from __future__ import annotations

import ast
import io
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from html import escape
from typing import Any

from softfloat_llm.lessons import drawn
from softfloat_llm.lessons.drawn import Drawn
from softfloat_llm.lessons.lesson import Answer, Command, Lesson, Next, Picture, Predict, Python, Step, Text, paragraphs
from softfloat_llm.lessons.predictions import filled, plain

WIDTH, MOST = 88, 100  # columns of a paragraph, and of a line at most
_COLOURS = re.compile("\x1b\\[[0-9;]*m")  # FORCE_COLOR asks the program for them
_PROGRAMS = {"softfloat-llm": (), "simulate": ("simulate",)}
PICTURES = ("number_line", "margin_ladder", "accumulation_path", "heat_map", "summation_tree")

Runner = Callable[[list[str]], str]
"""Runs the program with these words and gives what it printed."""


@dataclass(frozen=True)
class Part:
    """A step with what came of it: the text of it, and the picture where it is one."""

    step: Step
    text: str
    picture: Drawn | None = None

    @property
    def kind(self) -> str:
        return type(self.step).__name__.lower()


@dataclass(frozen=True)
class Told:
    """A lesson that was run. `answer` is what the prediction is held against."""

    lesson: Lesson
    parts: tuple[Part, ...]
    answer: Any

    def __str__(self) -> str:
        return "\n\n".join([heading(self.lesson), *(part.text for part in self.parts)])

    def _repr_html_(self) -> str:
        return f"<h2>{escape(self.lesson.title)}</h2>" + "".join(map(_html, self.parts))

    def to_dict(self) -> dict[str, Any]:
        """The lesson as JSON has it."""
        return {
            **summary(self.lesson),
            "answer": plain(self.answer),
            "steps": [{"kind": part.kind, "text": part.text} for part in self.parts],
        }


def summary(lesson: Lesson) -> dict[str, Any]:
    """Name, title and question, as JSON has them."""
    return {"name": lesson.name, "title": lesson.title, "question": " ".join(paragraphs(lesson.question.question))}


def told(lesson: Lesson, run: Runner | None = None) -> Told:
    """The lesson with all its outputs; commands are run by `run`, in a process of their own unless it is given."""
    names: dict[str, Any] = {name: getattr(drawn, name) for name in PICTURES}
    parts = [_part(step, names, run or run_program) for step in lesson.steps]
    return Told(lesson, tuple(parts), eval(lesson.question.answer, names))


def heading(lesson: Lesson) -> str:
    """The title, underlined."""
    title = f"{lesson.name}: {lesson.title}"
    return f"{title}\n{'=' * len(title)}"


def asked(question: Predict) -> str:
    """The question, as it stands at the top of a lesson."""
    return wrapped(question.question, "predict  ")


def run_program(words: list[str]) -> str:
    """What the program prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "softfloat_llm", *words], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in (0, 1):  # 1: a claim does not hold, which may be what a lesson shows
        raise RuntimeError(f"softfloat-llm {shlex.join(words)}: exit code {done.returncode}")
    return done.stdout


def words_of(line: str) -> list[str]:
    """The words behind the program's name, as a shell takes them.

    >>> words_of("simulate 'The cup is' -q")
    ['simulate', 'The cup is', '-q']
    """
    program, *words = shlex.split(line)
    return [*_PROGRAMS[program], *words]


def wrapped(words: str, label: str = "") -> str:
    """Paragraphs, wrapped; a label before the first, and room for it before the others."""
    indent = " " * len(label)
    lines = []
    for number, paragraph in enumerate(paragraphs(words)):
        first = indent if number else label
        lines.append(textwrap.fill(paragraph, WIDTH, initial_indent=first, subsequent_indent=indent))
    return "\n\n".join(lines)


# --- steps ------------------------------------------------------------------------------------------------------------


def _part(step: Step, names: dict[str, Any], run: Runner) -> Part:
    match step:
        case Predict():
            return Part(step, asked(step))
        case Text(words):
            return Part(step, wrapped(words))
        case Python(code):
            return Part(step, session(code, names))
        case Command(line):
            printed = _COLOURS.sub("", run(words_of(line))).rstrip("\n")
            return Part(step, "\n".join([f"$ {line}", *(folded(row) for row in printed.split("\n"))]))
        case Picture(call):
            picture: Drawn = eval(call, names)
            return Part(step, "\n".join(folded(row) for row in picture.text.split("\n")), picture)
        case Answer(words):
            return Part(step, wrapped(filled(words, names), "answer   "))
        case Next():
            return Part(step, _next(step))


def _next(step: Next) -> str:
    return "\n".join([wrapped(step.read, "next     "), *(f"         {line}" for line in step.run)])


def session(code: str, names: dict[str, Any]) -> str:
    r"""A session of Python: each statement with what it prints, each expression with its value.

    >>> session("x = 2\nx + 1", {})
    '>>> x = 2\n>>> x + 1\n3'
    """
    code = textwrap.dedent(code).strip()
    lines = []
    for node in ast.parse(code).body:
        source = code.split("\n")[node.lineno - 1 : node.end_lineno]
        lines += [f"{'... ' if row else '>>> '}{line}" for row, line in enumerate(source)]
        lines += [folded(row) for row in _printed(node, names).split("\n")]
    return "\n".join(line for line in lines if line)


def _printed(node: ast.stmt, names: dict[str, Any]) -> str:
    with redirect_stdout(io.StringIO()) as out:
        if isinstance(node, ast.Expr):
            value = eval(compile(ast.Expression(node.value), "lesson", "eval"), names)
            if value is not None:
                print(repr(value))
        else:
            exec(compile(ast.Module([node], []), "lesson", "exec"), names)
    return out.getvalue().rstrip("\n")


def folded(line: str) -> str:
    """A line of a program's output that is too long for a page, folded at spaces; tables are narrow enough."""
    if len(line) <= MOST:
        return line
    head, gap, tail = line.rpartition("  ")
    if gap and len(tail) < MOST // 2 and len(head) > MOST // 2:
        return f"{head.rstrip()}\n{tail:>{MOST}}"  # a row of a picture with words at its end
    label = re.match(r"[a-z]+ {2,}|\s*", line)
    indent = " " * (len(label[0]) if label and label[0] else 2)
    return textwrap.fill(line, MOST, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _html(part: Part) -> str:
    if isinstance(part.step, (Predict, Text, Answer, Next)):
        return f"<pre style='white-space:pre-wrap'>{escape(part.text)}</pre>"
    svg = part.picture._repr_svg_() if part.picture is not None else None
    return svg or f"<pre>{escape(part.text)}</pre>"
