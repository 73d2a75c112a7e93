"""The story of a step in words: what was chosen and by what margin, what met it, where it came from."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from softfloat_llm.analysis.answers import Table
from softfloat_llm.analysis.numbers import about, binade, decimal
from softfloat_llm.analysis.wording import recipe_line, token_words

if TYPE_CHECKING:
    from softfloat_llm.analysis.explain_step import Candidate, StepStory, StreamError
    from softfloat_llm.runs import Run

SHOWN_STREAM, LONGEST_CONTEXT = 4, 40


def heading(story: StepStory) -> list[tuple[str, str]]:
    context = story.context
    cut = repr(context) if len(context) <= LONGEST_CONTEXT else f"...{context[-LONGEST_CONTEXT:]!r}"
    where = f"step {story.step}, position {story.verdict.position}, after {cut}; against {story.reference_recipe.name}"
    return [("recipe", recipe_line(story.recipe)), ("token", where)]


def sentences(story: StepStory) -> list[str]:
    """NaN first; then the verdict, the tie rule, what the errors did to the margin, and where they came from."""
    lines = [f"{one}." for one in story.nonfinite]
    if story.kind == "no token" or story.contest is None:
        return [*lines, f"{story.verdict.words}."]
    lines += [_about_choice(story), _about_kind(story)]
    lines += [_about_errors(story)] if math.isfinite(story.verdict.margin) else []
    lines += [_about_decider(story)] if story.verdict.is_flip and story.summed_lead is not None else []
    lines += [_about_stream(story)] if story.stream else []
    return [*lines, _about_parting(story)]


def _about_choice(story: StepStory) -> str:
    names = [token_words(c.piece, c.token) for c in (story.verdict.reference, story.verdict.run)]
    return f"The token flips: {names[0]} -> {names[1]}." if story.verdict.is_flip else f"The token stays {names[1]}."


def _about_kind(story: StepStory) -> str:
    found, fmt = story.verdict, story.format
    grid = f"{about(found.margin_ulp)} {fmt} ulp in {binade(found.reference.logit, fmt)}"
    margin = f"the reference's margin is {about(found.margin)} ({grid})"
    match story.kind:
        case "tie":
            both = f"{found.run.ties} ids have the logit {decimal(found.run.logit, fmt)}{_named_ties(story)}"
            taken = f"the {found.run.rule} id, {found.run.token}, is taken"
            return f"A tie: in the run {both}, and {taken}; {margin}."
        case "margin under an ulp":
            return f"A margin under an ulp: {margin}, so rounding alone can decide."
        case "error above the margin":
            told = "the errors of the two are larger than that"
            return f"A real difference: {margin}; {told}{'' if found.is_flip else ', and yet it stays'}."
    told = margin[0].upper() + margin[1:]
    return f"{told}; the largest error of the row is {about(found.error_ulp)} ulp."


def _named_ties(story: StepStory) -> str:
    """The tied tokens that the table shows, where it shows them all."""
    tied = [c for c in story.candidates if c.run == story.verdict.run.logit]
    words = ", ".join(f"{c.token} {token_words(c.piece, c.token)}" for c in sorted(tied, key=lambda c: c.token))
    return f" ({words})" if len(tied) == story.verdict.run.ties else ""


def _about_errors(story: StepStory) -> str:
    """The lead in the run is that in the reference, plus the error of the first, minus that of the rival."""
    assert story.contest is not None
    first, rival = story.contest
    names = [token_words(c.piece, c.token) for c in story.contest]
    errors = f"{names[0]} by {_signed(first.error)}, {names[1]} by {_signed(rival.error)}"
    leads = first.reference - rival.reference, first.run - rival.run
    lead = f"the lead of {names[0]} over {names[1]}"
    return f"The run moves {errors}: {lead} goes from {about(leads[0])} to {about(leads[1])}."


def _signed(x: float) -> str:
    text = about(abs(x))
    sign = "-" if x < 0 else "+"
    return f"~{sign}{text[1:]}" if text.startswith("~") else f"{sign}{text}"


def _about_decider(story: StepStory) -> str:
    """From the logits down: the last rounding, the sums of lm_head, or what lm_head took."""
    summed, exact = story.summed_lead, story.exact_lead
    assert summed is not None
    best = story.best_sum
    is_third = best is not None and best.token not in (story.verdict.run.token, story.verdict.reference.token)
    if best is not None and is_third and best.run == story.verdict.run.logit:
        others = (
            f"In lm_head's sums {token_words(best.piece, best.token)} leads, with {about(best.before_output or 0.0, 6)}"
        )
        return f"{others}; the rounding to {story.format} makes it a tie, which the {story.verdict.run.rule} id wins."
    if story.decider == "lm_head output":
        return f"In lm_head's sums it still leads by {about(summed)}; the rounding to {story.format} decides."
    told = f"In lm_head's sums it {'ties' if summed == 0 else f'is behind by {about(-summed)}'} already"
    if exact is None:
        return f"{told}, before they are rounded to {story.format}."
    without = f"summed exactly, the same inputs give {about(exact)}"
    if story.decider == "lm_head sum":
        return f"{told}; {without}: the products and accumulator of lm_head decide."
    return f"{told}; {without}: what lm_head took had lost it before."


def _about_stream(story: StepStory) -> str:
    last, grown = story.stream[-1], story.most_grown
    size = f"{about(last.max_abs)} ({about(last.relative)} of its largest value)"
    told = f"The residual stream ends with an error of {size}"
    return told + (f"; it grows most at {grown.tap.removesuffix('.out')}." if grown is not None else ".")


def _about_parting(story: StepStory) -> str:
    if story.first is None:
        return "The two runs hold the same values at every tap that both keep, up to this position."
    part = story.first
    values = f"{decimal(part.at.run, part.format)} against {decimal(part.at.reference, part.reference_format)}"
    place = f"position {part.at.index[0]}, element {list(part.at.index[1:])}"
    return f"The runs first part at {part.tap.name}, {place}: {values}."


# --- tables -----------------------------------------------------------------------------------------------------------


def tables(story: StepStory, *, verbose: bool = False) -> list[Table]:
    """The candidates, and the residual stream by layer (`verbose`: every tap of it)."""
    stream = list(story.stream) if verbose else chosen_stream(story)
    rows = tuple(_stream_row(one) for one in stream)
    hidden = len(story.stream) - len(stream)
    note = f"({hidden} further taps are not shown: -v)" if hidden else ""
    errors = Table(("residual stream", "max error", "in ulp", "of the largest"), rows, (1, 2, 3), note)
    return [_candidates_table(story), errors]


def chosen_stream(story: StepStory) -> list[StreamError]:
    """All taps where they are few; else the last, the one that grows most, and evenly some before."""
    taps = story.stream
    if len(taps) <= SHOWN_STREAM:
        return list(taps)
    even = [round(i * (len(taps) - 1) / (SHOWN_STREAM - 1)) for i in range(1, SHOWN_STREAM)]
    grown = taps.index(story.most_grown) if story.most_grown is not None else 0
    return [taps[i] for i in sorted({grown, *even})]


def _stream_row(one: StreamError) -> tuple[str, ...]:
    return one.tap.removesuffix(".out"), about(one.max_abs), about(one.max_ulp), about(one.relative)


def _candidates_table(story: StepStory) -> Table:
    has_sums = any(c.before_output is not None for c in story.candidates)
    sums = ("sum in run",) if has_sums else ()
    header = ("token", "id", "reference", *sums, "run", "error", f"in {story.format} ulp")
    rows = tuple(_candidate_row(c, story, has_sums) for c in story.candidates)
    return Table(header, rows, tuple(range(1, len(header))))


def _candidate_row(one: Candidate, story: StepStory, has_sums: bool) -> tuple[str, ...]:
    reference = decimal(one.reference, story.reference_recipe.at("lm_head").output)
    sums = (about(one.before_output or 0.0, 8),) if has_sums else ()
    errors = about(one.error), about(one.error_ulp)
    return token_words(one.piece, one.token), str(one.token), reference, *sums, decimal(one.run, story.format), *errors


def command_that_keeps(run: Run, step: int, patterns: Sequence[str]) -> str:
    """The command that makes the run again with these taps."""
    tokens = ",".join(map(str, run.prompt_tokens))
    words = ["softfloat-llm simulate", f"--tokens {tokens}", f"--model {shlex.quote(run.model)}"]
    words += [f"--recipe {shlex.quote(run.recipe.name)}", f"--steps {max(run.steps, step + 1)}"]
    words += ["--teacher REF"] if run.is_teacher_forced else []
    return " ".join([*words, *(f"--taps {shlex.quote(p)}" for p in patterns), "--against none --save RUN"])
