"""`softfloat-llm simulate`: a forward pass under a recipe, beside a reference, and what the precision did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from softfloat_llm.analysis.compare import compare as compare_runs
from softfloat_llm.analysis.comparison import Comparison
from softfloat_llm.analysis.names import named
from softfloat_llm.analysis.slow_sites import slow_notes
from softfloat_llm.cli.options import (
    NO_REFERENCE,
    REFERENCE,
    OutputFlags,
    PassFlags,
    PrecisionFlags,
    grouped,
    quoted,
    with_prompt,
)
from softfloat_llm.cli.screen import announce, answer_of, say, show, show_json, sized, watched
from softfloat_llm.cli.simulate_prompts import Batch, simulate_prompts
from softfloat_llm.errors import NonFiniteError, RunError, nearest, why
from softfloat_llm.io.checkpoint import Model
from softfloat_llm.io.folders import bytes_in
from softfloat_llm.io.progress import Progress
from softfloat_llm.recipe import Recipe, recipe_of
from softfloat_llm.report.run_text import run_facts, run_text
from softfloat_llm.runs import Run, check_target
from softfloat_llm.runs import simulate as simulate_run

CLAIMS = ("flip", "nonfinite", "differs")


@dataclass(frozen=True)
class ReferenceFlags:
    """What a run is held against, and whose tokens it is fed."""

    against: Annotated[
        str | None, typer.Option("--against", metavar="RECIPE|none", help="The reference; f32 unless said.")
    ] = None
    teacher: Annotated[
        str | None,
        typer.Option("--teacher", metavar="RUN|reference", help="Feed a saved run's tokens, or those of --against."),
    ] = None

    def recipe(self) -> Recipe | None:
        """The recipe of the reference run; None where there is none, or where a saved teacher is the reference."""
        if self.against == NO_REFERENCE:
            if self.teacher == REFERENCE:
                raise typer.BadParameter("--teacher reference needs a reference: it cannot stand with --against none.")
            return None
        if self.against is None:
            return recipe_of("f32") if self.teacher in (None, REFERENCE) else None
        return recipe_of(self.against)


@dataclass(frozen=True)
class TalkFlags:
    """The prompt as a chat has it."""

    chat: Annotated[bool, typer.Option("--chat", help="The prompt as the model's chat template writes it.")] = False
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="A system message before it.")] = None

    def words(self) -> list[str]:
        """The flags as a command line has them."""
        return ["--chat"] * self.chat + ([] if self.system is None else [f"--system {quoted(self.system)}"])


@dataclass(frozen=True)
class SaveFlags:
    """Where a run is kept."""

    save: Annotated[Path | None, typer.Option("--save", metavar="PATH", help="Keep the run as a folder.")] = None
    replace: Annotated[bool, typer.Option("--replace", help="Let --save replace an earlier run.")] = False


@grouped
def simulate(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="Text, or @FILE. Default: The capital of France is")
    ] = None,
    *,
    precision: PrecisionFlags,
    passes: PassFlags,
    beside: ReferenceFlags,
    prompts: Annotated[
        str | None, typer.Option("--prompts", metavar="FILE|default", help="Several prompts, one a line.")
    ] = None,
    talk: TalkFlags,
    kept: SaveFlags,
    fail_on: Annotated[
        list[str] | None,
        typer.Option("--fail-on", rich_help_panel="Claims", metavar="|".join(CLAIMS), help="Exit 1 then. Repeatable."),
    ] = None,
    output: OutputFlags,
) -> int:
    """simulate --storage bf16 --acc f16

    Run a forward pass in the precision that the flags say (recipe bf16 without any), against the same pass in f32, and
    say what the precision did. `simulate` is short for `softfloat-llm simulate`.
    """
    claims = _checked_claims(fail_on or [])
    recipe, reference = precision.recipe(), beside.recipe()
    _check_claims_can_be_judged(claims, reference, beside.teacher)
    try:
        if prompts is None:
            asked = _Asked(prompt, recipe, reference, precision, passes, beside, talk, kept)
            return _judged(_simulate_one(asked, claims, output))
        batch = Batch(prompts, precision, passes, reference, beside.teacher, asdict(talk), kept.save, kept.replace)
        batch.check(prompt)
        return _judged(simulate_prompts(batch, claims, _is_broken, output))
    except NonFiniteError as error:
        return _nonfinite(error, claims)


class _Asked(NamedTuple):
    """What was asked of one prompt."""

    prompt: str | None
    recipe: Recipe
    reference: Recipe | None
    precision: PrecisionFlags
    passes: PassFlags
    beside: ReferenceFlags
    talk: TalkFlags
    kept: SaveFlags

    def then(self) -> str:
        """A command that goes one step further: more tokens, then a run that is kept, then what it holds."""
        passes, against = self.passes, self.beside.against
        if self.kept.save is not None and passes.steps > 1:
            return " ".join(["softfloat-llm taps", *([f"--model {quoted(passes.model)}"] if passes.model else [])])
        words = [*self.precision.words(), *passes.words(), *self.talk.words()]
        words += [] if against is None else [f"--against {quoted(against)}"]
        further = "--steps 20" if against == NO_REFERENCE else "--steps 20 --teacher reference"
        words += [f"--steps {passes.steps} --save RUN" if passes.steps > 1 else further]
        return with_prompt(["simulate"], self.prompt, words)


def _simulate_one(asked: _Asked, claims: Sequence[str], output: OutputFlags) -> list[str]:
    """Run, print, and give the claims that do not hold."""
    save = asked.kept.save
    if save is not None:
        check_target(save, replace=asked.kept.replace)
    with _scratch(save) as scratch:
        with watched(is_quiet=output.is_quiet) as progress:
            for note in slow_notes(asked.recipe):
                announce(progress, f"note: {note}")
            run, reference, model = _runs(asked, progress, scratch)
        for note in run.notes:
            say(f"note: {note}")
        comparison = _compared(named(run, model), reference, is_quiet=output.is_quiet)
        broken = [claim for claim in claims if _is_broken(claim, run, comparison)]
        if output.as_json:
            show_json("simulate", _body(run, comparison, claims, broken, save))
        else:
            show(_text(named(run, model), comparison, output, asked.then()))
            if save is not None and not output.is_quiet:
                say(f"The run is {save}: {len(run.arrays)} taps, {sized(bytes_in(save))}.")
    return broken


@contextmanager
def _scratch(save: Path | None) -> Iterator[Path | None]:
    """Where the reference's taps go while those of a saved run go to its folder: beside it, and only for that long."""
    if save is None:
        yield None
        return
    try:
        holder = TemporaryDirectory(prefix=f".{save.name}.", suffix=".reference", dir=save.absolute().parent)
    except OSError as error:
        raise RunError(f"Saving the run {save}: {why(error)}. Choose a place that can be written.") from None
    with holder as folder:
        yield Path(folder) / "run"


