"""ties(run, format): the steps whose best logits become one value when they are rounded to a format.

Of equals the lowest id is taken (or the last, where the recipe's `choice` says so), so a tie can change the token
although no logit passed another one. Start reading at `ties`; `ties_of_prompts` runs several prompts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from softfloat_llm.analysis.answers import Answer, Table, counted, prompt_of, shown_prompt
from softfloat_llm.analysis.compare import opened
from softfloat_llm.analysis.last_rounding import SUMS, remark, sums_format, sums_of
from softfloat_llm.analysis.margins import with_text
from softfloat_llm.analysis.names import named
from softfloat_llm.analysis.numbers import about, decimal, jsonable
from softfloat_llm.analysis.verdicts import Choice, choice
from softfloat_llm.analysis.wording import recipe_line, token_words
from softfloat_llm.errors import RunError
from softfloat_llm.io.checkpoint import Model, open_model
from softfloat_llm.io.progress import Progress
from softfloat_llm.numerics.formats import Format, format_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.recipe import Recipe, recipe_of
from softfloat_llm.runs import simulate

if TYPE_CHECKING:
    from softfloat_llm.runs import Run

SCHEMA = "softfloat-llm/ties/1"
SHOWN_TIES, SHOWN_TOKENS = 10, 4


@dataclass(frozen=True)
class Tie:
    """One step at which several ids share the largest logit once it is rounded.

    `tokens` are those ids, the lowest first, each with its logit before the rounding (of a run that kept lm_head's
    sums, before the rounding that made the logits too). `before` is what was chosen before it, `taken` what is chosen
    after, by the rule of the recipe.
    """

    prompt: str
    step: int | None
    position: int
    value: float
    tokens: tuple[Choice, ...]
    before: Choice
    taken: Choice

    @property
    def is_flip(self) -> bool:
        """True where rounding alone changes the token."""
        return self.before.token != self.taken.token

    @property
    def spread(self) -> float:
        """How far the tied logits lay apart before they were rounded."""
        logits = [found.logit for found in self.tokens]
        return 0.0 if max(logits) == min(logits) else max(logits) - min(logits)

    def to_dict(self) -> dict[str, Any]:
        """JSON: plain numbers, strings, lists."""
        return {
            "prompt": self.prompt,
            "step": self.step,
            "position": self.position,
            "value": jsonable(self.value),
            "spread": jsonable(self.spread),
            "tokens": [found.to_dict() for found in self.tokens],
            "before": self.before.to_dict(),
            "taken": self.taken.to_dict(),
            "is_flip": self.is_flip,
        }


@dataclass(frozen=True)
class Ties(Answer):
    """The ties of one or several runs of one recipe. `total`: the steps that were looked at."""

    model: str
    recipe: Recipe
    format: Format
    logits_format: Format
    prompts: tuple[str, ...]
    total: int
    without_token: int
    """Steps whose row holds NaN: nothing is chosen there."""
    ties: tuple[Tie, ...]
    sums_format: Format | None = None
    """That of lm_head's sums, where the logits were rounded from them and the run kept them: they stand before."""
    remark: str = ""
    """What is to be known of logits that were rounded already."""

    @property
    def flips(self) -> tuple[Tie, ...]:
        return tuple(tie for tie in self.ties if tie.is_flip)

    def heading(self) -> list[tuple[str, str]]:
        asked = shown_prompt(self.prompts[0]) if len(self.prompts) == 1 else f"{len(self.prompts)} of them"
        return [("prompt", asked), ("recipe", recipe_line(self.recipe))]

    def sentences(self) -> list[str]:
        looked = counted(self.total, "step")
        if self.logits_format.is_subset_of(self.format):
            how = f"the {self.logits_format} logits tie as they are"
        else:
            how = f"the best {self.logits_format} logits tie when rounded to {self.format}"
        lines = [f"At {len(self.ties)} of {looked} {how}."]
        if self.flips:
            told = self.flips[0]
            names = " -> ".join(token_words(c.piece, c.token) for c in (told.before, told.taken))
            lines.append(f"{len(self.flips)} of these change{'s' if len(self.flips) == 1 else ''} the token: {names}.")
        if self.remark:
            lines.append(self.remark)
        if self.without_token:
            lines.append(f"At {counted(self.without_token, 'step')} the logits hold NaN: no token is chosen.")
        return lines

    def tables(self, *, verbose: bool = False) -> list[Table]:
        header = (
            "prompt" if len(self.prompts) > 1 else "step",
            "tied logit",
            "ids",
            "tokens",
            "apart",
            "before",
            "taken",
        )
        ranked = self.ties if verbose else sorted(self.ties, key=lambda tie: not tie.is_flip)
        rows = tuple(self._row(tie, verbose) for tie in ranked)
        table = Table(header, rows, right=(1, 4))
        return [table if verbose else table.cut(SHOWN_TIES)]

    def _row(self, tie: Tie, verbose: bool) -> tuple[str, ...]:
        place = str(tie.position if tie.step is None else tie.step)
        most = len(tie.tokens) if verbose else SHOWN_TOKENS
        more = f" and {len(tie.tokens) - most} more" if len(tie.tokens) > most else ""
        texts = ", ".join(token_words(found.piece, found.token) for found in tie.tokens[:most])
        word = token_words(tie.taken.piece, tie.taken.token)
        return (
            f"{shown_prompt(tie.prompt)} step {place}" if len(self.prompts) > 1 else place,
            decimal(tie.value, self.format),
            ", ".join(str(found.token) for found in tie.tokens[:most]) + more,
            texts + more,
            about(tie.spread),
            token_words(tie.before.piece, tie.before.token),
            f"x {word}, the {tie.taken.rule} id" if tie.is_flip else word,
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "model": self.model,
            "recipe": {"name": self.recipe.name, "site": self.recipe.words()},
            "format": str(self.format),
            "logits_format": str(self.logits_format),
            "sums_format": None if self.sums_format is None else str(self.sums_format),
            "prompts": list(self.prompts),
            "total": self.total,
            "without_token": self.without_token,
            "flips": len(self.flips),
            "ties": [tie.to_dict() for tie in self.ties],
        }


