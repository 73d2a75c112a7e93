"""A run by itself, as the terminal shows it and as JSON has it: what it chose, by what margin, what was not finite."""

from __future__ import annotations

from typing import Any

import numpy as np

from softfloat_llm.analysis.nonfinite import first_nonfinite
from softfloat_llm.analysis.numbers import about, code, decimal, distance
from softfloat_llm.analysis.wording import labelled, markdown_table, recipe_line, token_words
from softfloat_llm.numerics.formats import Array, Format
from softfloat_llm.numerics.ulps import ulp
from softfloat_llm.runs import Run

SHOWN_STEPS = 12


def run_text(run: Run, *, then: str, is_verbose: bool = False) -> str:
    """Recipe, answer, one table, what to run next, digest."""
    shown = _table(run, is_verbose)
    parts = [labelled("recipe", recipe_line(run.recipe)), labelled("answer", _answer(run)), ""]
    parts += [shown, ""] if shown else []
    return "\n".join([*parts, labelled("next", then), labelled("digest", digest_text(run))])


def digest_text(run: Run) -> str:
    """The digest, and what it is over."""
    return f"{run.digest}  logits {run.logits_format} {run['logits'].shape}"


def run_facts(run: Run) -> dict[str, Any]:
    """What JSON says of a run; its arrays lie where it was saved."""
    return {
        "model": {"name": run.model, "sha256": run.model_digest},
        "recipe": {"name": run.recipe.name, "site": run.recipe.words()},
        "prompt_tokens": list(run.prompt_tokens),
        "generated": list(run.generated),
        "fed": list(run.fed),
        "text": run.text_of(run.generated),
        "is_teacher_forced": run.is_teacher_forced,
        "events": [str(event) for event in run.events],
        "notes": list(run.notes),
        "digest": run.digest,
        "logits": {"shape": list(run["logits"].shape), "format": str(run.logits_format)},
    }


def _answer(run: Run) -> str:
    found = first_nonfinite("run", run.arrays, run.events)
    lines = [] if found is None else [f"Not finite: {found}."]
    if run.generated:
        lines.append(f"{run.text_of(run.prompt_tokens)!r} goes on with {run.text_of(run.generated)!r}.")
        steps = [_top_two(row, run.recipe.ties) for row in run.step_logits]
        gaps = [row[first] - row[second] for row, (first, second) in zip(_wide(run.step_logits), steps, strict=True)]
        least = int(np.argmin(gaps))
        top = float(_wide(run.step_logits)[least][steps[least][0]])
        where = f" (step {least})" if run.steps > 1 else ""
        lines.append(f"Least margin{where}: {distance(float(gaps[least]), top, run.logits_format)}.")
    else:
        lines.append(f"Logits for {len(run.fed)} positions; no token was asked for (--steps 0).")
    return "\n".join(lines)


def _wide(logits: Array) -> Array:
    return logits.astype(np.float64)


def _top_two(row: Array, ties: str) -> tuple[int, int]:
    """The indices of the two largest logits (V,), the lowest index first among equals, or the last one."""
    order = np.argsort(-row.astype(np.float64), kind="stable")
    if ties == "last":
        order = len(row) - 1 - np.argsort(-row[::-1].astype(np.float64), kind="stable")
    return int(order[0]), int(order[min(1, len(order) - 1)])


def _table(run: Run, is_verbose: bool) -> str:
    fmt = run.logits_format
    header = ["step", "token", "logit", "runner-up", "its logit", "margin", f"in {fmt} ulp"]
    rows = [_row(run, step, fmt, is_verbose) for step in range(min(run.steps, SHOWN_STEPS))]
    if not rows:
        return ""
    more = f"\n... and {run.steps - SHOWN_STEPS} more steps: --json" if run.steps > SHOWN_STEPS else ""
    return markdown_table(header, rows, right=(0, 2, 4, 5, 6)) + more


def _row(run: Run, step: int, fmt: Format, is_verbose: bool) -> list[str]:
    logits = run.step_logits[step]
    first, second = _top_two(logits, run.recipe.ties)
    top, next_one = float(logits[first]), float(logits[second])
    write = code if is_verbose else decimal
    gap = top - next_one
    names = [token_words(run.piece(token), token) for token in (first, second)]
    numbers = [about(gap), about(gap / float(ulp(top, fmt)))]
    return [str(step), names[0], write(top, fmt), names[1], write(next_one, fmt), *numbers]
