"""`softfloat-llm ties`: where the best logits become one value in a format, and the lowest id is taken."""

from __future__ import annotations

from typing import Annotated

import typer

from softfloat_llm.analysis.last_rounding import SUMS
from softfloat_llm.analysis.ties import ties as ties_of
from softfloat_llm.analysis.ties import ties_of_prompts
from softfloat_llm.cli.asked import RunOrPrompt, run_of
from softfloat_llm.cli.options import AskFlags, OutputFlags, PrecisionFlags, grouped, prompts_in
from softfloat_llm.cli.screen import answer_of, show, show_json, watched


@grouped
def ties(
    what: RunOrPrompt = None,
    *,
    format: Annotated[
        str | None, typer.Option("--format", metavar="F", help="What the logits are rounded to; bf16 unless said.")
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option("--prompts", metavar="FILE|default", help="Several prompts, one a line, in place of a run."),
    ] = None,
    precision: PrecisionFlags,
    asked: AskFlags,
    output: OutputFlags,
) -> int:
    """softfloat-llm ties RUN --format bf16

    Find the steps whose best logits tie when rounded to a format, all ids that tie, and the one that is taken. Without
    a saved run, prompts are run first (in f32 without precision flags): `ties --model tiny --prompts default`.
    """
    with watched(is_quiet=output.is_quiet) as progress:
        if prompts is None:
            run = run_of(what, precision, asked, progress, default="f32", taps=(SUMS,))
            found = ties_of(run, format=format or "bf16")
        else:
            if what is not None or asked.tokens is not None:
                raise typer.BadParameter("--prompts cannot stand with a run, another prompt or --tokens.")
            found = ties_of_prompts(
                prompts_in(prompts),
                model=asked.model or "tiny",
                recipe=precision.recipe("f32"),
                format=format or "bf16",
                steps=asked.steps,
                progress=progress,
            )
    if output.as_json:
        show_json("ties", found.to_dict())
        return 0
    text = found.text(verbose=output.is_verbose)
    show(answer_of(text) if output.is_quiet else text)
    return 0
