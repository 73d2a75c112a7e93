"""`softfloat-llm compare`: two saved runs, or one against PyTorch run beside it; and whether a claim holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softfloat_llm.analysis.compare import compare as compare_runs
from softfloat_llm.analysis.comparison import Comparison, bound_of
from softfloat_llm.cli.asked import RunOrPrompt, refuse_words
from softfloat_llm.cli.live import LiveFlags, live_comparison
from softfloat_llm.cli.options import OutputFlags, PassFlags, PrecisionFlags, grouped, quoted
from softfloat_llm.cli.screen import say, show, show_json, watched
from softfloat_llm.cli.simulate import answer_of

if TYPE_CHECKING:
    from softfloat_llm.live.comparison import LiveComparison

WORDS = ("identical", "tokens")


@grouped
def compare(
    run: RunOrPrompt = None,
    reference: Annotated[
        Path | None, typer.Argument(metavar="REF", help="The run that it is held against, where there is no --live.")
    ] = None,
    *,
    within: Annotated[
        str | None,
        typer.Option("--within", metavar="identical|tokens|N", help="Exit 1 unless so; N is in ulps of RUN's logits."),
    ] = None,
    live: LiveFlags,
    precision: PrecisionFlags,
    passes: PassFlags,
    output: OutputFlags,
) -> int:
    """softfloat-llm compare RUN REF --within tokens

    Say how two runs of one model and prompt differ: NaN and infinities first, then tokens, then distances, then where
    in the forward pass the two first part. With --live torch a run (or a prompt, run first) is held against PyTorch.
    """
    if within is not None and within not in WORDS:
        bound_of(within)  # a wrong word is told before two large runs are read
    if live.engine is None:
        live.refuse()
        refuse_words(precision, replace(passes, taps=[]))
        return _saved(run, reference, within, passes.taps or None, output)
    if reference is not None:
        raise typer.BadParameter(f"{reference} cannot stand with --live: PyTorch is run as the reference.")
    with watched(is_quiet=output.is_quiet) as progress:
        found = live_comparison(run, live, precision, passes, progress)
    steps = [] if passes.steps == PassFlags.steps else [f"--steps {passes.steps}"]
    asked = [*live.words(), *precision.words(), *passes.words(), *steps]
    _answer(found, found.found, within, output, [*([] if run is None else [quoted(run)]), *asked])
    return _judged(found.found, within)


def _saved(
    run: str | None, reference: Path | None, within: str | None, taps: list[str] | None, output: OutputFlags
) -> int:
    if run is None or reference is None:
        raise typer.BadParameter("compare takes two saved runs, RUN and REF; or RUN (or a prompt) with --live torch.")
    found = compare_runs(run, reference, names=taps)
    _answer(found, found, within, output, [quoted(run), quoted(str(reference))])
    return _judged(found, within)


def _answer(
    told: Comparison | LiveComparison, found: Comparison, within: str | None, output: OutputFlags, asked: list[str]
) -> None:
    """Print the answer, as text or as JSON, with the command that says more."""
    if output.as_json:
        holds = within is None or found.holds(within)
        show_json("compare", told.to_dict() | {"within": within, "holds": holds})
        return
    again = " ".join(["softfloat-llm compare", *asked])
    text = told.text(verbose=output.is_verbose, then=f"{again} --json" if output.is_verbose else f"{again} -v")
    show(answer_of(text) if output.is_quiet else text)


def _judged(found: Comparison, within: str | None) -> int:
    if within is None or found.holds(within):
        return 0
    apart = f"; one logit lies {found.max_ulp:g} {found.format} ulp (of its own binade) apart" if found.max_ulp else ""
    say(f"Claim broken: --within {within}: the run {found.verdict(within)}{apart}.")
    return 1
