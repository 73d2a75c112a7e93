"""explain_step(run, step): one token, from its logits down to the site that decided it.

The best candidates in both runs, the margin and the errors that met it, the tie rule, how the error grew along the
residual stream, and the site at which the two runs first part. Start reading at `explain_step`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from softfloat_llm.analysis import explain_step_text as told
from softfloat_llm.analysis.answers import Answer, Table
from softfloat_llm.analysis.compare import (
    check_model,
    common_positions,
    meanings_of,
    opened,
    tap_difference,
    verdict_at,
)
from softfloat_llm.analysis.distances import difference
from softfloat_llm.analysis.explain_round import SCHEMA
from softfloat_llm.analysis.names import model_at_hand
from softfloat_llm.analysis.nonfinite import NonFinite, first_nonfinite
from softfloat_llm.analysis.numbers import jsonable
from softfloat_llm.analysis.partings import Divergence, first_divergence
from softfloat_llm.analysis.sides import side_of
from softfloat_llm.analysis.taps import Tap, forward_order, tap_of
from softfloat_llm.analysis.verdicts import Verdict
from softfloat_llm.errors import RunError
from softfloat_llm.numerics.carriers import widen
from softfloat_llm.numerics.exact import dot_exact
from softfloat_llm.numerics.formats import Array, Float64Array, Format
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.numerics.ulps import ulp
from softfloat_llm.recipe import Recipe

if TYPE_CHECKING:
    from softfloat_llm.runs import Run

CANDIDATES = 3
STREAM = ("attn.residual", "mlp.residual")
NEEDED_TAPS = ("*.out", "lm_head.in", "lm_head.acc")
"""What a run must keep so that everything here can be told."""
Kind = Literal["no token", "tie", "margin under an ulp", "error above the margin", "clear"]
Decider = Literal["lm_head output", "lm_head sum", "before lm_head"]


@dataclass(frozen=True)
class Candidate:
    """One token: its logit in both runs, and the sum before the output rounding where the run kept it."""

    token: int
    piece: str
    reference: float
    run: float
    before_output: float | None
    format: Format

    @property
    def error(self) -> float:
        return self.run - self.reference

    @property
    def error_ulp(self) -> float:
        """The error in ulps of the run's format, at the reference's value."""
        return self.error / float(ulp(self.reference, self.format))

    def to_dict(self) -> dict[str, Any]:
        values = {"reference": self.reference, "run": self.run, "error": self.error, "error_ulp": self.error_ulp}
        values |= {} if self.before_output is None else {"before_output": self.before_output}
        return {"token": self.token, "piece": self.piece} | {key: jsonable(x) for key, x in values.items()}


@dataclass(frozen=True)
class StreamError:
    """The largest error of the residual stream at one tap, at the position of the step.

    `relative` is that error over the largest value of the stream there.
    """

    tap: str
    layer: int | None
    max_abs: float
    max_ulp: float
    relative: float

    def to_dict(self) -> dict[str, Any]:
        values = {"max_abs": self.max_abs, "max_ulp": self.max_ulp, "relative": self.relative}
        return {"tap": self.tap, "layer": self.layer} | {key: jsonable(x) for key, x in values.items()}


@dataclass(frozen=True)
class StepStory(Answer):
    """Why a step chose its token, against a reference that was fed the same tokens.

    `candidates`: the best of both runs, the two that contest the step first. `exact_lead`: by how much the reference's
    choice leads its rival where lm_head's sums of the run are made without any rounding (None where the run kept not
    what lm_head took, or its model is not at hand). `stream`: the residual stream by layer, empty where it was not kept
    (`missing` then says what to keep, and how).
    """

    model: str
    context: str
    recipe: Recipe
    reference_recipe: Recipe
    digest: str
    verdict: Verdict
    kind: Kind
    candidates: tuple[Candidate, ...]
    exact_lead: float | None
    stream: tuple[StreamError, ...]
    first: Divergence | None
    nonfinite: tuple[NonFinite, ...]
    missing: str

    @property
    def step(self) -> int:
        return self.verdict.step

    @property
    def format(self) -> Format:
        """The format of the run's logits, whose ulps count."""
        return self.verdict.format

    @property
    def contest(self) -> tuple[Candidate, Candidate] | None:
        """The reference's choice and its rival: the run's choice, or the reference's second where that is the same."""
        return (self.candidates[0], self.candidates[1]) if len(self.candidates) > 1 else None

    @property
    def summed_lead(self) -> float | None:
        """The lead of the reference's choice before the last rounding of the logits; None where it was not kept."""
        if self.contest is None or any(c.before_output is None for c in self.contest):
            return None
        first, rival = (c.before_output for c in self.contest)
        assert first is not None
        assert rival is not None
        return first - rival

    @property
    def best_sum(self) -> Candidate | None:
        """The candidate with the largest sum before the last rounding; None where no sum was kept."""
        known = [c for c in self.candidates if c.before_output is not None]
        return max(known, key=lambda c: c.before_output or 0.0, default=None)

    @property
    def decider(self) -> Decider | None:
        """Where a token that flipped was lost, from the logits down; None for one that did not, or where unknown."""
        if not self.verdict.is_flip or self.summed_lead is None:
            return None
        if self.summed_lead > 0:
            return "lm_head output"
        if self.exact_lead is None:
            return None
        return "lm_head sum" if self.exact_lead > 0 else "before lm_head"

    @property
    def most_grown(self) -> StreamError | None:
        """The tap of the residual stream at which its largest error grew most over the tap before."""
        errors = [0.0, *(one.max_abs for one in self.stream)]
        grown = [after - before for before, after in pairwise(errors)]
        if not grown or not all(map(math.isfinite, grown)) or max(grown) <= 0:
            return None
        return self.stream[grown.index(max(grown))]

    def heading(self) -> list[tuple[str, str]]:
        return told.heading(self)

    def sentences(self) -> list[str]:
        return told.sentences(self)

    def tables(self, *, verbose: bool = False) -> list[Table]:
        return told.tables(self, verbose=verbose)

    def to_dict(self) -> dict[str, Any]:
        """The story as JSON has it: plain numbers, strings and lists; non-finite numbers as strings."""
        grown = self.most_grown
        return {
            "schema": SCHEMA,
            "what": "step",
            "model": self.model,
            "recipe": {"name": self.recipe.name, "site": self.recipe.words()},
            "reference_recipe": {"name": self.reference_recipe.name, "site": self.reference_recipe.words()},
            "digest": self.digest,
            "context": self.context,
            "verdict": self.verdict.to_dict(),
            "kind": self.kind,
            "candidates": [one.to_dict() for one in self.candidates],
            "exact_lead": None if self.exact_lead is None else jsonable(self.exact_lead),
            "summed_lead": None if self.summed_lead is None else jsonable(self.summed_lead),
            "decider": self.decider,
            "stream": [one.to_dict() for one in self.stream],
            "most_grown": None if grown is None else grown.tap,
            "first_divergence": self.first and self.first.to_dict(),
            "nonfinite": [one.to_dict() for one in self.nonfinite],
            "missing": self.missing,
        }


