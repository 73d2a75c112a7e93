"""One cell's work: the reference, the run it teaches, and the row that their comparison is. Errors are rows too."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from softfloat_llm.analysis.compare import compare
from softfloat_llm.analysis.distances import absolute, differs
from softfloat_llm.analysis.divergences import kl
from softfloat_llm.analysis.exact_totals import total
from softfloat_llm.analysis.verdicts import margin
from softfloat_llm.errors import SoftfloatError, SweepError
from softfloat_llm.io.checkpoint import Model, open_model
from softfloat_llm.io.progress import Progress
from softfloat_llm.numerics.formats import Array
from softfloat_llm.recipe import Recipe
from softfloat_llm.runs import Run, simulate
from softfloat_llm.sweeps.grid import Cell
from softfloat_llm.sweeps.models import told
from softfloat_llm.sweeps.words import recipe_of_text

Row = dict[str, Any]
_KEPT_REFERENCES = 8  # runs without taps: the logits of a few steps each
_references: OrderedDict[tuple[str, str, int, str], Run] = OrderedDict()


@dataclass(frozen=True)
class How:
    """What every worker is told beside its cell; no bit of a row depends on it.

    `recipes`: those that lie in files, by their texts, so that workers elsewhere need no such files.
    """

    backend: str = "numpy"
    recipes: Mapping[str, Recipe] = field(default_factory=dict)

    def recipe(self, text: str) -> Recipe:
        return self.recipes[text] if text in self.recipes else recipe_of_text(text)


def row_of(cell: Cell, model: Model | None = None, how: How | None = None, progress: Progress | None = None) -> Row:
    """The row of a cell: what it asked for, and what came of it, or the error that it ended in.

    `model`: opened already; else it is opened here, once a process. The columns are those of `store.COLUMNS`.
    """
    try:
        found = _found(cell, _checked(cell, model or _opened(cell.model)), how or How(), progress)
    except (SoftfloatError, OSError, MemoryError) as error:
        return failed(cell, told(error))
    except Exception as error:  # a fault of ours; the other cells go on
        return failed(cell, f"Internal error: {told(error)}")
    return asked_of(cell) | {"error": None} | found


def asked_of(cell: Cell) -> Row:
    """The columns that say what a cell asks for."""
    return {"cell": cell.name, **asdict(cell)}


def failed(cell: Cell, error: str) -> Row:
    """The row of a cell that ended in an error."""
    return asked_of(cell) | {"error": error}


def _found(cell: Cell, model: Model, how: How, progress: Progress | None) -> Row:
    given: Row = {"model": model, "taps": (), "backend": how.backend, "progress": progress}
    reference = _reference(cell, how, given)
    recipe = how.recipe(cell.recipe)
    if cell.order is not None:
        recipe = Recipe(recipe, order=cell.order)
    run = simulate(recipe=recipe, teacher=reference, **given)
    found = compare(run, reference)
    flipped = [step.step for step in found.flipped]
    divergence = kl(run.step_logits, reference.step_logits)
    margins = [step.margin for step in found.steps]
    return {
        "tokens": [int(token) for token in run.generated],
        "reference_tokens": [int(token) for token in reference.generated],
        "digest": run.digest,
        "reference_digest": reference.digest,
        "flips": found.flips,
        "first_flip": flipped[0] if flipped else None,
        "ties": sum(step.run.ties > 1 for step in found.steps),
        "least_margin": float(np.min(margins)),
        "margins": margins,
        "run_margins": [margin(row) for row in run.step_logits],
        "step_abs": [step.error for step in found.steps],
        "max_abs": found.max_abs,
        "mean_abs": mean_abs(run["logits"], reference["logits"]),
        "last_abs": found.steps[-1].error,
        "max_ulp": found.max_ulp,
        "ulp_format": str(found.format),
        "max_kl": float(np.max(divergence)),
        "mean_kl": math.fsum(divergence.tolist()) / len(divergence),
    }


def mean_abs(run: Array, reference: Array) -> float:
    """The mean |run - reference| of two arrays (T, V); inf where a value differs that is not finite.

    **Rounds:** the sum exactly, then once; once more in the division.
    """
    x, y = run.astype(np.float64), reference.astype(np.float64)
    return total(absolute(x, y, differs(x, y))) / x.size


@lru_cache(maxsize=2)
def _opened(name: str) -> Model:
    return open_model(name)


def _checked(cell: Cell, model: Model) -> Model:
    """Raises SweepError where the model is not the one that the cell is named after."""
    found = model.weights.digest
    if cell.model_digest not in (None, found):
        raise SweepError(
            f"{cell.model} has other weights than when the sweep began: sha256 {cell.model_digest} then, {found} now."
        )
    return model


def _reference(cell: Cell, how: How, given: Row) -> Run:
    """The reference run of a prompt, kept for the other cells that this process is given."""
    model, recipe = given["model"], how.recipe(cell.reference)
    tokens = model.encode(cell.prompt)
    key = (model.weights.digest, f"{model.config} {tokens}", cell.steps, str(recipe.words()))
    if key not in _references:
        _references[key] = simulate(tokens=tokens, recipe=recipe, steps=cell.steps, **given)
        if len(_references) > _KEPT_REFERENCES:
            _references.popitem(last=False)
    return _references[key]
