"""The first value that is not finite: found in some rows after the others, keys that are not seen apart."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.analysis import nonfinite


@pytest.mark.parametrize("place", [None, (2, 0, 1), (7, 1, 7)])
def test_the_first_place_is_the_same_however_many_rows_are_looked_at_at_once(place, monkeypatch):
    scores = np.where(np.arange(8) <= np.arange(8)[:, None, None], 1.0, -np.inf).astype(np.float16).repeat(2, axis=1)
    if place is not None:
        scores[place] = np.nan
    for at_once in (1, 40, 1 << 20):
        monkeypatch.setattr(nonfinite, "AT_ONCE", at_once)
        found = nonfinite.first_nonfinite("run", {"layers.0.attn.scores.out": scores}, ())
        assert (None if found is None else found.index) == place
