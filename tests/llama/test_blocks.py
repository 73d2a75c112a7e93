"""Each block against its scalar twin in fractions, in several formats and forms; model parts with known answers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from softfloat_llm.llama import blocks
from softfloat_llm.llama.cache import KVCache
from softfloat_llm.llama.config import config_from_dict
from softfloat_llm.llama.forward import forward
from softfloat_llm.llama.recorder import Recorder
from softfloat_llm.llama.taps import held_in
from softfloat_llm.llama.weights import Weights
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.formats import decode, format_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.numerics.ulps import ulp_distance
from softfloat_llm.recipe import recipe_of
from softfloat_llm.trace import Trace
from tests import scalar_llama
from tests.checkpoints import config_dict, random_tensors
from tests.oracle import assert_same

FORMATS = ["bf16", "f16", "f32"]


def at(recipe, site):
    return recipe_of(recipe).at(site)


def drawn(shape, fmt="f32", seed=0, scale=1.0):
    return round_to(np.random.default_rng(seed).standard_normal(shape) * scale, fmt)


def values(x):
    """As nested lists of Python floats."""
    return np.asarray(x).astype(np.float64).tolist()


def bits(x):
    return x.dtype.str, x.shape, x.tobytes()


# --- RMSNorm ----------------------------------------------------------------------------------------------------------

NORMS = {
    "": {},
    ",norm.root=one-over-sqrt": {"root": "one-over-sqrt"},
    ",norm.root=divide": {"root": "divide"},
    ",norm.form=weight-then-round": {"form": "weight-then-round"},
    ",norm.form=weight-first": {"form": "weight-first"},
    ",norm.form=weight-first,norm.root=divide": {"form": "weight-first", "root": "divide"},
    ",norm.root_format=bf16": {"root_format": "bf16"},
    ",norm.root=divide,norm.root_format=f16": {"root": "divide", "root_format": "f16"},
    ",norm.mean=times-reciprocal": {"mean": "times-reciprocal"},
    ",norm.mean=divide-accumulator,norm.acc=f64": {"mean": "divide-accumulator", "acc": "f64"},
    ",norm.mean=divide-accumulator,norm.acc=exact": {"mean": "divide-accumulator", "acc": "exact"},
    ",norm.acc=f16": {"acc": "f16"},
    ",norm.compute=f16": {"compute": "f16"},
    ",norm.compute=bf16,norm.acc=bf16": {"compute": "bf16", "acc": "bf16"},
    ",norm.product=exact,norm.order=lanes:4": {"product": "exact", "order": "lanes:4"},
    ",norm.acc=exact": {"acc": "exact"},
    ",norm.order=pairwise,norm.root=one-over-sqrt,norm.form=weight-then-round": {
        "order": "pairwise", "root": "one-over-sqrt", "form": "weight-then-round"},
}  # fmt: skip


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("words", NORMS)
def test_rms_norm_is_its_scalar_twin(fmt, words):
    x, weight = drawn((4, 13), fmt, 1, 3.0), drawn(13, fmt, 2)
    got = blocks.rms_norm(x, weight, at(fmt + words, "norm.input"), 1e-5).out
    want = [
        scalar_llama.rms_norm(row, values(weight), 1e-5, storage=fmt, output=fmt, **NORMS[words]) for row in values(x)
    ]
    assert got.dtype == format_of(fmt).dtype
    assert_same(got, want)


# The eight ways of engines: what a recipe says (D: the model's format), and the same for the scalar twin.
ENGINE_NORMS = {
    "N1, transformers": ("", {}),
    "N2, F.rms_norm": ("form=weight-then-round", {"form": "weight-then-round"}),
    "N3, SGLang's fused kernel": (
        "form=weight-first,takes=unrounded-statistics,mean=times-reciprocal",
        {"form": "weight-first", "takes": "unrounded-statistics", "mean": "times-reciprocal"},
    ),
    "N4, FlashInfer": (
        "form=weight-then-round,takes=unrounded", {"form": "weight-then-round", "takes": "unrounded"}
    ),
    "N4, vLLM's native norm": ("takes=unrounded", {"takes": "unrounded"}),
    "N6, candle on a CPU": ("root=divide,root_format=output", {"root": "divide", "root_format": "D"}),
    "N7, candle on Metal": ("root_format=output", {"root_format": "D"}),
    "N8, ggml": (
        "form=weight-then-round,root=one-over-sqrt,acc=f64,mean=divide-accumulator,storage=f32,output=f32",
        {"form": "weight-then-round", "root": "one-over-sqrt", "acc": "f64", "mean": "divide-accumulator",
         "storage": "f32", "output": "f32"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fmt", ["bf16", "f16"])
@pytest.mark.parametrize("name", ENGINE_NORMS)
def test_the_norm_of_each_engine_is_its_scalar_twin_and_no_other_s(name, fmt):
    """1,000 elements: each of the eight differs from each other one somewhere."""
    stream, x, weight = (drawn((50, 20), fmt, 3, 3.0), drawn((50, 20), fmt, 4), drawn(20, fmt, 5))
    spec = at(fmt, "attn.residual")
    stored, unrounded = blocks.residual(stream, x, spec).out, blocks.unrounded_residual(stream, x, spec)
    outs = {}
    for other, (words, _) in ENGINE_NORMS.items():
        recipe = recipe_of(",".join([fmt, *(f"norm.{word}" for word in words.split(",") if word)]))
        outs[other] = blocks.rms_norm(stored, weight, recipe.at("norm.input"), 1e-5, unrounded=unrounded).out
    options = {"storage": fmt, "output": fmt} | ENGINE_NORMS[name][1]
    options |= {key: fmt for key, word in options.items() if word == "D"}
    want = [scalar_llama.rms_norm(row, values(weight), 1e-5, unrounded=wide, **options)
            for row, wide in zip(values(stored), values(unrounded), strict=True)]  # fmt: skip
    assert_same(outs[name], want)
    for other, out in outs.items():
        assert other == name or (np.asarray(out, np.float64) != np.asarray(outs[name], np.float64)).any(), other


def test_the_unrounded_sum_of_a_residual_is_the_exact_sum_in_compute():
    stream, x = drawn((4, 9), "bf16", 6, 100.0), drawn((4, 9), "bf16", 7, 0.01)
    exact = [[Fraction(a) + Fraction(b) for a, b in zip(row, other, strict=True)]
             for row, other in zip(values(stream), values(x), strict=True)]  # fmt: skip
    for compute in ("f32", "f16"):
        got = blocks.unrounded_residual(stream, x, at(f"bf16,attn.residual.compute={compute}", "attn.residual"))
        assert got.dtype == format_of(compute).dtype
        assert_same(got, [[round_exact(v, compute) for v in row] for row in exact])


def test_a_norm_that_takes_the_unrounded_sum_takes_the_stream_where_there_is_none_yet():
    x, weight = drawn((3, 8), "bf16", 8), drawn(8, "bf16", 9)
    spec = at("bf16,norm.takes=unrounded", "norm.input")
    taps = blocks.rms_norm(x, weight, spec, 1e-5)
    assert bits(taps.out) == bits(blocks.rms_norm(x, weight, at("bf16", "norm.input"), 1e-5).out)
    assert (taps.enter.dtype, str(taps.enter_format)) == (np.float32, "f32")


@pytest.mark.parametrize("takes", ["stored", "unrounded", "unrounded-statistics"])
def test_each_norm_of_a_pass_gets_the_sum_of_the_residual_before_it(takes):
    """Layer by layer from the taps: norm.final takes the last mlp's sum, the first norm the embedding."""
    weights = Weights(config_from_dict(config_dict()), random_tensors(config_dict(), np.float32))
    recipe, trace = recipe_of(f"bf16,norm.takes={takes}"), Trace(("*",))
    forward(weights, [3, 1, 4], recipe, trace=trace)
    stream = trace.arrays["embed.out"]
    last_sum = stream
    for layer in range(weights.config.num_hidden_layers):
        for norm, site in (("input", "attn"), ("post_attention", "mlp")):
            got, name = trace.arrays[f"layers.{layer}.norm.{norm}.out"], f"model.layers.{layer}.{norm}_layernorm.weight"
            spec = recipe.at(f"norm.{norm}")
            assert bits(got) == bits(blocks.rms_norm(stream, weights[name], spec, 1e-5, unrounded=last_sum).out)
            h = trace.arrays[f"layers.{layer}.{site}.residual.in"]
            last_sum = blocks.unrounded_residual(stream, h, recipe.at(f"{site}.residual"))
            stream = trace.arrays[f"layers.{layer}.{site}.residual.out"]
    want = blocks.rms_norm(stream, weights["model.norm.weight"], recipe.at("norm.final"), 1e-5, unrounded=last_sum)
    assert bits(trace.arrays["norm.final.out"]) == bits(want.out)


