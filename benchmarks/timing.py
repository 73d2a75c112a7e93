"""What every benchmark here shares: the clocks, medians, the pass that they count in, and pairs of things in turn.

A *pass* is an in-place `np.add(x, y, out=x)` over 8192 elements, float32 or float64: the unit in which the forms of
`numerics.kernels` are reasoned about (so many whole-array passes a product). Whatever is compared is timed in turn, A B
A B, and the ratio is taken of each pair, so that it stands where the machine's clock or its other users change. Start
reading at `paired`.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

import numpy as np

from softfloat_llm.numerics.formats import Array

PASS_ELEMENTS = 8192
PASS_CALLS = 100
LEAST_SECONDS = 0.002  # what is shorter is called again until so much time has passed: a clock's step is then no part
LONG_SECONDS = 10 * LEAST_SECONDS
Clock = Callable[[], float]
Work = Callable[[], object]


class Pair(NamedTuple):
    """Medians of the seconds of one call of each, and of the ratios of the pairs."""

    seconds: float
    against: float
    ratio: float


def calls_for(work: Work, clock: Clock) -> int:
    """How many calls take LEAST_SECONDS. Its first call compiles and loads what there is to compile and load."""
    once = seconds(work, 1, clock)
    if once < LONG_SECONDS:
        once = min(once, seconds(work, 1, clock))
    return 1 if once >= LEAST_SECONDS else min(10_000, int(LEAST_SECONDS / max(once, 1e-7)) + 1)


def seconds(work: Work, calls: int = 1, clock: Clock = process_time) -> float:
    """Of one call, the mean of so many. `process_time` leaves out what other processes take of the cores."""
    start = clock()
    for _ in range(calls):
        work()
    return (clock() - start) / calls


def paired(work: Work, against: Work, rounds: int = 5, clock: Clock = process_time) -> Pair:
    """Both in turn, so many rounds. By `perf_counter` where threads or processes work together."""
    calls = calls_for(work, clock), calls_for(against, clock)
    pairs = [(seconds(work, calls[0], clock), seconds(against, calls[1], clock)) for _ in range(rounds)]
    return pair_of(pairs)


def pair_of(pairs: list[tuple[float, float]]) -> Pair:
    """The medians of (seconds, seconds of what it is held against)."""
    return Pair(median(a for a, _ in pairs), median(b for _, b in pairs), median(a / b for a, b in pairs))


def adding(dtype: type) -> Work:
    """PASS_CALLS passes."""
    x: Array = np.ones(PASS_ELEMENTS, dtype)
    y: Array = np.full(PASS_ELEMENTS, 1e-9, dtype)

    def passes() -> None:
        for _ in range(PASS_CALLS):
            np.add(x, y, out=x)

    return passes


def pass_seconds(dtype: type, clock: Clock = process_time) -> float:
    """One pass, per element."""
    passes = adding(dtype)
    return median(seconds(passes, 1, clock) for _ in range(3)) / (PASS_CALLS * PASS_ELEMENTS)


def in_passes(work: Work, dtype: type, rounds: int = 5, clock: Clock = process_time) -> Pair:
    """The work against one element of a pass, which is timed just before and just after it."""
    calls, pairs = calls_for(work, clock), []
    for _ in range(rounds):
        before = pass_seconds(dtype, clock)
        spent = seconds(work, calls, clock)
        pairs.append((spent, (before + pass_seconds(dtype, clock)) / 2))
    return pair_of(pairs)


__all__ = ["Clock", "Pair", "Work", "in_passes", "pair_of", "paired", "pass_seconds", "perf_counter", "process_time"]
