"""identify_tensor(array): was a 16-bit tensor read in the right format? The distribution of its exponents tells.

The same 65,536 codes mean other values in bf16 and in f16, and with their bytes swapped. Numbers that a network holds
spread over a few binades around one size; read in the wrong format they spread over dozens, or crowd into one or two.
Weights of a norm crowd around 1 by themselves: where such an explanation would turn the answer, none is given.
Start reading at `identify_tensor`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from softfloat_llm.analysis.answers import Answer, Table, counted
from softfloat_llm.analysis.identify import SCHEMA
from softfloat_llm.analysis.identify_facts import is_held
from softfloat_llm.analysis.numbers import about, jsonable
from softfloat_llm.errors import ArrayError
from softfloat_llm.numerics.formats import CARRIERS, Array, Float64Array, Format, bf16, decode, encode, f16
from softfloat_llm.numerics.ulps import ulp

SAMPLE = 4096  # elements, evenly spaced
SURE, LIKELY = 100.0, 20.0  # bits of evidence
ODD_BITS = 40.0  # what a NaN or an infinity costs: no network holds them on purpose
DEGREES = 3  # of freedom: a heavy tail, as weights and activations have
_MEDIAN = 0.7648923284  # of |t| with 3 degrees of freedom: Student's t distribution, quantile 3/4
_READINGS: tuple[tuple[Format, bool], ...] = ((bf16, False), (f16, False), (bf16, True), (f16, True))


@dataclass(frozen=True)
class Reading:
    """The tensor's codes as values of one format (bytes swapped or not), and how such values look.

    `bits`: what a code costs on average under a Student distribution of their size around 0, the smaller the likelier;
    `bits_around`: the least of that and of one around their own middle. `low` and `high`: the binades (exponents)
    between which 98 % of the values lie. `odd`: the share of NaN and infinities.
    """

    format: Format
    is_swapped: bool
    bits: float
    bits_around: float
    median: float
    low: int
    high: int
    odd: float

    @property
    def name(self) -> str:
        return f"{self.format}{', bytes swapped' if self.is_swapped else ''}"

    def to_dict(self) -> dict[str, Any]:
        values = {"bits": self.bits, "bits_around": self.bits_around, "median": self.median, "odd": self.odd}
        places = {"low": self.low, "high": self.high}
        return {"reading": self.name} | places | {key: jsonable(x) for key, x in values.items()}


@dataclass(frozen=True)
class TensorReading(Answer):
    """The readings of a tensor, the likeliest first. `read_as`: the one in which it came (None for bare codes).

    `evidence`: bits by which the likeliest beats the one in which it came (or the next), as if only elements of
    different codes told anything.
    """

    shape: tuple[int, ...]
    looked_at: int
    distinct: int
    read_as: str | None
    readings: tuple[Reading, ...]
    evidence: float

    @property
    def best(self) -> Reading:
        return self.readings[0]

    @property
    def is_misread(self) -> bool | None:
        """True where another reading is likelier by far; None where nothing can be said, or no format was named."""
        if self.read_as is None or self.evidence < LIKELY:
            return None
        return self.best.name != self.read_as

    def heading(self) -> list[tuple[str, str]]:
        came = "bare 16-bit codes" if self.read_as is None else f"read as {self.read_as}"
        return [
            ("given", f"{self.shape}, {came}; {counted(self.looked_at, 'element')}, {self.distinct} different codes")
        ]

    def sentences(self) -> list[str]:
        best, bits = self.best, f"{about(self.evidence, 3)} bits of evidence"
        if self.evidence < LIKELY:
            return [f"It cannot be said: only {bits}. More elements, or more different ones, would tell."]
        sure = f"{bits}: {'sure' if self.evidence >= SURE else 'likely'}"
        as_read = ", as it was read" if self.read_as else ""
        told = f"Its bits are {best.name}{as_read} ({sure})."
        if self.is_misread:
            told = f"This was read in the wrong format: its bits are {best.name} ({sure})."
        return [told, f"98 % of the values then lie in [2^{best.low}, 2^{best.high + 1})."]

    def tables(self, *, verbose: bool = False) -> list[Table]:
        header = ("read as", "median", "98 % in", "binades", "% NaN, inf", "bits a value")
        return [Table(header, tuple(_row(reading) for reading in self.readings), (1, 3, 4, 5))]

    def to_dict(self) -> dict[str, Any]:
        """The readings as JSON has them."""
        return {
            "schema": SCHEMA,
            "what": "tensor",
            "shape": list(self.shape),
            "looked_at": self.looked_at,
            "distinct": self.distinct,
            "read_as": self.read_as,
            "is_misread": self.is_misread,
            "evidence_bits": jsonable(self.evidence),
            "readings": [reading.to_dict() for reading in self.readings],
        }


def identify_tensor(tensor: Array) -> TensorReading:
    """In which 16-bit format a tensor's bits make the likeliest numbers.

    tensor: values of bf16 or f16 as they were read (in that dtype, or widened to float32 or float64), or their codes
    as unsigned 16-bit integers. Zeros say nothing and are left out.
    **Raises** ArrayError for a tensor of another format, or one without a nonzero element.
    """
    codes, read_as = _codes(np.asarray(tensor))
    told = codes[(codes & 0x7FFF) != 0]
    told = told[np.unique(np.linspace(0, max(len(told) - 1, 0), min(len(told), SAMPLE)).round().astype(np.int64))]
    if not len(told):
        raise ArrayError("The tensor holds nothing but zeros: every format has those.")
    distinct = len(np.unique(told))
    readings = tuple(sorted((_reading(told, fmt, swap) for fmt, swap in _READINGS), key=lambda r: r.bits))
    rival = next(r for r in readings if r is not readings[0] and (read_as in (None, readings[0].name, r.name)))
    gained = min(rival.bits - readings[0].bits, rival.bits_around - readings[0].bits_around)
    evidence = max(0.0, gained * distinct)
    return TensorReading(np.shape(tensor), len(told), distinct, read_as, readings, evidence)


def _codes(tensor: Array) -> tuple[Array, str | None]:
    """The codes in one dimension, and the name of the format that they were read in."""
    if tensor.dtype == np.uint16:
        return tensor.ravel(), None
    for fmt in (bf16, f16):
        if tensor.dtype in CARRIERS and (
            tensor.dtype == fmt.dtype or (tensor.dtype.itemsize > 2 and is_held(tensor, fmt))
        ):
            return encode(tensor, fmt).ravel(), str(fmt)
    raise ArrayError(
        f"A tensor of {tensor.dtype} {tensor.shape}: expected values of bf16 or f16, or their codes as uint16."
    )


def _reading(codes: Array, fmt: Format, is_swapped: bool) -> Reading:
    values = decode(codes.byteswap() if is_swapped else codes, fmt)
    finite = np.abs(values[np.isfinite(values) & (values != 0)])
    if not len(finite):
        return Reading(fmt, is_swapped, ODD_BITS, ODD_BITS, math.nan, 0, 0, 1.0)
    median = float(np.median(finite))
    exponents = np.sort(np.frexp(finite)[1] - 1)
    ends = exponents[len(finite) // 100], exponents[-1 - len(finite) // 100]
    odd = 1.0 - len(finite) / len(codes)
    around_0, around_middle = _costs(values, fmt)
    return Reading(fmt, is_swapped, around_0, min(around_0, around_middle), median, int(ends[0]), int(ends[1]), odd)


def _costs(values: Float64Array, fmt: Format) -> list[float]:
    """What a code costs: around 0, as weights lie, and around their own middle, as those of a norm do."""
    finite = values[np.isfinite(values)]
    costs = []
    for middle in (0.0, float(np.median(finite))):
        size = float(np.median(np.abs(finite - middle))) / _MEDIAN
        costs.append(_bits(values, middle, max(size, float(ulp(middle, fmt))), fmt))
    return costs


def _bits(values: Float64Array, middle: float, size: float, fmt: Format) -> float:
    """-log2 of the chance of a code, on average: the Student density at its value times the stretch that it stands for.

    t is the distance from the middle over the size; its density with 3 degrees of freedom is 2 / (pi sqrt(3) (1 +
    t^2/3)^2).
    """
    is_finite = np.isfinite(values)
    finite = values[is_finite].tolist()
    steps = np.asarray(ulp(values[is_finite], fmt)).tolist()
    apart = [(x - middle) / size for x in finite]
    costs = [_log2_size(t) + math.log2(size) - math.log2(step) for t, step in zip(apart, steps, strict=True)]
    odd = len(values) - len(finite)
    return (math.fsum(costs) + ODD_BITS * odd) / len(values)


def _log2_size(t: float) -> float:
    """-log2 of the density."""
    tail = 4.0 * math.log2(abs(t) / math.sqrt(DEGREES)) if abs(t) > 1e100 else 2.0 * math.log2(1.0 + t * t / DEGREES)
    return tail - math.log2(2.0 / (math.pi * math.sqrt(3.0)))


def _row(one: Reading) -> tuple[str, ...]:
    binades = f"2^{one.low} to 2^{one.high}", str(one.high - one.low + 1)
    return (one.name, about(one.median), *binades, about(100 * one.odd), about(one.bits))
