"""bisect(run): which site's precision makes a token flip.

Three questions about one step at which a run and a reference choose two tokens. Which site, alone in the reference's
precision, brings the reference's token back? Which site, alone in the run's precision, makes the reference flip? And
with the sites changed one after another in the order of the forward pass, at which does the token first turn over
(found by halving)? Start reading at `bisect_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softfloat_llm.analysis.answers import Answer, Table, prompt_of, shown_prompt
from softfloat_llm.analysis.budget import telling_step
from softfloat_llm.analysis.chains import Change, Move, between, chain, differences, moves
from softfloat_llm.analysis.compare import opened
from softfloat_llm.analysis.numbers import about, binade
from softfloat_llm.analysis.step_logits import Count, Question, question
from softfloat_llm.analysis.verdicts import Choice
from softfloat_llm.analysis.wording import recipe_line, token_words
from softfloat_llm.errors import RunError, WordError
from softfloat_llm.numerics.formats import Format
from softfloat_llm.numerics.ulps import ulp
from softfloat_llm.recipe import Recipe, recipe_of

if TYPE_CHECKING:
    from softfloat_llm.io.checkpoint import Model
    from softfloat_llm.runs import Run

SCHEMA = "softfloat-llm/bisect/1"
SHOWN = 10
ASKS = "which site, changed alone, turns the token; by how much each moves the lead, one after another: budget"


@dataclass(frozen=True)
class Alone:
    """What is chosen with one move made alone, or undone alone; `lead` is that of the reference's token.

    `choice` is None, and `problem` says why, where such a recipe has no meaning.
    """

    choice: Choice | None
    lead: Fraction | None
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON: plain numbers, strings, lists."""
        return {
            "choice": self.choice and self.choice.to_dict(),
            "lead": None if self.lead is None else float(self.lead),
            "problem": self.problem,
        }


@dataclass(frozen=True)
class Suspect:
    """A site (or a group of sites): `undone`, the run with it as the reference has it; `made`, the other way round."""

    move: Move
    undone: Alone
    made: Alone
    brings_back: bool
    """Undone alone, the reference's token is chosen again."""
    makes_flip: bool
    """Made alone, the reference's token is not chosen any more."""

    @property
    def is_decisive(self) -> bool:
        return self.brings_back or self.makes_flip

    def to_dict(self) -> dict[str, Any]:
        """JSON: plain numbers, strings, lists."""
        return {
            "move": self.move.name,
            "sites": list(self.move.sites),
            "undone": self.undone.to_dict(),
            "made": self.made.to_dict(),
            "brings_back": self.brings_back,
            "makes_flip": self.makes_flip,
        }


