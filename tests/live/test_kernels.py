"""The orders that the recipes of PyTorch's CPU kernels name, against those kernels, on sums that are rounding alone."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.live.torch_host import configured
from softfloat_llm.live.transformers_model import from_torch, to_torch
from softfloat_llm.llama import attention, blocks
from softfloat_llm.llama.softmax import softmax
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.formats import format_of
from softfloat_llm.recipe import recipe_of
from tests.live.cancelling import cancelling
from tests.live.kernels_here import recipe_or_skip

pytestmark = pytest.mark.torch

KERNELS = [(fmt, mkldnn) for fmt in ("bf16", "f16") for mkldnn in (True, False)]
IDS = [f"{fmt}-{'onednn' if mkldnn else 'native'}" for fmt, mkldnn in KERNELS]


def tensors(torch, fmt, *arrays):
    return (to_torch(torch, np.ascontiguousarray(a), format_of(fmt)) for a in arrays)


def pytorchs_linear(x, w, fmt, **flags):
    with configured(**flags) as torch:
        return from_torch(torch.nn.functional.linear(*tensors(torch, fmt, x, w)))


def ours(x, w, fmt, order):
    return reduce.matmul(x, w.T, f"storage={fmt},acc=f32,output={fmt},order={order}")


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("fmt", ["bf16", "f16"])
def test_the_dot_of_halves_is_pytorchs_for_1_to_200_terms(fmt, rows):
    rng = np.random.default_rng(200)
    for terms in range(1, 201):
        x, w = cancelling(rng, rows, terms, 6, fmt)
        theirs = pytorchs_linear(x, w, fmt, uses_mkldnn=False)
        np.testing.assert_array_equal(theirs, ours(x, w, fmt, "dot:8x8"), err_msg=f"{terms} terms")


@pytest.mark.parametrize("fmt", ["bf16", "f16"])
@pytest.mark.parametrize("order", ["seq", "swap:2", "lanes:64", "dot:4x8", "ilp:4"])
def test_these_sums_tell_another_order_apart(fmt, order):
    x, w = cancelling(np.random.default_rng(1), 4, 200, 16, fmt)
    assert np.count_nonzero(ours(x, w, fmt, "dot:8x8") != ours(x, w, fmt, order)) > 0.5 * 4 * 16


SHAPES = [
    (1, 32, 96), (1, 48, 96), (1, 33, 200), (2, 30, 96), (5, 40, 96), (40, 24, 576), (33, 8, 1024), (1, 8, 1536),
    (2, 8, 1025), (3, 8, 1536), (7, 8, 2050),
]  # fmt: skip


@pytest.mark.parametrize(("fmt", "mkldnn"), KERNELS, ids=IDS)
def test_the_orders_of_linear_layers_are_pytorchs(fmt, mkldnn):
    spec = recipe_of(recipe_or_skip("eager", fmt, mkldnn=mkldnn)).at("attn.q_proj")
    rng = np.random.default_rng(8)
    for rows, columns, terms in SHAPES:
        x, w = cancelling(rng, rows, terms, columns, fmt)
        theirs = pytorchs_linear(x, w, fmt, uses_mkldnn=mkldnn)
        np.testing.assert_array_equal(theirs, blocks.linear(x, w, spec).out, err_msg=f"{(rows, columns, terms)}")


def heads(rng, count, rows, terms, columns, fmt, scale=1.0):
    """x (rows, H, terms) and w (columns, H, terms), cancelling in each head; x and w times the scale."""
    pairs = [cancelling(rng, rows, terms, columns, fmt) for _ in range(count)]
    x, w = (np.stack(part, axis=1).astype(np.float64) * scale for part in zip(*pairs, strict=True))
    return x.astype(format_of(fmt).dtype), w.astype(format_of(fmt).dtype)


@pytest.mark.parametrize(("fmt", "mkldnn"), KERNELS, ids=IDS)
def test_the_orders_of_eager_attention_are_pytorchs(fmt, mkldnn):
    recipe = recipe_of(recipe_or_skip("eager", fmt, mkldnn=mkldnn))
    rng = np.random.default_rng(16)
    for queries, keys, size in [
        (1, 1, 16),
        (1, 6, 16),
        (1, 24, 64),
        (1, 40, 16),
        (1, 90, 16),
        (5, 5, 16),
        (17, 17, 64),
    ]:
        q, k = heads(rng, 6, queries, size, keys, fmt)
        p, v = heads(rng, 6, queries, keys, size, fmt)
        with configured(uses_mkldnn=mkldnn) as torch:
            left, right = tensors(torch, fmt, q.transpose(1, 0, 2), k.transpose(1, 0, 2))
            scores = from_torch(torch.matmul(left[None], right[None].transpose(2, 3))[0]).transpose(1, 0, 2)
            left, right = tensors(torch, fmt, p.transpose(1, 0, 2), v.transpose(1, 2, 0))
            values = from_torch(torch.matmul(left[None], right[None])[0]).transpose(1, 0, 2)
        mine = attention.scores(q, k, recipe.at("attn.scores")).out
        seen = ~np.broadcast_to(attention.is_hidden(queries, keys), mine.shape)
        np.testing.assert_array_equal(scores[seen], mine[seen], err_msg=f"{(queries, keys, size)}")
        last = attention.weighted_values(p, v.transpose(0, 1, 2).transpose(2, 1, 0), recipe.at("attn.pv")).out[-1]
        np.testing.assert_array_equal(values[-1], last, err_msg=f"{(queries, keys, size)}")


@pytest.mark.parametrize(("fmt", "mkldnn"), KERNELS[::2], ids=IDS[::2])
def test_the_orders_of_flash_attentions_scores_are_pytorchs(fmt, mkldnn):
    """Scores that are rounding errors of the size of 1: other orders give other probabilities altogether."""
    recipe = recipe_of(recipe_or_skip("sdpa", fmt, mkldnn=mkldnn))
    rng = np.random.default_rng(32)
    for queries, size in [
        (1, 16),
        (2, 16),
        (5, 64),
        (7, 16),
        (9, 64),
        (13, 16),
        (20, 64),
        (33, 16),
        (34, 64),
        (39, 64),
    ]:
        for rows in {queries, 1}:
            q, k = heads(rng, 6, rows, size, queries, fmt, scale=2.0**6)
            v = rng.standard_normal((queries, 6, size)).astype(format_of(fmt).dtype)
            with configured(uses_mkldnn=mkldnn, threads=1) as torch:
                three = [t.transpose(0, 1)[None] for t in tensors(torch, fmt, q, k, v)]
                out = torch.nn.functional.scaled_dot_product_attention(*three, is_causal=rows > 1, scale=size**-0.5)
            s = attention.scores(q, k, recipe.at("attn.scores")).out
            s = attention.scale(s, size**-0.5, recipe.at("attn.scale")).out
            p, pending = softmax(s, recipe.at("attn.softmax"))
            mine = attention.weighted_values(p.out, v, recipe.at("attn.pv"), pending=pending).out
            np.testing.assert_array_equal(
                from_torch(out[0]).transpose(1, 0, 2), mine, err_msg=f"{(rows, queries, size)}"
            )
