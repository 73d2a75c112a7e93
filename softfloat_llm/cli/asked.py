"""What a verb is asked about: a run that was saved, or the words that make one.

`RUN|PROMPT`: a folder that `simulate --save` wrote is a run; anything else is a prompt, as for `simulate`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softfloat_llm.analysis.names import named
from softfloat_llm.cli.options import PassFlags, PrecisionFlags
from softfloat_llm.errors import RunError
from softfloat_llm.io.progress import Progress
from softfloat_llm.runs import Run, simulate

RunOrPrompt = Annotated[
    str | None,
    typer.Argument(metavar="RUN|PROMPT", help="A run that `simulate --save` wrote; or a prompt, as for simulate."),
]


def saved_run(what: str | None) -> Run | None:
    """The saved run that a word names; None where it is a prompt. Raises RunError for a path that holds no run."""
    if what is None or what.startswith("@") or not what:
        return None
    try:
        is_run = (Path(what) / "run.json").is_file()
        is_path = Path(what).is_dir() or (not any(c.isspace() for c in what) and "/" in what)
    except (OSError, ValueError):  # too long for a path, or no path at all: a prompt
        return None
    if not is_run and is_path:
        raise RunError(f"{what} holds no saved run. Give a folder that `simulate --save` wrote, or a prompt.")
    return named(Run.load(what)) if is_run else None


def refuse_words(precision: PrecisionFlags, passes: PassFlags) -> None:
    """Raises typer.BadParameter where flags would say again what a saved run has said."""
    given = [*precision.words(), *passes.words(), *([] if passes.steps == PassFlags.steps else ["--steps"])]
    if given:
        raise typer.BadParameter(f"{given[0]} cannot stand with a saved run, which has its model, recipe and tokens.")


def run_of(
    what: str | None,
    precision: PrecisionFlags,
    passes: PassFlags,
    progress: Progress | None,
    *,
    default: str,
) -> Run:
    """The saved run, or the run that the words make: in the recipe `default` where they say no other."""
    if (saved := saved_run(what)) is not None:
        refuse_words(precision, passes)
        return saved
    given = passes.arguments(what, progress)
    return named(simulate(recipe=precision.recipe(default), **given), given["model"])
