"""margins(run): by how much each step chose its token, in ulps of any format, and what log_softmax makes of it.

Below one ulp of a format, rounding to it may give the two best logits one value, and then the lower id is taken.
Start reading at `margins`. `Margins` is plain data: `str` is the terminal's answer, `to_dict` the JSON.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from softfloat_llm.analysis.answers import Answer, Table, counted, prompt_of, shown_prompt
from softfloat_llm.analysis.compare import opened
from softfloat_llm.analysis.last_rounding import lead_of, remark, sums_format, sums_of
from softfloat_llm.analysis.log_probabilities import log_softmax
from softfloat_llm.analysis.numbers import about, code, decimal, distance, jsonable
from softfloat_llm.analysis.verdicts import Choice, choice, margin
from softfloat_llm.analysis.wording import recipe_line, token_words
from softfloat_llm.errors import WordError
from softfloat_llm.numerics.formats import Array, Float64Array, Format, format_of
from softfloat_llm.numerics.reduce import argmax
from softfloat_llm.numerics.ulps import ulp
from softfloat_llm.recipe import Recipe

if TYPE_CHECKING:
    from softfloat_llm.runs import Run

SCHEMA = "softfloat-llm/margins/1"
EDGES = (0.0, 1.0, 2.0, 4.0, 16.0)
"""Where the bins of the histogram begin, in ulps; margins of exactly 0 have a bin of their own."""
SHOWN_STEPS, BAR = 6, 30


@dataclass(frozen=True)
class LogProbabilities:
    """What log_softmax gives for the two best logits of a row, and which id its largest value chooses."""

    format: Format
    compute: Format
    first: float
    second: float
    token: int | None
    ties: int

    def to_dict(self) -> dict[str, Any]:
        """JSON: plain numbers, strings, lists."""
        values = {"first": jsonable(self.first), "second": jsonable(self.second), "ties": self.ties}
        return values | {"format": str(self.format), "compute": str(self.compute), "token": self.token}


@dataclass(frozen=True)
class StepMargin:
    """The two best logits of one row, and how far they lie apart; ulps are of `format`, in the binade of the first.

    `step` is None for a position that no token was chosen from; `second` is None in a vocabulary of one id.
    """

    step: int | None
    position: int
    first: Choice
    second: Choice | None
    margin: float
    margin_ulp: float
    format: Format
    log_probs: LogProbabilities
    lead_before: float | None = None
    """By how much `first` led in lm_head's sums, before they were rounded to the logits; below 0 where it did not."""

    @property
    def ranking(self) -> str:
        """What the log-probabilities do to the order of the logits: nothing, a tie, or another token by a tie."""
        if self.first.token is None or self.log_probs.token is None:
            return "no token: NaN"
        if self.log_probs.token != self.first.token:
            return f"x tie of {self.log_probs.ties}: takes id {self.log_probs.token}"
        more = self.log_probs.ties > self.first.ties
        return f"tie of {self.log_probs.ties}, same token" if more else "same"

    def to_dict(self) -> dict[str, Any]:
        """JSON: plain numbers, strings, lists."""
        return {
            "step": self.step,
            "position": self.position,
            "first": self.first.to_dict(),
            "second": self.second and self.second.to_dict(),
            "margin": jsonable(self.margin),
            "margin_ulp": jsonable(self.margin_ulp),
            "ulp_format": str(self.format),
            "log_probs": self.log_probs.to_dict(),
            "lead_before_rounding": None if self.lead_before is None else jsonable(self.lead_before),
            "ranking": self.ranking,
        }


@dataclass(frozen=True)
class Bin:
    """One bar of the histogram: margins m in ulps with low <= m < high (low < m for the bin that begins at 0)."""

    low: float
    high: float
    count: int

    @property
    def words(self) -> str:
        """`0 (tie)`, `(0, 1)`, `[1, 2)`, `16 or more`."""
        if self.low == self.high:
            return "0 (tie)"
        if math.isinf(self.high):
            return f"{self.low:g} or more"
        return f"{'(' if self.low == 0 else '['}{self.low:g}, {self.high:g})"

    def to_dict(self) -> dict[str, Any]:
        return {"low": self.low, "high": jsonable(self.high), "count": self.count}