@dataclass(frozen=True)
class Bisection(Answer):
    """Who flipped the token of one step. `turn` is the move of the chain at which it first turns over."""

    model: str
    prompt: str
    recipe: Recipe
    reference_recipe: Recipe
    step: int
    position: int
    reference: Choice
    run: Choice
    reference_lead: Fraction | None
    run_lead: Fraction | None
    format: Format
    suspects: tuple[Suspect, ...]
    turn: Move
    is_fast: bool
    runs: int
    """How many forward passes it took."""
    note: str = ""

    def heading(self) -> list[tuple[str, str]]:
        lines = [("prompt", shown_prompt(self.prompt)), ("recipe", recipe_line(self.recipe))]
        lines += [("against", self.reference_recipe.name), ("asks", ASKS)]
        return [*lines, ("note", self.note)] if self.note else lines

    def sentences(self) -> list[str]:
        asked, got = (token_words(c.piece, c.token) for c in (self.reference, self.run))
        back = _any_of([suspect.move for suspect in self.suspects if suspect.brings_back])
        flips = _any_of([suspect.move for suspect in self.suspects if suspect.makes_flip])
        return [
            f"At step {self.step} the token flips: {asked} -> {got}; the lead of {asked} goes {self._ends()}.",
            f"Alone in the reference's precision, {back} brings {asked} back.",
            f"Alone in the run's precision, {flips} makes it flip.",
            f"In the order of the forward pass it first turns over at {self.turn.name} ({self.runs} passes in all).",
        ]

    def _ends(self) -> str:
        if self.reference_lead is None or self.run_lead is None:
            return "beyond what is finite"
        unit = float(ulp(self.reference.logit, self.format))
        ends = [f"{about(float(lead) / unit)}" for lead in (self.reference_lead, self.run_lead)]
        return f"from {ends[0]} to {ends[1]} {self.format} ulp (in {binade(self.reference.logit, self.format)})"

    def tables(self, *, verbose: bool = False) -> list[Table]:
        """Each suspect's two questions; the decisive ones first where not all are shown."""
        header = ("site", "run, but it as in the reference", "chosen", "reference, but it as in the run", "chosen")
        ranked = self.suspects if verbose else sorted(self.suspects, key=lambda suspect: not suspect.is_decisive)
        rows = tuple(
            (
                suspect.move.name,
                _lead(suspect.undone),
                _chosen(suspect.undone, suspect.brings_back),
                _lead(suspect.made),
                _chosen(suspect.made, suspect.makes_flip),
            )
            for suspect in ranked
        )
        table = Table(header, rows, right=(1, 3))
        return [table if verbose else table.cut(SHOWN)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "model": self.model,
            "prompt": self.prompt,
            "recipe": {"name": self.recipe.name, "site": self.recipe.words()},
            "reference_recipe": {"name": self.reference_recipe.name, "site": self.reference_recipe.words()},
            "step": self.step,
            "position": self.position,
            "reference": self.reference.to_dict(),
            "run": self.run.to_dict(),
            "reference_lead": None if self.reference_lead is None else float(self.reference_lead),
            "run_lead": None if self.run_lead is None else float(self.run_lead),
            "ulp_format": str(self.format),
            "suspects": [suspect.to_dict() for suspect in self.suspects],
            "turn": {"move": self.turn.name, "sites": list(self.turn.sites)},
            "is_fast": self.is_fast,
            "runs": self.runs,
            "note": self.note,
        }


def _any_of(moves: Sequence[Move]) -> str:
    """A subject in the singular: `no site`, `lm_head`, `each of rope, lm_head`; no group beside a site of its own."""
    names = [one.name for one in moves if not any(set(other.changes) < set(one.changes) for other in moves)]
    if len(names) < 2:
        return names[0] if names else "no site"
    return f"each of {', '.join(names)}"


def _lead(alone: Alone) -> str:
    return "not finite" if alone.lead is None else f"lead {about(float(alone.lead))}"


def _chosen(alone: Alone, is_decisive: bool) -> str:
    if alone.choice is None:
        return "not possible alone"
    token = token_words(alone.choice.piece, alone.choice.token)
    return f"x {token}" if is_decisive else token


def bisect(
    run: Run | str | Path,
    *,
    against: str | Path | Recipe = "f32",
    step: int | None = None,
    is_fast: bool = False,
    model: str | Path | Model | None = None,
    workers: int = 1,
    before: Count | None = None,
) -> Bisection:
    """Which site flipped a token of a run (or of the folder that it was saved in), against a recipe.

    `step`: the first that flips. `is_fast`: groups of sites first, then the sites of those that matter. The run's
    tokens are fed again, up to that step.
    **Raises** RunError where no token flips there.
    """
    run, reference = opened(run), recipe_of(against)
    if step is None:
        step = telling_step(run, reference, question(run, 0, model=model).model, workers=workers)
    asked = question(run, step, model=model, workers=workers, before=before)
    return bisect_of(asked, run.recipe, reference, is_fast=is_fast)


