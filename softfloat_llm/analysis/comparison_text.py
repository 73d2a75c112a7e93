"""A Comparison in words: for the terminal (plain text, Markdown table) and for a notebook (HTML)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from softfloat_llm.analysis.answers import Table
from softfloat_llm.analysis.distances import Difference
from softfloat_llm.analysis.markup import html_labels, html_paragraphs
from softfloat_llm.analysis.numbers import about, binade, code, decimal, distance
from softfloat_llm.analysis.verdicts import Choice, Verdict
from softfloat_llm.analysis.wording import labelled, recipe_line, token_words
from softfloat_llm.numerics.formats import Format

if TYPE_CHECKING:
    from softfloat_llm.analysis.compare import Comparison

SHOWN_STEPS = 8
THEN = "print(comparison.text(verbose=True))   every step and every tap"


def as_text(found: Comparison, *, verbose: bool = False, then: str | None = None) -> str:
    """Recipe, answer, one table, what to run next, digest. `verbose`: all steps, their codes, and a table of taps."""
    said = zip(["answer", *[""] * 99], sentences(found), strict=False)
    parts = [_lines([*heading(found), *said, *_notes(found)])]
    shown = found.steps if verbose else shown_steps(found.steps)
    if shown:
        parts.append(steps_table(found, shown).as_text())
    if verbose:
        parts.append("\n".join(_codes(found)))
        parts.append(taps_table(found.taps).as_text())
    following = THEN if then is None else then
    parts.append(_lines([*([("next", following)] if following else []), *ending(found)]))
    return "\n\n".join(part for part in parts if part)


def _lines(pairs: list[tuple[str, str]]) -> str:
    return "\n".join(labelled(label, text) for label, text in pairs)


def as_html(found: Comparison) -> str:
    """The same lines as the text: the answer's sentences, all steps, the taps (folded), what was run."""
    steps = steps_table(found, found.steps).as_html() if found.steps else ""
    taps = f"<details><summary>taps</summary>{taps_table(found.taps).as_html()}</details>"
    said = html_paragraphs([*sentences(found), *found.notes])
    return f"<div>{said}{steps}{taps}{html_labels([*heading(found), *ending(found)])}</div>"


def heading(found: Comparison) -> list[tuple[str, str]]:
    """(label, text) lines: what was compared."""
    return [("recipe", recipe_line(found.recipe)), ("against", found.reference_recipe.name)]


def _notes(found: Comparison) -> list[tuple[str, str]]:
    return [("note", note) for note in found.notes]


def ending(found: Comparison) -> list[tuple[str, str]]:
    """(label, text) lines: the digest of the run, and what it is over."""
    return [("digest", f"{found.digest}  logits {found.format}, compared {found.logits.shape}")]


def sentences(found: Comparison) -> list[str]:
    """The answer, in the order in which it should be read: NaN and infinities, tokens, distances, the first parting."""
    lines = [f"{one}." for one in found.nonfinite]
    if found.is_identical:
        lines.append(f"The logits of all {found.positions} positions are identical.")
    else:
        lines += [_about_tokens(found)] if found.steps else []
        lines.append(_about_logits(found))
    return [*lines, _about_parting(found)]


def _about_tokens(found: Comparison) -> str:
    flips, total = found.flipped, len(found.steps)
    told = flips[0] if flips else min(found.steps, key=lambda step: step.margin)
    names = " -> ".join(token_words(choice.piece, choice.token) for choice in (told.reference, told.run))
    if total == 1:
        head = (
            f"The token flips: {names}." if flips else f"The token stays {token_words(told.run.piece, told.run.token)}."
        )
    elif flips:
        which = "flips:" if len(flips) == 1 else "flip; the first is"
        head = f"{len(flips)} of {total} steps {which} step {told.step}, {names}."
    else:
        head = f"0 of {total} steps flip; the smallest margin is at step {told.step}."
    return f"{head} {_margin_and_error(told)}"


