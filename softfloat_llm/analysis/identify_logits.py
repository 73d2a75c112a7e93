"""identify_logits(values): the grid on which printed numbers lie, and so the format that they were made in.

Logits in bf16 between 16 and 32 are multiples of 0.125, whatever they were printed as. A value fits a grid where some
multiple would be printed as it was; how surprising that is says how sure the answer is. Start at `identify_logits`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from softfloat_llm.analysis.answers import Answer, Table, counted
from softfloat_llm.analysis.exact_text import nearly, power_text, shown
from softfloat_llm.analysis.identify import SCHEMA
from softfloat_llm.analysis.numbers import about
from softfloat_llm.analysis.reading import number_of
from softfloat_llm.errors import ArrayError
from softfloat_llm.numerics.exact import Real, floor_log2, round_exact
from softfloat_llm.numerics.formats import CARRIERS, FORMATS, Array, Format, bf16, f16, f32, f64, format_of
from softfloat_llm.numerics.ulps import ulp

SURE, LIKELY = 20.0, 7.0  # bits: one chance in a million, one in a hundred
COARSEST, FINEST = 8, -40  # powers of two that are tried as a grid
MOST_VALUES = 1024  # of an array, evenly spaced
_DECIMAL = re.compile(r"[+-]?\d*\.?(?P<places>\d*)", re.ASCII)


@dataclass(frozen=True)
class Printed:
    """A number as it was printed: it stands for every number within `half` of `value`."""

    value: Fraction
    half: Fraction

    def lies_on(self, step: Fraction) -> bool:
        """True where a multiple of the step may have been printed so."""
        return abs(self.value - round(self.value / step) * step) <= self.half

    @property
    def exponent(self) -> int | None:
        return floor_log2(abs(self.value)) if self.value else None


@dataclass(frozen=True)
class FormatFit:
    """A format whose values all the numbers can be. `evidence`: bits against the chance that any numbers were."""

    format: Format
    evidence: float

    def to_dict(self) -> dict[str, Any]:
        return {"format": str(self.format), "evidence_bits": round(self.evidence, 2)}


@dataclass(frozen=True)
class Binade:
    """The numbers of one binade [2^e, 2^(e+1)), and the coarsest grid on which they lie: multiples of 2^step."""

    exponent: int
    count: int
    step: int

    @property
    def interval(self) -> str:
        return f"[{power_text(self.exponent)}, {power_text(self.exponent + 1)})"

    def to_dict(self) -> dict[str, Any]:
        return {"exponent": self.exponent, "count": self.count, "step": self.step}


@dataclass(frozen=True)
class Shift:
    """All numbers lie on multiples of 2^step after one number is added to all of them, as log_softmax adds one."""

    step: int
    evidence: float

    @property
    def origins(self) -> list[str]:
        """Where the half formats have that spacing."""
        return [
            f"{fmt} in [{power_text(self.step + fmt.trailing_bits)}, {power_text(self.step + fmt.trailing_bits + 1)})"
            for fmt in (bf16, f16)
        ]

    def to_dict(self) -> dict[str, Any]:
        return {"step": self.step, "evidence_bits": round(self.evidence, 2), "origins": self.origins}


@dataclass(frozen=True)
class LogitGrid(Answer):
    """The grid of some numbers: the formats that they fit, the coarsest first; their spacing by binade; a common shift.

    `numbers` that are finite were looked at, of `given`. `is_log` where none of them lies above 0.
    """

    given: int
    numbers: int
    is_log: bool
    formats: tuple[FormatFit, ...]
    binades: tuple[Binade, ...]
    shift: Shift | None

    @property
    def coarsest(self) -> FormatFit | None:
        return self.formats[0] if self.formats else None

    def heading(self) -> list[tuple[str, str]]:
        kind = "none above 0, as log-probabilities" if self.is_log else "as logits"
        return [("given", f"{counted(self.given, 'number')}, {kind}")]

    def sentences(self) -> list[str]:
        if self.shift is not None and (self.coarsest is None or self.shift.evidence > self.coarsest.evidence):
            return [self._about_shift(self.shift)]
        lines = [self._about_formats()]
        if self.coarsest is not None and self.binades:
            part = max(self.binades, key=lambda part: (part.count, part.exponent))
            lines.append(f"In {part.interval} they are multiples of {spacing(part.step)}.")
        return lines

    def _about_formats(self) -> str:
        best = self.coarsest
        if best is None:
            return "These numbers are values of no known format: they have more bits, or were not printed in full."
        what = "The number is a value" if self.numbers == 1 else f"All {self.numbers} are values"
        return f"{what} of {best.format}, the coarsest format that holds them; {_surety(best.evidence)}."

    def _about_shift(self, shift: Shift) -> str:
        what = "log-probabilities of" if self.is_log else "numbers shifted from"
        told = f"Their differences are multiples of {spacing(shift.step)}: {what} logits on that grid"
        return f"{told} ({' or '.join(shift.origins)}); {_surety(shift.evidence)}."

    def tables(self, *, verbose: bool = False) -> list[Table]:
        """By binade the spacing of the numbers, and that of the formats that they fit."""
        formats = [fit.format for fit in self.formats[:3]]
        header = ("binade", "numbers", "multiples of", *(f"{fmt} ulp" for fmt in formats))
        rows = tuple(
            (
                part.interval, str(part.count), spacing(part.step),
                *(nearly(Fraction(float(ulp(2.0**part.exponent, fmt)))) for fmt in formats),
            )
            for part in self.binades
        )  # fmt: skip
        fits = Table(
            ("format", "bits of evidence"), tuple((str(f.format), about(f.evidence)) for f in self.formats), (1,)
        )
        table = Table(header, rows, tuple(range(1, len(header))))
        return [table, fits] if verbose else [table.cut(8), fits.cut(4)]

    def to_dict(self) -> dict[str, Any]:
        """The grid as JSON has it."""
        return {
            "schema": SCHEMA,
            "what": "logits",
            "given": self.given,
            "numbers": self.numbers,
            "is_log": self.is_log,
            "formats": [fit.to_dict() for fit in self.formats],
            "binades": [part.to_dict() for part in self.binades],
            "shift": self.shift and self.shift.to_dict(),
        }


def spacing(step: int) -> str:
    """2^step as a decimal where that is short."""
    return shown(Fraction(2) ** step, 10) if step > -10 else power_text(step)


def _surety(evidence: float) -> str:
    told = f"by chance that would be so once in 2^{math.floor(evidence)}"
    if evidence >= SURE:
        return f"{told}: sure"
    if evidence >= LIKELY:
        return f"{told}: likely"
    return f"{told}: too few or too coarse numbers to be sure"


def identify_logits(values: Sequence[str | Real] | Array) -> LogitGrid:
    """On which grid numbers lie: the coarsest format whose values all of them can be.

    values: printed numbers as texts (`22.38` stands for every number that prints so), or an array, which is taken as it
    is. Numbers that are not finite are left out.
    **Raises** ArrayError where no finite number is given, WordError for a text that is no number.

    >>> found = identify_logits(["22.375", "22.25", "20.125", "19.5"])
    >>> str(found.coarsest.format), found.binades[0].step
    ('bf16', -3)
    """
    printed, widths = _printed(values)
    if not printed:
        raise ArrayError("No finite number is given, so there is no grid.")
    formats, binades = _formats(printed, widths), _binades(printed)
    return LogitGrid(
        given=len(values) if not isinstance(values, np.ndarray) else int(values.size),
        numbers=len(printed),
        is_log=all(one.value <= 0 for one in printed),
        formats=formats,
        binades=binades,
        shift=_shift(printed, min((part.step for part in binades), default=COARSEST)),
    )


def _printed(values: Sequence[str | Real] | Array) -> tuple[list[Printed], list[Fraction]]:
    """The finite numbers, and how wide a stretch each of them stands for (one step of its text or format)."""
    if isinstance(values, np.ndarray):
        return _of_array(values)
    found, widths = [], []
    for text in values:
        number = number_of(text)
        if number.is_finite:
            width = _width(text) if isinstance(text, str) else Fraction(float(ulp(float(number.exact), f64)))
            found.append(Printed(number.exact, width / 2))
            widths.append(width)
    return found, widths


def _width(text: str) -> Fraction:
    """One unit of the last decimal place of a text; 0 for codes, hex floats and what else is exact."""
    match = _DECIMAL.fullmatch(text.strip())
    return Fraction(1, 10 ** len(match["places"])) if match is not None else Fraction(0)


def _of_array(values: Array) -> tuple[list[Printed], list[Fraction]]:
    """Values of an array's own format: each stands for itself, and could have been any of the format."""
    if values.dtype.kind in "iu":
        values = values.astype(np.float64)
    if values.dtype not in CARRIERS:
        raise ArrayError(f"Looking for the grid of an array of {values.dtype}: expected real numbers.")
    own = CARRIERS[values.dtype]
    flat = values.ravel().astype(np.float64)
    flat = flat[np.isfinite(flat)]
    places = np.unique(np.linspace(0, len(flat) - 1, min(len(flat), MOST_VALUES)).round().astype(np.int64))
    kept = flat[places].tolist() if len(flat) else []
    return [Printed(Fraction(x), Fraction(0)) for x in kept], [Fraction(float(ulp(x, own))) for x in kept]


