"""`softfloat-llm golden`: outputs that must not change by a bit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softfloat_llm.analysis.golden import (
    check_target,
    golden_again,
    golden_check,
    golden_write,
    read_manifest,
)
from softfloat_llm.analysis.golden_report import GoldenReport
from softfloat_llm.analysis.wording import labelled, recipe_line
from softfloat_llm.cli.options import OutputFlags, PassFlags, PrecisionFlags, grouped, quoted
from softfloat_llm.cli.screen import show, show_json, watched
from softfloat_llm.report.run_text import digest_text, run_facts
from softfloat_llm.runs import Run
from softfloat_llm.runs import simulate as simulate_run


@grouped
def write(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the golden output is kept.")],
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="Text, or @FILE, as for simulate.")] = None,
    *,
    precision: PrecisionFlags,
    passes: PassFlags,
    checked_by: Annotated[
        str, typer.Option("--checked-by", metavar="TEXT", help="The independent oracle that agrees.")
    ] = "none",
    replace: Annotated[bool, typer.Option("--replace", help="Replace golden output that is there already.")] = False,
    output: OutputFlags,
) -> int:
    """softfloat-llm golden write FOLDER --storage bf16 --acc f16

    Run a forward pass as `simulate` does, and keep its values to the last bit, with the command that made them.
    """
    check_target(folder, replace=replace)
    with watched(is_quiet=output.is_quiet) as progress:
        run = simulate_run(recipe=precision.recipe(), **passes.arguments(prompt, progress))
    golden_write(
        folder, run, made_by=_made_by(folder, prompt, precision, passes), checked_by=checked_by, replace=replace
    )
    if output.as_json:
        show_json("golden-write", {"run": run_facts(run), "tensors": len(run.arrays), "checked_by": checked_by})
        return 0
    answer = f"{len(run.arrays)} tensors are kept, checked by: {checked_by}."
    if output.is_quiet:
        show(answer)
        return 0
    show(labelled("recipe", recipe_line(run.recipe)))
    show(labelled("answer", answer) + "\n")
    show(labelled("next", f"softfloat-llm golden check {quoted(str(folder))}"))
    show(labelled("digest", digest_text(run)))
    return 0


def _made_by(folder: Path, prompt: str | None, precision: PrecisionFlags, passes: PassFlags) -> str:
    """The command, without what depends on the machine: the folder by its last name."""
    words = ["softfloat-llm golden write", quoted(folder.name), *([] if prompt is None else [quoted(prompt)])]
    return " ".join([*words, *precision.words(), *passes.words(), f"--steps {passes.steps}"])


@grouped
def check(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What `golden write` kept.")],
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN...", help="Saved runs to check; else all is run again.")
    ] = None,
    *,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME|PATH", help="Where the weights lie now, if elsewhere.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, metavar="N", help="Threads; the bits stay.")] = 1,
    output: OutputFlags,
) -> int:
    """softfloat-llm golden check FOLDER

    Run again what a golden folder keeps, and compare bit for bit. With RUN..., compare these saved runs instead, each
    under the name of its folder (a single one under the only name that the golden folder has).
    """
    if runs:
        found = _saved(runs, list(read_manifest(folder)["runs"]))
    else:
        with watched(is_quiet=output.is_quiet) as progress:
            found = golden_again(folder, model=model, workers=workers, progress=progress)
    report = golden_check(folder, found)
    if output.as_json:
        show_json("golden-check", report.to_dict())
    else:
        show(_text(report, is_quiet=output.is_quiet))
    return 0 if report.is_passed else 1


def _saved(folders: list[Path], names: list[str]) -> dict[str, Run]:
    if len(folders) == len(names) == 1:
        return {names[0]: Run.load(folders[0])}
    return {folder.name: Run.load(folder) for folder in folders}


def _text(report: GoldenReport, *, is_quiet: bool) -> str:
    head, *rest = str(report).split("\n")
    return head if is_quiet else "\n".join([labelled("answer", head), *(f"         {line}" for line in rest)])


golden = typer.Typer(no_args_is_help=True, help="softfloat-llm golden check FOLDER\n\nOutputs, kept to the last bit.")
golden.command(name="write", short_help="Run, and keep the values to the last bit.")(write)
golden.command(name="check", short_help="Run again, and compare bit for bit.")(check)