def test_a_norm_stores_a_wider_stream_first():
    x, weight = drawn((2, 8), "f32", 3), drawn(8, "f32", 4)
    taps = blocks.rms_norm(x, weight, at("bf16", "norm.input"), 1e-5)
    assert bits(taps.enter) == bits(round_to(x, "bf16"))
    assert bits(taps.out) == bits(
        blocks.rms_norm(taps.enter, round_to(weight, "bf16"), at("bf16", "norm.input"), 1e-5).out
    )


F16_STATISTICS = "f16,norm.acc=f16,norm.compute=f16"


@pytest.mark.parametrize(("x", "sum_of_squares"), [([300] * 4, "inf"), ([100] * 8, "inf")])
def test_a_norm_whose_statistics_overflow_f16_gives_zeros_and_notes_it(x, sum_of_squares):
    """The sum of squares is inf, the scale 0, and no NaN says so."""
    x, ones = round_to(np.array([x, [1] * len(x)]), "f16"), round_to(np.ones(len(x)), "f16")
    taps = blocks.rms_norm(x, ones, at(F16_STATISTICS, "norm.input"), 1e-5)
    assert values(taps.out[0]) == [0.0] * len(values(ones))
    assert str(float(taps.acc[0])) == sum_of_squares
    trace = Trace(())
    recipe = recipe_of(F16_STATISTICS)
    Recorder(recipe, trace, KVCache(config_from_dict(config_dict()), recipe), 1)("norm.input", taps)
    assert [str(e) for e in trace.events] == ["norm.input.acc at position 0, element [] became inf in f16"]
    wide = blocks.rms_norm(x, ones, at("f16", "norm.input"), 1e-5)
    assert values(wide.out[0]) == [1.0] * len(values(ones))


