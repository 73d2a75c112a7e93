"""Sums of many float64 numbers, rounded once: what `math.fsum` gives, by whole arrays where that can be certified.

Every sum of two keeps what it lost, exactly; so do the sums of what was lost. What is lost then is so little that it
hardly ever decides a rounding: it is bounded, and where it could, `math.fsum` is asked. Start reading at `total`.
"""

from __future__ import annotations

import math

import numpy as np

from softfloat_llm.numerics.formats import Float64Array
from softfloat_llm.numerics.rounding import two_sum


def total(x: Float64Array) -> float:
    """The sum of all elements of x (...). **Rounds:** once, from the exact sum, ties to even.

    Raises OverflowError or ValueError where `math.fsum` does: infinities of both signs, a sum beyond float64.

    >>> total(np.array([1e100, 1.0, -1e100]))
    1.0

    **Source:** TwoSum, and sums of what it loses: Ogita, Rump and Oishi, Accurate sum and dot product, SIAM Journal on
    Scientific Computing 26(6), 2005, algorithms 3.1 and 4.3.
    """
    flat = x.reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):
        found = _certified(flat)
    return math.fsum(flat.tolist()) if found is None else found


def _certified(x: Float64Array) -> float | None:
    """The rounded sum of x (n,); None where the bounds of what was lost do not round to one number, or it is zero."""
    high, lost = _two_sums(x)
    low, rest = _two_sums(lost)
    beyond = 2.0 * len(rest) * float(np.abs(rest).max())  # twice: the product is rounded
    (rounded,), (left,) = two_sum(np.array([high]), np.array([low]))
    least, most = np.nextafter(left - beyond, -np.inf), np.nextafter(left + beyond, np.inf)
    return float(rounded) if rounded != 0 and rounded + least == rounded == rounded + most else None


def _two_sums(x: Float64Array) -> tuple[float, Float64Array]:
    """A sum of x (n,) by pairs, and what each addition lost: together they are the exact sum, if nothing overflows."""
    lost = [np.zeros(1)]
    while len(x) > 1:
        half, odd = divmod(len(x), 2)
        sums, errors = two_sum(x[:half], x[half : 2 * half])
        lost.append(errors)
        x = np.append(sums, x[-1]) if odd else sums
    return float(x[0]) if len(x) else 0.0, np.concatenate(lost)
