"""Operands whose exact sums are 0: what a kernel gives for them is its roundings and nothing else.

Two orders of a sum in float32 rarely differ once it is rounded to a half format. Of these sums that is all that is
left, so nearly every element tells two orders apart.
"""

from __future__ import annotations

import numpy as np

from softfloat_llm.numerics.formats import format_of


def cancelling(rng, rows, terms, columns, fmt):
    """x (rows, terms), w (columns, terms) in a format: each x.w is 0, of terms between 2^-12 and 2^12 in size."""
    half = terms // 2
    a, b = (_spread(rng, n, half) for n in (rows, columns))
    twin, places = rng.permutation(half), rng.permutation(terms)
    x, w = np.zeros((rows, terms)), np.zeros((columns, terms))
    x[:, places[:half]], x[:, places[half : 2 * half]] = a, a[:, twin]
    w[:, places[:half]], w[:, places[half : 2 * half]] = b, -b[:, twin]
    if terms % 2:  # a lone term has nothing to cancel with
        x[:, places[-1]], w[:, places[-1]] = 1.0, 2.0**-8
    return x.astype(format_of(fmt).dtype), w.astype(format_of(fmt).dtype)


def _spread(rng, rows, terms):
    """Values of 8 bits, between 2^-6 and 2^6: bf16 and f16 hold both them and their products' float32 sums."""
    return np.round(rng.uniform(64, 128, (rows, terms))) * 2.0 ** rng.integers(-12, 0, (rows, terms))
