"""The forward pass: its taps and their formats, masked keys, padding, what it takes and refuses, where NaN begins."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.errors import RecipeError, TokenError
from softfloat_llm.io.checkpoint import load_checkpoint
from softfloat_llm.llama.attended import attend
from softfloat_llm.llama.cache import KVCache
from softfloat_llm.llama.config import config_from_dict
from softfloat_llm.llama.forward import checked_tokens, forward
from softfloat_llm.llama.recorder import Recorder
from softfloat_llm.llama.stored_weights import StoredWeights
from softfloat_llm.llama.weights import Weights
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.recipe import Scope, recipe_of
from softfloat_llm.sites import OF_SOME_MODELS, TAPPED
from softfloat_llm.trace import Trace
from tests.checkpoints import BF16, config_dict, random_tensors, write_checkpoint

LAYERS = 2
RECIPES = [
    "f32", "bf16", "f16", "exact", "transformers-eager", "candle-f16-cpu-neon", "storage=tf32", "storage=e5m7",
    "storage=e4m3fn", "storage=e2m1fn", "bf16,kv=e4m3fn", "bf16,output=f32", "bf16,*.acc=f16", "bf16,norm.acc=exact",
    "bf16,attn.softmax.acc=exact", "bf16,acc=f32+kahan", "f16,*.compute=f16", "bf16,rope.table=f32,attn.rope.form=once",
    "BF16_BF16_F32", "f16,attn.scores.output=e4m3fn",
]  # fmt: skip


def weights_of(change=None, dtype=BF16, seed=0, **entries):
    """Random weights of the small Llama; `change` gets the dictionary of tensors before they are taken."""
    entries = config_dict(**entries)
    tensors = random_tensors(entries, dtype, seed)
    if change is not None:
        change(tensors)
    return Weights(config_from_dict(entries), tensors)


def passed(weights, tokens, recipe, *, chunks=None, patterns=("*",), padding=None):
    """Logits and trace of tokens (T,) fed in chunks of these sizes (one pass where not given)."""
    recipe = recipe_of(recipe)
    cache, trace = KVCache(weights.config, recipe, padding=padding), Trace(patterns)
    ends = np.cumsum(chunks or [len(tokens)])
    parts = np.split(np.asarray(tokens), ends[:-1])
    rows = [forward(weights, part, recipe, cache, trace) for part in parts]
    return np.concatenate(rows), trace


def set_to(name, where, value):
    """A change of one element, or of more, of one tensor."""

    def change(tensors):
        tensors[name] = tensors[name].copy()
        tensors[name][where] = value

    return change


def bits(x):
    return x.dtype.str, x.shape, x.tobytes()


# --- taps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_tap_holds_values_of_its_format_in_the_carrier_of_it(recipe):
    _, trace = passed(weights_of(), [1, 2, 3, 31], recipe)
    for name, array in trace.arrays.items():
        fmt = trace.formats[name]
        assert array.dtype == fmt.dtype, f"{name} is said to hold {fmt}"
        wide, again = (np.asarray(a).astype(np.float64) for a in (array, round_to(array, fmt)))
        assert np.array_equal(wide, again, equal_nan=True), f"{name} holds values that {fmt} has not"


def test_taps_stand_in_the_order_of_the_forward_pass_and_cover_every_site():
    _, trace = passed(weights_of(), [1, 2], "bf16,attn.mask.value=add-lowest", patterns=("*.out",))
    before = [n for n in TAPPED if n in ("embed", "rope.table")]
    after = [n for n in TAPPED if n in ("norm.final", "lm_head")]
    inside = [f"layers.{i}.{n}" for i in range(LAYERS) for n in TAPPED if n not in (*before, *after, *OF_SOME_MODELS)]
    order = [name.removesuffix(".out") for name in trace.arrays]
    assert sorted(order) == sorted([*before, *inside, *after])
    assert order[:2] == before
    assert order[-2:] == after
    assert [n.split(".")[1] for n in order[2:-2]] == ["0"] * 21 + ["1"] * 21


def test_each_tap_has_the_shape_that_its_site_says():
    _, trace = passed(weights_of(), [1, 2, 3], "bf16")
    T, D, H, G, C, F, V = 3, 16, 4, 2, 4, 24, 32
    shapes = {
        "embed.out": (T, D), "rope.table.out": (T, C), "layers.0.norm.input.acc": (T,),
        "layers.0.attn.q_proj.out": (T, H * C), "layers.0.attn.k_proj.acc": (T, G * C),
        "layers.0.attn.rope.out": (T, H + G, C), "layers.0.kv.k.out": (T, G, C), "layers.0.kv.v.out": (T, G, C),
        "layers.0.attn.scores.acc": (T, H, T), "layers.0.attn.scale.out": (T, H, T),
        "layers.0.attn.softmax.acc": (T, H), "layers.0.attn.softmax.out": (T, H, T), "layers.0.attn.pv.out": (T, H, C),
        "layers.0.attn.o_proj.out": (T, D), "layers.0.mlp.act_mul.out": (T, F), "layers.1.mlp.down_proj.out": (T, D),
        "norm.final.out": (T, D), "lm_head.out": (T, V),
    }  # fmt: skip
    assert {name: trace.arrays[name].shape for name in shapes} == shapes


def test_patterns_choose_what_is_kept_and_change_no_bit():
    weights = weights_of()
    all_logits, _ = passed(weights, [1, 2, 3], "bf16")
    logits, trace = passed(weights, [1, 2, 3], "bf16", patterns=("layers.1.mlp.*.out", "embed.in"))
    assert list(trace.arrays) == ["embed.in", *(f"layers.1.mlp.{n}.out" for n in (
        "gate_proj", "up_proj", "act", "act_mul", "down_proj", "residual"))]  # fmt: skip
    assert bits(logits) == bits(all_logits)
    assert bits(forward(weights, [1, 2, 3], recipe_of("bf16"))) == bits(all_logits)


def test_a_key_that_is_not_seen_has_score_minus_infinity_and_probability_zero():
    _, trace = passed(weights_of(), [1, 2, 3], "f16")
    hidden = np.triu(np.ones((3, 3), bool), 1)[:, None, :].repeat(4, axis=1)
    for name in ("attn.scores.acc", "attn.scores.out", "attn.scale.in", "attn.scale.out", "attn.softmax.in"):
        assert set(trace.arrays[f"layers.0.{name}"][hidden].tolist()) == {-np.inf}, name
    assert set(trace.arrays["layers.0.attn.softmax.out"][hidden].tolist()) == {0.0}


# --- masked keys ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["e4m3fn", "e4m3fnuz", "e5m2fnuz", "e2m1fn", "e3m2fn", "e5m2"])
def test_formats_without_infinities_hide_later_keys_too(fmt):
    """-inf is NaN in e4m3fn and -6 in e2m1fn: the mask must not depend on what the format makes of it."""
    whole, trace = passed(weights_of(), [1, 2, 3, 4], f"storage={fmt}")
    first, _ = passed(weights_of(), [1], f"storage={fmt}")
    assert bits(whole[:1]) == bits(first)
    p = trace.arrays["layers.0.attn.softmax.out"].astype(np.float64)
    assert np.isfinite(p).all()
    assert not p[0, :, 1:].any()
    assert (p[0, :, 0] == 1).all()


def infinite_value_at_token_7(tensors):
    """v is infinite in f16 (beyond 65504) for token 7 and 0 for every other."""
    set_to("model.embed_tokens.weight", slice(None), 0.0)(tensors)
    set_to("model.embed_tokens.weight", (slice(None), slice(1, 9)), 1.0)(tensors)
    set_to("model.embed_tokens.weight", (7, 0), 1.0)(tensors)
    set_to("model.layers.0.self_attn.v_proj.weight", slice(None), 0.0)(tensors)
    set_to("model.layers.0.self_attn.v_proj.weight", (slice(None), 0), 60928.0)(tensors)


def test_an_infinite_value_at_a_later_position_reaches_no_earlier_one():
    """0 times inf is NaN: a masked key must add nothing at all."""
    weights = weights_of(infinite_value_at_token_7)
    whole, trace = passed(weights, [1, 2, 7, 3], "f16")
    assert np.isinf(trace.arrays["layers.0.kv.v.out"]).any(axis=(1, 2)).tolist() == [False, False, True, False]
    assert np.isnan(whole).any(axis=-1).tolist() == [False, False, True, True]
    steps, _ = passed(weights, [1, 2, 7, 3], "f16", chunks=[1, 1, 1, 1])
    assert bits(whole[:2]) == bits(steps[:2])


def test_an_event_of_attention_with_an_infinite_value_counts_its_own_terms():
    _, trace = passed(weights_of(infinite_value_at_token_7), [1, 2, 7, 3], "f16")
    assert [str(event) for event in trace.events[:2]] == [
        "layers.0.attn.v_proj.out at position 2, element [0] became inf in f16",
        "layers.0.attn.pv.acc at position 2, element [0, 0] became inf: its f32 sum after 3 of 4 terms",
    ]


@pytest.mark.parametrize("recipe", ["bf16,*.acc=bf16+kahan", "f16,*.acc=f16,*.rounding=toward_negative"])
def test_a_masked_key_adds_no_term_where_a_zero_would_move_the_sum(recipe):
    """Kahan's correction enters with every term, also with a 0; rounding downward, +0 + -0 is -0."""
    weights, tokens = weights_of(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    whole, _ = passed(weights, tokens, recipe)
    assert bits(whole) == bits(passed(weights, tokens, recipe, chunks=[1] * 12)[0])
    assert bits(whole) == bits(passed(weights, tokens, recipe, chunks=[5, 7])[0])


# --- events -----------------------------------------------------------------------------------------------------------


NAN_IN = {
    "model.embed_tokens.weight": "embed.in at position 1, element [0] became nan in bf16",
    "model.layers.0.input_layernorm.weight": "layers.0.norm.input.out at position 0, element [0] became nan in bf16",
    "model.layers.1.self_attn.v_proj.weight":
        "layers.1.attn.v_proj.acc at position 0, element [0] became nan: its f32 sum after 1 of 16 terms",
    "model.layers.0.mlp.down_proj.weight":
        "layers.0.mlp.down_proj.acc at position 0, element [0] became nan: its f32 sum after 1 of 24 terms",
    "model.norm.weight": "norm.final.out at position 0, element [0] became nan in bf16",
    "lm_head.weight": "lm_head.acc at position 0, element [0] became nan: its f32 sum after 1 of 16 terms",
}  # fmt: skip


@pytest.mark.parametrize("name", NAN_IN)
def test_a_nan_weight_is_noted_first_where_it_enters(name):
    weights = weights_of(set_to(name, (0, 0) if "proj" in name or "tok" in name or "head" in name else 0, np.nan))
    _, trace = passed(weights, [5, 0, 2], "bf16")
    assert str(trace.events[0]) == NAN_IN[name]
    _, without_taps = passed(weights, [5, 0, 2], "bf16", patterns=())
    assert [str(event) for event in without_taps.events] == [str(event) for event in trace.events]


def test_the_position_of_an_event_counts_from_the_first_token_in_a_cached_pass_too():
    weights = weights_of(infinite_value_at_token_7)
    for chunks in ([4], [2, 2], [1, 1, 1, 1], [3, 1]):
        _, trace = passed(weights, [1, 2, 7, 3], "f16", chunks=chunks)
        event = trace.events[0]
        assert (event.tap, event.index) == ("layers.0.attn.v_proj.out", (2, 0)), chunks
        assert trace.arrays[event.tap][event.index] == event.value


def test_an_overflow_where_the_cache_is_narrower_names_the_cache_s_format():
    _, trace = passed(weights_of(infinite_value_at_token_7), [7], "bf16,kv=e4m3fn")
    assert str(trace.events[0]) == "layers.0.kv.v.out at position 0, element [0, 0] became nan in e4m3fn"


def test_a_pass_in_range_notes_no_event():
    _, trace = passed(weights_of(), [1, 2, 3], "bf16")
    assert trace.events == []


@pytest.mark.filterwarnings("error")
def test_infinite_and_nan_values_pass_without_a_warning_of_numpy():
    def huge(tensors):
        for name in tensors:
            tensors[name] = round_to(tensors[name].astype(np.float64) * 3e38, "bf16")

    for recipe in ("f32", "bf16", "f16", "candle-f16-cpu-neon", "storage=e4m3fn", "exact", "f16,*.compute=f16"):
        passed(weights_of(huge), [1, 2, 3], recipe)
        passed(weights_of(set_to("model.embed_tokens.weight", (1, 0), np.inf)), [1, 2, 3], recipe)


# --- attention as engines have it -------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["f32,*.acc=exact", "bf16,*.acc=exact"])
def test_interleaved_pairs_change_the_order_of_elements_and_nothing_else(recipe):
    """Where sums are exact they do not see the order: the logits are the same; the rotated vectors are permuted."""
    weights = weights_of()
    plain, plain_trace = passed(weights, [1, 2, 3, 4], recipe)
    paired, paired_trace = passed(weights, [1, 2, 3, 4], f"{recipe},attn.rope.pairs=interleaved")
    assert bits(plain) == bits(paired)
    order = [0, 2, 1, 3]
    one, other = (t.arrays["layers.1.kv.k.out"] for t in (plain_trace, paired_trace))
    assert bits(np.ascontiguousarray(one[..., order])) == bits(other)


def test_the_order_of_elements_is_seen_by_sums_in_sequence():
    logits = [passed(weights_of(), [1, 2, 3, 4], f"f32{words}")[0] for words in ("", ",attn.rope.pairs=interleaved")]
    assert (logits[0] != logits[1]).any()
    assert np.abs(logits[0] - logits[1]).max() < 1e-4


def test_a_scale_on_the_query_shows_the_query_in_its_tap():
    _, trace = passed(weights_of(), [1, 2, 3], "bf16,attn.scale.on=both")
    assert trace.arrays["layers.0.attn.scale.out"].shape == (3, 4, 4)  # (T, H, C)
    assert trace.arrays["layers.0.attn.scores.out"].shape == (3, 4, 3)


@pytest.mark.parametrize("on", ["query", "both"])
def test_a_scale_that_is_a_power_of_two_may_stand_on_either_side(on):
    """head_dim 4: the scale is 1/2; its root is none, so `both` differs in bits."""
    plain = passed(weights_of(), [1, 2, 3], "f32,*.acc=exact")[0]
    moved = passed(weights_of(), [1, 2, 3], f"f32,*.acc=exact,attn.scale.on={on}")[0]
    assert (bits(plain) == bits(moved)) == (on == "query")
    assert np.abs(plain - moved).max() < 1e-5


@pytest.mark.parametrize("value", ["hidden", "add-lowest", "set-lowest"])
def test_rows_that_see_a_key_have_the_same_bits_under_every_mask(value):
    recipe = f"bf16,attn.mask.value={value}"
    weights, cut = weights_of(), 2
    plain = passed(weights, [1, 2, 3, 4], "bf16", padding=[cut])[0]
    masked = passed(weights, [1, 2, 3, 4], recipe, padding=[cut])[0]
    assert bits(plain[cut:]) == bits(masked[cut:])


@pytest.mark.parametrize(("value", "wanted"), [
    ("hidden", [0.0, 0.0]), ("add-lowest", [4.0, -1.0]), ("set-lowest", [4.0, -1.0]),
])  # fmt: skip
def test_a_query_that_sees_no_key_gives_zeros_or_the_mean_of_all_values(value, wanted):
    """transformers' eager mask and MLX's give a padding query every key alike, the later ones too."""
    recipe = recipe_of(f"bf16,attn.mask.value={value}")
    config = config_from_dict(config_dict(num_attention_heads=1, num_key_value_heads=1, head_dim=2, hidden_size=2))
    cache = KVCache(config, recipe, padding=[2])
    k = round_to(np.random.default_rng(0).standard_normal((1, 4, 1, 2)), "bf16")
    v = round_to(np.array([[[[1.0, -4.0]], [[3.0, 0.0]], [[5.0, 0.0]], [[7.0, 0.0]]]]), "bf16")
    cache.make_room(4)
    cache.append(0, k, v)
    out = attend(k, 0, cache, Scope(recipe, "layers.0"), Recorder(recipe, Trace(()), cache, 4))
    assert out[:2].astype(np.float64).tolist() == [wanted, wanted]
    assert out[2].tolist() == v[0, 2, 0].tolist()  # it sees itself alone


# --- padding and batches ----------------------------------------------------------------------------------------------


def test_rows_of_a_batch_have_their_own_attention_taps():
    weights, recipe = weights_of(), recipe_of("bf16")
    trace = Trace(("*",))
    forward(weights, [[1, 2, 3], [4, 5, 6]], recipe, trace=trace)
    alone = [passed(weights, row, recipe)[1] for row in ([1, 2, 3], [4, 5, 6])]
    for row in (0, 1):
        for site in ("attn.scores.out", "attn.softmax.out", "attn.pv.out"):
            assert bits(trace.arrays[f"rows.{row}.layers.1.{site}"]) == bits(alone[row].arrays[f"layers.1.{site}"])
    both = trace.arrays["layers.1.mlp.down_proj.out"]
    assert bits(both[:3]) == bits(alone[0].arrays["layers.1.mlp.down_proj.out"])
    assert bits(both[3:]) == bits(alone[1].arrays["layers.1.mlp.down_proj.out"])


def test_a_padded_row_beside_an_unpadded_one_gives_what_each_gives_alone_also_step_by_step():
    weights, recipe = weights_of(), recipe_of("f16")
    cache = KVCache(weights.config, recipe, 2, padding=np.array([2, 0]))
    first = forward(weights, [[0, 0, 7], [4, 5, 6]], recipe, cache)
    then = forward(weights, [[8], [9]], recipe, cache)
    short, _ = passed(weights, [7, 8], recipe)
    long, _ = passed(weights, [4, 5, 6, 9], recipe)
    assert bits(np.concatenate([first[0, 2:], then[0]])) == bits(short)
    assert bits(np.concatenate([first[1], then[1]])) == bits(long)


def test_padding_tokens_may_be_anything_even_nan():
    weights, recipe = weights_of(set_to("model.embed_tokens.weight", 0, np.nan)), recipe_of("bf16")
    padded = forward(weights, [0, 0, 0, 7, 8], recipe, KVCache(weights.config, recipe, padding=np.array([3])))
    assert bits(padded[3:]) == bits(forward(weights, [7, 8], recipe))


# --- what it takes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entries", [
    {"num_key_value_heads": 4}, {"num_key_value_heads": 1}, {"head_dim": 6}, {"head_dim": 2},
    {"attention_bias": True, "mlp_bias": True}, {"tie_word_embeddings": True}, {"hidden_size": 18},
    {"num_hidden_layers": 1}, {"intermediate_size": 1},
], ids=str)  # fmt: skip
def test_every_shape_of_llama_passes_and_its_cached_steps_agree(entries):
    weights = weights_of(**entries)
    for recipe in ("f32", "bf16", "f16,acc=f16"):
        whole, _ = passed(weights, [0, 31, 31, 5], recipe)
        assert whole.shape == (4, 32)
        assert np.isfinite(whole).all()
        assert bits(whole) == bits(passed(weights, [0, 31, 31, 5], recipe, chunks=[1, 1, 1, 1])[0])