def _formats(printed: Sequence[Printed], widths: Sequence[Fraction]) -> tuple[FormatFit, ...]:
    """The formats that all numbers fit, those of fewest significand bits first; named ones before others as wide."""
    known = [fmt for fmt in FORMATS.values() if fmt not in (f64, f32) and fmt.is_signed]
    others = [format_of(f"e8m{bits}") for bits in range(1, 24)]
    ranked = sorted(dict.fromkeys([bf16, f16, *known, *others, f32]), key=lambda fmt: fmt.precision)
    fits = [fmt for fmt in ranked if all(_is_value(one, fmt) for one in printed)]
    return tuple(FormatFit(fmt, _evidence(printed, widths, fmt)) for fmt in fits)


def _is_value(one: Printed, fmt: Format) -> bool:
    nearest = round_exact(one.value, fmt)
    return math.isfinite(nearest) and abs(Fraction(nearest) - one.value) <= one.half


def _evidence(printed: Sequence[Printed], widths: Sequence[Fraction], fmt: Format) -> float:
    """Bits: minus log2 of the chance that numbers which could have been anything lie on the format's grid."""
    steps = [Fraction(float(ulp(float(one.value), fmt))) for one in printed]
    return _bits_of(widths, steps)


def _bits_of(widths: Sequence[Fraction], steps: Sequence[Fraction]) -> float:
    chances = [
        min(Fraction(1), max(width, Fraction(1, 1 << 60)) / step) for width, step in zip(widths, steps, strict=True)
    ]
    return math.fsum(-math.log2(chance) for chance in chances)


