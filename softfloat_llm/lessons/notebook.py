"""A lesson as a notebook (nbformat 4.5), without outputs: whoever predicts first runs it to see what comes.

Running it needs a Jupyter kernel (the extra `notebook`); writing it needs nothing. Start reading at `notebook_of`.
"""

from __future__ import annotations

import ast
import json
import shlex
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

from softfloat_llm.errors import ReportError
from softfloat_llm.io.atomic import new_file
from softfloat_llm.lessons.lesson import Answer, Command, Lesson, Next, Picture, Predict, Python, Step, Text, paragraphs
from softfloat_llm.lessons.telling import PICTURES, WIDTH, words_of

Cell = dict[str, Any]

_FIRST = """import sys

from softfloat_llm.lessons.drawn import {pictures}
from softfloat_llm.lessons.predictions import filled, judged"""


def write_notebook(lesson: Lesson, path: str | Path, *, replace: bool = False) -> None:
    """Write the notebook of a lesson. **Raises** ReportError where there is a file already and not `replace`."""
    path = Path(path)
    if path.exists() and not replace:
        raise ReportError(f"Writing the lesson {lesson.name!r}: {path} is there already. Say --replace to replace it.")
    with new_file(path) as file:
        file.write(notebook_text(lesson).encode())


def notebook_text(lesson: Lesson) -> str:
    """The notebook as the file has it: the same bytes each time."""
    return json.dumps(notebook_of(lesson), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def notebook_of(lesson: Lesson) -> dict[str, Any]:
    """The notebook of a lesson: its cells, with ids made of its name."""
    cells = [_words(f"# {lesson.title}"), *(cell for step in lesson.steps for cell in _cells(step, lesson))]
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "cells": [{"id": f"{lesson.name}-{number}", **cell} for number, cell in enumerate(cells)],
    }


def _cells(step: Step, lesson: Lesson) -> list[Cell]:
    match step:
        case Predict(question):
            told = "\n\n".join(paragraphs(question))
            return [
                _words(f"**Predict first.** {told}"),
                _code('prediction = ""  # write yours between the quotes, then run the cells below'),
                _code(_FIRST.format(pictures=", ".join(_pictures(lesson)))),
            ]
        case Text(words):
            return [_words("\n\n".join(paragraphs(words)))]
        case Python(code):
            return [_code(piece) for piece in _pieces(code)]
        case Command(line):
            return [_words(f"```sh\n{line}\n```"), _code(f"!{{sys.executable}} -m softfloat_llm {_shell(line)}")]
        case Picture(call):
            return [_code(textwrap.dedent(call).strip())]
        case Answer(words):
            return [_code(_answer(words, lesson.question.answer))]
        case Next(read, run):
            commands = "".join(f"\n\n    {line}" for line in run)
            return [_words(f"**Next.** {' '.join(paragraphs(read))}{commands}")]


def _pictures(lesson: Lesson) -> list[str]:
    called = "\n".join(picture.call for picture in lesson.of(Picture))
    return [name for name in PICTURES if f"{name}(" in called]


def _shell(line: str) -> str:
    return shlex.join(words_of(line))


def _pieces(code: str) -> list[str]:
    """The code, cut after each expression, so that a notebook shows the value of every one."""
    lines = textwrap.dedent(code).strip().split("\n")
    ends = [node.end_lineno or 0 for node in ast.parse("\n".join(lines)).body if isinstance(node, ast.Expr)]
    bounds = [0, *ends] if ends and ends[-1] == len(lines) else [0, *ends, len(lines)]
    return ["\n".join(lines[first:last]) for first, last in pairwise(bounds)]


def _answer(words: str, answer: str) -> str:
    told = "\n\n".join(textwrap.fill(paragraph, WIDTH) for paragraph in paragraphs(words))
    return f'print(judged(prediction, {answer}))\nprint(filled("""\n{told}\n""", globals()).strip())'


def _words(source: str) -> Cell:
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def _code(source: str) -> Cell:
    return {"cell_type": "code", "metadata": {}, "source": source, "execution_count": None, "outputs": []}
