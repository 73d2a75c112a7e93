"""`softfloat-llm compare`: two saved runs, tensors of other tools, or a run against PyTorch run beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softfloat_llm.analysis.compare import compare as compare_runs
from softfloat_llm.analysis.comparison import Comparison, bound_of
from softfloat_llm.analysis.dumps import compare_tensors, is_tensors, taps_of
from softfloat_llm.analysis.names import named
from softfloat_llm.cli.asked import RunOrPrompt, refuse_words
from softfloat_llm.cli.live import LiveFlags, live_comparison
from softfloat_llm.cli.options import OutputFlags, PassFlags, PrecisionFlags, grouped, quoted
from softfloat_llm.cli.screen import answer_of, say, show, show_json, watched
from softfloat_llm.io.progress import Progress
from softfloat_llm.runs import Run
from softfloat_llm.site_runs import local_run

if TYPE_CHECKING:
    from softfloat_llm.live.comparison import LiveComparison

WORDS = ("identical", "tokens")
_PANEL = "Comparison"


@dataclass(frozen=True)
class CompareFlags:
    """What is claimed, and how two sides are held against each other."""

    within: Annotated[
        str | None,
        typer.Option("--within", metavar="identical|tokens|N", help="Exit 1 unless so; N is in ulps of RUN's logits."),
    ] = None
    is_local: Annotated[
        bool, typer.Option("--local", rich_help_panel=_PANEL, help="Feed each site REF's values too: its own error.")
    ] = False
    names: Annotated[
        Path | None,
        typer.Option(
            "--names", rich_help_panel=_PANEL, metavar="MAP.toml|json", help="Our tap names = those in a tensor file."
        ),
    ] = None

    def words(self) -> list[str]:
        """The flags that change the answer, as a command line has them."""
        named = [] if self.names is None else [f"--names {quoted(str(self.names))}"]
        return [*(["--local"] if self.is_local else []), *named]


@grouped
def compare(
    run: RunOrPrompt = None,
    reference: Annotated[
        Path | None, typer.Argument(metavar="REF", help="What it is held against, where there is no --live.")
    ] = None,
    *,
    asked: CompareFlags,
    live: LiveFlags,
    precision: PrecisionFlags,
    passes: PassFlags,
    output: OutputFlags,
) -> int:
    """softfloat-llm compare RUN REF --within tokens

    Say how two runs of one model and prompt differ: NaN and infinities first, then tokens, distributions and distances,
    then where in the forward pass the two first part. RUN and REF are saved runs, or tensors of other tools (a .npy,
    .npz or .safetensors file, a folder of these). With --live torch a run (or a prompt) is held against PyTorch.
    """
    if asked.within is not None and asked.within not in WORDS:
        bound_of(asked.within)  # a wrong word is told before two large runs are read
    if live.engine is None:
        live.refuse()
        refuse_words(precision, replace(passes, taps=[]), with_model=asked.is_local)
        return _saved(run, reference, asked, passes, output)
    if reference is not None or asked.names is not None:
        word = reference or "--names"
        raise typer.BadParameter(f"{word} cannot stand with --live: PyTorch is run as the reference.")
    with watched(is_quiet=output.is_quiet) as progress:
        found = live_comparison(run, live, precision, passes, progress, is_local=asked.is_local)
    steps = [] if passes.steps == PassFlags.steps else [f"--steps {passes.steps}"]
    words = [*live.words(), *precision.words(), *passes.words(), *steps, *asked.words()]
    _answer(found, found.found, asked.within, output, [*([] if run is None else [quoted(run)]), *words])
    return _judged(found.found, asked.within)


def _saved(run: str | None, reference: Path | None, asked: CompareFlags, passes: PassFlags, output: OutputFlags) -> int:
    if run is None or reference is None:
        raise typer.BadParameter(
            "compare takes two saved runs (or files of tensors), RUN and REF; or RUN (or a prompt) with --live torch."
        )
    with watched(is_quiet=output.is_quiet) as progress:
        if is_tensors(run) or is_tensors(reference):
            found = _of_tensors(run, reference, asked, passes, progress)
        else:
            found = _of_runs(run, reference, asked, passes, progress)
    _answer(found, found, asked.within, output, [quoted(run), quoted(str(reference)), *asked.words(), *passes.words()])
    return _judged(found, asked.within)


def _of_runs(
    run: str, reference: Path, asked: CompareFlags, passes: PassFlags, progress: Progress | None
) -> Comparison:
    if asked.names is not None:
        raise typer.BadParameter("--names is for files of tensors: a saved run has our names.")
    ours, theirs = named(Run.load(run)), Run.load(reference)
    local = None
    if asked.is_local:
        local = local_run(
            ours, theirs, model=passes.model, workers=passes.workers, backend=passes.backend, progress=progress
        )
    return compare_runs(ours, theirs, names=_patterns(passes.taps), local=local)


def _of_tensors(
    run: str, reference: Path, asked: CompareFlags, passes: PassFlags, progress: Progress | None
) -> Comparison:
    ours = run if is_tensors(run) else named(Run.load(run))
    theirs = reference if is_tensors(reference) else named(Run.load(reference))
    local = None
    if asked.is_local:
        if not isinstance(ours, Run):
            raise typer.BadParameter(f"--local runs each site of RUN again, but {run} is no run of ours.")
        taps = taps_of(reference, ours, names=asked.names)
        local = local_run(
            ours, taps, model=passes.model, workers=passes.workers, backend=passes.backend, progress=progress
        )
    return compare_tensors(ours, theirs, names=asked.names, taps=_patterns(passes.taps), local=local)


def _patterns(taps: Sequence[str]) -> Sequence[str] | None:
    return taps or None


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
