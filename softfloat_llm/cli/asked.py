"""What a verb is asked about: a run that was saved, or the words that make one.

`RUN|PROMPT`: a folder that `simulate --save` wrote is a run; anything else is a prompt, as for `simulate`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from softfloat_llm.analysis.budget import telling_step
from softfloat_llm.analysis.names import named
from softfloat_llm.analysis.step_logits import Count, Question, question
from softfloat_llm.cli.options import AskFlags, PrecisionFlags, quoted
from softfloat_llm.cli.screen import announce
from softfloat_llm.errors import RunError
from softfloat_llm.io.checkpoint import Model
from softfloat_llm.io.progress import Progress
from softfloat_llm.recipe import Recipe, recipe_of
from softfloat_llm.runs import Run, runs_within, simulate

RunOrPrompt = Annotated[
    str | None,
    typer.Argument(metavar="RUN|PROMPT", help="A run that `simulate --save` wrote; or a prompt, as for simulate."),
]


def saved_run(what: str | None) -> Run | None:
    """The saved run that a word names; None where it is a prompt. Raises RunError for a path that holds no run."""
    if what is None or what.startswith("@") or not what:
        return None
    try:
        is_run = (Path(what) / "run.json").is_file()
        is_path = Path(what).is_dir() or (not any(c.isspace() for c in what) and "/" in what)
    except (OSError, ValueError):  # too long for a path, or no path at all: a prompt
        return None
    if not is_run and is_path:
        expected = runs_within(Path(what)) or "Give a folder that `simulate --save` wrote, or a prompt."
        raise RunError(f"{what} holds no saved run. {expected}")
    return named(Run.load(what)) if is_run else None


def refuse_words(precision: PrecisionFlags, asked: AskFlags, *, with_model: bool = False) -> None:
    """Raises typer.BadParameter where flags would say again what a saved run has said.

    `with_model`: --model may say where its weights are now.
    """
    words = (replace(asked, model=None) if with_model else asked).words()
    given = [*precision.words(), *words, *([] if asked.steps == AskFlags.steps else ["--steps"])]
    if given:
        raise typer.BadParameter(f"{given[0]} cannot stand with a saved run, which has its model, recipe and tokens.")


def run_of(
    what: str | None,
    precision: PrecisionFlags,
    asked: AskFlags,
    progress: Progress | None,
    *,
    default: str,
    taps: tuple[str, ...] = (),
) -> Run:
    """The saved run, or the run that the words make, with `taps`: in the recipe `default` where they say no other."""
    if (saved := saved_run(what)) is not None:
        refuse_words(precision, asked)
        return saved
    given = asked.arguments(what, progress) | ({"taps": taps} if taps else {})
    return named(simulate(recipe=precision.recipe(default), **given), given["model"])


def all_taps_of(
    what: str | None, precision: PrecisionFlags, asked: AskFlags, progress: Progress | None, *, default: str = "f32"
) -> tuple[Run, Callable[[], Model]]:
    """The saved run, or the run that the words make with all taps; and its model."""
    if (saved := saved_run(what)) is not None:
        refuse_words(precision, asked, with_model=True)
        return saved, lambda: question(saved, 0, model=asked.model).model
    given = asked.arguments(what, progress) | {"taps": ("*",)}
    run = named(simulate(recipe=precision.recipe(default), **given), given["model"])
    return run, lambda: given["model"]


# --- one step of it ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepAsked:
    """One step of a run, and the two recipes under which it is looked at."""

    question: Question
    recipe: Recipe
    reference: Recipe

    def words(self, what: str | None, precision: PrecisionFlags, asked: AskFlags) -> list[str]:
        """What was asked, as a command line has it."""
        given = [*([] if what is None else [quoted(what)]), *precision.words(), *asked.words()]
        against = [] if self.reference.name == "f32" else [f"--against {quoted(self.reference.name)}"]
        return [*given, *against, f"--step {self.question.step}"]


StepOption = Annotated[
    int | None,
    typer.Option("--step", min=0, metavar="N", help="The step; unless said, the first that flips in --steps."),
]
AgainstOption = Annotated[str, typer.Option("--against", metavar="RECIPE", help="The reference.")]


def step_of(
    what: str | None,
    precision: PrecisionFlags,
    asked: AskFlags,
    against: str,
    step: int | None,
    progress: Progress | None,
) -> StepAsked:
    """A step of a saved run, or of the run that the words make, fed what the reference's recipe chooses.

    Without a step, the first of the steps that flips is taken, else the one with the smallest margin.
    """
    reference, before = recipe_of(against), counting(progress)
    if (saved := saved_run(what)) is not None:
        refuse_words(precision, asked, with_model=True)
        first = question(saved, 0, model=asked.model, workers=asked.workers)
        place = telling_step(saved, reference, first.model, workers=asked.workers) if step is None else step
        found = question(saved, place, model=first.model, workers=asked.workers, before=before)
        return StepAsked(found, saved.recipe, reference)
    if step is not None and asked.steps != AskFlags.steps:
        raise typer.BadParameter("--step names one step, --steps how many are looked through: give one of them.")
    recipe = precision.recipe()
    given = asked.arguments(what, progress) | {"steps": asked.steps if step is None else step + 1}
    teacher = simulate(recipe=reference, **given)
    if step is None and given["steps"] > 1:
        step = telling_step(simulate(recipe=recipe, **given, teacher=teacher), reference, given["model"])
    made = question(teacher, step or 0, model=given["model"], workers=asked.workers, before=before)
    return StepAsked(replace(made, is_ours=True), recipe, reference)


def last_step_of(
    what: str | None, precision: PrecisionFlags, asked: AskFlags, progress: Progress | None
) -> tuple[Question, Recipe]:
    """The last step of a saved run, or of the run that the words make; and its recipe."""
    if (saved := saved_run(what)) is not None:
        refuse_words(precision, asked, with_model=True)
        last = len(saved.fed) - len(saved.prompt_tokens)
        return question(saved, last, model=asked.model, workers=asked.workers, before=counting(progress)), saved.recipe
    recipe, given = precision.recipe(), asked.arguments(what, progress)
    run = simulate(recipe=recipe, **given)
    last = len(run.fed) - len(run.prompt_tokens)
    made = question(run, last, model=given["model"], workers=asked.workers, before=counting(progress))
    return replace(made, is_ours=True), recipe


ANNOUNCED_SECONDS = 5.0  # what takes longer is announced


def counting(progress: Progress | None) -> Count | None:
    """Tells how many passes were made, and what all of them will take; None where nobody watches."""
    return None if progress is None else Passes(progress)


class Passes:
    """Called before each pass of several; `expect` says how many are still to come, as far as that is known."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done, self._total, self._announced = 0, 1, 0
        self._started = time.monotonic()

    def expect(self, passes: int) -> None:
        """So many passes more."""
        self._total = self._done + passes

    def __call__(self, _: str) -> None:
        now = time.monotonic()
        if self._done == 0:
            self._started = now
        else:
            self._announce((now - self._started) / self._done)
        self._progress("passes", self._done, max(self._total, self._done + 1))
        self._done += 1

    def _announce(self, seconds: float) -> None:
        """Once, and again where more passes are expected than were announced."""
        left = (self._total - self._done) * seconds
        if self._total > self._announced and left >= ANNOUNCED_SECONDS:
            self._announced = self._total
            announce(self._progress, f"{self._total} passes of about {seconds:.1f} s: about {left:.0f} s more.")