def test_grouped_heads_equal_full_heads_whose_keys_and_values_are_repeated():
    grouped = weights_of()
    tensors = dict(grouped.tensors)
    for name, tensor in grouped.items():
        if "k_proj" in name or "v_proj" in name:  # rows of head g serve query heads 2g and 2g + 1
            tensors[name] = tensor.reshape(2, 4, -1).repeat(2, axis=0).reshape(16, -1)
    full = Weights(config_from_dict(config_dict(num_key_value_heads=4)), tensors)
    for recipe in ("f32", "bf16", "f16,acc=f16,order=lanes:2"):
        assert bits(forward(grouped, [1, 2, 3], recipe_of(recipe))) == bits(forward(full, [1, 2, 3], recipe_of(recipe)))


def test_a_tied_head_equals_an_untied_one_with_the_same_rows():
    tied = weights_of(tie_word_embeddings=True)
    tensors = dict(tied.tensors) | {"lm_head.weight": tied["model.embed_tokens.weight"]}
    untied = Weights(config_from_dict(config_dict()), tensors)
    assert bits(forward(tied, [1, 2], recipe_of("bf16"))) == bits(forward(untied, [1, 2], recipe_of("bf16")))


@pytest.mark.parametrize("recipe", ["f32", "bf16", "f16,acc=f16", "storage=e4m3fn"])
def test_weights_stored_wider_give_what_their_rounded_values_give(recipe):
    wide = weights_of(dtype=np.float32)
    storage = recipe_of(recipe).at("lm_head").storage
    narrow = Weights(wide.config, {name: round_to(t, storage) for name, t in wide.tensors.items()})
    assert bits(forward(wide, [1, 2, 3], recipe_of(recipe))) == bits(forward(narrow, [1, 2, 3], recipe_of(recipe)))


