"""The band of a model's logits: the same pass with other orders of its sums, and what each of them chooses.

Every order is a right one, so the logits of a step are known up to this band only; where two logits lie closer than
it, the order decides the token. Start reading at `model_band`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from softfloat_llm.analysis.answers import Answer, Table, counted, prompt_of, shown_prompt
from softfloat_llm.analysis.bands import SCHEMA, SEEDED, orders_of
from softfloat_llm.analysis.bounds import sum_bounds
from softfloat_llm.analysis.margins import two_best
from softfloat_llm.analysis.numbers import about, decimal, distance, jsonable
from softfloat_llm.analysis.step_logits import Question
from softfloat_llm.analysis.verdicts import Choice
from softfloat_llm.analysis.wording import recipe_line, token_words
from softfloat_llm.errors import PrecisionError, RunError
from softfloat_llm.numerics.formats import Format
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.numerics.ulps import ulp
from softfloat_llm.recipe import Recipe, recipe_of
from softfloat_llm.runs import simulate


@dataclass(frozen=True)
class LogitBand:
    """One logit: in the recipe's own order, the least and the most among the orders; the head's own bounds.

    The bounds speak of `lm_head`'s sum alone, given what enters it: the rest of the model moves its input too.
    """

    token: Choice
    low: float
    high: float
    a_priori: float | None
    running: float | None

    @property
    def width(self) -> float:
        return self.high - self.low

    def to_dict(self) -> dict[str, Any]:
        """JSON: plain numbers, strings, lists."""
        return {
            "token": self.token.to_dict(),
            "low": jsonable(self.low),
            "high": jsonable(self.high),
            "width": jsonable(self.width),
            "head_a_priori": None if self.a_priori is None else jsonable(self.a_priori),
            "head_running": None if self.running is None else jsonable(self.running),
        }


@dataclass(frozen=True)
class ModelBand(Answer):
    """The band of a row of logits: the recipe's own orders, and others at the sites of `at`.

    `logits` are the two best and the one with the widest band; `chosen` is what each order chooses.
    """

    model: str
    prompt: str
    recipe: Recipe
    at: str
    step: int
    orders: tuple[str, ...]
    format: Format
    margin: float
    choice: Choice
    chosen: tuple[Choice, ...]
    logits: tuple[LogitBand, ...]
    seen: float
    moved: int
    size: int
    not_finite: int
    """Orders whose row is not finite."""

    @property
    def flips(self) -> tuple[str, ...]:
        """The orders that choose another token than the recipe's own."""
        return tuple(o for o, c in zip(self.orders, self.chosen, strict=True) if c.token != self.choice.token)

    def heading(self) -> list[tuple[str, str]]:
        lines = [("prompt", shown_prompt(self.prompt)), ("recipe", recipe_line(self.recipe))]
        return [
            *lines,
            ("orders", f"{', '.join(self.orders[:4])}{' ...' if len(self.orders) > 4 else ''} at {self.at}"),
        ]

    def sentences(self) -> list[str]:
        widest, first = self.logits[-1], self.logits[0]
        name = token_words(widest.token.piece, widest.token.token)
        lines = [f"{counted(len(self.orders), 'other order')}: {self.moved} of {self.size} logits move."]
        if self.seen:
            width = distance(self.seen, widest.token.logit, self.format)
            lines.append(f"The widest band is that of {name}: {width}.")
            lines.append("A test must allow at least that, or it fails on right results.")
        gap = distance(self.margin, first.token.logit, self.format)
        if self.flips:
            told = next(c for c in self.chosen if c.token != self.choice.token)
            names = " -> ".join(token_words(c.piece, c.token) for c in (self.choice, told))
            lines.append(f"{len(self.flips)} of the orders choose another token: {names}. The margin is {gap}.")
        else:
            token = token_words(self.choice.piece, self.choice.token)
            lines.append(f"All choose {token}: the margin is {gap}.")
        if self.not_finite:
            lines.append(f"{counted(self.not_finite, 'order')} gave logits that are not finite.")
        if first.a_priori is not None:
            lines.append("The head's bounds are about its own sum, given what enters it.")
        return lines

    def tables(self, *, verbose: bool = False) -> list[Table]:
        header = ("logit", "its order", "least", "most", f"band in {self.format} ulp", "head a-priori", "head running")
        rows = tuple(
            (
                token_words(one.token.piece, one.token.token),
                *(decimal(x, self.format) for x in (one.token.logit, one.low, one.high)),
                about(one.width / float(ulp(one.token.logit, self.format))),
                *("none" if x is None else about(x) for x in (one.a_priori, one.running)),
            )
            for one in self.logits
        )
        tables = [Table(header, rows, right=(1, 2, 3, 4, 5, 6))]
        if verbose:
            each = tuple(
                (o, token_words(c.piece, c.token), decimal(c.logit, self.format))
                for o, c in zip(self.orders, self.chosen, strict=True)
            )
            tables.append(Table(("order", "chooses", "logit"), each, right=(2,)))
        return tables

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "kind": "logits",
            "model": self.model,
            "prompt": self.prompt,
            "recipe": {"name": self.recipe.name, "site": self.recipe.words()},
            "at": self.at,
            "step": self.step,
            "orders": list(self.orders),
            "ulp_format": str(self.format),
            "margin": jsonable(self.margin),
            "choice": self.choice.to_dict(),
            "chosen": [one.to_dict() for one in self.chosen],
            "flips": list(self.flips),
            "logits": [one.to_dict() for one in self.logits],
            "seen": jsonable(self.seen),
            "moved": self.moved,
            "size": self.size,
            "not_finite": self.not_finite,
        }


