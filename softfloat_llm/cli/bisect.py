"""`softfloat-llm bisect`: which site's precision flipped a token."""

from __future__ import annotations

from typing import Annotated

import typer

from softfloat_llm.analysis.bisect import bisect_of
from softfloat_llm.cli.asked import AgainstOption, RunOrPrompt, StepOption, step_of
from softfloat_llm.cli.options import AskFlags, OutputFlags, PrecisionFlags, grouped
from softfloat_llm.cli.screen import answer_of, show, show_json, watched


@grouped
def bisect(
    what: RunOrPrompt = None,
    *,
    step: StepOption = None,
    is_fast: Annotated[
        bool, typer.Option("--fast", help="Groups of sites first, then the sites of those that matter.")
    ] = False,
    against: AgainstOption = "f32",
    precision: PrecisionFlags,
    asked: AskFlags,
    output: OutputFlags,
) -> int:
    """softfloat-llm bisect "The cup is" --storage bf16 --fast

    Say which site, alone in the reference's precision, brings the reference's token back; which, alone in the run's,
    makes it flip; and at which it first turns over in the order of the forward pass. Two passes a site. With a prompt
    in place of RUN, it is run first (recipe bf16 without precision flags).
    """
    with watched(is_quiet=output.is_quiet) as progress:
        found = step_of(what, precision, asked, against, step, progress)
        told = bisect_of(found.question, found.recipe, found.reference, is_fast=is_fast)
    if output.as_json:
        show_json("bisect", told.to_dict())
        return 0
    then = " ".join(["softfloat-llm budget --by site", *found.words(what, precision, asked)])
    text = told.text(verbose=output.is_verbose, then=then)
    show(answer_of(text) if output.is_quiet else text)
    return 0
