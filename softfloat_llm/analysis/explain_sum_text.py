"""The story of a sum in words: what was asked, the answer, the steps, what an adder cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from softfloat_llm.analysis.answers import Table, counted
from softfloat_llm.analysis.exact_text import code_word, nearly, power_text, shown, value_text
from softfloat_llm.analysis.numbers import binade
from softfloat_llm.numerics.formats import Format
from softfloat_llm.numerics.ulps import ulp

if TYPE_CHECKING:
    from softfloat_llm.analysis.alignment import Aligned, Alignment
    from softfloat_llm.analysis.explain_sum import Summation
    from softfloat_llm.analysis.sum_steps import Step

SHOWN_STEPS, ENDS = 10, 2  # rows of a shortened table; of them at its beginning and at its end
SHOWN_ALIGNED = 8
LONGEST_TREE, LONGEST_TERMS = 90, 60
WIDTH = 18  # characters of an exact number in the table


def asked(story: Summation) -> str:
    """The terms, where they are few, or how many there are."""
    lists = [story.left] if story.right is None else [story.left, story.right]
    told = [", ".join(_plain(x) for x in xs) for xs in lists]
    if any(len(text) > LONGEST_TERMS for text in told):
        told = [f"{len(story.left)} terms"]
    start = "" if story.init is None else f", from {_plain(story.init)}"
    return " · ".join(told) + start if any(told) else f"no terms{start}"


def _plain(x: float) -> str:
    return shown(Fraction(x), WIDTH) if math.isfinite(x) else str(x)


def tree_text(story: Summation) -> str:
    """The order as a tree of term numbers, where that is short."""
    n = len(story.left)
    if not story.steps or n > 40:
        return ""
    text = str(story.at.order.tree(n))
    return text if len(text) <= LONGEST_TREE else ""


# --- the answer -----------------------------------------------------------------------------------------------------


def sentences(story: Summation) -> list[str]:
    """The result and its error; what left the range; what was swallowed; where most was lost."""
    lines = [_about_result(story)]
    lines += [_about_storage(story)] if story.changed else []
    overflow = story.overflow
    if overflow is not None:
        lines.append(
            f"The sum leaves the range of {overflow.format} at step {overflow.number}: {_name(overflow, story)} makes"
            f" {shown(overflow.exact or Fraction(0), WIDTH)}, the largest is {_plain(overflow.format.max)}."
        )
    lines += [_about_swallowed(story)] if story.swallowed else []
    lines += [_about_worst(story)] if story.worst is not None else []
    lines += [_about_alignment(story)] if story.alignments else []
    lines += [_about_parts(story)] if story.product_error or (story.output_error and story.step_error) else []
    return lines


def _about_result(story: Summation) -> str:
    result = value_text(story.result, story.at.output)
    if story.exact is None:
        return f"{result}; the terms are not all finite."
    if story.error is None:
        return f"{result}; exactly it is {shown(story.exact)}."
    if story.error == 0:
        return f"{result}, exactly."
    formats = dict.fromkeys((story.acc_format, story.at.output))
    units = [f"{nearly(_in_ulp(story.error, story.result, fmt))} {fmt} ulp" for fmt in formats]
    ulps = f"{' = '.join(units)} in {binade(story.result, story.at.output)}"
    return f"{result}; exactly it is {shown(story.exact)}. Error {shown(story.error)} ({ulps})."


def _in_ulp(amount: Fraction, at: float, fmt: Format) -> Fraction:
    return amount / Fraction(float(ulp(at, fmt)))


def _about_storage(story: Summation) -> str:
    total = len(story.left) * (1 if story.right is None else 2)
    return (
        f"{story.changed} of {total} numbers were no values of {story.at.storage} and were rounded first; what follows"
        " is about the stored ones."
    )


def _about_swallowed(story: Summation) -> str:
    entered = [step for step in story.swallowed if step.action == "enter"]
    lost = sum((Fraction(step.operand) for step in story.swallowed if math.isfinite(step.operand)), Fraction(0))
    if len(entered) == len(story.swallowed):
        which = f"{len(entered)} of {len(story.left)} terms {'is' if len(entered) == 1 else 'are'} swallowed whole"
    else:
        which = f"{len(story.swallowed)} of {len(story.steps)} steps swallow what they add"
    return f"{which}: the sum does not change by them, and they add up to {shown(lost, WIDTH)}."


def _about_worst(story: Summation) -> str:
    step = story.worst
    assert step is not None
    assert step.exact is not None
    ulps = f"{nearly(_in_ulp(step.error, step.after, story.acc_format))} ulp"
    tie = ", a tie" if _is_tie(step) else ""
    exact, after = shown(step.exact, WIDTH), value_text(step.after, step.format)
    return f"Most is lost at step {step.number}: {exact} becomes {after} ({ulps}{tie})."


def _is_tie(step: Step) -> bool:
    return step.action != "fuse" and abs(step.error) * 2 == Fraction(float(ulp(float(step.exact or 0), step.format)))


def _about_parts(story: Summation) -> str:
    parts = {"the products": story.product_error, "the additions": story.step_error, "the output": story.output_error}
    return "Of the error, " + ", ".join(f"{name} made {shown(x, WIDTH)}" for name, x in parts.items() if x) + "."


# --- the steps ------------------------------------------------------------------------------------------------------


def chosen_steps(steps: Sequence[Step]) -> tuple[Step, ...]:
    """All steps where they are few; else the first, the last, and those that lost most, in order."""
    if len(steps) <= SHOWN_STEPS:
        return tuple(steps)
    ends = {step.number for step in (*steps[:ENDS], *steps[-ENDS:])}
    ranked = sorted(steps, key=lambda step: (not step.left_range, -abs(step.error), step.number))
    for step in ranked:
        if len(ends) == SHOWN_STEPS:
            break
        ends.add(step.number)
    return tuple(step for step in steps if step.number in ends)


def tables(story: Summation, *, verbose: bool = False) -> list[Table]:
    """The steps (`verbose`: all, with codes), and what is cut at the step that cuts most."""
    steps = _steps_table(story, story.steps if verbose else chosen_steps(story.steps), verbose)
    return [steps, *_alignment_tables(story)]


def _steps_table(story: Summation, steps: Sequence[Step], verbose: bool) -> Table:
    header = ("step", "adds", "to", "what", "exactly", "becomes", f"error in {story.acc_format} ulp")
    rows = tuple(tuple(_row(step, story, verbose)) for step in steps)
    kept = {step.number for step in steps}
    hidden = [step for step in story.steps if step.number not in kept]
    if not hidden:
        return Table(header, rows, (0, 2, 3, 4, 5))
    losing = len([step for step in hidden if step.error])
    swallowing = len([step for step in hidden if step.is_swallowed])
    told = f"{losing} with an error, {swallowing} swallowed"
    note = f"({counted(len(hidden), 'further step')} not shown: {told}; -v shows all)"
    return Table(header, rows, (0, 2, 3, 4, 5), note)


def _row(step: Step, story: Summation, verbose: bool) -> list[str]:
    came = shown(Fraction(step.operand), WIDTH) if math.isfinite(step.operand) else str(step.operand)
    exact = "" if step.exact is None else shown(step.exact, WIDTH)
    before = "" if step.action == "start" else value_text(step.before, step.format)
    cells = [str(step.number), _name(step, story), before, came if step.action != "round" else ""]
    after = value_text(step.after, step.format)
    after += f" {code_word(step.after, step.format)}" if verbose else ""
    return [*cells, exact, after, _loss(step, story)]


def _loss(step: Step, story: Summation) -> str:
    if step.left_range:
        return "leaves the range"
    if step.error == 0:
        return "0"
    told = nearly(_in_ulp(step.error, step.after, story.acc_format))
    return told + (", swallowed" if step.is_swallowed else ", tie" if _is_tie(step) else "")


def _name(step: Step, story: Summation) -> str:
    """What a step adds: `term 3`, `terms 0 to 15`, `sum of 8 terms`."""
    terms = step.terms
    if step.action == "round":
        return f"rounded to {step.format}"
    if len(terms) == 1:
        return f"term {terms[0]}"
    if not terms:
        return "the sum" if story.init is not None else "nothing"
    run = list(range(terms[0], terms[0] + len(terms)))
    span = f"terms {terms[0]} to {terms[-1]}" if list(terms) == run else f"{len(terms)} terms from {terms[0]}"
    return span if step.action == "fuse" else f"sum of {span}"


# --- multi-operand adders -------------------------------------------------------------------------------------------


def _alignment_tables(story: Summation) -> list[Table]:
    """For the step that cut most: the exponents, and what is left of each value."""
    if not story.alignments:
        return []
    number = _most_cut(story)
    return [_alignment_table(number, one) for one in story.alignments[number]]


def _most_cut(story: Summation) -> int:
    return max(story.alignments, key=lambda n: (abs(sum(a.cut for a in story.alignments[n])), -n))


def _alignment_table(number: int, one: Alignment) -> Table:
    ranked = sorted(one.values, key=lambda v: (-abs(v.cut), v.term is not None, v.term or 0))[:SHOWN_ALIGNED]
    rows = tuple(tuple(_cut_row(v)) for v in one.values if v in ranked)
    left = len(one.values) - len(rows)
    note = f"({counted(left, 'further value')} with a smaller cut, or none)" if left else ""
    return Table((f"in step {number}", "value", "exponent", "kept", "cut"), rows, (1, 2, 3, 4), note)


def _about_alignment(story: Summation) -> str:
    number = _most_cut(story)
    one = story.alignments[number][-1]
    unit = power_text(one.exponent - one.fraction_bits)
    return (
        f"Step {number} aligns all to the largest exponent, {one.exponent}, and cuts below {unit} ({one.fraction_bits}"
        f" bits): {shown(one.cut, WIDTH)} is cut; the rest adds up exactly and is rounded {one.rounding}."
    )


def _cut_row(value: Aligned) -> list[str]:
    name = "accumulator" if value.term is None else f"product {value.term}"
    numbers = [shown(value.value, WIDTH), str(value.exponent), shown(value.kept, WIDTH), shown(value.cut, WIDTH)]
    return [name, *numbers]
