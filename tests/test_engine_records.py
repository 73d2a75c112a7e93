"""llama.cpp and MLX beside our functions: single operations, and SmolLM2's logits, against what the libraries gave.

`data/engines/*.npz` hold what they gave (see the README there), inputs too; each of our functions follows the recipe.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from softfloat_llm.llama import attention, blocks
from softfloat_llm.llama.config import config_from_dict
from softfloat_llm.llama.rope import rope_table
from softfloat_llm.llama.softmax import score_factor, softmax
from softfloat_llm.numerics import engine_functions, reduce
from softfloat_llm.numerics.formats import encode
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.recipe import recipe_of
from softfloat_llm.runs import simulate
from tests.checkpoints import config_dict

FOLDER = Path(__file__).parent / "data" / "engines"
GGML, LLAMA_CPP, MLX, TORCH = (
    np.load(FOLDER / f"{name}.npz") for name in ("ggml", "llama_cpp", "mlx", "torch_attention")
)
KINDS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
LLAMA_CPP_RECIPES = {"f16": "llama.cpp-f16-cpu-avx512", "bf16": "llama.cpp-bf16-cpu-avx512bf16"}


def assert_bits(got, wanted):
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted))


def values_of(kind, name):
    """What MLX gave or took, in the dtype of its format."""
    return MLX[f"{kind}.{name}"].view(KINDS[kind])


def rotated(x, positions, theta, recipe, **scaling):
    """x (T, H, C), rotated by its positions."""
    recipe, size = recipe_of(recipe), x.shape[-1]
    config = config_from_dict(config_dict(head_dim=size, rope_theta=theta, rope_scaling=scaling or None))
    table = rope_table(positions, config, recipe.at("rope.table")).out
    return attention.rotate(x, table[:, : size // 2], table[:, size // 2 :], recipe.at("attn.rope")).out


def attended(q, k, v, recipe):
    """Attention as the forward pass makes it. q (H, T, C), k and v (G, S, C); the result (T, H, C)."""
    at = recipe_of(recipe).at
    q, k, v = (x.transpose(1, 0, 2) for x in (q, k, v))
    factor = score_factor(q.shape[-1], at("attn.scale"), at("attn.softmax"))
    on = at("attn.scale").options["on"]
    if on != "scores":
        q = attention.scaled(q, factor, at("attn.scale")).out
    if on == "both":
        k = attention.scaled(k, factor, at("attn.scale")).out
    s = attention.scores(q, k, at("attn.scores")).out
    if on == "scores":
        s = attention.scale(s, factor, at("attn.scale")).out
    taps, pending = softmax(s, at("attn.softmax"))
    return attention.weighted_values(taps.out, v, at("attn.pv"), pending=pending).out


# --- llama.cpp --------------------------------------------------------------------------------------------------------


def test_ggmls_norm_sums_float32_squares_in_float64_and_divides_there():
    spec = recipe_of(LLAMA_CPP_RECIPES["f16"]).at("norm.input")
    assert_bits(blocks.rms_norm(GGML["norm.x"], GGML["norm.weight"], spec, 1e-5).out, GGML["norm.y"])


@pytest.mark.parametrize("theta", ["10000", "100000"])
def test_ggmls_rotation_iterates_the_angle_and_fuses_one_product(theta):
    got = rotated(GGML["rope.x"], GGML["rope.positions"], float(theta), LLAMA_CPP_RECIPES["f16"])
    assert_bits(got, GGML[f"rope.{float(theta):g}.y"])


@pytest.mark.parametrize("scaling", [
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8192},
], ids=lambda scaling: scaling["rope_type"])  # fmt: skip
def test_ggml_scales_the_angle_where_transformers_scales_the_frequency(scaling):
    got = rotated(GGML["scaled.x"], GGML["scaled.positions"], 500000.0, LLAMA_CPP_RECIPES["f16"], **scaling)
    assert_bits(got, GGML[f"scaled.{scaling['rope_type']}.y"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("terms", [576, 1536])
@pytest.mark.parametrize("rows", [1, 5])
def test_ggmls_product_with_weights_rounds_activations_to_their_format(kind, terms, rows):
    x = GGML[f"linear.{kind}.{terms}.x"][:rows]
    weight = GGML[f"linear.{kind}.{terms}.weight"].view(KINDS[kind])
    got = blocks.linear(x, weight, recipe_of(LLAMA_CPP_RECIPES[kind]).at("attn.q_proj")).out
    assert_bits(got, GGML[f"linear.{kind}.{terms}.y{rows}"])


@pytest.mark.parametrize("case", ["1.40", "5.33", "66.130"])
def test_ggmls_flash_attention_key_by_key_and_in_tiles(case):
    """1 and 5 queries: the running output lies in f16. 66 queries: tiles of 64 keys, in f32."""
    q, k, v = (GGML[f"attention.{case}.{name}"] for name in "qkv")
    assert_bits(attended(q, k, v, LLAMA_CPP_RECIPES["f16"]), GGML[f"attention.{case}.y"])


def test_the_f16_output_of_ggmls_attention_is_seen_in_a_hundredth_of_a_percent():
    """Were the running output in f32, no element would be the same and some would be off by 2^-11 of themselves."""
    q, k, v = (GGML[f"attention.5.33.{name}"] for name in "qkv")
    got = attended(q, k, v, f"{LLAMA_CPP_RECIPES['f16']},attn.pv.kept=acc")
    wanted = GGML["attention.5.33.y"]
    assert np.count_nonzero(got == wanted) < len(got.ravel()) / 100
    assert 2.0**-12 < np.abs(got - wanted).max() / np.abs(wanted).max() < 2.0**-8


def test_ggmls_silu_has_its_own_exponential_on_whole_vectors_and_the_c_librarys_on_the_rest():
    at = recipe_of(LLAMA_CPP_RECIPES["f16"]).at
    made = blocks.silu(GGML["silu.gate"], at("mlp.act")).out
    assert_bits(made, GGML["silu.y"])
    assert_bits(blocks.multiply(made, GGML["silu.up"], at("mlp.act_mul")).out, GGML["silu.product"])


def test_ggmls_softmax_without_flash_attention_sums_vectors_in_float64():
    x, seen = GGML["softmax.x"][0] * np.float32(0.125), GGML["softmax.seen"]
    for row, count in enumerate(seen):
        hidden = np.where(np.arange(256) < count, x[row], -np.inf).astype(np.float64)
        lowered = round_to(hidden - hidden.max(), "f32").astype(np.float64)
        terms = engine_functions.ggml_vector_exp(lowered)
        at = "storage=f32,acc=f64,output=f64,order=blocked:16 > lanes:16:f32"
        factor = round_to(1.0 / reduce.sum(terms, at), "f32")
        assert_bits(round_to(terms * np.float64(factor), "f32"), GGML["softmax.y"][0, row])


@pytest.mark.smollm2
@pytest.mark.parametrize("kind", KINDS)
def test_every_logit_of_smollm2_is_llama_cpps(kind, smollm2_folder):
    """A prompt of 5 tokens in one batch, then 3 greedy tokens one by one: 8 rows of 49,152 logits."""

    def recorded(what):
        return LLAMA_CPP[f"{kind}.five.{what}"]

    ids = recorded("ids").tolist()
    run = simulate(tokens=ids, model=smollm2_folder, recipe=LLAMA_CPP_RECIPES[kind], steps=4, taps=())
    assert list(run.generated)[:3] == recorded("greedy").tolist()
    np.testing.assert_array_equal(np.take_along_axis(run["logits"], recorded("top"), -1), recorded("top_logits"))
    assert [hashlib.sha256(row.tobytes()).hexdigest() for row in run["logits"]] == recorded("sha256").tolist()


# --- PyTorch's attention where no sum has an order --------------------------------------------------------------------


def of_torch(backend, kind, case):
    """q, k, v and the output (T, H, C), in the dtype of their format."""
    dtype = KINDS.get(kind, np.float32)
    q, k, v, wanted = (TORCH[f"{backend}.{kind}.{case}.{name}"].view(dtype) for name in "qkvy")
    return q, k, v, wanted.transpose(1, 0, 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ["1.40", "7.7", "5.33"])
def test_the_math_backend_scales_query_and_key_in_float32_and_rounds_once_at_the_end(kind, case):
    """One term to a score and to an output: no sum has an order, and every bit is a rounding's."""
    q, k, v, wanted = of_torch("math", kind, case)
    recipe = f"transformers-math-bf16-cpu-amx,attn.pv.output={kind}"  # the one rounding to the format
    assert_bits(attended(q, k, v, recipe), wanted)