# --- what was asked -------------------------------------------------------------------------------------------------


def _checked_claims(words: Sequence[str]) -> list[str]:
    for word in words:
        if word not in CLAIMS:
            raise typer.BadParameter(
                f"--fail-on {word!r} is unknown.{nearest(word, CLAIMS)} Known: {', '.join(CLAIMS)}."
            )
    return list(dict.fromkeys(words))


def _check_claims_can_be_judged(claims: Sequence[str], reference: Recipe | None, teacher: str | None) -> None:
    if reference is None and teacher is None and (wrong := [claim for claim in claims if claim != "nonfinite"]):
        raise typer.BadParameter(f"--fail-on {wrong[0]} needs a reference: it cannot stand with --against none.")


def _runs(asked: _Asked, progress: Progress | None, scratch: Path | None) -> tuple[Run, Run | None, Model]:
    """The run, the reference where there is one (another pass, or the saved run that teaches), and the model."""
    teacher = asked.beside.teacher
    saved = None if teacher in (None, REFERENCE) else Run.load(teacher)
    given = asked.passes.arguments(asked.prompt, progress, model="tiny" if saved is None else saved.model)
    given |= asdict(asked.talk)
    against = asked.reference
    reference = saved if against is None else simulate_run(recipe=against, teacher=saved, save=scratch, **given)
    teaching = reference if teacher == REFERENCE else saved
    run = simulate_run(recipe=asked.recipe, teacher=teaching, **asdict(asked.kept), **given)
    return run, reference, given["model"]


def _compared(run: Run, reference: Run | None, *, is_quiet: bool) -> Comparison | None:
    """The comparison with the reference; a bar shows that it goes on, since of a long prompt it takes a while."""
    if reference is None:
        return None
    with watched(is_quiet=is_quiet):
        return compare_runs(run, reference)


# --- what is answered -----------------------------------------------------------------------------------------------


def _nonfinite(error: NonFiniteError, claims: Sequence[str]) -> int:
    """No token can be taken from a row of NaN: that breaks the claim, or ends the run."""
    if "nonfinite" not in claims:
        raise error
    say(f"{type(error).__name__}: {error}")
    return _judged(["nonfinite"])


def _is_broken(claim: str, run: Run, comparison: Comparison | None) -> bool:
    if claim == "nonfinite":
        return bool(run.events) or not bool(np.isfinite(run["logits"]).all())
    assert comparison is not None
    return comparison.flips > 0 if claim == "flip" else not comparison.is_identical


def _judged(broken: Sequence[str]) -> int:
    if broken:
        say(f"Claim broken: --fail-on {', '.join(broken)}.")
    return 1 if broken else 0


def _text(run: Run, comparison: Comparison | None, output: OutputFlags, then: str) -> str:
    if comparison is None:
        text = run_text(run, then=then, is_verbose=output.is_verbose)
    else:
        text = comparison.text(verbose=output.is_verbose, then=then)
    return answer_of(text) if output.is_quiet else text


def _body(
    run: Run, comparison: Comparison | None, claims: Sequence[str], broken: Sequence[str], save: Path | None
) -> dict[str, Any]:
    """The JSON: the comparison's keys where there is a reference, and the run's own."""
    told = {} if comparison is None else comparison.to_dict()
    asked = {"fail_on": list(claims), "broken": list(broken)}
    kept = {"saved": None if save is None else str(save), "saved_bytes": None if save is None else bytes_in(save)}
    return told | {"run": run_facts(run) | kept, "claims": asked}