def test_a_checkpoint_of_mixed_formats_passes_each_tensor_rounded_from_its_own(tmp_path):
    tensors = random_tensors(config_dict(), np.float32)
    for name, dtype in (("model.norm.weight", np.float16), ("model.layers.0.mlp.up_proj.weight", BF16)):
        tensors[name] = round_to(tensors[name], "f16" if dtype is np.float16 else "bf16")
    weights, _ = load_checkpoint(write_checkpoint(tmp_path, tensors=tensors))
    assert weights.formats == ("bf16", "f16", "f32")
    one = Weights(weights.config, {name: t.astype(np.float32) for name, t in tensors.items()})
    for recipe in ("f32", "bf16", "f16"):
        assert bits(forward(weights, [1, 2], recipe_of(recipe))) == bits(forward(one, [1, 2], recipe_of(recipe)))


def test_weights_are_rounded_once_and_passed_on_as_they_are_where_they_fit():
    weights = weights_of()
    same, wider, narrower = (StoredWeights(weights, recipe_of(r)) for r in ("bf16", "f32", "f16"))
    name = "model.layers.0.self_attn.q_proj"
    assert same.linear("attn.q_proj", name)[0] is weights[f"{name}.weight"]
    assert wider.linear("attn.q_proj", name)[0] is weights[f"{name}.weight"]
    assert narrower.linear("attn.q_proj", name)[0].dtype == np.float16
    assert narrower.linear("attn.q_proj", name)[0] is narrower.linear("attn.q_proj", name)[0]