def _margin_and_error(step: Verdict) -> str:
    """Both on the grid of the run's format at the reference's largest logit."""
    if not math.isfinite(step.margin):
        return f"Its margin is {about(step.margin)}."
    grid = f"{step.format} ulp in {binade(step.reference.logit, step.format)}"
    ulps = f"{about(step.margin_ulp)} and {about(step.error_ulp)} {grid}"
    return f"Margin {about(step.margin)}, largest error {about(step.error)}: {ulps}."


def _about_logits(found: Comparison) -> str:
    if found.steps:
        return f"Over {found.positions} positions, {_error(found.logits)}."
    return f"At the last position, {_error(found.last)}; over {found.positions}, {_error(found.logits)}."


def _error(logits: Difference) -> str:
    if logits.count == 0 or logits.max_abs_at is None:
        return f"the logits are {logits}" if logits.is_identical else f"the logits have the {logits}"
    return f"the largest error of a logit is {distance(logits.max_abs, logits.max_abs_at.reference, logits.format)}"


def _about_parting(found: Comparison) -> str:
    part = found.first_divergence
    if part is None:
        return f"All {len(found.taps)} taps are identical."
    values = f"{decimal(part.at.run, part.format)} against {decimal(part.at.reference, part.reference_format)}"
    place = f"position {part.at.index[0]}, element {list(part.at.index[1:])}"
    return f"First different value: {part.tap.name}, {place}: {values}."


def shown_steps(steps: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
    """All steps where they are few; else the flips, filled up with the smallest margins, in order."""
    ranked = sorted(steps, key=lambda step: (not step.is_flip, step.margin))
    return tuple(sorted(ranked[:SHOWN_STEPS], key=lambda step: step.step))


def steps_table(found: Comparison, steps: tuple[Verdict, ...]) -> Table:
    """The verdicts on some steps, and in the note how many others there are."""
    unit = f"{found.format} ulp"
    header = ("step", "reference", "run", "margin", f"in {unit}", f"error in {unit}", "verdict")
    rows = tuple(
        (
            str(step.step),
            _choice(step.reference, found.logits.reference_format),
            _choice(step.run, found.format),
            about(step.margin),
            about(step.margin_ulp),
            about(step.error_ulp),
            ("x " if step.is_flip else "") + step.words,
        )
        for step in steps
    )
    note = _hidden(len(found.steps) - len(steps), found.flips - sum(step.is_flip for step in steps))
    return Table(header, rows, right=(0, 3, 4, 5), note=note)


def _choice(choice: Choice, fmt: Format) -> str:
    return f"{token_words(choice.piece, choice.token)} {decimal(choice.logit, fmt)}"


def _hidden(steps: int, flips: int) -> str:
    """What a shortened table leaves out."""
    if steps == 0:
        return ""
    return f"({steps} further steps are not shown: " + (f"{flips} of them flip)" if flips else "none of them flips)")


def _codes(found: Comparison) -> list[str]:
    """Each step's two chosen logits in hex and code."""
    formats = found.logits.reference_format, found.format
    return [
        f"step {step.step}: " + " against ".join(code(c.logit, f) for c, f in zip(pair, formats, strict=True))
        for step in found.steps
        for pair in [(step.reference, step.run)]
    ]


TAP_HEADER = ("tap", "format", "differing", "max abs", "max ulp", "steps", "verdict")


def _tap_row(tap: Difference) -> tuple[str, ...]:
    total = math.prod(tap.shape)
    steps = "" if tap.max_steps is None else str(tap.max_steps)
    word = "identical" if tap.is_identical else "differs" if tap.count else "same values"
    return (
        tap.tap, str(tap.format), f"{tap.count} of {total}", about(tap.max_abs), about(tap.max_ulp), steps, word
    )  # fmt: skip


def taps_table(taps: tuple[Difference, ...]) -> Table:
    """Every tap's difference, in forward order. Ulps are of the format in the second column."""
    return Table(TAP_HEADER, tuple(_tap_row(tap) for tap in taps), right=(2, 3, 4, 5))
