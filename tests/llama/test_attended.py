"""Attention in blocks of memory: no bit of any tap, and no event, tells in which blocks it was made."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from softfloat_llm.llama import attended, query_blocks
from softfloat_llm.llama.attended import attend
from softfloat_llm.llama.cache import KVCache
from softfloat_llm.llama.config import config_from_dict
from softfloat_llm.llama.forward import forward
from softfloat_llm.llama.query_blocks import IN_VECTORS, in_turn, whole
from softfloat_llm.llama.recorder import Recorder
from softfloat_llm.llama.taps import exponential
from softfloat_llm.llama.weights import Weights
from softfloat_llm.numerics.engine_functions import EXPONENTIALS
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.recipe import Recipe, Scope, recipe_of
from softfloat_llm.trace import Trace
from tests.checkpoints import config_dict, random_tensors

AFTER = "attn.softmax.normalise=after"
RULES = {"attn.pv.order if K >= 20": "reverse", "attn.scores.order if M == 26": "lanes:4",
         "attn.softmax.order if K == 26": "lanes:2"}  # fmt: skip
RECIPES = {
    "f32": "f32", "f16": "storage=f16,acc=f16", "sums that zeros shift": "storage=bf16,acc=bf16,order=pairwise",
    "lanes": "f16,order=lanes:8", "kahan": "bf16,acc=f32+kahan", "toward negative": "f16,rounding=toward_negative",
    "random words": "f16,rounding=stochastic", "exact": "bf16,acc=exact", "fused": "f16,order=fused:4",
    "flash": "f16,attn.queries=flash", "online": f"bf16,attn.softmax.online=8,{AFTER},attn.pv.kept=bf16",
    "online, not shape free": f"bf16,attn.softmax.online=8,{AFTER},attn.softmax.order=pairwise",
    "mask": "bf16,attn.mask.value=add-lowest", "scale on both": "bf16,attn.scale.on=both",
    "base 2": "f16,attn.softmax.base=2",
    "vectors": "bf16,attn.softmax.exp=flash-u20", "no infinity": "bf16,attn.softmax.compute=e4m3fn",
    "infinite scores": "bf16,attn.scores.output=e3m0", "infinite values": "bf16,attn.pv.acc=e3m0",
    "rules": Recipe("bf16", at=RULES), "places": Recipe("bf16", at={"attn.scores.order if n >= N - N % 8": "lanes:4"}),
}  # fmt: skip
TOKENS = [int(token) for token in np.random.default_rng(0).integers(0, 32, 40)]


@pytest.fixture(scope="module")
def weights():
    entries = config_dict(num_hidden_layers=1)
    tensors = random_tensors(entries, seed=3)
    return Weights(
        config_from_dict(entries), {name: tensor * np.asarray(4, tensor.dtype) for name, tensor in tensors.items()}
    )


def left_behind(weights, recipe, length, padding):
    """The logits, taps and events of a pass and of two more tokens."""
    recipe, trace = recipe_of(recipe), Trace(("*.attn.*", "*.out"))
    cache = KVCache(weights.config, recipe, padding=np.array([padding]))
    rows = [forward(weights, part, recipe, cache, trace) for part in (TOKENS[:length], [5, 6])]
    taps = {name: (array.dtype, array.shape, array.tobytes()) for name, array in trace.arrays.items()}
    return np.concatenate(rows).tobytes(), taps, [str(event) for event in trace.events]


def all_at_once(queries):
    return attended.Block(slice(0, queries.positions), queries, queries.length)


@pytest.mark.parametrize("name", RECIPES)
def test_blocks_of_memory_move_no_bit_and_no_event(weights, name, monkeypatch):
    asked = RECIPES[name], 40 if name == "flash" else 26, 3 if name in ("f16", "mask") else 0
    monkeypatch.setattr(attended, "in_turn", lambda queries, *_: [all_at_once(queries)])
    at_once = left_behind(weights, *asked)
    monkeypatch.undo()
    for rows in (7, 64):
        monkeypatch.setattr(query_blocks, "MOST_ROWS", rows)
        assert left_behind(weights, *asked) == at_once


def test_engine_blocks_and_memory_blocks_are_independent(monkeypatch):
    """Flash takes 70 queries as 32, 32 and 6: a block of memory has whole ones of these."""
    flash, plain = (Scope(recipe_of(f"f16,attn.queries={word}"), "") for word in ("flash", "all"))
    monkeypatch.setattr(query_blocks, "MOST_ROWS", 50)
    assert [block.rows for block in in_turn(whole(70, 70), 4, flash)] == [slice(0, 32), slice(32, 64), slice(64, 70)]
    assert [block.rows for block in in_turn(whole(70, 70), 4, plain)] == [slice(0, 50), slice(50, 70)]
    monkeypatch.setattr(query_blocks, "MOST_ROWS", 64)
    assert [block.rows for block in in_turn(whole(70, 70), 4, flash)] == [slice(0, 64), slice(64, 70)]


@pytest.mark.parametrize(("words", "widths"), [
    ("f16", [94, 130]), ("f16,attn.pv.order=lanes:8", [94, 130]), ("f16,attn.pv.order=pairwise", [130, 130]),
    ("f16,attn.softmax.order=cascade:8", [130, 130]), ("f16,attn.softmax.exp=flash-u20", [130, 130]),
])  # fmt: skip
def test_later_keys_are_looked_at_only_where_a_sum_or_a_vector_counts_them(words, widths):
    assert [block.width for block in in_turn(whole(100, 130), 4, Scope(recipe_of(words), ""))] == widths


@pytest.mark.parametrize("name", EXPONENTIALS)
def test_the_exponentials_that_go_by_vectors_are_those_that_are_said_to(name):
    x = np.float64(np.float32(np.linspace(-20, 0, 47)))
    spec = recipe_of(f"f32,attn.softmax.exp={name}").at("attn.softmax")
    is_alike = all(exponential(x[:n], spec).tobytes() == exponential(x, spec)[:n].tobytes() for n in range(1, 47))
    assert is_alike == (name not in IN_VECTORS)


def test_memory_does_not_hold_queries_times_keys():
    """1,024 queries of 1,024 keys in 4 heads: one float64 array of all scores takes 32 MiB, blocks less in all."""
    recipe, config = recipe_of("bf16"), config_from_dict(config_dict(max_position_embeddings=1024))
    cache, length = KVCache(config, recipe), 1024
    k, v = (round_to(np.random.default_rng(i).standard_normal((1, length, 2, 4)), "bf16") for i in range(2))
    q = round_to(np.random.default_rng(2).standard_normal((1, length, 4, 4)), "bf16")
    cache.append(0, k, v)
    tracemalloc.start()
    attend(q, 0, cache, Scope(recipe, "0"), Recorder(recipe, Trace(("*.pv.out",)), cache, length))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * length * length * 4