@pytest.mark.parametrize(
    "recipe", [f"transformers-sdpa-{which}" for which in ("bf16-cpu-amx", "f16-cpu-amx", "f32-cpu-mkl")]
)
@pytest.mark.parametrize("case", ["1.600", "3.1100"])
def test_the_flash_kernel_takes_512_keys_at_once_and_corrects_what_it_has(recipe, case):
    q, k, v, wanted = of_torch("flash", recipe.split("-")[2], case)
    assert_bits(attended(q, k, v, recipe), wanted)
    assert (attended(q, k, v, f"{recipe},attn.softmax.online=0") != wanted).any()


# --- MLX --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "given"), [("exp", "x"), ("cos", "angles"), ("sin", "angles")])
def test_mlxs_own_functions_are_its_polynomials(name, given):
    function = getattr(engine_functions, f"mlx_{name}")
    assert_bits(function(MLX[f"f32.{given}"].astype(np.float64)), MLX[f"f32.{name}"])


@pytest.mark.parametrize("kind", KINDS)
def test_mlxs_norm_rounds_before_the_weight(kind):
    x, weight, wanted = (values_of(kind, f"norm.{name}") for name in ("x", "weight", "y"))
    assert_bits(blocks.rms_norm(x, weight, recipe_of(f"mlx-{kind}-cpu").at("norm.input"), 1e-5).out, wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("theta", [10000.0, 100000.0, 500000.0])
@pytest.mark.parametrize("pairs", ["half-split", "interleaved"])
def test_mlxs_rotation_has_frequencies_by_exp_and_rounds_three_times(kind, theta, pairs):
    positions = MLX["positions"]
    x = np.broadcast_to(values_of(kind, "rope.x"), (len(positions), 1, 64))
    got = rotated(x, positions, theta, f"mlx-{kind}-cpu,attn.rope.pairs={pairs}")
    assert_bits(got[:, 0], values_of(kind, f"rope.{theta:g}.{pairs}.y"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("terms", [576, 1536])
@pytest.mark.parametrize("rows", [1, 5])
def test_mlxs_product_is_one_running_float32_sum(kind, terms, rows):
    x, weight = values_of(kind, f"linear.{terms}.x")[:rows], values_of(kind, f"linear.{terms}.weight")
    got = blocks.linear(x, weight, recipe_of(f"mlx-{kind}-cpu").at("attn.q_proj")).out
    assert_bits(got, values_of(kind, f"linear.{terms}.y{rows}"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ["1.40", "5.40", "7.7"])
def test_mlxs_attention_scales_the_query_first_and_rounds_each_step(kind, case):
    q, k, v = (values_of(kind, f"attention.{case}.{name}") for name in "qkv")
    got = attended(q, k, v, f"mlx-{kind}-cpu")
    assert_bits(got, values_of(kind, f"attention.{case}.y").transpose(1, 0, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_mlxs_silu_is_the_product_with_an_even_sigmoid(kind):
    at = recipe_of(f"mlx-{kind}-cpu").at
    made = blocks.silu(values_of(kind, "silu.gate"), at("mlp.act")).out
    assert_bits(made, values_of(kind, "silu.y"))
    product = blocks.multiply(made, values_of(kind, "silu.up"), at("mlp.act_mul")).out
    assert_bits(product, values_of(kind, "silu.product"))


@pytest.mark.parametrize("kind", KINDS)
def test_mlxs_precise_softmax_is_in_float32_by_the_reciprocal(kind):
    spec = recipe_of(f"mlx-{kind}-cpu").at("attn.softmax")
    for x, wanted in zip(values_of(kind, "softmax.x"), values_of(kind, "softmax.y"), strict=True):
        assert_bits(softmax(x[None, None], spec)[0].out[0, 0], wanted)


@pytest.mark.smollm2
@pytest.mark.parametrize("kind", KINDS)
def test_every_logit_of_smollm2_is_mlxs(kind, smollm2_folder):
    """mlx-lm's Llama: a prompt of 5 tokens at once, then 3 greedy tokens one by one: 8 rows of 49,152 logits."""

    def recorded(what):
        return MLX[f"{kind}.five.{what}"]

    ids = recorded("ids").tolist()
    run = simulate(tokens=ids, model=smollm2_folder, recipe=f"mlx-{kind}-cpu", steps=4, taps=())
    assert list(run.generated)[:3] == recorded("greedy").tolist()
    codes = encode(run["logits"], run.logits_format)
    np.testing.assert_array_equal(np.take_along_axis(codes, recorded("top"), -1), recorded("top_logits"))
    digests = [hashlib.sha256(np.ascontiguousarray(row.astype(np.uint16)).tobytes()).hexdigest() for row in codes]
    assert digests == recorded("sha256").tolist()