def explain_step(
    run: Run | str | Path,
    step: int,
    *,
    against: Run | str | Path = "f32",
    candidates: int = CANDIDATES,
    missing: str | None = None,
) -> StepStory:
    """Why step N of a run chose its token.

    run: a run, or the folder of a saved one. `against`: another one that was fed the same tokens; or a recipe's words,
    in which case the same tokens are run again under it. `missing`: what to say of taps that the run did not keep.
    **Raises** RunError for a step that the run does not have, or runs that were fed different tokens before it.
    """
    run = opened(run)
    position = _position(run, step)
    reference = _reference(run, step, against)
    check_model(run, reference)
    if common_positions(run, reference) <= position:
        raise RunError(
            f"Step {step} stands at position {position}, but the runs were fed different tokens before it: nothing can"
            " be said of its cause. Feed both the same, with --teacher."
        )
    verdict = verdict_at(step, position, side_of(run), side_of(reference))
    contestants = _candidates(run, reference, position, verdict, candidates)
    found = (first_nonfinite(w, _until(r, position), r.events) for w, r in (("run", run), ("reference", reference)))
    return StepStory(
        model=run.model,
        context=run.text_of(run.fed[: position + 1]),
        recipe=run.recipe,
        reference_recipe=reference.recipe,
        digest=run.digest,
        verdict=verdict,
        kind=_kind(verdict, contestants),
        candidates=contestants,
        exact_lead=_exact_lead(run, position, contestants),
        stream=_stream(run, reference, position),
        first=_parting(run, reference, position),
        nonfinite=tuple(one for one in found if one is not None),
        missing=_missing(run, step) if missing is None else missing,
    )