@dataclass(frozen=True)
class Margins(Answer):
    """The margins of a run's steps, in their order; `within`, the bound in ulps that chose and sorted them, if any."""

    model: str
    prompt: str
    recipe: Recipe
    digest: str
    format: Format
    logits_format: Format
    total: int
    steps: tuple[StepMargin, ...]
    within: float | None
    sums_format: Format | None = None
    """That of lm_head's sums, where the logits were rounded from them and the run kept them."""
    remark: str = ""
    """What is to be known of logits that were rounded already."""

    @property
    def least(self) -> StepMargin | None:
        """The step with the smallest margin, the first of equals; None where no step has one."""
        known = [step for step in self.steps if not math.isnan(step.margin)]
        return min(known, key=lambda step: step.margin_ulp, default=None)

    @property
    def histogram(self) -> tuple[Bin, ...]:
        """How many steps have a margin of 0, of 0 to 1 ulp, and so on."""
        widths = [step.margin_ulp for step in self.steps]
        places = [bisect_right(EDGES, width) - (width == 0) for width in widths if not math.isnan(width)]
        ends = [(0.0, 0.0), *pairwise((*EDGES, math.inf))]
        return tuple(Bin(low, high, places.count(place)) for place, (low, high) in enumerate(ends))

    def heading(self) -> list[tuple[str, str]]:
        return [("prompt", shown_prompt(self.prompt)), ("recipe", recipe_line(self.recipe))]

    def sentences(self) -> list[str]:
        what = "position" if any(step.step is None for step in self.steps) else "step"
        if not self.total:
            return ["No token was chosen: there is no margin."]
        bound = "below one" if self.within is None else f"of at most {self.within:g}"
        count = len(self.steps) if self.within is not None else len([m for m in self.steps if m.margin_ulp < 1])
        verb = "has" if count == 1 else "have"
        lines = [f"{count} of {counted(self.total, what)} {verb} a margin {bound} {self.format} ulp."]
        told = [*lines, *self._about_least(what), *self._about_ranking(what)]
        return [*told, *([self.remark] if self.remark else []), *self._about_turned(what)]

    def _about_turned(self, what: str) -> list[str]:
        """The steps whose token did not lead before the last rounding."""
        turned = [step for step in self.steps if step.lead_before is not None and step.lead_before < 0]
        if not turned:
            return []
        led = token_words(turned[0].first.piece, turned[0].first.token)
        place = turned[0].position if turned[0].step is None else turned[0].step
        behind = about(-(turned[0].lead_before or 0.0))
        more = f", as at {len(turned) - 1} more" if len(turned) > 1 else ""
        return [f"At {what} {place} {led} was behind by {behind} before it{more}: that rounding alone chose the token."]

    def _about_least(self, what: str) -> list[str]:
        found = self.least
        if found is None or found.second is None:
            return ["No margin can be given: a row holds NaN, or the vocabulary one id."] if self.steps else []
        names = " before ".join(token_words(c.piece, c.token) for c in (found.first, found.second))
        place = found.position if found.step is None else found.step
        return [
            f"The smallest is at {what} {place}, {names}: {distance(found.margin, found.first.logit, self.format)}."
        ]

    def _about_ranking(self, what: str) -> list[str]:
        moved = [step for step in self.steps if step.ranking.startswith("x")]
        tied = [step for step in self.steps if step.ranking.startswith("tie")]
        if not moved and not tied:
            return []
        told = self.steps[0].log_probs
        head = f"As log-probabilities in {told.format}, {counted(len(moved) + len(tied), what)} tie"
        return [f"{head}; {len(moved)} of them then take another token by the rule for ties." if moved else f"{head}."]

    def tables(self, *, verbose: bool = False) -> list[Table]:
        """The margins by step (the smallest, where there are many), and their histogram."""
        table = _steps_table(self, self.steps if verbose else _shown(self), verbose)
        hidden = len(self.steps) - len(table.rows)
        if hidden:
            table = replace(table, note=f"({hidden} wider margins are not shown: -v)")
        return [table, _histogram_table(self)]

    def ending(self) -> list[tuple[str, str]]:
        return [("digest", f"{self.digest}  logits {self.logits_format}")]

    def to_dict(self) -> dict[str, Any]:
        """The margins as JSON has them."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "prompt": self.prompt,
            "recipe": {"name": self.recipe.name, "site": self.recipe.words()},
            "digest": self.digest,
            "ulp_format": str(self.format),
            "sums_format": None if self.sums_format is None else str(self.sums_format),
            "logits_format": str(self.logits_format),
            "total": self.total,
            "within": self.within,
            "steps": [step.to_dict() for step in self.steps],
            "histogram": [part.to_dict() for part in self.histogram],
        }


def margins(
    run: Run | str | Path,
    *,
    format: str | Format | None = None,
    log_format: str | Format | None = None,
    compute: str | Format = "f32",
    within: float | None = None,
) -> Margins:
    """top1 - top2 of each step of a run (or of the folder that it was saved in), in ulps of a format at top1.

    `format`: whose ulps count (that of the logits). `log_format`: what log_softmax is rounded to (the same), its steps
    in `compute`. `within`: only margins of at most so many ulps, the smallest first. Of a run without steps, each
    position's row is looked at.
    **Raises** FormatError for an unknown format, WordError for a `within` below 0.
    """
    run = opened(run)
    if within is not None and not within >= 0:
        raise WordError(f"within={within!r}: expected a number of ulps of 0 or more.")
    fmt = run.logits_format if format is None else format_of(format)
    found = _all_margins(run, fmt, fmt if log_format is None else format_of(log_format), format_of(compute))
    chosen = found
    if within is not None:
        chosen = sorted((m for m in found if m.margin_ulp <= within), key=lambda m: (m.margin_ulp, m.position))
    return Margins(
        model=run.model,
        prompt=prompt_of(run),
        recipe=run.recipe,
        digest=run.digest,
        format=fmt,
        logits_format=run.logits_format,
        total=len(found),
        steps=tuple(chosen),
        within=within,
        sums_format=sums_format(run),
        remark=remark(run),
    )


def _all_margins(run: Run, fmt: Format, log_format: Format, compute: Format) -> list[StepMargin]:
    is_stepped = run.steps > 0
    rows = run.step_logits if is_stepped else run["logits"]
    start = len(run.prompt_tokens) - 1 if is_stepped else 0
    logs = log_softmax(rows, log_format, compute=compute)
    return [
        _step_margin(run, i if is_stepped else None, start + i, fmt, LogRow(logs[i], log_format, compute))
        for i in range(len(rows))
    ]


@dataclass(frozen=True)
class LogRow:
    """A row of log-probabilities (V,), and the formats that it was made in."""

    values: Array
    format: Format
    compute: Format


def _step_margin(run: Run, step: int | None, position: int, fmt: Format, logs: LogRow) -> StepMargin:
    row = run["logits"][position]
    rule = run.recipe.ties
    first, second = two_best(row, rule)
    log_choice = choice(logs.values, rule)
    nan = math.nan
    pair = [nan if c is None or c.token is None else float(logs.values[c.token]) for c in (first, second)]
    unit = float(ulp(first.logit, fmt))
    apart = margin(row)
    return StepMargin(
        step=step,
        position=position,
        first=with_text(first, run),
        second=second and with_text(second, run),
        margin=apart,
        margin_ulp=apart / unit,
        format=fmt,
        log_probs=LogProbabilities(logs.format, logs.compute, pair[0], pair[1], log_choice.token, log_choice.ties),
        lead_before=lead_of(sums_of(run, position), first.token),
    )


def two_best(row: Array, ties: str = "lowest") -> tuple[Choice, Choice | None]:
    """The two largest logits of a row (V,), equal ones in the order of the rule; no tokens where it holds NaN."""
    wide: Float64Array = np.asarray(row).astype(np.float64)
    first = choice(wide, ties)
    if len(wide) < 2:
        return first, None
    if first.token is None:
        return first, Choice(None, math.nan)
    others = np.delete(wide, first.token)
    place = argmax(others, ties)
    place += place >= first.token
    return first, Choice(place, float(wide[place]), int(np.count_nonzero(wide == wide[place])), rule=ties)


def with_text(found: Choice, run: Run) -> Choice:
    """The choice with the text of its token, where the run knows it."""
    return found if found.token is None else replace(found, piece=run.piece(found.token))


# --- in words ---------------------------------------------------------------------------------------------------------


def _shown(found: Margins) -> Sequence[StepMargin]:
    """The smallest margins, in their order; as they are where `within` sorted them."""
    if found.within is not None:
        return found.steps[:SHOWN_STEPS]
    ranked = sorted(found.steps, key=lambda m: (not math.isnan(m.margin_ulp), m.margin_ulp))
    return sorted(ranked[:SHOWN_STEPS], key=lambda m: m.position)


def _steps_table(found: Margins, steps: Sequence[StepMargin], verbose: bool) -> Table:
    if not found.steps:
        return Table((), ())
    what = "step" if found.steps[0].step is not None else "position"
    logs = found.steps[0].log_probs.format
    apart = "margin" if found.sums_format is None else f"margin (in {found.sums_format} before)"
    header = (what, "token", "runner-up", apart, f"in {found.format} ulp", f"log-probs in {logs}", "ranking")
    rows = tuple(
        (
            str(m.position if m.step is None else m.step),
            _candidate(m.first, found.logits_format, verbose),
            _candidate(m.second, found.logits_format, verbose),
            about(m.margin) if m.lead_before is None else f"{about(m.margin)} ({about(m.lead_before)})",
            about(m.margin_ulp),
            f"{decimal(m.log_probs.first, logs)}, {decimal(m.log_probs.second, logs)}",
            m.ranking,
        )
        for m in steps
    )
    return Table(header, rows, right=(0, 3, 4))


def _candidate(found: Choice | None, fmt: Format, verbose: bool) -> str:
    if found is None or found.token is None:
        return "none"
    told = f"{token_words(found.piece, found.token)} {decimal(found.logit, fmt)}"
    return f"{told} {code(found.logit, fmt)}" if verbose else told


def _histogram_table(found: Margins) -> Table:
    """The bins from the first to the last that is not empty, with bars."""
    bins = found.histogram
    held = [place for place, part in enumerate(bins) if part.count]
    if not held:
        return Table((), ())
    most = max(part.count for part in bins)
    rows = tuple(
        (part.words, str(part.count), "#" * math.ceil(BAR * part.count / most)) for part in bins[held[0] : held[-1] + 1]
    )
    return Table((f"margin in {found.format} ulp", "steps", ""), rows, right=(1,))