def test_zero_weights_give_zero_logits():
    def zero(tensors):
        for name in tensors:
            tensors[name] = np.zeros_like(tensors[name])

    logits, trace = passed(weights_of(zero), [1, 2], "f16,*.acc=f16")
    assert not logits.any()
    assert trace.events == []


@pytest.mark.parametrize(("tokens", "found"), [
    ([], "There are no tokens: the prompt is empty"), ([[]], "There are no tokens"),
    ([32], "Token id 32 lies outside the vocabulary: it has 32 ids, from 0 to 31"), ([3, -1], "Token id -1"),
    ([1.0], "Tokens are integers"), ([[[1]]], "Tokens are integers"), ([True], "Tokens are integers"),
    (["1"], "Tokens are integers"), ([2**70], "Tokens are integers"),
], ids=str)  # fmt: skip
def test_tokens_that_are_none_of_the_vocabulary_are_refused(tokens, found):
    with pytest.raises(TokenError, match=found):
        forward(weights_of(), tokens, recipe_of("f32"))


def test_tokens_of_any_integer_type_are_taken():
    config = weights_of().config
    for dtype in (np.uint8, np.int16, np.uint64, np.int64):
        assert checked_tokens(np.array([1, 31], dtype), config).tolist() == [[1, 31]]


def test_more_positions_than_the_model_has_are_refused_before_anything_is_computed():
    weights = weights_of(max_position_embeddings=4)
    with pytest.raises(TokenError, match="exceed max_position_embeddings = 4"):
        forward(weights, [1] * 5, recipe_of("f32"))
    recipe = recipe_of("f32")
    cache = KVCache(weights.config, recipe)
    forward(weights, [1, 2, 3, 4], recipe, cache)
    with pytest.raises(TokenError, match="4 positions and 1 more"):
        forward(weights, [1], recipe, cache)
    assert cache.length == 4