def ties(run: Run | str | Path, *, format: str | Format | None = None) -> Ties:
    """The steps of a run (or of the folder that it was saved in) whose best logits tie when rounded to a format.

    `format`: that of the logits unless said. Of a run without steps, each position's row is looked at.
    **Rounds:** each logit once, ties to even; one beyond the format's range to its largest value.
    **Raises** FormatError for an unknown format.
    """
    return _of_runs([opened(run)], format)


def ties_of_prompts(
    prompts: Iterable[str],
    *,
    model: str | Path | Model = "tiny",
    recipe: str | Path | Recipe = "f32",
    format: str | Format = "bf16",
    steps: int = 1,
    progress: Progress | None = None,
) -> Ties:
    """`ties` of several prompts, each run under the recipe for so many greedy steps.

    **Raises** RunError where there are no prompts, and what `simulate` raises.
    """
    given = list(prompts)
    if not given:
        raise RunError("Looking for ties: there are no prompts. Give at least one, one on a line.")
    chosen = recipe_of(recipe)
    opened_model = model if isinstance(model, Model) else open_model(model, progress)
    runs = []
    for place, prompt in enumerate(given):
        run = simulate(prompt, model=opened_model, recipe=chosen, steps=steps, taps=(SUMS,))
        runs.append(named(run, opened_model))
        if progress is not None:
            progress("prompts", place + 1, len(given))
    return _of_runs(runs, format)


def _of_runs(runs: list[Run], format: str | Format | None) -> Ties:
    first = runs[0]
    fmt = first.logits_format if format is None else format_of(format)
    looked = [(run, *place) for run in runs for place in _places(run)]
    found = [_tie(run, step, position, fmt) for run, step, position in looked]
    return Ties(
        model=first.model,
        recipe=first.recipe,
        format=fmt,
        logits_format=first.logits_format,
        prompts=tuple(prompt_of(run) for run in runs),
        total=len(looked),
        without_token=len([run for run, _, position in looked if np.isnan(run["logits"][position]).any()]),
        ties=tuple(tie for tie in found if tie is not None),
        sums_format=sums_format(first),
        remark=remark(first),
    )


def _places(run: Run) -> list[tuple[int | None, int]]:
    """(step, position) of each row that chooses a token; of each position where none was chosen."""
    if not run.steps:
        return [(None, position) for position in range(len(run.fed))]
    return [(step, len(run.prompt_tokens) - 1 + step) for step in range(run.steps)]


def _tie(run: Run, step: int | None, position: int, fmt: Format) -> Tie | None:
    """The tie of one row, or None where one id is the largest alone, or the row holds NaN."""
    row = run["logits"][position].astype(np.float64)
    rounded = np.asarray(round_to(row, fmt, overflow="saturate")).astype(np.float64)
    rounded = np.where(np.isinf(row), row, rounded)
    rule = run.recipe.ties
    taken = choice(rounded, rule)
    if taken.token is None or taken.ties < 2:
        return None
    sums = sums_of(run, position)
    row = row if sums is None else sums
    tied = [int(token) for token in np.flatnonzero(rounded == taken.logit)]
    return Tie(
        prompt=prompt_of(run),
        step=step,
        position=position,
        value=taken.logit,
        tokens=tuple(with_text(Choice(token, float(row[token]), len(tied)), run) for token in tied),
        before=with_text(choice(row, rule), run),
        taken=with_text(taken, run),
    )
