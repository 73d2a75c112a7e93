"""The key and value cache: its formats, what it holds and how it grows."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from softfloat_llm.errors import RecipeError, TokenError
from softfloat_llm.llama import attention
from softfloat_llm.llama.cache import KVCache, kept, read_back
from softfloat_llm.llama.config import config_from_dict
from softfloat_llm.llama.forward import forward
from softfloat_llm.llama.weights import Weights
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.formats import format_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.numerics.ulps import ulp_distance
from softfloat_llm.recipe import recipe_of
from softfloat_llm.trace import Trace
from tests.checkpoints import config_dict, random_tensors

CONFIG = config_from_dict(config_dict())


@pytest.fixture(scope="module")
def weights():
    return Weights(CONFIG, random_tensors())


@pytest.mark.parametrize(("recipe", "k", "v"), [
    ("bf16", "bf16", "bf16"), ("f16,kv=e4m3fn", "e4m3fn", "e4m3fn"), ("bf16,kv.k=f32,kv.v=e5m2", "f32", "e5m2"),
    ("storage=tf32", "f32", "f32"), ("f32,kv=e5m7", "e5m7", "e5m7"),
])  # fmt: skip
def test_the_formats_of_keys_and_values_can_be_seen(recipe, k, v):
    cache = KVCache(CONFIG, recipe_of(recipe))
    assert (str(cache.k_format), str(cache.v_format)) == (k, v)
    assert repr(cache) == f"KVCache(1 x 0 positions, k {k}, v {v})"
    assert cache.keys(0).dtype == cache.k_format.dtype
    assert cache.values(1).shape == (1, 0, 2, 4)


def test_what_is_held_is_moved_only_where_there_is_no_room_behind_it():
    cache, moves = KVCache(CONFIG, recipe_of("f32"), batch=2), 0
    appended = [np.full((2, 1, 2, 4), i, np.float32) for i in range(200)]
    for i, row in enumerate(appended, 1):
        before = cache.keys(0)
        cache.append(0, row, row)
        moves += not np.shares_memory(before, cache.keys(0))
        assert cache.keys(0).tobytes() == np.concatenate(appended[:i], axis=1).tobytes()
    assert moves < 20


def test_what_is_appended_stands_behind_what_was_there():
    cache, draw = KVCache(CONFIG, recipe_of("f32"), batch=2), np.random.default_rng(0)
    parts = [draw.standard_normal((2, n, 2, 4)).astype(np.float32) for n in (3, 1, 2)]
    for part in parts:
        cache.append(1, part, -part)
    assert (cache.keys(1) == np.concatenate(parts, axis=1)).all()
    assert (cache.values(1) == -np.concatenate(parts, axis=1)).all()
    assert cache.keys(0).shape[1] == 0


def test_a_view_taken_before_stays_as_it_was():
    cache = KVCache(CONFIG, recipe_of("f32"))
    cache.append(0, np.ones((1, 2, 2, 4), np.float32), np.ones((1, 2, 2, 4), np.float32))
    before = cache.keys(0)
    cache.append(0, np.zeros((1, 1, 2, 4), np.float32), np.zeros((1, 1, 2, 4), np.float32))
    assert before.shape == (1, 2, 2, 4)
    assert (before == 1).all()


def test_a_pass_fills_every_layer_with_rotated_keys_rounded_once_to_the_cache_s_format(weights):
    recipe = recipe_of("bf16,kv.k=e4m3fn,kv.v=e5m2")
    cache, trace = KVCache(CONFIG, recipe), Trace(("*",))
    forward(weights, [1, 2, 3], recipe, cache, trace)
    forward(weights, [4], recipe, cache, trace)
    assert cache.length == 4
    for layer in (0, 1):
        keys = trace.arrays[f"layers.{layer}.attn.rope.out"][:, 4:]
        values = trace.arrays[f"layers.{layer}.attn.v_proj.out"].reshape(4, 2, 4)
        assert cache.keys(layer)[0].tobytes() == round_to(keys, "e4m3fn").tobytes()
        assert cache.values(layer)[0].tobytes() == round_to(values, "e5m2").tobytes()
        assert trace.arrays[f"layers.{layer}.kv.k.out"].tobytes() == cache.keys(layer)[0].tobytes()


def test_a_narrower_cache_changes_the_logits_and_a_wider_one_does_not(weights):
    logits = {r: forward(weights, [1, 2, 3], recipe_of(r)).tobytes() for r in ("bf16", "bf16,kv=f32", "bf16,kv=e4m3fn")}
    assert logits["bf16"] == logits["bf16,kv=f32"] != logits["bf16,kv=e4m3fn"]


@pytest.mark.parametrize(("overflow", "wanted"), [
    ("saturate", [448, 3.25, 0, -448]), ("ieee", [np.nan, 3.25, 0, np.nan]),
])  # fmt: skip
def test_values_beyond_e4m3fn_are_clipped_or_nan_and_small_ones_flushed(overflow, wanted):
    from softfloat_llm.llama.taps import stored

    spec = recipe_of(f"f32,kv=e4m3fn,kv.overflow={overflow}").at("kv.k")
    got = stored(np.array([600, 3.3, 0.0004, -500], np.float32), spec.storage, spec.precision)
    assert np.array_equal(got.astype(np.float64), wanted, equal_nan=True)


CASE = np.array([600, 3.3, 0.0004, -500], np.float32)


def kept_and_read(x, words, given="f32"):
    spec = recipe_of(f"{given},kv=e4m3fn,{words}").at("kv.k")
    taps = kept(x, spec, format_of(given))
    return taps.out.astype(np.float64), read_back(taps.out, spec).astype(np.float64)


def test_with_a_scale_that_fits_the_largest_value_nothing_is_clipped():
    """The case as it is told has the scale in float64; f32's, and the product in f32, are what engines have."""
    held, got = kept_and_read(CASE, "kv.scale=600/448")
    assert held.tolist() == [448, 2.5, 0, -384]
    assert got[[0, 2]].tolist() == [600, 0]
    scale = round_exact(Fraction(600, 448), "f32")
    assert got.tolist() == [round_exact(Fraction(v) * Fraction(scale), "f32") for v in held]
    told = np.array([600, 3.3482142857142856, 0, -514.2857142857142])
    assert ulp_distance(got, round_to(told, "f32").astype(np.float64), "f32").max() <= 1


