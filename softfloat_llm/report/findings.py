"""What a report tells of: the comparison of two runs, one step explained, the sums of its last layer, a budget.

Nothing is laid out here. Start reading at `findings_of`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from softfloat_llm.analysis.budget import Budget, budget_of
from softfloat_llm.analysis.compare import compare, opened
from softfloat_llm.analysis.comparison import Comparison
from softfloat_llm.analysis.explain_step import NEEDED_TAPS, StepStory, explain_step
from softfloat_llm.analysis.explain_sum import Summation, explain_dot
from softfloat_llm.analysis.names import model_at_hand, named
from softfloat_llm.analysis.step_logits import Count, question
from softfloat_llm.analysis.wording import token_words
from softfloat_llm.errors import PrecisionError, RunError
from softfloat_llm.io.checkpoint import Model, open_model
from softfloat_llm.numerics.carriers import widen
from softfloat_llm.numerics.formats import Array
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.recipe import Recipe
from softfloat_llm.runs import Run, simulate
from softfloat_llm.site_runs import local_run
from softfloat_llm.sites import LOGITS

OTHER_ACCUMULATORS = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class NamedSum:
    """A sum step by step, under a name."""

    name: str
    found: Summation


@dataclass(frozen=True)
class Findings:
    """Two runs, and what can be said of them. `story`, `budget` and `sums` may be missing: see `findings_of`."""

    run: Run
    reference: Run
    comparison: Comparison
    story: StepStory | None
    budget: Budget | None
    sums: tuple[NamedSum, ...]


def findings_of(
    run: Run | str | Path,
    reference: Run | str | Path | None = None,
    *,
    against: str | Path | Recipe = "f32",
    step: int | None = None,
    budget: str | None = None,
    model: str | Path | Model | None = None,
    workers: int = 1,
    before: Count | None = None,
) -> Findings:
    """Everything that a report of a run says, held against a reference run.

    Without `reference`, the tokens that the run was fed are fed again under the recipe `against`. `step` is explained
    (the first that flips, else that with the least margin; none where no token was chosen). `budget`: how finely the
    error of that step is shared out (stage, group, site, each); None for no budget, which takes 5 passes and more.
    Where the model lies on this machine, each site is also fed the reference's values (one more run), so that its own
    error stands beside the inherited one.
    **Raises** RunError for runs that cannot be compared, a step that is not there, or weights that are needed and are
    other ones now.
    """
    run = opened(run)
    weights = weights_of(run, model)
    run = named(run, weights)
    held = named(opened(reference), weights) if reference is not None else fed_under(run, against, model, workers)
    found = compare(run, held, local=_local(run, held, weights, workers))
    place = telling(found) if step is None else step
    story = None if place is None else explain_step(run, place, against=held)
    shares = None
    if budget is not None and place is not None:
        asked = question(run, place, model=weights or model, workers=workers, before=before)
        shares = budget_of(asked, run.recipe, held.recipe, by=budget)
    sums = () if story is None or weights is None else lm_head_sums(run, story, weights)
    return Findings(run, held, found, story, shares, sums)


def weights_of(run: Run, model: str | Path | Model | None = None) -> Model | None:
    """The model of a run, where it lies on this machine with the weights that the run had."""
    if model is None:
        found = model_at_hand(run.model)
    else:
        found = model if isinstance(model, Model) else open_model(model)
    return found if found is not None and found.weights.digest == run.model_digest else None


def _local(run: Run, reference: Run, weights: Model | None, workers: int) -> Run | None:
    """Each site of the run by itself; None where there is nothing to feed, or nothing to compute it with."""
    is_kept = any(name.endswith(".out") and name != LOGITS for name in reference.arrays)
    return local_run(run, reference, model=weights, workers=workers) if weights is not None and is_kept else None


def fed_under(run: Run, recipe: str | Path | Recipe, model: str | Path | Model | None, workers: int) -> Run:
    """A run of the tokens that `run` was fed, under a recipe, with the taps that are told of."""
    further = run.fed[len(run.prompt_tokens) :]
    teacher = replace(run, generated=(*further, run.generated[-1]) if run.generated else ())
    place = run.model if model is None else model
    found = simulate(model=place, recipe=recipe, teacher=teacher, taps=NEEDED_TAPS, workers=workers)
    if found.model_digest != run.model_digest:
        raise RunError(
            f"The run's model {run.model!r} has other weights now: they had sha256 {run.model_digest}, and have"
            f" {found.model_digest}. Say where the right ones are (--model), or give a reference run."
        )
    return named(found)


def telling(found: Comparison) -> int | None:
    """The first step that flips, else the one with the smallest margin; None where no token was chosen."""
    if not found.steps or found.are_positions:
        return None
    if found.flipped:
        return found.flipped[0].step
    return min(found.steps, key=lambda step: math.inf if math.isnan(step.margin_ulp) else step.margin_ulp).step


# --- the sums that made the logits ------------------------------------------------------------------------------------


def lm_head_sums(run: Run, story: StepStory, model: Model) -> tuple[NamedSum, ...]:
    """The dot products that made the logits of the step's two contestants; the first in other accumulators beside.

    Only where they give the run's own logits, bit for bit: else nothing can be told of how these were summed. Nothing
    where the run kept not what lm_head took, or the accumulator is exact.
    """
    taken, position = _taken(run, story.verdict.position), story.verdict.position
    if taken is None or story.contest is None:
        return ()
    rows = {c.token: widen(model.weights.lm_head[c.token]) for c in story.contest}
    for rows_of_pass in dict.fromkeys((_rows_of_pass(run, position), len(run.fed))):
        stages = [_stages(run, rows_of_pass, position, token, model) for token in rows]
        if any(at.acc.format is None for at in stages):
            return ()
        own = [explain_dot(taken, row, at) for row, at in zip(rows.values(), stages, strict=True)]
        logits = np.asarray(run["logits"][position]).astype(np.float64)
        if all(one.result == logits[token] for one, token in zip(own, rows, strict=True)):
            names = [token_words(c.piece, c.token) for c in story.contest]
            told = [NamedSum(f"{n} in {one.at.acc}", one) for n, one in zip(names, own, strict=True)]
            return (*told, *_in_others(names[0], taken, rows[story.contest[0].token], stages[0]))
    return ()


def _rows_of_pass(run: Run, position: int) -> int:
    """How many positions were passed through the model together with this one: the prompt, or it alone."""
    return len(run.prompt_tokens) if position < len(run.prompt_tokens) else 1


def _stages(run: Run, rows: int, position: int, token: int, model: Model) -> Precision:
    """The stages of one logit in a pass of so many rows: a recipe may have other orders for some of them."""
    columns, terms = model.weights.lm_head.shape
    spec = run.recipe.at("lm_head").shaped(M=rows, N=columns, K=terms)
    return spec.precision_at({"M": rows, "N": columns}, position if position < rows else 0, token)


def _in_others(name: str, taken: Array, row: Array, at: Precision) -> list[NamedSum]:
    """The first sum in two other accumulators, where such a precision has a meaning."""
    others = [acc for acc in OTHER_ACCUMULATORS if acc != str(at.acc)][:2]
    found = [(acc, _in_accumulator(taken, row, at, acc)) for acc in others]
    return [NamedSum(f"{name} in {acc}", one) for acc, one in found if one is not None]


def _taken(run: Run, position: int) -> Array | None:
    """What lm_head took at a position (D,), where the run kept it and it is finite."""
    if "lm_head.in" not in run:
        return None
    taken = widen(np.asarray(run["lm_head.in"][position]))
    return taken if np.isfinite(taken).all() else None


def _in_accumulator(taken: Array, row: Array, at: Precision, acc: str) -> Summation | None:
    """The same sum in another accumulator; None where such a precision has no meaning."""
    try:
        other = Precision(
            at.storage, product=at.product, acc=acc, order=at.order, output=at.output, rounding=at.rounding,
            subnormals=at.subnormals, overflow=at.overflow,
        )  # fmt: skip
        return explain_dot(taken, row, other)
    except PrecisionError:
        return None
