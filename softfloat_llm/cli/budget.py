"""`softfloat-llm budget`: how much of an error each stage, or each site, makes."""

from __future__ import annotations

from typing import Annotated

import typer

from softfloat_llm.analysis.budget import budget_of
from softfloat_llm.analysis.chains import BY
from softfloat_llm.cli.asked import AgainstOption, RunOrPrompt, StepOption, step_of
from softfloat_llm.cli.options import AskFlags, OutputFlags, PrecisionFlags, grouped
from softfloat_llm.cli.screen import answer_of, show, show_json, watched
from softfloat_llm.errors import nearest


@grouped
def budget(
    what: RunOrPrompt = None,
    *,
    by: Annotated[
        str, typer.Option("--by", metavar="|".join(BY), help="How finely: 5 passes, about 10, 25 or 60.")
    ] = "stage",
    step: StepOption = None,
    pair: Annotated[
        str | None, typer.Option("--pair", metavar="ID,ID", help="Whose lead is told, in place of the tokens chosen.")
    ] = None,
    is_reversed: Annotated[bool, typer.Option("--reverse", help="Make the last change first.")] = False,
    against: AgainstOption = "f32",
    precision: PrecisionFlags,
    asked: AskFlags,
    output: OutputFlags,
) -> int:
    """softfloat-llm budget RUN --by site

    Say how much of an error comes from storage, products, accumulation and outputs: the recipe is changed from the
    reference's to the run's one move after another, and what the lead of one token over the other changes by at each
    move sums to the whole change exactly. What two moves do alike counts for the one that is made first. With a prompt
    in place of RUN, it is run first (recipe bf16 without precision flags).
    """
    if by not in BY:
        raise typer.BadParameter(f"--by {by!r} is unknown.{nearest(by, BY)} Known: {', '.join(BY)}.")
    ids = _pair(pair)
    with watched(is_quiet=output.is_quiet) as progress:
        found = step_of(what, precision, asked, against, step, progress)
        told = budget_of(found.question, found.recipe, found.reference, by=by, pair=ids, is_reversed=is_reversed)
    if output.as_json:
        show_json("budget", told.to_dict())
        return 0
    finer = BY[min(BY.index(by) + 1, len(BY) - 1)]
    then = " ".join(["softfloat-llm", *(["bisect"] if told.is_flip else ["budget", f"--by {finer}"])])
    text = told.text(verbose=output.is_verbose, then=" ".join([then, *found.words(what, precision, asked)]))
    show(answer_of(text) if output.is_quiet else text)
    return 0


def _pair(text: str | None) -> tuple[int, int] | None:
    """Two ids. Raises typer.BadParameter for other words."""
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        raise typer.BadParameter(f"--pair {text!r}: expected two token ids, such as 253,260.")
    return int(words[0]), int(words[1])
