"""Elementwise steps on 16-bit values, looked up by their code once it pays: there are but 65,536 of them.

Start reading at `by_code`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from softfloat_llm.llama.taps import IN_VECTORS
from softfloat_llm.numerics.formats import Array, Format
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.site_specs import SiteSpec

Step = Callable[[Array, SiteSpec], Array]
"""Values as the site stores them (...), and what they become (...), each by itself: by stages, compute and options."""
CODES = 1 << 16


def by_code(step: Step, x: Array, spec: SiteSpec) -> Array:
    """step(x, spec), x (...) as the site stores it. After as many elements as there are codes, from a table.

    Not where an element's place counts: for its random word, or in a vector of an engine's exponential.
    """
    fmt, is_placed = spec.storage, spec.precision.is_stochastic or spec.options.get("exp") in IN_VECTORS
    has_codes = fmt.bits == 16 and fmt.has_own_dtype and x.dtype == fmt.dtype  # others of 16 bits come as float32
    if not has_codes or is_placed:
        return step(x, spec)
    return _table(step, spec.precision, spec.compute, tuple(spec.options.items())).of(x, step, spec)


@lru_cache(maxsize=16)
def _table(step: Step, at: Precision, compute: Format, options: tuple[tuple[str, str], ...]) -> _Table:
    return _Table()


class _Table:
    """The results of a step by code, made when that costs no more than what has been asked for so far."""

    def __init__(self) -> None:
        self._asked = 0
        self._results: Array | None = None

    def of(self, x: Array, step: Step, spec: SiteSpec) -> Array:
        self._asked += x.size
        if self._results is None and self._asked <= CODES:
            return step(x, spec)
        if self._results is None:
            with np.errstate(invalid="ignore"):  # signalling NaN
                self._results = step(np.arange(CODES, dtype=np.uint16).view(x.dtype), spec)
        return self._results.take(x.view(np.uint16))
