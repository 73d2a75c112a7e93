"""The logits from which one step chooses, under any recipe: the same tokens fed, teacher forced up to that step.

Where no order of a recipe depends on the shape, one pass over all the tokens gives the bits of a cached decode, so one
pass is made; else the steps are made one by one. Start reading at `Question`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from softfloat_llm.analysis.distances import absolute, differs
from softfloat_llm.analysis.names import named
from softfloat_llm.analysis.numbers import about
from softfloat_llm.analysis.verdicts import Choice, choice
from softfloat_llm.errors import NonFiniteError, RunError
from softfloat_llm.io.checkpoint import Model
from softfloat_llm.numerics.formats import Float64Array, Format
from softfloat_llm.recipe import Recipe
from softfloat_llm.runs import model_of, simulate

if TYPE_CHECKING:
    from softfloat_llm.runs import Run

_OVER_KEYS = ("attn.softmax", "attn.pv")
"""The sites whose sums run over the key positions, and so have another length in a whole pass."""

Count = Callable[[str], None]
"""Told the name of each recipe before it is run. One that has a method `expect` is told how many are to come."""


@dataclass(frozen=True)
class StepLogits:
    """A row of logits (V,) as float64, their format, and what the recipe chooses from them."""

    values: Float64Array
    format: Format
    choice: Choice

    @property
    def token(self) -> int | None:
        """The token that is chosen; None where the row holds NaN."""
        return self.choice.token

    def lead(self, first: int, second: int) -> Fraction | None:
        """logit(first) - logit(second), exactly; None where one of them is not finite."""
        pair = float(self.values[first]), float(self.values[second])
        return Fraction(pair[0]) - Fraction(pair[1]) if np.isfinite(pair).all() else None


@dataclass(frozen=True)
class Question:
    """A model, and all tokens that it is fed before it chooses at `step`: the prompt and `step` further ones.

    `asked` is a run that was fed these tokens (and may have been fed more). `is_ours`: it was simulated here and now,
    so the row of its own recipe is not made again.
    """

    model: Model
    asked: Run
    step: int
    workers: int = 1
    before: Count | None = field(default=None, compare=False)
    is_ours: bool = False

    @property
    def fed(self) -> tuple[int, ...]:
        """The tokens, prompt included."""
        return self.asked.fed[: len(self.asked.prompt_tokens) + self.step]

    @property
    def position(self) -> int:
        """The position whose row chooses."""
        return len(self.fed) - 1

    def piece(self, token: int) -> str:
        """The text of a token."""
        return self.asked.piece(token)

    def logits(self, recipe: Recipe) -> StepLogits:
        """The row that chooses at the step, under a recipe; all NaN where an earlier row had NaN already."""
        own = self.own_row(recipe)
        row = own if self.is_ours and own is not None else self._row(recipe)
        return StepLogits(row, recipe.at("lm_head").output, self.told(choice(row, recipe.ties)))

    def expect(self, passes: int) -> None:
        """So many passes are still to be made, as far as that is known: for whoever counts them."""
        tell = getattr(self.before, "expect", None)
        if tell is not None:
            tell(passes)

    def _row(self, recipe: Recipe) -> Float64Array:
        if self.before is not None:
            self.before(recipe.name)
        try:
            run = fed_again(self.asked, self.fed, recipe, self.model, self.workers)
        except NonFiniteError:
            return np.full(self.model.config.vocab_size, np.nan)
        row: Float64Array = run["logits"][-1].astype(np.float64)
        return row

    def own_row(self, recipe: Recipe) -> Float64Array | None:
        """The row that `asked` has at the step, where it was made under this recipe."""
        if self.position >= len(self.asked["logits"]) or recipe.words() != self.asked.recipe.words():
            return None
        row: Float64Array = self.asked["logits"][self.position].astype(np.float64)
        return row

    def note(self, recipe: Recipe, row: StepLogits) -> str:
        """What has to be said where the run's own logits are not those of its recipe: it was run elsewhere."""
        own = self.own_row(recipe)
        if own is None or np.array_equal(own, row.values, equal_nan=True):
            return ""
        apart = float(absolute(own, row.values, differs(own, row.values)).max())
        return (
            f"The run's own logits at this step differ from what its recipe gives here by up to {about(apart)}: what"
            " follows is about the recipe."
        )

    def told(self, found: Choice) -> Choice:
        """The choice with the text of its token."""
        return found if found.token is None else replace(found, piece=self.piece(found.token))


def is_shape_free(recipe: Recipe) -> bool:
    """True where a cached decode and one pass over all its tokens have the same bits.

    No rule speaks of shapes, and the sums over key positions have orders that further terms of 0 do not move.
    """
    orders = (recipe.at(site).precision.order for site in _OVER_KEYS)
    return not any(recipe.at(site).rules for site in recipe.words()) and all(order.is_shape_free for order in orders)


def question(
    run: Run, step: int, *, model: str | Path | Model | None = None, workers: int = 1, before: Count | None = None
) -> Question:
    """What a run was asked at a step: its model opened again, its tokens.

    `model`: where the weights are, if not under the name that the run has.
    Raises RunError where the run was not fed so many tokens, or the model has other weights.
    """
    have = len(run.fed) - len(run.prompt_tokens)
    if not 0 <= step <= have:
        raise RunError(
            f"There is no step {step}: the run was fed its prompt and {have} tokens, so 0 to {have} are there."
        )
    opened = model_of(run, model)
    return Question(opened, named(run, opened), step, workers, before)


def fed_again(asked: Run, fed: Sequence[int], recipe: Recipe, model: Model, workers: int = 1) -> Run:
    """The tokens `fed` of a run, its prompt and some further ones, fed under another recipe: a row for each."""
    if is_shape_free(recipe):
        run = simulate(tokens=fed, model=model, recipe=recipe, steps=0, taps=(), workers=workers)
        return replace(run, prompt_tokens=asked.prompt_tokens)
    teacher = replace(asked, generated=(*fed[len(asked.prompt_tokens) :], 0))  # whose last token is fed to nobody
    return simulate(model=model, recipe=recipe, teacher=teacher, taps=(), workers=workers)


def flipped_steps(run: Run, reference: Run) -> Sequence[int]:
    """The steps of the run at which its rows and the reference's, fed the same tokens, choose two tokens."""
    start = len(run.prompt_tokens) - 1
    pairs = ((run["logits"][start + step], reference["logits"][start + step]) for step in range(run.steps))
    rules = run.recipe.ties, reference.recipe.ties
    return [step for step, (x, y) in enumerate(pairs) if choice(x, rules[0]).token != choice(y, rules[1]).token]
