"""`softfloat-llm lesson`: short lessons, a question to predict first."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from softfloat_llm import lessons
from softfloat_llm.analysis.wording import labelled, markdown_table
from softfloat_llm.cli.screen import show, show_json
from softfloat_llm.lessons.lesson import Lesson, Predict
from softfloat_llm.lessons.notebook import write_notebook
from softfloat_llm.lessons.predictions import judged
from softfloat_llm.lessons.telling import asked, heading, summary, told

ASK = "your prediction (Enter shows the answer): "


def lesson(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="ties, order, margins ... ; none lists all.")
    ] = None,
    *,
    answer: Annotated[bool, typer.Option("--answer", help="All at once, without waiting for a prediction.")] = False,
    notebook: Annotated[
        Path | None, typer.Option("--notebook", metavar="FILE.ipynb", help="Write it as a notebook instead.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a notebook that is there already.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, sorted keys.")] = False,
) -> int:
    """softfloat-llm lesson ties

    A short lesson about floating point in language models: something to predict, what really comes out, and why. In a
    terminal it waits for your prediction. Without a name all lessons are listed.
    """
    if name is None:
        if notebook is not None:
            raise typer.BadParameter("--notebook needs the name of a lesson.")
        return _list_all(as_json=as_json)
    chosen = lessons.lesson(name)
    if notebook is not None:
        write_notebook(chosen, notebook, replace=replace)
    if as_json:
        show_json("lesson", told(chosen, _in_process).to_dict())
    elif notebook is not None:
        show(labelled("answer", f"The lesson {name} is written as {notebook.name}.") + "\n")
        show(labelled("next", "pip install '.[notebook,report]', and open it in Jupyter"))
    elif not answer and sys.stdin.isatty() and sys.stdout.isatty():
        _show_with_a_pause(chosen)
    else:
        show(str(told(chosen, _in_process)))
    return 0


def _list_all(*, as_json: bool) -> int:
    every = lessons.lessons()
    if as_json:
        show_json("lesson", {"lessons": [summary(one) for one in every]})
        return 0
    show(markdown_table(("lesson", "what it is about"), [(one.name, one.title) for one in every]) + "\n")
    show(labelled("next", f"softfloat-llm lesson {every[0].name}"))
    return 0


def _show_with_a_pause(chosen: Lesson) -> None:
    """The question, a person's prediction, whether it was right, and the rest."""
    show(f"{heading(chosen)}\n\n{asked(chosen.question)}\n")
    try:
        prediction = input(ASK)
    except EOFError:
        prediction = ""
    whole = told(chosen, _in_process)
    show(f"\n{judged(prediction, whole.answer)}\n")
    show("\n\n".join(part.text for part in whole.parts if not isinstance(part.step, Predict)))


def _in_process(words: list[str]) -> str:
    """What the program prints, without a process of its own."""
    from softfloat_llm.cli.main import run

    with redirect_stdout(io.StringIO()) as out:
        code = run(words)
    if code not in (0, 1):  # 1: a claim does not hold, which may be what a lesson shows
        raise RuntimeError(f"softfloat-llm {' '.join(words)}: exit code {code}")
    return out.getvalue()
