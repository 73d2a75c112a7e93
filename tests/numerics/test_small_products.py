"""Small products at once against the same in tiles, and against the evident form."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.numerics import kernels, small_products
from softfloat_llm.numerics.precision import precision_of
from softfloat_llm.numerics.rounding import round_to

TEXTS = ["bf16,acc=f32", "f16,acc=f32", "e4m3fn,acc=f32", "bf16,acc=f32,order=pairwise", "bf16,acc=f32,order=reverse",
         "f32,acc=f32", "bf16,product=f32,acc=f32", "bf16,acc=f32,subnormals=ftz+daz", "bf16,acc=f16"]  # fmt: skip
SCALES = [1.0, 1e-30, 1e30]
"""The second: products below float32's last place; the third: beyond its range."""


@pytest.mark.parametrize("backend", kernels.BACKENDS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_small_product_has_the_bits_of_tiles(text, backend, monkeypatch):
    if backend == "numba":
        pytest.importorskip("numba")
    at = precision_of(f"storage={text}")
    rng = np.random.default_rng(1)
    for scale in SCALES:
        for m, k, n in [(1, 1, 1), (1, 64, 3), (5, 64, 15), (9, 7, 40), (2, 33, 1)]:
            a = round_to(rng.standard_normal((m, k)) * scale, at.storage)
            b = round_to(rng.standard_normal((n, k)) * scale, at.storage).T
            a[0, 0] = b[0, 0] = 0
            found = kernels.matmul(a, b, at, backend=backend)
            with monkeypatch.context() as patch:
                patch.setattr(small_products, "SMALL", 0)
                tiles = kernels.matmul(a, b, at, backend=backend)
                patch.setattr(kernels, "path_of", lambda at: "evident")
                evident = kernels.matmul(a, b, at)
            assert found.dtype == tiles.dtype
            assert found.tobytes() == tiles.tobytes() == evident.tobytes()


@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
def test_what_is_not_finite_is_left_to_tiles(value):
    at = precision_of("storage=bf16,acc=f32")
    a, b = round_to([[1.0, value]], "bf16"), round_to([[2.0], [0.0]], "bf16")
    b[1] = 3.0
    assert small_products.small_product(a, b, at, None) is None


def test_usual_products_of_attention_are_made_at_once():
    at = precision_of("storage=bf16,acc=f32")
    a, b = round_to(np.ones((9, 64)), "bf16"), round_to(np.ones((64, 15)), "bf16")
    found = small_products.small_product(a, b, at, None)
    assert found is not None
    assert (found == 64).all()
    assert small_products.small_product(a, b, at, np.zeros((9, 15))) is None
