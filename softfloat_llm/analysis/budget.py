"""budget(run): how much of an error storage, products, accumulation and outputs make, or each site.

The recipe is changed from the reference's to the run's, one move after another (`chains`), and the model is run after
each. What the lead of one token over another changes by at a move is that move's share. The shares are differences of
consecutive values, so they sum to the whole change exactly; they are kept as fractions. What two moves do alike counts
for the one that is made first. Start reading at `budget`, then `budget_of`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softfloat_llm.analysis.answers import Answer, Table, prompt_of, shown_prompt
from softfloat_llm.analysis.chains import Move, chain
from softfloat_llm.analysis.compare import opened
from softfloat_llm.analysis.distances import absolute, differs
from softfloat_llm.analysis.margins import margins, two_best
from softfloat_llm.analysis.numbers import about, binade, jsonable
from softfloat_llm.analysis.step_logits import Count, Question, StepLogits, fed_again, flipped_steps, question
from softfloat_llm.analysis.verdicts import Choice
from softfloat_llm.analysis.wording import recipe_line, token_words
from softfloat_llm.errors import RunError
from softfloat_llm.numerics.formats import Format
from softfloat_llm.numerics.ulps import ulp
from softfloat_llm.recipe import Recipe, recipe_of

if TYPE_CHECKING:
    from softfloat_llm.io.checkpoint import Model
    from softfloat_llm.runs import Run

SCHEMA = "softfloat-llm/budget/1"
SHOWN_SHARES = 9
ASKS = "by how much each change moves the lead, made after those above it; which site alone turns the token: bisect"


@dataclass(frozen=True)
class Share:
    """What one move changes: the lead and both logits, exactly (None where a logit is not finite), and any logit."""

    move: Move
    lead: Fraction | None
    change: Fraction | None
    max_abs: float
    """The largest change of any logit at this move; inf where one of the two is not finite."""
    choice: Choice
    """What is chosen after this move."""

    def to_dict(self) -> dict[str, Any]:
        """JSON: plain numbers, strings, lists; the exact change as a fraction."""
        return {
            "move": self.move.name,
            "sites": list(self.move.sites),
            "settings": [str(change) for change in self.move.changes],
            "lead": _number(self.lead),
            "change": _number(self.change),
            "change_exact": None if self.change is None else str(self.change),
            "max_abs": jsonable(self.max_abs),
            "choice": self.choice.to_dict(),
        }


def _number(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


@dataclass(frozen=True)
class Budget(Answer):
    """Where a step's error comes from. The lead is logit(`first`) - logit(`second`), the reference's token first.

    `second` is the run's token, or the reference's runner-up where both choose alike. Ulps are of the run's format.
    """

    model: str
    prompt: str
    recipe: Recipe
    reference_recipe: Recipe
    step: int
    position: int
    by: str
    is_reversed: bool
    first: Choice
    second: Choice
    reference: Choice
    run: Choice
    reference_lead: Fraction | None
    run_lead: Fraction | None
    format: Format
    max_abs: float
    shares: tuple[Share, ...]
    note: str = ""

    @property
    def is_flip(self) -> bool:
        return self.run.token is None or self.reference.token != self.run.token

    @property
    def change(self) -> Fraction | None:
        """What the lead changes by, from the reference to the run."""
        if self.run_lead is None or self.reference_lead is None:
            return None
        return self.run_lead - self.reference_lead

    @property
    def unit(self) -> float:
        """One ulp of the run's format at the reference's largest logit."""
        return float(ulp(self.reference.logit, self.format))

    def heading(self) -> list[tuple[str, str]]:
        lines = [("prompt", shown_prompt(self.prompt)), ("recipe", recipe_line(self.recipe))]
        lines += [("against", self.reference_recipe.name), ("asks", ASKS)]
        return [*lines, ("note", self.note)] if self.note else lines

    def sentences(self) -> list[str]:
        first, second, asked, got = (
            token_words(c.piece, c.token) for c in (self.first, self.second, self.reference, self.run)
        )
        lines = [f"At step {self.step} the token {f'flips: {asked} -> {got}' if self.is_flip else f'stays {got}'}."]
        if self.run.token is None:
            lines = [
                f"At step {self.step} the run's logits hold NaN: it chooses no token. The reference chooses {asked}."
            ]
        if self.change is None or self.reference_lead is None or self.run_lead is None:
            return [*lines, "A logit is not finite, so not every lead can be told.", *self._about_shares()]
        ends = f"from {about(float(self.reference_lead))} to {about(float(self.run_lead))}"
        grid = (
            f"{about(float(self.change) / self.unit)} {self.format} ulp in {binade(self.reference.logit, self.format)}"
        )
        lines.append(f"The lead of {first} over {second} goes {ends}: by {about(float(self.change))}, {grid}.")
        return [*lines, *self._about_shares()]

    def _about_shares(self) -> list[str]:
        known = [share for share in self.shares if share.change is not None and share.change]
        turn = next((share.move.name for share in self.shares if share.choice.token != self.reference.token), None)
        lines = [] if turn is None else [f"The token first changes when {turn} moves."]
        if not known:
            return lines
        most = max(known, key=lambda share: abs(_number(share.change) or 0.0))
        part = f"the largest is that of {most.move.name}, {about(_number(most.change) or 0.0)}"
        if any(share.change is None for share in self.shares):
            return [f"Of the shares that are finite, {part}.", *lines]
        if len(self.shares) == 1:
            return [f"All of it is the share of {most.move.name}.", *lines]
        return [f"The {len(self.shares)} shares sum to it exactly; {part}.", *lines]

    def tables(self, *, verbose: bool = False) -> list[Table]:
        """The reference, then every move in the order in which they were made."""
        header = (
            "moved to the run's",
            "lead",
            "change",
            f"in {self.format} ulp",
            "largest change of a logit",
            "chosen",
        )
        start = (
            "(reference)",
            _about(self.reference_lead),
            "",
            "",
            "",
            token_words(self.reference.piece, self.reference.token),
        )
        shown, note = (self.shares, "") if verbose else _shown(self.shares)
        rows = (start, *(self._row(share) for share in shown))
        return [Table(header, rows, right=(1, 2, 3, 4), note=note)]

    def _row(self, share: Share) -> tuple[str, ...]:
        in_ulp = "" if share.change is None else about(float(share.change) / self.unit)
        token = token_words(share.choice.piece, share.choice.token)
        is_other = share.choice.token != self.reference.token
        return (
            share.move.name, _about(share.lead), _about(share.change), in_ulp, about(share.max_abs),
            f"x {token}" if is_other else token,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "model": self.model,
            "prompt": self.prompt,
            "recipe": {"name": self.recipe.name, "site": self.recipe.words()},
            "reference_recipe": {"name": self.reference_recipe.name, "site": self.reference_recipe.words()},
            "step": self.step,
            "position": self.position,
            "by": self.by,
            "is_reversed": self.is_reversed,
            "first": self.first.to_dict(),
            "second": self.second.to_dict(),
            "reference": self.reference.to_dict(),
            "run": self.run.to_dict(),
            "is_flip": self.is_flip,
            "reference_lead": _number(self.reference_lead),
            "run_lead": _number(self.run_lead),
            "change": _number(self.change),
            "change_exact": None if self.change is None else str(self.change),
            "ulp": jsonable(self.unit),
            "ulp_format": str(self.format),
            "max_abs": jsonable(self.max_abs),
            "shares": [share.to_dict() for share in self.shares],
            "note": self.note,
        }


def budget(
    run: Run | str | Path,
    *,
    against: str | Path | Recipe = "f32",
    step: int | None = None,
    by: str = "stage",
    pair: tuple[int, int] | None = None,
    is_reversed: bool = False,
    model: str | Path | Model | None = None,
    workers: int = 1,
    before: Count | None = None,
) -> Budget:
    """Where the error of a run (or of the folder that it was saved in) comes from, at one step, against a recipe.

    `step`: the first at which the two choose different tokens, else the one with the smallest margin. The run's tokens
    are fed again under each recipe of the chain: `by` stage, group of sites, site, or each stage of each site.
    **Raises** RunError for a step or a token that is not there, RecipeError for unknown words.
    """
    run, reference = opened(run), recipe_of(against)
    if step is None:
        step = telling_step(run, reference, question(run, 0, model=model).model, workers=workers)
    asked = question(run, step, model=model, workers=workers, before=before)
    return budget_of(asked, run.recipe, reference, by=by, pair=pair, is_reversed=is_reversed)


def telling_step(run: Run, reference: Recipe, model: Model, *, workers: int = 1) -> int:
    """The first step at which the run's token is not the reference's, or else that with the run's smallest margin."""
    if run.steps <= 1:
        return 0
    flips = flipped_steps(run, fed_again(run, run.fed, reference, model, workers))
    least = margins(run).least
    return flips[0] if flips else (least.step or 0) if least is not None else 0