def _position(run: Run, step: int) -> int:
    if not run.steps:
        raise RunError("This run chose no token (--steps 0): it has no step to explain.")
    if not 0 <= step < run.steps:
        raise RunError(f"Step {step} of a run that has the steps 0 to {run.steps - 1}: choose one of these.")
    return len(run.prompt_tokens) - 1 + step


def _reference(run: Run, step: int, against: Run | str | Path) -> Run:
    """The run that `against` means: itself, a saved one, or the same tokens under a recipe."""
    if isinstance(against, Path) or (isinstance(against, str) and _is_folder(against)):
        return opened(against)
    if not isinstance(against, str):
        return against
    return rerun(run, step, against)


def _is_folder(word: str) -> bool:
    try:
        return Path(word).is_dir()
    except (OSError, ValueError):
        return False


def rerun(run: Run, step: int, recipe: str | Recipe) -> Run:
    """The tokens that a run was fed up to a step, under a recipe, with every tap that is needed here."""
    from softfloat_llm.runs import simulate

    taught = (*run.fed[len(run.prompt_tokens) :][:step], run.generated[step])
    teacher = replace(run, generated=taught)
    return simulate(model=run.model, recipe=recipe, teacher=teacher, taps=NEEDED_TAPS)


def _until(run: Run, position: int) -> dict[str, Array]:
    """The taps of the first positions; of scores and weights, over the keys of these positions."""
    count = position + 1
    return {name: _first(tap_of(name), array, count) for name, array in run.arrays.items()}


def _first(tap: Tap, array: Array, count: int) -> Array:
    is_over_keys = tap.is_over_keys and array.shape[-1] == len(array)
    return array[:count, ..., :count] if is_over_keys else array[:count]


def _kind(found: Verdict, candidates: Sequence[Candidate]) -> Kind:
    """Which of the few stories this step is."""
    if found.run.token is None or found.reference.token is None:
        return "no token"
    if found.run.ties > 1:
        return "tie"
    if found.margin_ulp < 1:
        return "margin under an ulp"
    is_less = sum(abs(c.error) for c in candidates[:2]) < found.margin
    return "clear" if is_less and not found.is_flip else "error above the margin"


def _candidates(run: Run, reference: Run, position: int, found: Verdict, count: int) -> tuple[Candidate, ...]:
    """The contestants, then the next best of the reference and of the run, `count` in all."""
    rows = [np.asarray(r["logits"][position]).astype(np.float64) for r in (reference, run)]
    ranked = [_ranked(row, max(count, 2)) for row in rows]
    chosen = [c.token for c in (found.reference, found.run) if c.token is not None]
    order = [*chosen, *(token for pair in zip(*ranked, strict=True) for token in pair)]
    order = list(dict.fromkeys(order))
    if len(dict.fromkeys(chosen)) == 1:  # the same token in both: its rival is the reference's second
        second = next((token for token in ranked[0] if token != chosen[0]), None)
        order = list(dict.fromkeys([chosen[0], *([] if second is None else [second]), *order]))
    sums = run["lm_head.acc"][position].astype(np.float64) if "lm_head.acc" in run else None
    return tuple(_candidate(token, run, reference, rows, sums) for token in order[: max(count, 2)])


