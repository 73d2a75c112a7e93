"""The last rounding of the logits: what lm_head's sums said before it, where the run kept them.

Of logits that were rounded to a narrow format, margins are whole ulps of it, and two that rounded alike look equal.
`sums_of` has the sums from which they were rounded; `remark` says what is to be known, and how to keep them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from softfloat_llm.numerics.formats import Float64Array, Format

if TYPE_CHECKING:
    from softfloat_llm.runs import Run

SUMS = "lm_head.acc"
"""The tap that keeps them."""
_NARROW = 24  # significand bits from which on nobody asks what the last rounding did: those of f32


def is_rounded(run: Run) -> bool:
    """True where the logits were rounded to a format narrower than f32, from sums that it does not hold."""
    acc = run.recipe.at("lm_head").precision.acc.format
    return run.logits_format.precision < _NARROW and (acc is None or not acc.is_subset_of(run.logits_format))


def sums_format(run: Run) -> Format | None:
    """The format of the sums from which the logits were rounded; None where they were not, or were not kept."""
    if not is_rounded(run) or SUMS not in run:
        return None
    fmt = run.format_of_tap(SUMS)
    return None if fmt.is_subset_of(run.logits_format) else fmt


def sums_of(run: Run, position: int) -> Float64Array | None:
    """The sums (V,) of a position, as float64; None as in `sums_format`."""
    return None if sums_format(run) is None else np.asarray(run[SUMS][position]).astype(np.float64)


def lead_of(sums: Float64Array | None, token: int | None) -> float | None:
    """By how much a token led all others in the sums, below 0 where another one led; None where that is not known."""
    if sums is None or token is None or len(sums) < 2 or not np.isfinite(sums[token]):
        return None
    return float(sums[token] - np.delete(sums, token).max())


def remark(run: Run) -> str:
    """What is to be known of logits that were rounded already, in a sentence or two; empty where they were not."""
    if not is_rounded(run):
        return ""
    fmt = run.logits_format
    told = f"These logits are rounded to {fmt} already: equal ones need not have been equal before."
    if (sums := sums_format(run)) is not None:
        return f"{told} What stood before that rounding is told by lm_head's {sums} sums."
    in_f32 = f"in f32 (--recipe f32 --format {fmt}) they tell what {fmt} would do to right ones"
    if run.recipe.at("lm_head").precision.acc.format is None:
        return f"{told} Of an exact accumulator no more is kept; {in_f32}."
    return f"{told} Keep lm_head's sums to see them (--taps '*.out' --taps {SUMS}); {in_f32}."