def budget_of(
    asked: Question,
    recipe: str | Path | Recipe,
    against: str | Path | Recipe = "f32",
    *,
    by: str = "stage",
    pair: tuple[int, int] | None = None,
    is_reversed: bool = False,
) -> Budget:
    """The budget of a recipe's error at a step, against another recipe: one run for the reference, one for each move.

    `pair`: the ids whose lead is told, in place of the two tokens that are chosen.
    **Rounds:** nothing: leads and shares are exact fractions of the logits, and the shares sum to the whole change.
    **Raises** RunError for a pair that is no two ids of the vocabulary.
    """
    run, reference = recipe_of(recipe), recipe_of(against)
    links = chain(reference, run, by, is_reversed=is_reversed)
    asked.expect(len(links) + 1)
    start = asked.logits(reference)
    rows = [start, *(asked.logits(link.recipe) for link in links[:-1]), *([asked.logits(run)] if links else [])]
    first, second = pair_of(asked.step, start, rows[-1], pair)
    shares = tuple(_share(link.move, rows[place], rows[place + 1], first, second) for place, link in enumerate(links))
    leads = start.lead(first, second), rows[-1].lead(first, second)
    changes = [share.change for share in shares if share.change is not None]
    if len(changes) == len(shares) and leads[0] is not None and leads[1] is not None:
        assert sum(changes, Fraction(0)) == leads[1] - leads[0]
    return Budget(
        model=asked.asked.model,
        prompt=prompt_of(asked.asked),
        recipe=run,
        reference_recipe=reference,
        step=asked.step,
        position=asked.position,
        by=by,
        is_reversed=is_reversed,
        first=asked.told(Choice(first, float(start.values[first]))),
        second=asked.told(Choice(second, float(start.values[second]))),
        reference=start.choice,
        run=rows[-1].choice,
        reference_lead=leads[0],
        run_lead=leads[1],
        format=rows[-1].format,
        max_abs=_largest_change(start, rows[-1]),
        shares=shares,
        note=asked.note(run, rows[-1]),
    )