def _ranked(row: Float64Array, count: int) -> list[int]:
    """The ids of the largest logits, the lowest first among equals; NaN last."""
    order = np.argsort(np.where(np.isnan(row), np.inf, -row), kind="stable")
    return [int(token) for token in order[:count]]


def _candidate(
    token: int, run: Run, reference: Run, rows: Sequence[Float64Array], sums: Float64Array | None
) -> Candidate:
    known = next((r for r in (run, reference) if token in r.pieces), reference)
    before = None if sums is None else float(sums[token])
    return Candidate(token, known.piece(token), float(rows[0][token]), float(rows[1][token]), before, run.logits_format)


def _exact_lead(run: Run, position: int, candidates: Sequence[Candidate]) -> float | None:
    """The lead of the first candidate over the second: what lm_head took times its stored weights, not rounded."""
    if len(candidates) < 2 or "lm_head.in" not in run:
        return None
    weights = _lm_head(run)
    taken = np.asarray(run["lm_head.in"][position]).astype(np.float64)
    if weights is None or not np.isfinite(taken).all():
        return None
    at = run.recipe.at("lm_head").precision
    rows = [widen(stored(weights[c.token], at)) for c in candidates[:2]]
    lead: Fraction = dot_exact(taken, rows[0]) - dot_exact(taken, rows[1])
    return float(lead)


def stored(x: Array, at: Precision) -> Array:
    """x as the storage stage keeps it."""
    rounded: Array = round_to(x, at.storage, **at.rules("storage"))
    return rounded


def _lm_head(run: Run) -> Array | None:
    """The weight of lm_head (V, D), where the run's model lies on this machine."""
    model = model_at_hand(run.model)
    return model.weights.lm_head if model is not None and model.weights.digest == run.model_digest else None


def _parting(run: Run, reference: Run, position: int) -> Divergence | None:
    """Where the runs first part, at the position of the step or before it."""
    sides = side_of(run), side_of(reference)
    others = meanings_of(*sides)
    for tap in forward_order(name for name in run.arrays if name in reference.arrays):
        if run.arrays[tap.name].ndim != reference.arrays[tap.name].ndim or tap.place in others:
            continue
        found = first_divergence([tap_difference(tap, *sides, position + 1)])
        if found is not None:
            return found
    return None


def _stream(run: Run, reference: Run, position: int) -> tuple[StreamError, ...]:
    """The residual stream's error after each addition, where both runs kept it."""
    names = [tap.name for tap in forward_order(run.arrays) if tap.site in ("embed", *STREAM) and tap.stage == "out"]
    return tuple(_stream_error(name, run, reference, position) for name in names if name in reference.arrays)


def _stream_error(name: str, run: Run, reference: Run, position: int) -> StreamError:
    row = slice(position, position + 1)
    one, other = run.arrays[name][row], reference.arrays[name][row]
    found = difference(name, one, other, run.format_of_tap(name), reference.format_of_tap(name))
    largest = float(np.abs(np.asarray(other).astype(np.float64)).max())
    relative = found.max_abs / largest if largest else math.nan
    return StreamError(name, tap_of(name).layer, found.max_abs, found.max_ulp, relative)


def _missing(run: Run, step: int) -> str:
    """The command that keeps what this run did not; empty where it kept all."""
    kept = {tap_of(name).site for name in run.arrays if name.endswith(".out")}
    if all(name in run for name in NEEDED_TAPS[1:]) and kept >= set(STREAM):
        return ""
    return told.command_that_keeps(run, step, NEEDED_TAPS)
