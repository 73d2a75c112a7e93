"""`softfloat-llm margins`: by how much each token was chosen, in ulps."""

from __future__ import annotations

from typing import Annotated

import typer

from softfloat_llm.analysis.last_rounding import SUMS
from softfloat_llm.analysis.margins import margins as margins_of
from softfloat_llm.cli.asked import RunOrPrompt, run_of
from softfloat_llm.cli.options import AskFlags, OutputFlags, PrecisionFlags, grouped
from softfloat_llm.cli.screen import answer_of, show, show_json, watched


@grouped
def margins(
    what: RunOrPrompt = None,
    *,
    format: Annotated[
        str | None, typer.Option("--format", metavar="F", help="Whose ulps count; that of the logits unless said.")
    ] = None,
    within: Annotated[
        float | None, typer.Option("--within", metavar="N", help="Margins of at most N ulps, the smallest first.")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option("--log-softmax", metavar="F", help="The format of the log-probabilities.")
    ] = None,
    compute: Annotated[str, typer.Option("--compute", metavar="F", help="The format of log_softmax's steps.")] = "f32",
    precision: PrecisionFlags,
    asked: AskFlags,
    output: OutputFlags,
) -> int:
    """softfloat-llm margins RUN --format bf16

    Say how far the two best logits of each step lie apart, in ulps of a format, and whether log-probabilities in a
    format still tell them apart. With a prompt in place of a run, it is run first (in f32 without precision flags).
    """
    with watched(is_quiet=output.is_quiet) as progress:
        run = run_of(what, precision, asked, progress, default="f32", taps=(SUMS,))
    found = margins_of(run, format=format, within=within, log_format=log_format, compute=compute)
    if output.as_json:
        show_json("margins", found.to_dict())
        return 0
    text = found.text(verbose=output.is_verbose)
    show(answer_of(text) if output.is_quiet else text)
    return 0
