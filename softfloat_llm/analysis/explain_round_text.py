"""The story of one rounding in words: what was asked, the answer, what decided, the neighbours."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from softfloat_llm.analysis.answers import Table
from softfloat_llm.analysis.exact_text import code_word, cut_bits, exactly, fields, nearly, power_text, shown
from softfloat_llm.analysis.numbers import binade, hex_float
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.formats import Format
from softfloat_llm.numerics.ulps import ulp

if TYPE_CHECKING:
    from softfloat_llm.analysis.explain_round import Neighbour, Rounding

HEADER = ("", "value", "code", "s exponent trailing", "distance", "in ulp")


def asked(story: Rounding) -> str:
    """`22.277479 to bf16, ties_to_even`, and the options that are not the usual ones."""
    x = story.given
    means = f" = {shown(x.exact, 40)}" if x.is_finite and _is_spelled_otherwise(x.text, x.exact) else ""
    options = [story.mode]
    options += [f"overflow {story.overflow}"] if story.overflow != "ieee" else []
    options += [f"subnormals {story.subnormals}"] if story.subnormals != "keep" else []
    return f"{x.text}{means} to {story.format}, {', '.join(options)}"


def _is_spelled_otherwise(text: str, exact: Fraction) -> bool:
    try:
        return Fraction(text) != exact
    except ValueError:
        return True


def answer(story: Rounding) -> list[str]:
    """The result with its code, and the error as an exact number and in ulps."""
    fmt, result = story.format, story.result
    if math.isnan(result) and not fmt.has_nan:
        return ["NaN."]
    if not math.isfinite(result):
        return [f"{'NaN' if math.isnan(result) else result} = {code_word(result, fmt)}."]
    head = f"{exactly(result, fmt)} = {hex_float(result)} = {code_word(result, fmt)}"
    if story.error is None or story.error_ulp is None:
        return [f"{head}."]
    if story.error == 0:
        return [f"{head}, exactly."]
    ulps = f"{nearly(story.error_ulp)} {fmt} ulp in {binade(result, fmt)}"
    return [f"{head}.", f"Error {shown(story.error)} ({ulps})."]


def tables(story: Rounding, *, verbose: bool = False) -> list[Table]:
    """The neighbours; `verbose`: every exact number in full."""
    found = [Table(HEADER, tuple(map(tuple, _rows(story))), (4, 5))] if story.below or story.above else []
    return found + ([_in_full(story)] if verbose else [])


def _rows(story: Rounding) -> list[list[str]]:
    """The neighbours with x and the midpoint between them, in the order of values."""
    below, above, midpoint, exact = story.below, story.above, story.midpoint, story.given.exact
    if below is not None and below == above:
        return [_row("x", below, story)]
    digits = max(6, story.format.precision // 3 + 2)  # enough to tell x from the values around it
    between = [["x", shown(exact, digits=digits), "", "", "", ""]]
    if midpoint is not None:
        is_tie = midpoint == exact
        name = "x = midpoint" if is_tie else "midpoint"
        row = [name, shown(midpoint, digits=digits), "", "", *_distance(story, abs(midpoint - exact))]
        between = [row] if is_tie else [*between, row] if exact < midpoint else [row, *between]
    low = [_row("below", below, story)] if below is not None else []
    return [*low, *between, *([_row("above", above, story)] if above is not None else [])]


def _row(name: str, found: Neighbour, story: Rounding) -> list[str]:
    fmt = story.format
    if abs(found.value) > fmt.max:
        cells = [exactly(found.value, fmt), "beyond the largest", ""]
    else:
        cells = [exactly(found.value, fmt), code_word(found.value, fmt), " ".join(fields(found.value, fmt)).strip()]
    return [name, *cells, *_distance(story, found.distance)]


def _distance(story: Rounding, distance: Fraction) -> list[str]:
    return [shown(distance), nearly(distance / _quantum(story))]


def _quantum(story: Rounding) -> Fraction:
    return Fraction(2) ** (story.exponent - story.format.trailing_bits)


# --- why ------------------------------------------------------------------------------------------------------------


def why(story: Rounding) -> str:
    """What decided, in a sentence or two."""
    fmt = story.format
    match story.kind:
        case "exact":
            return f"{fmt} holds it: nothing is lost."
        case "nearest":
            return _why_nearest(story)
        case "tie":
            return _why_tie(story)
        case "directed":
            return _why_directed(story)
        case "overflow" | "saturated":
            return _why_overflow(story)
        case "flushed":
            kept = exactly(round_exact(story.given.exact, fmt, story.mode), fmt)
            return f"It would be {kept}, below the smallest normal value 2^{fmt.emin} of {fmt}: ftz gives a zero."
        case "operand flushed":
            own = story.given.format or fmt
            return f"As an operand it is subnormal (below 2^{own.emin} in {own}): daz takes it for a zero."
        case "zero":
            return "A zero stays a zero" + ("." if fmt.has_negative_zero else f"; {fmt} has no -0.")
        case "special":
            return f"{'NaN' if math.isnan(story.result) else 'An infinity'} stays what it is."
    return _why_none(story)


def _chosen_and_other(story: Rounding) -> tuple[Neighbour, Neighbour | None]:
    pair = [n for n in (story.below, story.above) if n is not None]
    chosen = next((n for n in pair if n.value == story.result), pair[0])
    return chosen, next((n for n in pair if n is not chosen), None)


def _why_nearest(story: Rounding) -> str:
    chosen, other = _chosen_and_other(story)
    side = "less" if story.rest < Fraction(1, 2) else "more"
    told = f"The cut bits are {side} than half an ulp: it lies nearer to {exactly(chosen.value, story.format)}"
    if other is None:
        return told + ", the least value of the format."
    return told + f" than to {exactly(other.value, story.format)}."


def _why_tie(story: Rounding) -> str:
    fmt = story.format
    chosen, other = _chosen_and_other(story)
    assert other is not None
    both = f"{exactly(chosen.value, fmt)}, not {exactly(other.value, fmt)}"
    head = "It lies exactly half way"
    if story.mode == "ties_to_away":
        return f"{head}: ties_to_away takes the one farther from zero, {both}."
    last = [_last_bits(n.value, fmt) for n in (chosen, other)]
    if fmt.trailing_bits == 0:
        return f"{head}: ties_to_even takes the one with the even code, {both}."
    bits = "" if None in last else f" (trailing bits {last[0]} against {last[1]})"
    return f"{head}: ties_to_even takes the one whose last significand bit is 0, {both}{bits}."


def _last_bits(x: float, fmt: Format) -> str | None:
    return fields(x, fmt)[2] if abs(x) <= fmt.max else None


def _why_directed(story: Rounding) -> str:
    told = exactly(story.result, story.format)
    if story.mode == "to_odd":
        return f"It is not exact, so to_odd takes the neighbour whose last significand bit is 1, {told}."
    side = {"toward_zero": "nearer to zero", "toward_positive": "above", "toward_negative": "below"}[story.mode]
    return f"{story.mode} takes the neighbour {side}, {told}, whatever the distances."


def _why_overflow(story: Rounding) -> str:
    fmt, largest = story.format, exactly(math.copysign(story.format.max, story.result), story.format)
    if not story.given.is_finite:
        return f"An infinity is given; overflow saturate takes the largest finite value of {fmt}."
    if story.kind == "overflow":
        beyond = exactly(math.copysign(fmt.max, float(story.given.exact > 0) - 0.5), fmt)
        would = nearly(Fraction(rounded_unbounded(story)), 9) if math.isfinite(rounded_unbounded(story)) else "larger"
        ends = "an infinity" if fmt.has_infinity else f"NaN, as {fmt} has no infinity"
        border = shown(Fraction(fmt.max) + Fraction(float(ulp(fmt.max, fmt))) / 2)
        told = f"If the exponents went on it would be {would}: beyond the largest finite value {beyond}, so {ends}."
        return told + (f" The border is {border}, half an ulp further." if story.mode.startswith("ties") else "")
    if story.overflow == "saturate":
        reason = "overflow saturate"
    else:
        reason = f"{story.mode}" if fmt.has_infinity or fmt.has_nan else f"{fmt} has neither infinity nor NaN: it"
    return f"It lies beyond the largest finite value {largest}; {reason} keeps that."


def rounded_unbounded(story: Rounding) -> float:
    """x rounded to the precision of the format, with the exponents of f64."""
    return round_exact(story.given.exact, Format("unbounded", 11, story.format.precision, 1023), story.mode)


def _why_none(story: Rounding) -> str:
    x, fmt = story.given, story.format
    if x.is_finite and x.exact == 0:
        return f"{fmt} has no zero: NaN stands for it."
    if x.is_finite:
        return f"{fmt} has no negative values: NaN stands for it."
    if math.isnan(x.value):
        return f"{fmt} has no NaN: a zero of the other sign stands for it, as in ml_dtypes."
    ends = "NaN" if math.isnan(story.result) else exactly(story.result, fmt)
    return f"{fmt} has no infinity: {ends} stands for it."


def bits_line(story: Rounding) -> str:
    """The significand with a bar where the format cuts it: `1.0110010|00111... x 2^4`."""
    trailing, width = story.format.trailing_bits, story.format.precision
    word = f"{story.significand:0{width}b}"
    kept = word if trailing == 0 else f"{word[:-trailing]}.{word[-trailing:]}"
    return f"{kept}|{cut_bits(story.rest) or '0'} x {power_text(story.exponent)}   (kept {width} bits | cut)"


def notes(story: Rounding) -> list[str]:
    """Subnormal results, and the double rounding that a detour through a wider format would be."""
    found, fmt = [], story.format
    if story.is_subnormal:
        found.append(
            f"The result is subnormal: below 2^{fmt.emin} all values of {fmt} are multiples of"
            f" 2^{fmt.emin - fmt.trailing_bits}, so it has {_width(story)} of {fmt.precision} significand bits."
        )
    elif story.result == 0 and story.kind in ("nearest", "tie", "directed"):
        found.append(f"It underflows: the smallest value above zero is 2^{fmt.emin - fmt.trailing_bits} in {fmt}.")
    for way in story.through:
        if way.differs:
            found.append(
                f"Through {way.format} it would be rounded twice: {exactly(way.first, way.format)}, then"
                f" {exactly(way.result, fmt)}. That is not one rounding."
            )
    return found


def _width(story: Rounding) -> int:
    return int(abs(Fraction(story.result)) / Fraction(story.format.smallest_subnormal)).bit_length()


def _in_full(story: Rounding) -> Table:
    distances = [None if n is None else n.distance for n in (story.below, story.above)]
    named = {
        "x": story.given.exact if story.given.is_finite else None,
        "midpoint": story.midpoint,
        "x - below": distances[0],
        "above - x": distances[1],
        "error": story.error,
        "error in ulp": story.error_ulp,
    }
    rows = [(name, str(value)) for name, value in named.items() if value is not None]
    rows += [(f"through {w.format}", f"{hex_float(w.first)}, then {hex_float(w.result)}") for w in story.through]
    return Table(("exactly", ""), tuple(rows))
