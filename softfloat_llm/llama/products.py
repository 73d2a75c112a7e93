"""Products of matrices at a site whose order may change between rows or columns: piece by piece, put together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.crew import ALONE, Crew
from softfloat_llm.numerics.formats import Array
from softfloat_llm.numerics.side_by_side import SideBySide
from softfloat_llm.site_specs import SiteSpec


def product(
    a: Array, b: Array | SideBySide, spec: SiteSpec, *, share: int = 1, init: Array | None = None, crew: Crew = ALONE
) -> reduce.Stages:
    """a (M * share, K) times b (K, N) by a `shaped` spec, in whose rules `share` rows of a count as one.

    `init` (..., N) is where the accumulators start. **Rounds:** as `reduce.matmul`.
    """
    pieces = spec.pieces(a.shape[0] // share, b.shape[1])
    if len(pieces) == 1:
        return reduce.matmul_stages(a, b, pieces[0].precision, init=init, crew=crew)
    start = None if init is None else np.broadcast_to(init, (a.shape[0], b.shape[1]))
    whole: list[Array] = []
    for counted, columns, at in pieces:
        rows = slice(counted.start * share, counted.stop * share)
        here = None if start is None else start[rows, columns]
        right = b.columns(columns) if isinstance(b, SideBySide) else b[:, columns]
        stages = reduce.matmul_stages(a[rows], right, at, init=here, crew=crew)
        if not whole:
            whole = [np.empty((a.shape[0], b.shape[1]), stage.dtype) for stage in stages]
        for target, stage in zip(whole, stages, strict=True):
            target[rows, columns] = stage
    return reduce.Stages(*whole)


def products(a: Array, bs: SideBySide, specs: Sequence[SiteSpec], *, crew: Crew = ALONE) -> list[reduce.Stages]:
    """a (M, K) times each part (K, N) of bs by its `shaped` spec, as `product` makes them."""
    if any(spec.rules for spec in specs):
        return [product(a, b, spec, crew=crew) for b, spec in zip(bs.parts, specs, strict=True)]
    return reduce.stages_of_each(a, bs, [spec.precision for spec in specs], crew=crew)
