"""What every benchmark here shares: the clock, medians, and the pass that they count in.

A *pass* is an in-place `np.add(x, y, out=x)` over 8192 elements, float32 or float64: the unit in which the forms of
`numerics.kernels` are reasoned about (so many whole-array passes a product). It is timed just before and just after
each measurement, so that ratios stand where the machine's clock or its other users change.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter, thread_time

import numpy as np

from softfloat_llm.numerics.formats import Array

PASS_ELEMENTS = 8192
PASS_CALLS = 100
Clock = Callable[[], float]


def seconds(work: Callable[[], object], repeats: int = 5, clock: Clock = thread_time) -> float:
    """The median. `thread_time` leaves out what other processes take of the core; `perf_counter` is for threads."""
    times = []
    for _ in range(repeats):
        start = clock()
        work()
        times.append(clock() - start)
    return median(times)


def pass_seconds(dtype: type, clock: Clock = thread_time) -> float:
    """One pass, per element."""
    x: Array = np.ones(PASS_ELEMENTS, dtype)
    y: Array = np.full(PASS_ELEMENTS, 1e-9, dtype)

    def passes() -> None:
        for _ in range(PASS_CALLS):
            np.add(x, y, out=x)

    return seconds(passes, 3, clock) / (PASS_CALLS * PASS_ELEMENTS)


def in_passes(
    work: Callable[[], object], dtype: type, rounds: int = 7, clock: Clock = thread_time
) -> tuple[float, float]:
    """(seconds, the same in passes of one element): medians over rounds of a pass, the work, and a pass."""
    work()
    spent, ratios = [], []
    for _ in range(rounds):
        before = pass_seconds(dtype, clock)
        spent.append(seconds(work, 1, clock))
        ratios.append(spent[-1] / ((before + pass_seconds(dtype, clock)) / 2))
    return median(spent), median(ratios)


__all__ = ["PASS_ELEMENTS", "in_passes", "pass_seconds", "perf_counter", "seconds", "thread_time"]
