"""Attention against scalar twins in fractions: rotation, scores, scale, mask, softmax in all forms, weighted values."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.llama import attention
from softfloat_llm.llama.attention import Pending
from softfloat_llm.llama.hidden import is_hidden
from softfloat_llm.llama.softmax import score_factor, softmax
from softfloat_llm.numerics import reduce, small_products
from softfloat_llm.numerics.carriers import widen
from softfloat_llm.numerics.crew import ALONE
from softfloat_llm.numerics.elementwise import factors
from softfloat_llm.numerics.formats import format_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.recipe import recipe_of
from tests import scalar_llama
from tests.oracle import assert_same

FORMATS = ["bf16", "f16", "f32"]


def at(recipe, site):
    return recipe_of(recipe).at(site)


def drawn(shape, fmt="f32", seed=0, scale=1.0):
    return round_to(np.random.default_rng(seed).standard_normal(shape) * scale, fmt)


def values(x):
    """As nested lists of Python floats."""
    return np.asarray(x).astype(np.float64).tolist()


# --- rotation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("form", ["each", "once", "fma"])
@pytest.mark.parametrize("pairs", ["half-split", "interleaved"])
def test_a_rotation_is_its_scalar_twin(fmt, form, pairs):
    x, table = drawn((3, 2, 6), fmt, 10), drawn((3, 6), fmt, 11)
    spec = at(f"{fmt},attn.rope.form={form},attn.rope.pairs={pairs}", "attn.rope")
    got = attention.rotate(x, table[:, :3], table[:, 3:], spec).out
    options = {"storage": fmt, "output": fmt, "form": form, "pairs": pairs}
    want = [[scalar_llama.rotate(head, row[:3], row[3:], **options) for head in heads]
            for heads, row in zip(values(x), values(table), strict=True)]  # fmt: skip
    assert_same(got, want)


@pytest.mark.parametrize("recipe", ["bf16", "f16", "f32", "bf16,*.rounding=toward_negative", "f16,*.subnormals=ftz"])
@pytest.mark.parametrize("pairs", ["half-split", "interleaved"])
def test_a_rotation_of_both_elements_at_once_is_that_of_each(recipe, pairs):
    spec = at(f"{recipe},attn.rope.pairs={pairs}", "attn.rope")
    halves = [drawn((4, 3, 5), spec.storage, 20 + i, 2.0**-9) for i in range(2)]
    halves[0][0, 0], halves[1][1, :, :2] = [np.inf, -np.inf, np.nan, 0.0, -0.0], -0.0
    table = [drawn((4, 1, 5), spec.storage, 30 + i, 2.0**-9) for i in range(2)]
    rules = spec.precision.rules("output")
    once = attention._rotated_at_once(*factors(*halves, *table, fmt=spec.output, rules=rules), spec)
    assert once.tobytes() == attention._rotated(*map(widen, [*halves, *table]), spec).tobytes()


def test_a_rotation_with_an_f32_table_rounds_once_to_bf16():
    x, table = drawn((2, 1, 4), "bf16", 12), drawn((2, 4), "f32", 13)
    spec = at("bf16,rope.table=f32,attn.rope.form=once", "attn.rope")
    got = attention.rotate(x, table[:, :2], table[:, 2:], spec).out
    want = [[scalar_llama.rotate(h[0], r[:2], r[2:], storage="bf16", output="bf16", form="once")]
            for h, r in zip(values(x), values(table), strict=True)]  # fmt: skip
    assert_same(got, want)


# --- attention --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["bf16", "f16,acc=f16", "f32", "bf16,order=lanes:2"])
def test_scores_are_scalar_dot_products_with_the_keys_of_the_group_up_to_the_query(recipe):
    spec = at(recipe, "attn.scores")
    fmt, acc, order = str(spec.storage), str(spec.precision.acc), str(spec.precision.order)
    product = str(spec.precision.product or "exact")
    q, k = drawn((2, 4, 6), fmt, 14), drawn((5, 2, 6), fmt, 15)  # queries at positions 3 and 4
    got = attention.scores(q, k, spec)
    want = [[[scalar_llama.dot(values(q)[t][h], values(k)[s][h // 2], product=product, acc=acc, order=order,
                               output=fmt)[1] if s <= t + 3 else -np.inf for s in range(5)]
             for h in range(4)] for t in range(2)]  # fmt: skip
    assert_same(got.out, want)


@pytest.mark.parametrize("recipe", ["bf16", "f16,acc=f16", "f32", "bf16,order=lanes:2"])
def test_weighted_values_are_scalar_dot_products_over_the_keys_that_are_seen(recipe):
    spec = at(recipe, "attn.pv")
    fmt, acc, order = str(spec.storage), str(spec.precision.acc), str(spec.precision.order)
    product = str(spec.precision.product or "exact")
    p, v = np.abs(drawn((3, 4, 3), fmt, 16)), drawn((3, 2, 5), fmt, 17)
    p = np.where(is_hidden(3, 3), np.zeros((), p.dtype), p)
    got = attention.weighted_values(p, v, spec).out
    want = [[[scalar_llama.dot(values(p)[t][h][: t + 1], [values(v)[s][h // 2][c] for s in range(t + 1)],
                               product=product, acc=acc, order=order, output=fmt)[1] for c in range(5)]
             for h in range(4)] for t in range(3)]  # fmt: skip
    assert_same(got, want)


SOFTMAXES = {
    "": {},
    ",attn.softmax.form=reciprocal": {"form": "reciprocal"},
    ",attn.softmax.acc=f16": {"acc": "f16"},
    ",attn.softmax.acc=bf16,attn.softmax.compute=bf16": {"acc": "bf16", "compute": "bf16"},
    ",attn.softmax.compute=f16,attn.softmax.form=reciprocal": {"compute": "f16", "form": "reciprocal"},
    ",attn.softmax.order=lanes:4": {"order": "lanes:4"},
    ",attn.softmax.acc=exact": {"acc": "exact"},
    ",attn.softmax.product=bf16": {"product": "bf16"},
    ",attn.softmax.product=exact": {"product": "exact"},
    ",attn.softmax.base=2": {"base": "2"},
    ",attn.softmax.sum_of=rounded,attn.softmax.form=reciprocal": {"sum_of": "rounded", "form": "reciprocal"},
}  # fmt: skip


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("words", SOFTMAXES)
def test_softmax_is_its_scalar_twin_over_the_keys_that_are_seen(fmt, words):
    x = drawn((3, 2, 9), fmt, 18, 4.0)  # queries at positions 6, 7 and 8
    got = softmax(x, at(fmt + words, "attn.softmax"))[0].out
    for t in range(3):
        for head in range(2):
            seen = values(x)[t][head][: t + 7]
            want = scalar_llama.softmax(seen, storage=fmt, output=fmt, **SOFTMAXES[words])
            assert_same(got[t, head], want + [0.0] * (2 - t))


FLASHES = {
    "attn.softmax.online=1": {"keys": 1},
    "attn.softmax.online=2": {"keys": 2},
    "attn.softmax.online=3,attn.softmax.base=2": {"keys": 3, "base": "2"},
    "attn.softmax.online=1,attn.pv.kept=f16": {"keys": 1, "kept": "f16"},
    "attn.softmax.online=2,attn.pv.acc=f16": {"keys": 2, "acc": "f16"},
    "attn.softmax.online=2,attn.softmax.acc=bf16,attn.pv.kept=bf16": {"keys": 2, "sum_acc": "bf16", "kept": "bf16"},
    "attn.softmax.online=4,attn.softmax.form=divide": {"keys": 4, "form": "divide"},
    "attn.softmax.online=3,attn.softmax.acc=f64": {"keys": 3, "is_f64": True},
    "attn.softmax.online=2,attn.softmax.output=bf16,attn.pv.storage=bf16": {"keys": 2, "p": "bf16"},
}  # fmt: skip


def flashed(x, v, words):
    """Weighted values of scores x (T, H, S) and values v (S, G, C) by blocks of keys, all else in f32."""
    form = "" if "form=" in words else "attn.softmax.form=reciprocal,"
    recipe = recipe_of(f"f32,attn.pv.product=exact,attn.softmax.normalise=after,{form}{words}")
    recipe.check_fit()
    taps, pending = softmax(x, recipe.at("attn.softmax"))
    return taps, attention.weighted_values(taps.out, v, recipe.at("attn.pv"), pending=pending)


@pytest.mark.parametrize("words", FLASHES)
def test_blocks_of_keys_are_their_scalar_twin(words):
    """Queries at positions 4, 5 and 6 of 7; the values are of bf16, so that P in bf16 meets them as they are."""
    x, v = drawn((3, 2, 7), "f32", 30, 3.0), round_to(values(drawn((7, 1, 2), "bf16", 31)), "f32")
    got = flashed(x, v, words)[1].out
    for t in range(3):
        for head in range(2):
            rows = [row[0] for row in values(v)][: t + 5]
            want = scalar_llama.flash(values(x)[t][head][: t + 5], rows, storage="f32", output="f32", **FLASHES[words])
            assert_same(got[t, head], want)


@pytest.mark.parametrize("keys", [7, 8, 512])
@pytest.mark.parametrize("form", ["divide", "reciprocal"])
def test_one_block_of_all_keys_is_no_block(keys, form):
    x, v = drawn((3, 2, 7), "f32", 32, 3.0), drawn((7, 1, 5), "f32", 33)
    words = f"attn.softmax.form={form}"
    blocks, whole = flashed(x, v, f"{words},attn.softmax.online={keys}"), flashed(x, v, words)
    assert_same(blocks[0].acc, whole[0].acc)
    assert_same(blocks[1].out, whole[1].out)


def test_an_output_kept_in_f16_forgets_small_values_that_an_f32_one_adds_up():
    """1 and 4096 values of 2^-12 with equal scores: each is half an ulp of 1 in f16, and ties to 1."""
    x, v = np.zeros((1, 1, 4097), np.float32), np.full((4097, 1, 1), 2.0**-12, np.float32)
    v[0] = 1
    totals = [flashed(x, v, f"attn.softmax.online=1{words}")[1].acc.item() for words in (",attn.pv.kept=f16", "")]
    assert totals == [1.0, 2.0]


def test_later_keys_that_are_not_seen_leave_a_block_sum_as_it_is():
    x, v = drawn((4, 2, 9), "f32", 34, 3.0), drawn((9, 1, 3), "f32", 35)
    together = flashed(x, v, "attn.softmax.online=4,attn.pv.kept=f16")[1].out
    for t in range(4):
        seen = 6 + t
        alone = flashed(x[t : t + 1, :, :seen], v[:seen], "attn.softmax.online=4,attn.pv.kept=f16")[1].out
        assert_same(together[t], alone[0])


def test_values_that_are_not_finite_reach_only_the_queries_that_see_them():
    x, v = drawn((3, 1, 4), "f32", 36), drawn((4, 1, 2), "f32", 37)
    v[3] = np.inf
    out = flashed(x, v, "attn.softmax.online=2")[1].out
    assert np.isfinite(out[:2]).all()
    assert np.isinf(out[2]).all()


# --- masks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["add-lowest", "set-lowest"])
@pytest.mark.parametrize("fmt", ["bf16", "f16"])
def test_a_lowest_mask_leaves_the_probabilities_of_seen_keys_as_they_are(value, fmt):
    x = drawn((3, 2, 5), fmt, 38, 4.0)
    taps = attention.mask(x, at(f"{fmt},attn.mask.value={value}", "attn.mask"))
    lowest = -format_of(fmt).max
    hidden = np.broadcast_to(is_hidden(3, 5), x.shape)
    assert set(values(taps.out[hidden])) == {lowest}
    assert_same(taps.out[~hidden], x[~hidden])
    spec = at(fmt, "attn.softmax")
    assert_same(softmax(taps.out, spec)[0].out, softmax(x, spec)[0].out)


def test_a_query_that_sees_no_key_has_the_lowest_number_or_infinity_for_each():
    """In f16, -65504 + -20 is beyond the last tie; a score of -10 is lost in the sum."""
    x = round_to(np.array([[[3.0, -10.0, -20.0]]]), "f16")
    added, put = (values(attention.mask(x, at(f"f16,attn.mask.value={value}", "attn.mask"), sees_none=True).out)
                  for value in ("add-lowest", "set-lowest"))  # fmt: skip
    assert added == [[[-65504.0, -65504.0, -np.inf]]]
    assert put == [[[-65504.0] * 3]]


# --- scale ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("on", "base", "factor"), [
    ("scores", "e", 128**-0.5), ("query", "e", 128**-0.5), ("both", "e", 128**-0.25),
    ("scores", "2", 128**-0.5 * 1.4426950408889634),
])  # fmt: skip
def test_what_is_scaled_by_what(on, base, factor):
    recipe = f"f32,attn.scale.on={on},attn.softmax.base={base}"
    assert score_factor(128, at(recipe, "attn.scale"), at(recipe, "attn.softmax")) == pytest.approx(factor, rel=2e-16)


@pytest.mark.parametrize(("q", "k", "first", "second"), [
    (1.0078125, 3.0, 0.265625, 0.267578125), (1.0078125, 1.0078125, 0.08935546875, 0.08984375),
])  # fmt: skip
def test_mlx_scales_the_query_by_a_bf16_number_before_it_meets_the_key(q, k, first, second):
    for on, wanted in (("query", first), ("scores", second)):
        recipe = f"bf16,attn.scale.on={on},attn.scale.compute=bf16"
        one = np.zeros((1, 1, 128))
        one[..., 0] = 1
        query, key = round_to(one * q, "bf16"), round_to(one * k, "bf16")
        factor = score_factor(128, at(recipe, "attn.scale"), at(recipe, "attn.softmax"))
        if on == "query":
            query = attention.scaled(query, factor, at(recipe, "attn.scale")).out
        score = attention.scores(query, key, at(recipe, "attn.scores")).out
        if on == "scores":
            score = attention.scale(score, factor, at(recipe, "attn.scale")).out
        assert values(score) == [[[wanted]]]


def equal_scores(count, fmt, recipe):
    return softmax(round_to(np.zeros((1, 1, count)), fmt), at(recipe, "attn.softmax"))[0]


def test_the_softmax_of_4096_equal_scores_sticks_at_2048_in_an_f16_sum():
    taps = equal_scores(4096, "f16", "f16,attn.softmax.acc=f16")
    assert values(taps.acc) == [[2048.0]]
    assert set(values(taps.out)[0][0]) == {2.0**-11}
    assert set(values(equal_scores(4096, "f16", "f16").out)[0][0]) == {1 / 4096}
    assert set(values(equal_scores(4096, "f16", "f16,attn.softmax.acc=f16,attn.softmax.order=lanes:8").out)[0][0]) == {
        1 / 4096
    }


def test_the_softmax_of_512_equal_scores_gives_one_256th_in_a_bf16_sum():
    assert set(values(equal_scores(512, "bf16", "bf16,attn.softmax.acc=bf16").out)[0][0]) == {1 / 256}
    assert set(values(equal_scores(512, "bf16", "bf16").out)[0][0]) == {1 / 512}


@pytest.mark.parametrize(("size", "q", "k", "first", "second"), [
    (128, 1.0078125, 3.0, 0.265625, 0.267578125), (128, 1.0078125, 1.0078125, 0.08935546875, 0.08984375),
])  # fmt: skip
def test_scaling_q_first_is_another_number_than_scaling_the_score_where_the_scale_is_no_power_of_two(
    size, q, k, first, second
):
    spec = at("bf16,attn.scale.compute=bf16", "attn.scale")
    one = np.ones((1, 1, 1))
    factor = size**-0.5
    scaled_q = values(attention.scale(round_to(one * q, "bf16"), factor, spec).out)[0][0][0]
    assert float(round_to(scaled_q * k, "bf16")) == first
    score = round_to(one * float(round_to(q * k, "bf16")), "bf16")
    assert values(attention.scale(score, factor, spec).out) == [[[second]]]
    assert float(round_to(factor, "bf16")) == 0.08837890625


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_scale_and_its_product_are_rounded_to_compute_first(fmt):
    x = drawn((1, 2, 1), fmt, 19, 5.0)
    for compute in ("f32", "bf16"):
        got = attention.scale(x, 48**-0.5, at(f"{fmt},attn.scale.compute={compute}", "attn.scale")).out
        want = [[[scalar_llama.scaled(v[0], 48**-0.5, storage=fmt, output=fmt, compute=compute)] for v in values(x)[0]]]
        assert_same(got, want)


def test_a_sum_that_ends_at_negative_zero_is_the_same_alone_and_beside_later_queries():
    """A fused product below the subnormals leaves -0; the +0 of a key that is not seen must not make it +0."""
    tiny = np.float16(2.0**-24)
    p = np.array([[[tiny, 0.0]], [[tiny, 0.0]]], np.float16)  # (T, H, S): the first query sees one key
    v = np.array([[[-tiny]], [[1.0]]], np.float16)  # (S, G, C)
    spec = recipe_of("f16,acc=f16").at("attn.pv")
    both = attention.weighted_values(p, v, spec)
    alone = attention.weighted_values(p[:1, :, :1], v[:1], spec)
    assert np.signbit(alone.out[0]).all()
    np.testing.assert_array_equal(np.signbit(both.out[0]), np.signbit(alone.out[0]))


def test_a_factor_after_the_sum_flushes_as_the_accumulator_does():
    spec = recipe_of("bf16,attn.pv.subnormals=ftz+daz,attn.pv.output=f32").at("attn.pv")
    p, v = (np.full((1, 1, 1), x, spec.storage.dtype) for x in (1.0, 2.0**-126))
    assert attention.weighted_values(p, v, spec, pending=Pending(np.full((1, 1), 0.5))).out.item() == 0.0


@pytest.mark.parametrize(
    "words",
    ["storage=bf16,acc=f32", "storage=bf16,acc=f16", "storage=f16,acc=f16,product=f16", "storage=bf16,acc=exact",
     "storage=bf16,acc=f32+kahan", "storage=f16,acc=f32,order=pairwise", "bf16,attn.scores.subnormals=ftz"],
)  # fmt: skip
def test_one_product_of_all_heads_with_all_groups_gives_what_one_for_each_group_gives(words, monkeypatch):
    spec = at(words, "attn.scores")
    q, k = drawn((3, 6, 16), spec.storage, 1), drawn((5, 2, 16), spec.storage, 2)
    q[1, 2] = np.inf  # a head beside it has none of it
    k[2, 1, 3] = np.nan
    together = attention.scores(q, k, spec)
    monkeypatch.setattr(attention, "_of_all_groups", None)
    monkeypatch.setattr(attention, "_MADE_TOGETHER", 0)
    one_by_one = attention.scores(q, k, spec)
    for stage in ("acc", "out"):
        assert_same(getattr(together, stage), getattr(one_by_one, stage))
    assert together.terms((2, 4, 1)) == one_by_one.terms((2, 4, 1))


@pytest.mark.parametrize("words", ["storage=bf16,acc=f32", "storage=f16,acc=f32", "storage=e4m3fn,acc=f32"])
@pytest.mark.parametrize(("positions", "keys"), [(1, 7), (5, 5), (3, 2)])
def test_all_groups_in_one_loop_give_what_one_product_for_each_group_gives(words, positions, keys, monkeypatch):
    spec = at(words, "attn.scores")
    q, k = drawn((positions, 6, 16), spec.storage, 1), drawn((keys, 2, 16), spec.storage, 2)
    q[0, :, 3] = k[1, 1] = 0
    assert reduce.grouped_stages(q, k.transpose(1, 2, 0), spec.precision) is not None
    together = attention._grouped(q, k.transpose(1, 2, 0), spec, ALONE)
    monkeypatch.setattr(attention, "_MADE_TOGETHER", 0)
    monkeypatch.setattr(small_products, "SMALL", 0)  # which is made in that loop too
    one_by_one = attention._grouped(q, k.transpose(1, 2, 0), spec, ALONE)
    for stage in ("acc", "out"):
        assert_same(getattr(together, stage), getattr(one_by_one, stage))
