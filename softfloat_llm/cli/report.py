"""`softfloat-llm report`: one HTML file that says why a token flipped, with pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from softfloat_llm.analysis.chains import BY
from softfloat_llm.analysis.explain_step import NEEDED_TAPS
from softfloat_llm.analysis.names import named
from softfloat_llm.cli.asked import RunOrPrompt, counting, refuse_words, saved_run
from softfloat_llm.cli.options import AskFlags, OutputFlags, PrecisionFlags, grouped, quoted
from softfloat_llm.cli.screen import answer_of, show, show_json, watched
from softfloat_llm.errors import nearest
from softfloat_llm.io.progress import Progress
from softfloat_llm.recipe import recipe_of
from softfloat_llm.report.page import Report, check_page
from softfloat_llm.report.page import report as report_on
from softfloat_llm.runs import Run, simulate


@grouped
def report(
    run: RunOrPrompt = None,
    reference: Annotated[
        Path | None, typer.Argument(metavar="REF", help="The saved run that it is held against, if not --against.")
    ] = None,
    *,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.html", help="Where the page is written; unless said, stdout.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Let --out replace an earlier file.")] = False,
    against: Annotated[
        str, typer.Option("--against", metavar="RECIPE", help="The reference, where there is no REF.")
    ] = "f32",
    step: Annotated[
        int | None,
        typer.Option("--step", min=0, metavar="N", help="The step to explain; unless said, the first that flips."),
    ] = None,
    budget: Annotated[
        bool, typer.Option("--budget", help="Share out the error of that step: 5 passes or more.")
    ] = False,
    by: Annotated[str, typer.Option("--by", metavar="|".join(BY), help="How finely --budget does.")] = "stage",
    precision: PrecisionFlags,
    asked: AskFlags,
    output: OutputFlags,
) -> int:
    """softfloat-llm report RUN REF --out FILE.html

    Write one HTML page about a run: the answer, its recipe, every step, where it parts from the reference, the error by
    site and layer, and one step explained, with pictures. It opens from disk, without network or script. With a prompt
    in place of RUN, it is run first (recipe bf16 without precision flags), fed what the reference chooses.
    """
    if by not in BY:
        raise typer.BadParameter(f"--by {by!r} is unknown.{nearest(by, BY)} Known: {', '.join(BY)}.")
    if reference is not None and against != "f32":
        raise typer.BadParameter(f"--against {against} cannot stand with the reference {reference}: give one of them.")
    if out is not None:
        check_page(out, replace=replace)
    words = _words(run, reference, out, against, step, by if budget else None, precision, asked)
    with watched(is_quiet=output.is_quiet) as progress:
        ours, theirs = _runs(run, reference, against, precision, asked, progress)
        made = report_on(
            ours, theirs, against=against, step=step, budget=by if budget else None, model=asked.model,
            workers=asked.workers, before=counting(progress), command=" ".join(words),
        )  # fmt: skip
    if out is not None:
        made.save(out, replace=replace)
    _tell(made, out, output)
    return 0


def _runs(
    what: str | None, reference: Path | None, against: str, precision: PrecisionFlags, asked: AskFlags,
    progress: Progress | None,
) -> tuple[Run, Run | None]:  # fmt: skip
    """The saved runs (no second one where the reference is to be made); or both made of the words."""
    if (saved := saved_run(what)) is not None:
        refuse_words(precision, asked, with_model=True)
        return saved, None if reference is None else Run.load(reference)
    if reference is not None:
        raise typer.BadParameter(
            f"{reference} stands with a saved run only: with a prompt, --against says the reference."
        )
    given: dict[str, Any] = asked.arguments(what, progress) | {"taps": NEEDED_TAPS}
    recipe = precision.recipe()
    held = simulate(recipe=recipe_of(against), **given)
    run = simulate(recipe=recipe, teacher=held, **given)
    return named(run, given["model"]), named(held, given["model"])


def _words(
    what: str | None, reference: Path | None, out: Path | None, against: str, step: int | None, by: str | None,
    precision: PrecisionFlags, asked: AskFlags,
) -> list[str]:  # fmt: skip
    """The command line again, as the page tells it."""
    places = [quoted(str(word)) for word in (what, reference) if word is not None]
    words = ["softfloat-llm report", *places, *precision.words(), *asked.words()]
    words += [] if asked.steps == AskFlags.steps else [f"--steps {asked.steps}"]
    words += [] if against == "f32" else [f"--against {quoted(against)}"]
    words += [] if step is None else [f"--step {step}"]
    words += {None: [], "stage": ["--budget"]}.get(by, [f"--budget --by {by}"])
    return [*words, *([] if out is None else [f"--out {quoted(str(out))}"])]


def _tell(made: Report, out: Path | None, output: OutputFlags) -> None:
    """The page itself, or what it answers and where it lies."""
    if output.as_json:
        show_json("report", made.to_dict() | {"saved": None if out is None else str(out)})
    elif out is None:
        show(made.html.removesuffix("\n"))
    elif output.is_quiet:
        show(answer_of(made.text(then="")))
    else:
        size = len(made.html.encode())
        page = f"page     {out} ({size} bytes, {made.digest})"
        show(f"{made.text(verbose=output.is_verbose, then=f'open {quoted(str(out))} in a browser')}\n{page}")