@pytest.mark.parametrize(("overflow", "wanted"), [
    ("saturate", [448, 3.25, 0, -448]), ("ieee", [np.nan, 3.25, 0, np.nan]),
])  # fmt: skip
def test_a_scale_of_1_changes_nothing_and_the_overflow_is_the_recipe_s(overflow, wanted):
    for words in (f"kv.overflow={overflow}", f"kv.overflow={overflow},kv.scale=1.0"):
        held, got = kept_and_read(CASE, words)
        assert np.array_equal(held, wanted, equal_nan=True)
        assert np.array_equal(got, wanted, equal_nan=True)


@pytest.mark.parametrize("quotient", ["given", "f32"])
def test_a_quotient_is_rounded_to_its_format_and_then_to_the_cache_s(quotient):
    x = round_to(np.random.default_rng(1).standard_normal(4000), "bf16")
    held, _ = kept_and_read(x, f"kv.scale=0.7,kv.quotient={quotient}", "bf16")
    scale, between = round_exact(Fraction(7, 10), "f32"), "bf16" if quotient == "given" else "f32"
    quotients = [round_exact(Fraction(v) / Fraction(scale), between) for v in x.astype(np.float64).tolist()]
    assert held.tolist() == [round_exact(q, "e4m3fn") for q in quotients]
    others, _ = kept_and_read(x, f"kv.scale=0.7,kv.quotient={'f32' if quotient == 'given' else 'given'}", "bf16")
    assert (held != others).any()


def test_a_pass_attends_to_what_is_read_back(weights):
    """Scores of a scaled cache are those of its keys times the scale, in f32, rounded to the scores' storage."""
    recipe = recipe_of("bf16,kv=e4m3fn,kv.scale=0.125,kv.overflow=saturate")
    cache, trace = KVCache(CONFIG, recipe), Trace(("*",))
    forward(weights, [1, 2, 3], recipe, cache, trace)
    assert repr(cache) == "KVCache(1 x 3 positions, k e4m3fn times 0.125, v e4m3fn times 0.125)"
    assert cache.keys(0).dtype == cache.k_format.dtype
    keys, values = cache.read(0)
    assert keys.dtype == np.float32
    assert keys.tobytes() == (cache.keys(0).astype(np.float32) * np.float32(0.125)).tobytes()
    k = trace.arrays["layers.0.kv.k.in"].astype(np.float64) * 8  # exact: a power of two
    assert cache.keys(0)[0].tobytes() == round_to(k, "e4m3fn", overflow="saturate").tobytes()
    wanted = attention.scores(trace.arrays["layers.0.attn.scores.in"], keys[0], recipe.at("attn.scores"))
    assert trace.arrays["layers.0.attn.scores.out"].tobytes() == wanted.out.tobytes()
    assert values.tobytes() == (cache.values(0).astype(np.float32) * np.float32(0.125)).tobytes()


def test_a_cache_with_another_scale_is_refused(weights):
    cache = KVCache(CONFIG, recipe_of("bf16,kv=e4m3fn"))
    with pytest.raises(RecipeError, match=r"k in e4m3fn and v in e4m3fn, but .* asks for e4m3fn times 2\.0 and e4m3fn"):
        forward(weights, [1], recipe_of("bf16,kv=e4m3fn,kv.k.scale=2"), cache)


def test_a_cache_counts_its_padding_row_by_row():
    cache = KVCache(CONFIG, recipe_of("f32"), 3, padding=np.array([0, 2, 5], np.int32))
    assert cache.padding.dtype == np.int64
    assert cache.padding.tolist() == [0, 2, 5]
    assert KVCache(CONFIG, recipe_of("f32"), 2).padding.tolist() == [0, 0]


def test_room_is_made_up_to_max_position_embeddings_and_no_further():
    cache = KVCache(CONFIG, recipe_of("f32"))
    cache.make_room(64)
    with pytest.raises(TokenError, match="0 positions and 65 more exceed max_position_embeddings = 64"):
        cache.make_room(65)
    cache.length = 60
    cache.make_room(4)
    with pytest.raises(TokenError, match="60 positions and 5 more"):
        cache.make_room(5)