def test_a_recipe_whose_sites_do_not_fit_is_refused():
    with pytest.raises(RecipeError, match="candle would say: dtype mismatch in rope BF16 F32 F32"):
        forward(weights_of(), [1], recipe_of("bf16,rope.table=f32"))


def test_the_step_is_reported_after_each_layer():
    seen = []
    forward(weights_of(), [1], recipe_of("f32"), step=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


def test_a_cache_of_other_sequences_or_another_recipe_is_refused():
    weights, f16 = weights_of(), recipe_of("f16")
    with pytest.raises(TokenError, match="The cache holds 2 sequences, the tokens are 1"):
        forward(weights, [1], f16, KVCache(weights.config, f16, batch=2))
    with pytest.raises(RecipeError, match="The cache holds k in bf16"):
        forward(weights, [1], f16, KVCache(weights.config, recipe_of("bf16")))
    with pytest.raises(TokenError, match="padding counts positions of each of 2"):
        KVCache(weights.config, f16, batch=2, padding=[1])


def test_weights_stored_for_another_recipe_are_refused():
    weights = weights_of()
    with pytest.raises(RecipeError, match="stored as the recipe f16 asks, not bf16"):
        forward(StoredWeights(weights, recipe_of("f16")), [1], recipe_of("bf16"))


SHARING = {"embed", "attn.residual", "mlp.residual", "rope.table", "attn.rope"}


@pytest.mark.parametrize("site", sorted(set(TAPPED) - SHARING))
def test_each_site_alone_may_lie_in_another_16_bit_format_than_all_others(site):
    """f16 and bf16 have no common NumPy dtype: what is put side by side is stored in the site's format first."""
    logits, _ = passed(weights_of(), [1, 2, 3], f"f16,{site}=bf16")
    assert np.isfinite(logits.astype(np.float64)).all()


@pytest.mark.parametrize("site", sorted(SHARING))
def test_a_site_that_shares_its_format_with_another_is_refused_alone(site):
    with pytest.raises(RecipeError, match="They must share a format"):
        passed(weights_of(), [1, 2, 3], f"f16,{site}=bf16")
