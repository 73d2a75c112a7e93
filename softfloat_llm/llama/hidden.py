"""What a query does not see: the keys that lie after it, and what stands in the place of their scores.

Shape letters: T query positions, S key positions, H query heads.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np

from softfloat_llm.llama.query_blocks import Queries, whole
from softfloat_llm.llama.taps import held_in
from softfloat_llm.numerics.extents import is_all_finite
from softfloat_llm.numerics.formats import Array, Format

HIDDEN = float("-inf")  # the score of a key that the query does not see: its exponential is +0


@cache
def hidden_in(fmt: Format) -> float:
    """What the tap of a hidden score holds: -inf, or what a format without it has in its place (NaN in e4m3fn)."""
    return held_in(HIDDEN, fmt)


def is_hidden(count: int, width: int, some: Queries | None = None) -> Array:
    """(T, 1, S): True where a key lies after its query. Not to be changed."""
    return _after(count, width, (some or whole(count, width)).sees(0))


def is_seen_finite(x: Array, some: Queries | None) -> bool:
    """True where x (T, H, S) is finite at each key that its query sees."""
    if is_all_finite(x):
        return True
    is_known: Array = np.isfinite(x) | is_hidden(x.shape[0], x.shape[-1], some)
    return bool(is_known.all())


@lru_cache(maxsize=8)
def _after(count: int, width: int, sees: int) -> Array:
    """Of queries of which the first sees so many keys. Kept, as each layer asks for the same."""
    hidden: Array = np.arange(width)[None, :] >= (np.arange(count) + sees)[:, None]
    hidden.flags.writeable = False
    return hidden[:, None, :]


def hide(x: Array, fmt: Format, some: Queries | None = None) -> Array:
    """x (T, H, S) with `HIDDEN`, as the format has it, at each key that lies after its query."""
    some = some or whole(x.shape[0], x.shape[-1])
    if some.sees(0) >= x.shape[-1]:
        return x
    return np.where(is_hidden(x.shape[0], x.shape[-1], some), np.array(hidden_in(fmt), x.dtype), x)
