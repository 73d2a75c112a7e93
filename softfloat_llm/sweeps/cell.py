"""One cell's work: the reference, the run it teaches, and the row that their comparison is. Errors are rows too."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import numpy as np

from softfloat_llm.analysis.compare import compare
from softfloat_llm.analysis.divergences import kl
from softfloat_llm.errors import SoftfloatError
from softfloat_llm.io.checkpoint import Model, open_model
from softfloat_llm.recipe import Recipe, recipe_of
from softfloat_llm.runs import Run, simulate
from softfloat_llm.sweeps.grid import Cell

Row = dict[str, Any]
_KEPT_REFERENCES = 8  # runs without taps: the logits of a few steps each
_references: OrderedDict[tuple[str, str, int, str], Run] = OrderedDict()


def row_of(cell: Cell, model: Model | None = None) -> Row:
    """The row of a cell: what it asked for, and what came of it, or the error that it ended in.

    `model`: opened already; else it is opened here, once a process. The columns are those of `store.COLUMNS`.
    """
    try:
        return asked_of(cell) | {"error": None} | _found(cell, model or _opened(cell.model))
    except (SoftfloatError, OSError, MemoryError) as error:
        return asked_of(cell) | {"error": f"{type(error).__name__}: {error}"}


def asked_of(cell: Cell) -> Row:
    """The columns that say what a cell asks for."""
    return {"cell": cell.name, **asdict(cell)}


def _found(cell: Cell, model: Model) -> Row:
    reference = _reference(cell, model)
    run = simulate(model=model, recipe=recipe_of_cell(cell), teacher=reference, taps=())
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
        "max_abs": found.max_abs,
        "last_abs": found.steps[-1].error,
        "max_ulp": found.max_ulp,
        "ulp_format": str(found.format),
        "max_kl": float(np.max(divergence)),
        "mean_kl": math.fsum(divergence.tolist()) / len(divergence),
    }


def recipe_of_cell(cell: Cell) -> Recipe:
    """The cell's recipe, its order put upon the matrix products."""
    recipe = recipe_of(cell.recipe)
    return recipe if cell.order is None else Recipe(recipe, order=cell.order)


@lru_cache(maxsize=2)
def _opened(name: str) -> Model:
    return open_model(name)


def _reference(cell: Cell, model: Model) -> Run:
    """The reference run of a prompt, kept for the other cells that this process is given."""
    key = (model.weights.digest, cell.prompt, cell.steps, cell.reference)
    if key not in _references:
        run = simulate(cell.prompt, model=model, recipe=cell.reference, steps=cell.steps, taps=())
        _references[key] = run
        if len(_references) > _KEPT_REFERENCES:
            _references.popitem(last=False)
    return _references[key]