def bisect_of(
    asked: Question, recipe: str | Path | Recipe, against: str | Path | Recipe = "f32", *, is_fast: bool = False
) -> Bisection:
    """Which site of a recipe flips the token of a step, against another recipe.

    Two passes for each site in which the recipes differ, and about five to find the turn.
    **Raises** RunError where both recipes choose the same token, or the reference none.
    """
    run, reference = recipe_of(recipe), recipe_of(against)
    first, halvings = moves(reference, run, "group" if is_fast else "site"), _halvings(reference, run)
    asked.expect(2 + 2 * len(first) + halvings)
    search = Search(asked, reference, run)
    _check_flip(search)
    suspects = search.suspects(first)
    if is_fast:
        inner = _inside(reference, run, suspects)
        asked.expect(2 * len(inner) + halvings)
        suspects = [*suspects, *search.suspects(inner)]
    turn = search.turn()
    return Bisection(
        model=asked.asked.model,
        prompt=prompt_of(asked.asked),
        recipe=run,
        reference_recipe=reference,
        step=asked.step,
        position=asked.position,
        reference=search.start.choice,
        run=search.end.choice,
        reference_lead=search.start.lead(*search.pair),
        run_lead=search.end.lead(*search.pair),
        format=search.end.format,
        suspects=tuple(suspects),
        turn=turn,
        is_fast=is_fast,
        runs=search.runs,
        note=asked.note(run, search.end),
    )


def _halvings(reference: Recipe, run: Recipe) -> int:
    """How many passes find the turn of the chain, at most."""
    return (len(moves(reference, run, "site")) - 1).bit_length() if reference.words() != run.words() else 0


def _check_flip(search: Search) -> None:
    asked, got = search.start.choice, search.end.choice
    if asked.token is None:
        raise RunError(f"The reference's logits at step {search.asked.step} hold NaN: it chooses no token.")
    if got.token is None:
        raise RunError(f"The run's logits at step {search.asked.step} hold NaN: `ranges` says where that began.")
    if asked.token == got.token:
        told = token_words(got.piece, got.token)
        raise RunError(
            f"At step {search.asked.step} both recipes choose {told}: no token flips. Say --step for another one, or"
            " look at `budget`."
        )


def _inside(reference: Recipe, run: Recipe, groups: Sequence[Suspect]) -> list[Move]:
    """The sites of the groups that matter, where a group has more than one."""
    wanted = {change for suspect in groups if suspect.is_decisive for change in suspect.move.changes}
    whole = {suspect.move.changes for suspect in groups}
    return [move for move in moves(reference, run, "site") if move.changes[0] in wanted and move.changes not in whole]


class Search:
    """The passes of one bisection, counted."""

    def __init__(self, asked: Question, reference: Recipe, run: Recipe) -> None:
        self.asked, self.reference, self.run, self.runs = asked, reference, run, 2
        self.start, self.end = asked.logits(reference), asked.logits(run)
        self.all = differences(reference, run)

    @property
    def pair(self) -> tuple[int, int]:
        """The reference's token and the run's."""
        assert self.start.token is not None
        assert self.end.token is not None
        return self.start.token, self.end.token

    def suspects(self, candidates: Sequence[Move]) -> list[Suspect]:
        """Each move undone alone and made alone."""
        found = []
        for move in candidates:
            undone = self._alone([c for c in self.all if c not in move.changes], f"{self.run.name} but {move.name}")
            made = self._alone(move.changes, f"{self.reference.name} but {move.name}")
            back = undone.choice is not None and undone.choice.token == self.start.token
            flips = made.choice is not None and made.choice.token != self.start.token
            found.append(Suspect(move, undone, made, back, flips))
        return found

    def _alone(self, changes: Sequence[Change], name: str) -> Alone:
        try:
            recipe = between(self.reference, self.run, changes, name)
        except WordError as error:
            return Alone(None, None, str(error))
        self.runs += 1
        row = self.asked.logits(recipe)
        return Alone(row.choice, row.lead(*self.pair))

    def turn(self) -> Move:
        """A move of the chain before which the reference's token is chosen, and after which it is not; by halving."""
        links = chain(self.reference, self.run, "site")
        low, high = -1, len(links) - 1  # after link `low` the reference's token is chosen, after `high` another one
        while high - low > 1:
            middle = (low + high) // 2
            self.runs += 1
            is_kept = self.asked.logits(links[middle].recipe).token == self.start.token
            low, high = (middle, high) if is_kept else (low, middle)
        return links[high].move