def model_band(
    asked: Question, recipe: str | Recipe, *, orders: int | Sequence[str] = SEEDED, at: str = "matmul"
) -> ModelBand:
    """The band of the logits of one step: the recipe as it is, and with other orders at the sites that `at` selects.

    **Rounds:** as the recipe says, one pass for each order. **Raises** RecipeError for an unknown selector, RunError
    where the recipe's own row is not finite.
    """
    base, names = recipe_of(recipe), orders_of(orders)
    asked.expect(len(names) + 1)
    own = asked.logits(base)
    if not np.isfinite(own.values).all():
        raise RunError(
            f"The logits of {base.name} at step {asked.step} are not all finite: there is no band around them."
        )
    rows = [asked.logits(reordered(base, at, name)) for name in names]
    finite = [row for row in rows if np.isfinite(row.values).all()]
    every = np.stack([own.values, *(row.values for row in finite)])
    low, high = every.min(axis=0), every.max(axis=0)
    first, second = two_best(own.values, base.ties)
    widest = int(np.argmax(high - low))
    tokens = [c.token for c in (first, second) if c is not None and c.token is not None] + [widest]
    bounds = _head_bounds(asked, base, tokens)
    return ModelBand(
        model=asked.asked.model,
        prompt=prompt_of(asked.asked),
        recipe=base,
        at=at,
        step=asked.step,
        orders=names,
        format=own.format,
        margin=0.0 if second is None else first.logit - second.logit,
        choice=own.choice,
        chosen=tuple(row.choice for row in rows),
        logits=tuple(
            LogitBand(asked.told(Choice(t, float(own.values[t]))), float(low[t]), float(high[t]), *bounds[i])
            for i, t in enumerate(tokens)
        ),
        seen=float(high[widest] - low[widest]),
        moved=int(np.count_nonzero(high != low)),
        size=len(low),
        not_finite=len(rows) - len(finite),
    )


def reordered(base: Recipe, at: str, order: str) -> Recipe:
    """The recipe with another order at the sites that a selector names; a matrix unit's terms in another order."""
    unit = base.at("lm_head").precision.order
    text = f"{order} > {unit}" if unit.adder is not None and order.startswith("perm:") else order
    return Recipe(base, name=f"{base.name} {order}", at={f"{at}.order": text})


def _head_bounds(asked: Question, base: Recipe, tokens: Sequence[int]) -> list[tuple[float | None, float | None]]:
    """The bounds of the head's own sums for some tokens, given what enters it; None where no formula is about them."""
    spec = base.at("lm_head")
    run = simulate(tokens=asked.fed, model=asked.model, recipe=base, steps=0, taps=("lm_head.in",))
    row, weight = run["lm_head.in"][-1:], asked.model.weights.lm_head[list(tokens)]
    try:
        found = sum_bounds(
            row, np.asarray(round_to(weight, spec.storage)).T, spec.shaped(M=1, K=row.shape[1]).precision
        )
    except PrecisionError:
        return [(None, None)] * len(tokens)
    running = [None] * len(tokens) if found.running is None else [float(x) for x in found.running[0]]
    return [(float(x), y) for x, y in zip(found.a_priori[0], running, strict=True)]