def _binades(printed: Sequence[Printed]) -> tuple[Binade, ...]:
    """The numbers of each binade, the largest of all binades last."""
    found: dict[int, list[Printed]] = {}
    for one in printed:
        if one.exponent is not None:
            found.setdefault(one.exponent, []).append(one)
    return tuple(Binade(e, len(found[e]), _coarsest_step(found[e], e)) for e in sorted(found))


def _coarsest_step(printed: Sequence[Printed], exponent: int) -> int:
    for step in range(exponent, exponent - 53, -1):
        if all(one.lies_on(Fraction(2) ** step) for one in printed):
            return step
    return exponent - 53


def _shift(printed: Sequence[Printed], finest: int) -> Shift | None:
    """The coarsest grid of the differences from the first number, where that is no accident.

    Only one that is coarser than 2^finest, the grid of the numbers themselves. A shifted number was rounded to float32
    once more: half an ulp of it is allowed for.
    """
    first, *others = printed
    halves = [one.half + Fraction(float(ulp(float(one.value), f32))) / 2 for one in printed]
    apart = [Printed(one.value - first.value, half + halves[0]) for one, half in zip(others, halves[1:], strict=True)]
    apart = [one for one in apart if abs(one.value) > one.half]  # equal numbers say nothing
    for exponent in range(COARSEST, max(FINEST, finest), -1):
        step = Fraction(2) ** exponent
        if apart and all(one.lies_on(step) for one in apart):
            tried = math.log2(COARSEST - FINEST)
            evidence = _bits_of([2 * one.half for one in apart], [step] * len(apart)) - tried
            return Shift(exponent, evidence) if evidence >= LIKELY else None
    return None
