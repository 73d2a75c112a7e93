"""The orders that the recipes of PyTorch's CPU kernels name, against those kernels, on sums that are rounding alone."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.live.torch_host import configured
from softfloat_llm.live.transformers_model import from_torch, to_torch
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.formats import format_of
from tests.live.cancelling import cancelling

pytestmark = pytest.mark.torch


def pytorchs_linear(x, w, fmt, **flags):
    with configured(**flags) as torch:
        left, right = (to_torch(torch, a, format_of(fmt)) for a in (x, w))
        return from_torch(torch.nn.functional.linear(left, right))


def ours(x, w, fmt, order):
    return reduce.matmul(x, w.T, f"storage={fmt},acc=f32,output={fmt},order={order}")


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("fmt", ["bf16", "f16"])
def test_the_dot_of_halves_is_pytorchs_for_1_to_200_terms(fmt, rows):
    rng = np.random.default_rng(200)
    told_apart = 0
    for terms in range(1, 201):
        x, w = cancelling(rng, rows, terms, 8, fmt)
        theirs = pytorchs_linear(x, w, fmt, uses_mkldnn=False)
        np.testing.assert_array_equal(theirs, ours(x, w, fmt, "dot:8x8"), err_msg=f"{terms} terms")
        told_apart += np.count_nonzero(theirs != ours(x, w, fmt, "seq"))
    assert told_apart > 0.5 * 200 * rows * 8  # most of these sums would have shown another order
