"""`softfloat-llm compare`: two saved runs, and whether a claim about them holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softfloat_llm.analysis.compare import bound_of
from softfloat_llm.analysis.compare import compare as compare_runs
from softfloat_llm.cli.options import OutputFlags, grouped, quoted
from softfloat_llm.cli.screen import say, show, show_json
from softfloat_llm.cli.simulate import answer_of

WORDS = ("identical", "tokens")


@grouped
def compare(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run that `simulate --save` wrote.")],
    reference: Annotated[Path, typer.Argument(metavar="REF", help="The run that it is held against.")],
    *,
    within: Annotated[
        str | None,
        typer.Option("--within", metavar="identical|tokens|N", help="Exit 1 unless so; N is in ulps of RUN's logits."),
    ] = None,
    taps: Annotated[
        list[str] | None, typer.Option("--taps", metavar="PATTERN", help="The values to compare. Repeatable.")
    ] = None,
    output: OutputFlags,
) -> int:
    """softfloat-llm compare RUN REF --within tokens

    Say how two runs of one model and prompt differ: NaN and infinities first, then tokens, then distances, then where
    in the forward pass the two first part.
    """
    if within is not None and within not in WORDS:
        bound_of(within)  # a wrong word is told before two large runs are read
    found = compare_runs(run, reference, names=taps)
    holds = within is None or found.holds(within)
    if output.as_json:
        show_json("compare", found.to_dict() | {"within": within, "holds": holds})
    else:
        again = f"softfloat-llm compare {quoted(str(run))} {quoted(str(reference))}"
        text = found.text(verbose=output.is_verbose, then=f"{again} --json" if output.is_verbose else f"{again} -v")
        show(answer_of(text) if output.is_quiet else text)
    if not holds:
        most = (
            f"; one logit lies {found.max_ulp:g} {found.format} ulp (of its own binade) apart" if found.max_ulp else ""
        )
        say(f"Claim broken: --within {within}: the run {found.verdict(within or 'identical')}{most}.")
    return 0 if holds else 1
