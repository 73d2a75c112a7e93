"""Several prompts under one recipe, beside a reference or not: a row each, for the terminal and as JSON has it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from softfloat_llm.analysis.comparison import Comparison
from softfloat_llm.analysis.numbers import about, jsonable
from softfloat_llm.analysis.wording import SHOWN_PIECE, labelled, markdown_table, recipe_line
from softfloat_llm.report.run_text import run_facts
from softfloat_llm.runs import Run

SHOWN_PROMPTS = 15
_OF_ALL = ("model", "recipe")


class Answered(NamedTuple):
    """The run of one prompt, and its comparison where there is a reference."""

    run: Run
    comparison: Comparison | None

    @property
    def flips(self) -> int:
        """Steps that choose another token than the reference's."""
        return 0 if self.comparison is None else self.comparison.flips


def batch_text(answered: Sequence[Answered], *, then: str) -> str:
    """Recipe, answer, one table, what to run next, a digest of all.

    Margin and error are those of the first step that flips; where none does, of that with the smallest margin.
    """
    rows = [_row(i, one) for i, one in enumerate(answered[:SHOWN_PROMPTS], 1)]
    header = ["#", "prompt", "tokens", "goes on with"]
    if answered[0].comparison is not None:
        fmt = answered[0].comparison.format
        header += ["flips", f"margin, {fmt} ulp", f"error, {fmt} ulp"]
    table = markdown_table(header, rows, right=(0, 2, 4, 5, 6))
    more = len(answered) - SHOWN_PROMPTS
    shown = table + (f"\n... and {more} more prompts: --json" if more > 0 else "")
    whole = f"{batch_digest(answered)}  of the {len(answered)} digests"
    first = [labelled("recipe", recipe_line(answered[0].run.recipe)), labelled("answer", _answer(answered))]
    return "\n".join([*first, "", shown, "", labelled("next", then), labelled("digest", whole)])


def batch_digest(answered: Sequence[Answered]) -> str:
    """sha256 over the runs' digests, one a line."""
    lines = "".join(f"{one.run.digest}\n" for one in answered)
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def batch_facts(answered: Sequence[Answered], saved: Sequence[str] | None = None) -> dict[str, Any]:
    """The JSON of several prompts."""
    run, against = answered[0].run, answered[0].comparison
    compared = None if against is None or against.reference_recipe is None else against.reference_recipe
    return {
        "model": {"name": run.model, "sha256": run.model_digest},
        "recipe": {"name": run.recipe.name, "site": run.recipe.words()},
        "reference_recipe": None if compared is None else {"name": compared.name, "site": compared.words()},
        "prompts": [_facts(one, None if saved is None else saved[i]) for i, one in enumerate(answered)],
        "digest": batch_digest(answered),
    }


def _facts(one: Answered, saved: str | None) -> dict[str, Any]:
    told = one.comparison
    facts = {key: value for key, value in run_facts(one.run).items() if key not in _OF_ALL}
    return facts | {
        "prompt": one.run.text_of(one.run.prompt_tokens),
        "saved": saved,
        "flips": None if told is None else told.flips,
        "max_abs": None if told is None else jsonable(told.max_abs),
        "max_ulp": None if told is None else jsonable(told.max_ulp),
        "is_identical": None if told is None else told.is_identical,
    }


def _answer(answered: Sequence[Answered]) -> str:
    lines = [f"Not finite: prompt {i}, {one.run.events[0]}." for i, one in enumerate(answered, 1) if one.run.events][:3]
    if answered[0].comparison is None:
        return "\n".join([*lines, f"{len(answered)} prompts, each as it runs alone."])
    flipped = [i for i, one in enumerate(answered, 1) if one.flips]
    if not flipped:
        return "\n".join([*lines, f"0 of {len(answered)} prompts choose another token than the reference."])
    places = ", ".join(map(str, flipped[:8])) + (", ..." if len(flipped) > 8 else "")
    head = f"{len(flipped)} of {len(answered)} prompts choose" + ("s" if len(flipped) == 1 else "")
    return "\n".join([*lines, f"{head} another token than the reference: {places}."])


def _row(number: int, one: Answered) -> list[str]:
    run, told = one.run, one.comparison
    texts = [_cut(run.text_of(tokens)) for tokens in (run.prompt_tokens, run.generated)]
    row = [str(number), texts[0], str(len(run.prompt_tokens)), texts[1]]
    if told is None:
        return row
    if not told.steps:
        return [*row, "", "", ""]
    step = told.flipped[0] if told.flips else min(told.steps, key=lambda step: step.margin_ulp)
    return [*row, f"{told.flips} of {len(told.steps)}", about(step.margin_ulp), about(step.error_ulp)]


def _cut(text: str) -> str:
    return repr(text) if len(text) <= SHOWN_PIECE else f"{text[: SHOWN_PIECE - 3]!r}..."