def test_each_square_of_100_fits_f16_and_their_sum_does_not():
    spec = at("f16,norm.acc=f16", "norm.input")
    taps = blocks.rms_norm(round_to(np.full((1, 8), 100.0), "f16"), round_to(np.ones(8), "f16"), spec, 1e-5)
    assert (values(taps.acc), values(taps.out)) == ([float("inf")], [[0.0] * 8])


@pytest.mark.parametrize(("eps", "said", "pytorch"), [
    (1e-5, 0.30151134729385376, 0.30151137709617615), (1e-6, 0.7071068286895752, 0.7071067690849304),
])  # fmt: skip
def test_eps_decides_the_norm_of_small_values(eps, said, pytorch):
    """PyTorch 2.13 (x * rsqrt(mean + eps), and rms_norm) gives these bits; the case as it was told is one ulp away."""
    x, ones = round_to(np.full((1, 4), 0.001), "f32"), round_to(np.ones(4), "f32")
    got = blocks.rms_norm(x, ones, at("f32", "norm.input"), eps).out
    assert values(got) == [[pytorch] * 4]
    assert ulp_distance(got, np.full((1, 4), said), "f32").tolist() == [[1] * 4]


def test_eps_in_f16():
    assert held_in(1e-8, format_of("f16")) == 0
    assert held_in(1e-6, format_of("f16")) == 1.0132789611816406e-06


# --- linear -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("words", [{}, {"acc": "f16"}, {"acc": "bf16", "product": "bf16"}, {"order": "lanes:4"},
                                   {"acc": "exact"}, {"output": "f32"}], ids=str)  # fmt: skip
def test_a_linear_layer_is_rows_of_scalar_dot_products(fmt, words):
    x, weight = drawn((3, 11), fmt, 5), drawn((4, 11), fmt, 6)
    recipe = ",".join([fmt if fmt != "f32" else "storage=f32", *(f"{k}={w}" for k, w in words.items())])
    taps = blocks.linear(x, weight, at(recipe, "lm_head"))
    options = {"output": fmt} | words
    pairs = [[scalar_llama.dot(row, column, **options) for column in values(weight)] for row in values(x)]
    assert_same(taps.acc, [[acc for acc, _ in row] for row in pairs])
    assert_same(taps.out, [[out for _, out in row] for row in pairs])


