"""Queries in blocks of 32, 64 or 256, as PyTorch's CPU flash attention takes them."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.llama import attention
from softfloat_llm.llama.query_blocks import block_rows
from softfloat_llm.llama.softmax import softmax
from softfloat_llm.numerics import reduce
from softfloat_llm.recipe import Recipe

HEADS, GROUPS, SIZE = 4, 2, 8
BASE = {"attn.scores.output": "f32", "attn.scale": "f32", "attn.softmax.storage": "f32"}


def recipe(queries, **rules):
    return Recipe(storage="f16", at=BASE | {"attn.queries": queries} | rules)


def rows_of(seed, positions, heads):
    return np.random.default_rng(seed).standard_normal((positions, heads, SIZE)).astype(np.float16)


def attended(positions, length, at, normalise="before"):
    """Scores, probabilities and weighted values of the last `positions` of `length`."""
    q, k, v = rows_of(0, positions, HEADS), rows_of(1, length, GROUPS), rows_of(2, length, GROUPS)
    scores = attention.scores(q, k, at.at("attn.scores"))
    probabilities, pending = softmax(scores.out, at.at("attn.softmax"))
    return scores, attention.weighted_values(probabilities.out, v, at.at("attn.pv"), pending=pending)


@pytest.mark.parametrize(
    ("positions", "rows"), [(1, 32), (32, 32), (191, 32), (192, 64), (767, 64), (768, 256), (5000, 256)]
)
def test_a_block_has_as_many_rows_as_the_kernel_takes_for_so_many_queries(positions, rows):
    assert block_rows(positions, recipe("flash").at("attn.scores")) == rows
    assert block_rows(positions, recipe("all").at("attn.pv")) == positions


@pytest.mark.parametrize(("positions", "length"), [(1, 1), (1, 70), (32, 32), (33, 33), (70, 70), (40, 75), (200, 200)])
def test_blocks_alone_change_no_bit_where_later_zeros_do_not(positions, length):
    whole, parts = (attended(positions, length, recipe(word)) for word in ("all", "flash"))
    for one, other in zip(whole, parts, strict=True):
        for stage in ("enter", "acc", "out"):
            np.testing.assert_array_equal(getattr(one, stage), getattr(other, stage))
            assert getattr(one, stage).dtype == getattr(other, stage).dtype
        assert (one.fills, one.acc_format) == (other.fills, other.acc_format)


def test_a_rule_counts_the_rows_of_a_block():
    rule = {"attn.scores.order if M == 2": "reverse"}
    scores = attended(34, 34, recipe("flash", **rule))[0]
    forwards, backwards = (
        attended(34, 34, recipe("all"))[0],
        attended(34, 34, recipe("all", **{"attn.scores.order": "reverse"}))[0],
    )
    np.testing.assert_array_equal(scores.out[:32], forwards.out[:32])
    np.testing.assert_array_equal(scores.out[32:], backwards.out[32:])
    assert np.any(forwards.out[32:] != backwards.out[32:])


def test_a_rule_counts_the_keys_up_to_the_last_query_of_a_block():
    rule = {"attn.pv.order if K == 32": "reverse", "attn.pv.order if K == 40": "lanes:4"}
    values = attended(40, 40, recipe("flash", **rule))[1]
    first = attended(32, 32, recipe("all", **{"attn.pv.order": "reverse"}))[1]
    v, p = rows_of(2, 40, GROUPS), values.enter[39, 0]
    np.testing.assert_array_equal(values.acc[:32], first.acc)
    assert values.acc[39, 0, 3] == reduce.dot(p, v[:, 0, 3], "storage=f16,acc=f32,output=f32,order=lanes:4")


def test_the_place_where_a_sum_left_the_range_is_found_in_its_block():
    at = Recipe(storage="f16", at={"attn.queries": "flash", "attn.scores.acc": "f16"})
    q, k = rows_of(0, 40, HEADS), rows_of(1, 40, GROUPS)
    q[35, 1], k[36, 0] = 100.0, 100.0
    taps = attention.scores(q, k, at.at("attn.scores"))
    assert np.isinf(taps.out[36:, 1, 36]).sum() == 0
    k[3, 0] = 200.0
    taps = attention.scores(q, k, at.at("attn.scores"))
    assert np.isinf(taps.out[35, 1, 3])
    assert taps.terms is not None
    assert taps.terms((35, 1, 3)) == (4, 8)
