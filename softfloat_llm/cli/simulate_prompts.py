"""`softfloat-llm simulate --prompts FILE`: several prompts at once, a row each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer

from softfloat_llm.analysis.compare import compare
from softfloat_llm.analysis.names import named
from softfloat_llm.batches import simulate_batch
from softfloat_llm.cli.options import REFERENCE, OutputFlags, PassFlags, PrecisionFlags, prompts_in, quoted, with_prompt
from softfloat_llm.cli.screen import answer_of, say, show, show_json, sized, watched
from softfloat_llm.io.folders import bytes_in
from softfloat_llm.recipe import Recipe
from softfloat_llm.report.batch_text import Answered, batch_facts, batch_text

IsBroken = Callable[[str, Any, Any], bool]
"""Told a claim, a run and its comparison."""


class Batch(NamedTuple):
    """What was asked of several prompts."""

    prompts: str
    precision: PrecisionFlags
    passes: PassFlags
    against: Recipe | None
    teacher: str | None
    talk: dict[str, Any]
    save: Path | None
    replace: bool

    def check(self, prompt: str | None) -> None:
        """Raises typer.BadParameter for words that are for one prompt."""
        if prompt is not None or self.passes.tokens is not None:
            raise typer.BadParameter("--prompts cannot stand with another prompt or --tokens.")
        if self.teacher not in (None, REFERENCE):
            raise typer.BadParameter(
                f"--teacher {self.teacher} is a run of one prompt; with --prompts it can be: {REFERENCE}."
            )

    def answered(self, *, is_quiet: bool) -> list[Answered]:
        """Each prompt's run, and what it is against the reference. Taps are kept where they are asked for, or saved."""
        with watched(is_quiet=is_quiet) as progress:
            given = self.passes.arguments(None, progress) | self.talk | {"prompts": prompts_in(self.prompts)}
            del given["prompt"], given["tokens"]
            taps = given["taps"] if self.passes.taps or self.save is not None else ()
            references = None if self.against is None else simulate_batch(recipe=self.against, **given | {"taps": ()})
            runs = simulate_batch(
                recipe=self.precision.recipe(),
                teachers=references if self.teacher == REFERENCE else None,
                save=self.save,
                replace=self.replace,
                **given | {"taps": taps},
            )
        if references is None:
            return [Answered(run, None) for run in runs]
        pairs = zip(runs, references, strict=True)
        return [Answered(run, compare(named(run, given["model"]), reference)) for run, reference in pairs]

    def then(self, answered: Sequence[Answered]) -> str:
        """A command that goes one step further: the first prompt that flips, by itself, or more steps of all."""
        flipped = next((one.run for one in answered if one.flips), None)
        words = [*self.precision.words(), *self.passes.words()]
        if flipped is not None:
            return with_prompt(["simulate"], flipped.text_of(flipped.prompt_tokens), words)
        return " ".join(
            ["simulate --prompts", quoted(self.prompts), *words, f"--steps {4 * max(1, self.passes.steps)}"]
        )


def simulate_prompts(batch: Batch, claims: Sequence[str], is_broken: IsBroken, output: OutputFlags) -> list[str]:
    """Run, print, and give the claims that do not hold for every prompt."""
    answered = batch.answered(is_quiet=output.is_quiet)
    broken = [claim for claim in claims if any(is_broken(claim, *one) for one in answered)]
    for note in dict.fromkeys(note for one in answered for note in one.run.notes):
        say(f"note: {note}")
    if output.as_json:
        places = None if batch.save is None else [str(batch.save / str(i + 1)) for i in range(len(answered))]
        asked = {"claims": {"fail_on": list(claims), "broken": broken}}
        size = {"saved_bytes": None if batch.save is None else bytes_in(batch.save)}
        show_json("simulate-prompts", batch_facts(answered, places) | asked | size)
    else:
        text = batch_text(answered, then=batch.then(answered))
        show(answer_of(text) if output.is_quiet else text)
        if batch.save is not None and not output.is_quiet:
            say(f"The runs are 1 to {len(answered)} in {batch.save}: {sized(bytes_in(batch.save))}.")
    return broken