@pytest.mark.parametrize("recipe", ["bf16", "f16,acc=f16", "f32"])
def test_a_bias_is_added_to_the_accumulator_before_the_output_rounding(recipe):
    spec = at(recipe, "attn.q_proj")
    fmt, acc = str(spec.storage), str(spec.precision.acc)
    x, weight, bias = drawn((3, 7), fmt, 7), drawn((5, 7), fmt, 8), drawn(5, fmt, 9)
    plain = blocks.linear(x, weight, spec)
    got = blocks.linear(x, weight, spec, bias=bias)
    sums = [
        [scalar_llama.op("+", a, b, acc) for a, b in zip(row, values(bias), strict=True)] for row in values(plain.acc)
    ]
    assert_same(got.acc, sums)
    assert_same(got.out, round_to(np.array(sums), fmt))


def test_a_bias_is_one_more_term_of_an_exact_sum():
    """257 ties back to 256 if the sum of the products is rounded before the bias comes."""
    x, weight, bias = (round_to(np.array(v), "bf16") for v in ([[256.0, 1.0]], [[1.0, 1.0]], [1.0]))
    taps = blocks.linear(x, weight, at("bf16,acc=exact", "attn.q_proj"), bias=bias)
    assert (values(taps.out), values(taps.acc)) == ([[258.0]], [[258.0]])


def test_a_bias_that_overflows_saturates_where_the_accumulator_does():
    x, weight, bias = (round_to(np.array(v), "f16") for v in ([[60000.0]], [[1.0]], [60000.0]))
    for overflow, wanted in (("saturate", 65504.0), ("ieee", float("inf"))):
        spec = at(f"f16,acc=f16,matmul.overflow={overflow}", "attn.q_proj")
        assert values(blocks.linear(x, weight, spec, bias=bias).out) == [[wanted]]


def test_a_linear_layer_tells_after_how_many_terms_a_sum_left_its_format():
    ones, weight = round_to(np.ones((1, 6)), "f16"), round_to(np.full((2, 6), [[30000.0]] * 2), "f16")
    weight[1] = 1
    taps = blocks.linear(ones, weight, at("f16,acc=f16", "lm_head"))
    assert np.isinf(taps.acc[0, 0])
    assert taps.terms((0, 0)) == (3, 6)
    assert blocks.linear(ones, weight, at("f16", "lm_head")).terms((0, 0)) == (6, 6)


def test_an_elementwise_product_overflows_f16_where_bf16_stays_finite():
    gate, up = (round_to(np.array([[v]]), "f16") for v in (255.875, 261.75))
    assert values(blocks.multiply(gate, up, at("f16", "mlp.act_mul")).out) == [[float("inf")]]
    gate, up = (round_to(np.array([[v]]), "bf16") for v in (256.0, 262.0))
    assert values(blocks.multiply(gate, up, at("bf16", "mlp.act_mul")).out) == [[67072.0]]


def test_an_overflow_of_gate_times_up_is_noted_first_at_mlp_act_mul():
    """gate 255.875 x up 261.75 = 66975.28125: silu(255.875) is 255.875, and the product is beyond f16."""
    tensors = random_tensors(config_dict(), np.float32)
    for name, value in (("gate_proj", 255.875), ("up_proj", 261.75)):
        tensors[f"model.layers.0.mlp.{name}.weight"][:] = 0
        tensors[f"model.layers.0.mlp.{name}.weight"][7, 0] = value
    norm = tensors["model.layers.0.post_attention_layernorm.weight"]
    tensors["model.embed_tokens.weight"][:] = 0  # the stream is 1 in column 0 alone, so its norm is 4
    tensors["model.embed_tokens.weight"][:, 0] = 1
    tensors["model.layers.0.self_attn.o_proj.weight"][:] = 0
    norm[:] = 0.25
    weights, trace = Weights(config_from_dict(config_dict(rms_norm_eps=0.0)), tensors), Trace(("*",))
    forward(weights, [1], recipe_of("f16"), trace=trace)
    assert values(trace.arrays["layers.0.mlp.gate_proj.out"])[0][7] == 255.875
    assert values(trace.arrays["layers.0.mlp.up_proj.out"])[0][7] == 261.75
    assert str(trace.events[0]) == "layers.0.mlp.act_mul.out at position 0, element [7] became inf in f16"
    trace = Trace(())
    forward(weights, [1], recipe_of("bf16"), trace=trace)
    assert trace.events == []