def _share(move: Move, before: StepLogits, after: StepLogits, first: int, second: int) -> Share:
    leads = before.lead(first, second), after.lead(first, second)
    change = None if leads[0] is None or leads[1] is None else leads[1] - leads[0]
    return Share(move, leads[1], change, _largest_change(before, after), after.choice)


def _largest_change(before: StepLogits, after: StepLogits) -> float:
    x, y = after.values, before.values
    return float(absolute(x, y, differs(x, y)).max())


def pair_of(step: int, reference: StepLogits, run: StepLogits, pair: tuple[int, int] | None) -> tuple[int, int]:
    """The ids whose lead is told: those given, or the reference's token and the run's (the second best, if alike)."""
    size = len(reference.values)
    if pair is not None:
        if len(set(pair)) != 2 or not all(0 <= token < size for token in pair):
            raise RunError(f"The pair {list(pair)} is no two ids of the vocabulary: it has ids from 0 to {size - 1}.")
        return pair
    if size < 2:
        raise RunError("The vocabulary has one id: no token leads another one.")
    first, second = two_best(reference.values, reference.choice.rule)
    if first.token is None or second is None or second.token is None:
        raise RunError(f"The reference's logits at step {step} hold NaN: it chooses no token. Take another reference.")
    is_flip = run.token is not None and run.token != first.token
    return first.token, run.token if is_flip and run.token is not None else second.token


# --- in words ---------------------------------------------------------------------------------------------------------


def _about(value: Fraction | None) -> str:
    return "not finite" if value is None else about(float(value))


def _shown(shares: Sequence[Share]) -> tuple[tuple[Share, ...], str]:
    """The largest shares, in their order, and what is said of the others."""
    ranked = sorted(shares, key=lambda share: -math.inf if share.change is None else -abs(share.change))
    hidden = ranked[SHOWN_SHARES:]
    if not hidden:
        return tuple(shares), ""
    rest = sum((share.change or Fraction(0) for share in hidden), Fraction(0))
    most = max(abs(share.change or Fraction(0)) for share in hidden)
    sizes = f"at most {about(float(most))} each, together by {about(float(rest))}"
    note = f"({len(hidden)} further moves change it by {sizes}: -v)"
    return tuple(share for share in shares if share not in hidden), note
