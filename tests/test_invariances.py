"""The same bits however the work is cut: cached, chunked, batched, padded, in parallel. 12 tokens on `tiny`.

Held for orders that do not depend on the shape of what is summed.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.llama.cache import KVCache
from softfloat_llm.llama.forward import forward
from softfloat_llm.llama.stored_weights import StoredWeights
from softfloat_llm.numerics.crew import Crew
from softfloat_llm.numerics.orders import Order
from softfloat_llm.recipe import Recipe, Scope, recipe_of
from softfloat_llm.runs import simulate
from softfloat_llm.trace import Trace

PLAIN = ["f32", "bf16", "f16"]
MORE = [
    "f32,acc=f16", "f16,acc=f16", "f32,order=lanes:8", "bf16,order=lanes:8", "f16,acc=f16,order=lanes:8",
    "bf16,order=blocked:32 > lanes:2", "f16,*.acc=f16,*.order=blocked:4 > lanes:2", "bf16,*.order=reverse",
    "bf16,product=bf16,acc=bf16", "bf16,attn.pv.acc=f32+neumaier", "f16,attn.pv.rounding=toward_negative",
    "bf16,attn.pv.acc=bf16+kahan,attn.softmax.acc=bf16+kahan",
    "mlx-bf16-cpu", "f32,product=exact,attn.softmax.online=2,attn.softmax.normalise=after,attn.pv.kept=f16",
    "bf16,kv=e4m3fn", "storage=tf32", "storage=e5m7,acc=e5m7", "storage=e4m3fn", "transformers-eager",
    "candle-f16-cpu-neon", "sglang-bf16-cuda-fp8kv", "torch-autocast-bf16-cpu",
    "f16,kv=e4m3fn,kv.scale=0.3,norm.takes=unrounded-statistics,linear.order=blocked:16:f16",
]  # fmt: skip
RECIPES = [*PLAIN, *MORE]
CHUNKS = [(12,), (5, 7), (1,) * 12, (11, 1), (1, 11)]
PROMPTS = {
    "The capital": "The capital of France is Paris. The capital of Spain",
    "edges": [959, 0, 0, 0, 959, 504, 504, 504, 17, 3, 958, 1],
}  # fmt: skip


@cache
def tiny():
    return open_model("tiny")


@cache
def tokens_of(name):
    prompt = PROMPTS[name]
    ids = tiny().encode(prompt) if isinstance(prompt, str) else prompt
    return tuple((list(ids) * 12)[:12])


@cache
def stored(recipe):
    return StoredWeights(tiny().weights, recipe_of(recipe))


def fed(recipe, tokens, chunks):
    """Logits and all taps of tokens fed through a cache in chunks of these sizes."""
    kv, trace = KVCache(tiny().config, recipe_of(recipe)), Trace(("*",))
    ends = np.cumsum(chunks)
    rows = [
        forward(stored(recipe), part, recipe_of(recipe), kv, trace) for part in np.split(np.array(tokens), ends[:-1])
    ]
    return np.concatenate(rows), trace.arrays


@cache
def whole(recipe, name):
    return fed(recipe, tokens_of(name), (12,))


def assert_same_bits(got, want):
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if got.tobytes() != want.tobytes():
        is_other = np.atleast_1d(got).view(f"u{got.itemsize}") != np.atleast_1d(want).view(f"u{got.itemsize}")
        first = tuple(int(i) for i in np.argwhere(is_other)[0])
        raise AssertionError(
            f"{np.count_nonzero(is_other)} of {got.size} differ, first {first}: {got[first]}, {want[first]}"
        )


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_cached_steps_and_chunks_give_the_logits_and_every_tap_of_one_pass(recipe, prompt):
    logits, taps = whole(recipe, prompt)
    for chunks in CHUNKS if recipe in PLAIN else [(5, 7), (1,) * 12]:
        cut_logits, cut_taps = fed(recipe, tokens_of(prompt), chunks)
        assert_same_bits(cut_logits, logits)
        assert list(cut_taps) == list(taps)
        for name, array in taps.items():
            try:
                assert_same_bits(cut_taps[name], array)
            except AssertionError as error:
                raise AssertionError(f"{name} in chunks {chunks}: {error}") from None


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_prefix_alone_gives_the_rows_that_it_has_in_the_longer_pass(recipe):
    logits, _ = whole(recipe, "The capital")
    for length in (1, 2, 7):
        alone = forward(stored(recipe), tokens_of("The capital")[:length], recipe_of(recipe))
        assert_same_bits(alone, logits[:length])


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_row_of_a_batch_is_that_row_alone(recipe):
    rows = [tokens_of("edges"), tokens_of("The capital"), tokens_of("edges")[::-1]]
    together = forward(stored(recipe), rows, recipe_of(recipe))
    assert together.shape == (3, 12, 960)
    for row, tokens in zip(together, rows, strict=True):
        assert_same_bits(row, forward(stored(recipe), tokens, recipe_of(recipe)))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_left_padded_row_is_the_unpadded_row(recipe):
    tokens, config = tokens_of("The capital"), tiny().config
    padding = np.array([0, 4, 11])
    rows = [[7] * int(pad) + list(tokens[: 12 - pad]) for pad in padding]
    kv = KVCache(config, recipe_of(recipe), 3, padding=padding)
    first, then = (forward(stored(recipe), np.array(rows)[:, part], recipe_of(recipe), kv)
                   for part in (slice(0, 5), slice(5, 12)))  # fmt: skip
    for row, pad in enumerate(padding):
        alone = forward(stored(recipe), tokens[: 12 - pad], recipe_of(recipe))
        assert_same_bits(np.concatenate([first[row], then[row]])[pad:], alone)


@pytest.mark.parametrize("recipe", RECIPES)
def test_two_workers_give_the_bits_of_one(recipe):
    tokens = tokens_of("The capital")
    crews = (Crew(), Crew(2, least=0), Crew(3, least=0))
    one, two, three = (forward(stored(recipe), tokens, recipe_of(recipe), crew=crew) for crew in crews)
    for crew in crews:
        crew.close()
    assert_same_bits(two, one)
    assert_same_bits(three, one)


@pytest.mark.parametrize("recipe", ["f32", "bf16", "f16,acc=f16", "candle-f16-cpu-neon", "storage=tf32"])
def test_no_operation_changes_its_inputs_nor_what_an_earlier_one_gave(recipe):
    weights, tokens = tiny().weights, np.array(tokens_of("edges"))
    before = {name: tensor.tobytes() for name, tensor in weights.items()}
    kv, trace = KVCache(tiny().config, recipe_of(recipe)), Trace(("*",))
    logits = forward(weights, tokens[:7], recipe_of(recipe), kv, trace)
    kept = [logits.tobytes(), {n: a.tobytes() for n, a in trace.arrays.items()}, kv.keys(0).tobytes()]
    arrays, keys = dict(trace.arrays), kv.keys(0)
    forward(weights, tokens[7:], recipe_of(recipe), kv, trace)
    assert tokens.tolist() == list(tokens_of("edges"))
    assert {name: tensor.tobytes() for name, tensor in weights.items()} == before
    assert [logits.tobytes(), {n: a.tobytes() for n, a in arrays.items()}, keys.tobytes()] == kept


def test_weights_that_cannot_be_written_are_enough():
    """Memory-mapped tensors are read only: an operation that wrote into its input would fail here."""
    assert not any(tensor.flags.writeable for tensor in tiny().weights.values())


@pytest.mark.parametrize("recipe", PLAIN)
def test_free_steps_of_a_run_are_one_pass_over_its_own_tokens(recipe):
    run = simulate("The capital of France is", model=tiny(), recipe=recipe, steps=8)
    again = simulate(tokens=run.tokens[:-1], model=tiny(), recipe=recipe, steps=1)
    assert again.digest == run.digest
    assert again.generated == run.generated[-1:]


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_orders_used_here_are_those_that_do_not_depend_on_the_shape(recipe):
    words = recipe_of(recipe).words()
    assert all(Order(keys["order"]).is_shape_free for keys in words.values() if "order" in keys)


def test_an_order_that_depends_on_the_shape_gives_other_bits_in_a_cache():
    """The promise has this limit: pairwise sums over 12 keys split elsewhere than over 3."""
    recipe = "bf16,attn.pv.acc=bf16,attn.pv.order=pairwise"
    assert not Order("pairwise").is_shape_free
    logits, _ = fed(recipe, tokens_of("The capital"), (12,))
    steps, _ = fed(recipe, tokens_of("The capital"), (1,) * 12)
    assert logits.tobytes() != steps.tobytes()


def test_random_words_differ_between_layers_and_passes_and_stay_for_a_seed():
    tokens = tokens_of("The capital")
    recipes = [Recipe("bf16", rounding=word) for word in ("stochastic:16:1", "stochastic:16:1", "stochastic:16:2")]
    one, again, other = (forward(tiny().weights, tokens, recipe) for recipe in recipes)
    assert_same_bits(again, one)
    assert np.count_nonzero(other != one) > one.size // 2
    two_layers = [Scope(recipes[0], name).at("attn.q_proj").precision.rules("acc")["mode"] for name in ("0/0", "0/1")]
    assert two_layers[0] != two_layers[1]