# --- elementwise ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("compute", ["f32", "f16", "bf16"])
def test_silu_is_its_scalar_twin_far_out_too(fmt, compute):
    x = np.concatenate([values(drawn(40, fmt, 20, 5.0)), [0.0, -0.0, 88.0, -88.0, -87.0, -104.0, -20.0, 700.0, -700.0]])
    x = round_to(x[None], fmt)
    got = blocks.silu(x, at(f"{fmt},mlp.act.compute={compute}", "mlp.act")).out
    assert_same(got, [[scalar_llama.silu(v, storage=fmt, output=fmt, compute=compute) for v in values(x)[0]]], x)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("form", ["stepwise", "times-sigmoid"])
@pytest.mark.parametrize("compute", ["f32", "bf16"])
def test_each_form_of_silu_is_its_scalar_twin(fmt, form, compute):
    x = np.concatenate([values(drawn(40, fmt, 20, 5.0)), [0.0, -0.0, 88.0, -88.0, -87.0, -104.0, -20.0, 700.0, -700.0]])
    x = round_to(x[None], fmt)
    got = blocks.silu(x, at(f"{fmt},mlp.act.compute={compute},mlp.act.form={form}", "mlp.act")).out
    want = [[scalar_llama.silu(v, storage=fmt, output=fmt, compute=compute, form=form) for v in values(x)[0]]]
    assert_same(got, want, x)


@pytest.mark.parametrize(("fmt", "stepwise", "times_sigmoid"), [("bf16", 98.4, 98.6), ("f16", 81, 84)])
def test_the_forms_of_silu_agree_for_as_many_inputs_as_in_pytorch(fmt, stepwise, times_sigmoid):
    """PyTorch 2.13's silu and the two others, over all finite inputs: these per cents of the results are equal."""
    codes = np.arange(1 << 16, dtype=np.uint16)
    x = decode(codes[np.isfinite(decode(codes, fmt).astype(np.float64))], fmt)[None]
    forms = [blocks.silu(x, at(f"{fmt},mlp.act.form={form}", "mlp.act")).out.astype(np.float64)
             for form in ("quotient", "stepwise", "times-sigmoid")]  # fmt: skip
    shares = [100 * np.count_nonzero(other == forms[0]) / x.size for other in forms[1:]]
    assert [round(share, 1 if fmt == "bf16" else 0) for share in shares] == [stepwise, times_sigmoid]


def test_a_product_may_be_rounded_to_another_format_on_its_way():
    """A little above the middle of 1 and 1.0078125: in f16 it is the middle, and that ties to 1."""
    x, y = round_to(np.array([[1.0 + 2.0**-8]]), "f32"), round_to(np.array([[1.0 + 2.0**-13]]), "f32")
    once, twice = (
        values(blocks.multiply(x, y, at(f"f32,mlp.act_mul.output=bf16,mlp.act_mul.compute={c}", "mlp.act_mul")).out)
        for c in ("exact", "f16")
    )
    assert (once, twice) == ([[1.0078125]], [[1.0]])
    x, y = drawn((3, 50), "f32", 21), drawn((3, 50), "f32", 22)
    got = blocks.multiply(x, y, at("f32,mlp.act_mul.output=bf16,mlp.act_mul.compute=f16", "mlp.act_mul")).out
    formats = {"storage": "f32", "output": "bf16", "compute": "f16"}
    assert_same(got, [[scalar_llama.multiplied(a, b, **formats) for a, b in zip(r, s, strict=True)]
                      for r, s in zip(values(x), values(y), strict=True)])  # fmt: skip


@pytest.mark.parametrize("fmt", FORMATS)
def test_products_and_sums_of_tensors_round_once(fmt):
    x, y = drawn((3, 50), fmt, 21), drawn((3, 50), fmt, 22)
    for what, got in (
        ("*", blocks.multiply(x, y, at(fmt, "mlp.act_mul"))),
        ("+", blocks.residual(x, y, at(fmt, "mlp.residual"))),
    ):
        assert_same(got.out, [[scalar_llama.op(what, a, b, fmt) for a, b in zip(r, s, strict=True)]
                              for r, s in zip(values(x), values(y), strict=True)])  # fmt: skip


@pytest.mark.parametrize("name", ["f16", "e4m7"])
def test_a_residual_of_values_below_its_outputs_range_is_rounded_once(name):
    """Halfway between two subnormals, the smallest bf16 value decides: float64's sum has lost it."""
    middles = np.array([0.5, 1.5, 2.5, -0.5]) * format_of(name).smallest_subnormal
    stream, x = (part.reshape(1, -1) for part in np.meshgrid(middles, [2.0**-133, -(2.0**-133)]))
    spec = at(f"bf16,attn.residual.output={name}", "attn.residual")
    want = [round_exact(Fraction(a) + Fraction(b), name) for a, b in zip(stream[0], x[0], strict=True)]
    assert_same(blocks.residual(round_to(stream, "bf16"), round_to(x, "bf16"), spec).out, [want], stream, x)


def repeated_residual(start, step, count, recipe):
    fmt = str(at(recipe, "attn.residual").output)
    x, y = (round_to(np.array([[v]]), fmt) for v in (start, step))
    for _ in range(count):
        x = blocks.residual(x, y, at(recipe, "attn.residual")).out
    return values(x)[0][0]


@pytest.mark.parametrize(("recipe", "start", "step", "count", "wanted"), [
    ("bf16", 256, 0.5, 32, 256.0), ("f32", 256, 0.5, 32, 272.0),
    ("bf16", 1, 0.0050048828125, 10, 1.078125), ("bf16,*.rounding=toward_zero", 1, 0.0050048828125, 10, 1.0),
    ("f32", 1, 0.0050048828125, 10, 1.050048828125),
])  # fmt: skip
def test_a_residual_stream_that_grows_in_small_steps(recipe, start, step, count, wanted):
    assert repeated_residual(start, step, count, recipe) == wanted


@pytest.mark.parametrize(("late", "wanted"), [(False, 256.0), (True, 258.0)])
def test_an_f32_residual_sum_257_plus_1_depends_on_when_it_is_rounded(late, wanted):
    stream, x = (round_to(np.array([[v]]), "f32") for v in (257.0, 1.0))
    recipe = "f32,attn.residual.output=bf16" if late else "bf16"
    assert values(blocks.residual(stream, x, at(recipe, "attn.residual")).out) == [[wanted]]


def test_an_embedding_row_is_rounded_to_the_storage_then_to_the_output():
    rows = round_to(np.array([[1 + 2.0**-8 + 2.0**-20]]), "f32")
    assert values(blocks.embedding(rows, at("f32,embed.storage=e5m9,embed.output=bf16", "embed")).out) == [[1.0]]
    assert values(blocks.embedding(rows, at("f32,embed.output=bf16", "embed")).out) == [[1.0078125]]


# --- the whole pass ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("recipe", "words"), [
    ("f32", {"storage": "f32", "product": "f32"}), ("bf16", {"storage": "bf16"}),
    ("f16,acc=f16", {"storage": "f16", "acc": "f16"}),
    ("transformers-eager", {"storage": "bf16", "root_form": "one-over-sqrt", "softmax_form": "reciprocal"}),
    ("bf16,order=lanes:4", {"storage": "bf16", "order": "lanes:4"}),
    ("storage=e5m6,acc=e5m8", {"storage": "e5m6", "acc": "e5m8"}),
])  # fmt: skip
def test_a_whole_pass_is_its_scalar_twin(recipe, words):
    entries = config_dict(
        vocab_size=8, hidden_size=8, intermediate_size=6, num_attention_heads=2, num_key_value_heads=1
    )
    tensors = random_tensors(entries, seed=3, scale=0.5)
    weights = Weights(config_from_dict(entries), tensors)
    got = forward(weights, [3, 7, 3, 0], recipe_of(recipe))
    want = scalar_llama.forward({n: values(t) for n, t in tensors.items()}, weights.config, [3, 7, 3, 0], **words)
    assert_same(got, want)


def test_the_scalar_twin_of_a_dot_product_is_right_on_a_known_sum():
    assert scalar_llama.dot([256.0, 1.0, 1.0], [1.0] * 3, acc="bf16", output="bf16") == (256.0, 256.0)
    assert scalar_llama.dot([256.0, 1.0, 1.0], [1.0] * 3, acc="exact", output="bf16") == (258.0, 258.0)
    assert Fraction(scalar_llama.exponential(1.0, "f32")) == Fraction(float(np.float32(2.718281828459045)))
