"""Rotary positions: frequencies, the table, its formats; layouts and scalings with known numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from softfloat_llm.errors import ConfigError, RecipeError
from softfloat_llm.llama import attention
from softfloat_llm.llama.config import config_from_dict
from softfloat_llm.llama.rope import attention_factor, inverse_frequencies, rope_table
from softfloat_llm.numerics import functions, ops, reduce
from softfloat_llm.numerics.formats import format_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.numerics.ulps import ulp_distance
from softfloat_llm.recipe import recipe_of
from tests import scalar_llama
from tests.checkpoints import config_dict
from tests.oracle import assert_same


def config(size=4, theta=10000.0, **entries):
    return config_from_dict(config_dict(head_dim=size, rope_theta=theta, **entries))


def table(positions, recipe="f32", **entries):
    """cos and sin (T, C/2) of positions."""
    out = rope_table(np.array(positions), config(**entries), recipe_of(recipe).at("rope.table")).out
    return np.split(out, 2, axis=-1)


def values(x):
    return np.asarray(x).astype(np.float64).tolist()


# --- frequencies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compute", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(("size", "theta"), [(2, 10000.0), (16, 10000.0), (64, 100000.0), (128, 500000.0), (6, 1.5)])
def test_frequencies_are_their_scalar_twins(size, theta, compute):
    got = inverse_frequencies(config(size, theta), format_of(compute))
    assert_same(got, scalar_llama.frequencies(theta, size, compute))


def test_the_first_frequency_is_1_and_the_second_half_of_the_way_is_a_root_of_theta():
    got = inverse_frequencies(config(4, 10000.0), format_of("f32"))
    assert got.tolist() == [1.0, float(np.float32(0.01))]


@pytest.mark.parametrize(("scaling", "wanted"), [
    ({"rope_type": "linear", "factor": 4.0}, [0.25, 0.0025]),
    ({"rope_type": "dynamic", "factor": 2.0}, [1.0, 0.01]),  # up to max_position_embeddings, which is never exceeded
    ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 16}, [0.5760564011, 0.00125]),
])  # fmt: skip
def test_scaled_frequencies_have_the_known_numbers(scaling, wanted):
    """Known in float64 of f32 steps: a few roundings of 2^-24 each."""
    got = inverse_frequencies(config(4, rope_scaling=scaling), format_of("f32"))
    assert np.abs(got / wanted - 1).max() < 8 * 2.0**-24
    assert_same(got, round_to(got, "f32"))


def test_llama3_divides_low_frequencies_keeps_high_ones_and_blends_between():
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}  # fmt: skip
    plain = inverse_frequencies(config(128, 500000.0), format_of("f32"))
    scaled = inverse_frequencies(config(128, 500000.0, rope_scaling=scaling), format_of("f32"))
    wavelength = 2 * math.pi / plain
    is_low, is_high = wavelength > 8192, wavelength < 2048
    assert (is_low.sum(), is_high.sum()) == (29, 29)
    assert (scaled[is_low] == plain[is_low] / 8).all()
    assert (scaled[is_high] == plain[is_high]).all()
    between = ~is_low & ~is_high
    smooth = (8192 / wavelength - 1) / 3
    assert np.abs(scaled / ((1 - smooth) * plain / 8 + smooth * plain) - 1)[between].max() < 8 * 2.0**-24


@pytest.mark.parametrize("made", ["iterated", "exp", "exp2"])
@pytest.mark.parametrize("kind", ["yarn", "dynamic"])
def test_a_scaling_of_powers_is_refused_where_the_frequencies_are_made_otherwise(kind, made):
    scaling = {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 64}
    with pytest.raises(ConfigError, match=f"rope type '{kind}' is computed from powers.*the recipe has {made}"):
        table([64], f"f32,rope.table.frequencies={made}", rope_scaling=scaling)


# --- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["f32", "bf16", "f16", "bf16,rope.table.compute=bf16", "f16,rope.table.compute=f16"])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_the_table_is_its_scalar_twin_at_near_and_far_positions(recipe, theta):
    spec = recipe_of(recipe).at("rope.table")
    positions = [0, 1, 2, 3, 7, 100, 255, 257, 1023]
    cos, sin = table(positions, recipe, size=8, theta=theta)
    rows = [scalar_llama.rope_row(p, theta, 8, compute=str(spec.compute), output=str(spec.output)) for p in positions]
    assert_same(cos, [row[0] for row in rows])
    assert_same(sin, [row[1] for row in rows])


def test_position_0_turns_nothing():
    cos, sin = table([0], "bf16", size=8)
    assert (values(cos), values(sin)) == ([[1.0] * 4], [[0.0] * 4])


@pytest.mark.parametrize(("fmt", "first", "wanted"), [
    ("bf16", 250, [250, 251, 252, 253, 254, 255, 256, 256, 258, 260, 260, 260, 262, 264, 264]),
    ("f16", 2047, [2047, 2048, 2048, 2050, 2052, 2052]),
])  # fmt: skip
def test_positions_in_a_narrow_format_stand_still_and_jump(fmt, first, wanted):
    """The first frequency is 1, so the first angle is the position as the format holds it."""
    positions = np.arange(first, first + len(wanted))
    taps = rope_table(positions, config(), recipe_of(f"{fmt},rope.table.compute={fmt}").at("rope.table"))
    assert values(taps.enter[:, 0]) == wanted
    assert values(rope_table(positions, config(), recipe_of(fmt).at("rope.table")).enter[:, 0]) == positions.tolist()


@pytest.mark.parametrize(("theta", "at_256", "at_4095"), [(1e4, 0.2917, 1.679), (5e5, 0.449, 1.891)])
def test_frequencies_rounded_to_bf16_move_the_cosines_of_far_positions(theta, at_256, at_4095):
    """Head size 128; angles and cosines in float64, only the frequencies rounded."""
    exact = theta ** (-np.arange(0, 128, 2) / 128)
    rounded = round_to(exact, "bf16").astype(np.float64)
    error = {p: np.abs(np.cos(p * rounded) - np.cos(p * exact)).max() for p in (256, 4095)}
    assert error[256] == pytest.approx(at_256, abs=5e-4)
    assert error[4095] == pytest.approx(at_4095, abs=5e-4)


# --- rotation of known pairs ------------------------------------------------------------------------------------------


def rotated(x, position, recipe, theta=10000.0):
    """A vector of one head turned to a position, under a recipe."""
    recipe = recipe_of(recipe)
    spec = recipe.at("rope.table")
    row = rope_table(np.array([position]), config(len(x), theta), spec).out
    cos, sin = np.split(row, 2, axis=-1)
    vector = round_to(np.array([[x]], np.float64), recipe.at("attn.rope").storage)
    return values(attention.rotate(vector, cos, sin, recipe.at("attn.rope")).out)[0][0]


def test_rounding_each_operation_or_once_of_the_pair_1_and_1_5_at_position_6():
    cos, sin = table([6], "bf16", size=2)
    assert (values(cos), values(sin)) == ([[0.9609375]], [[-0.279296875]])
    assert rotated([1, 1.5], 6, "bf16") == [1.375, 1.15625]
    assert rotated([1, 1.5], 6, "bf16,attn.rope.form=once") == [1.3828125, 1.1640625]


def test_the_first_component_at_position_4_with_a_bf16_table_each_and_once_and_all_in_f32():
    assert rotated([1, 1.5], 4, "bf16")[0] == 0.48828125
    assert rotated([1, 1.5], 4, "bf16,attn.rope.form=once")[0] == 0.484375
    assert float(round_to(rotated([1, 1.5], 4, "f32")[0], "bf16")) == 0.482421875


HALF_SPLIT = [-1.98411065, 1.95990067, 2.46237790, 4.01979967]
INTERLEAVED = [-1.14263966, 1.92207560, 2.95985067, 4.02979950]


def test_pairs_lie_half_a_head_apart():
    got = rotated([1, 2, 3, 4], 1, "f32")
    assert np.abs(np.array(got) - HALF_SPLIT).max() < 2.0**-22


def test_permuted_rows_with_interleaved_pairs_equal_original_rows_with_half_split_pairs():
    """Row 2i + j of the permuted vector is row 2j + i of the original (size 4), as GGUF stores q and k."""
    order = [0, 2, 1, 3]
    x = np.array([1.0, 2.0, 3.0, 4.0])
    interleaved = np.array(rotated(x[order], 1, "f32"))[order]  # our layout on the pairs (0, 1) and (2, 3)
    assert np.abs(interleaved - INTERLEAVED).max() < 2.0**-22
    known = np.array([x[0] * math.cos(1) - x[1] * math.sin(1), x[1] * math.cos(1) + x[0] * math.sin(1)])
    assert np.abs(interleaved[:2] - known).max() < 2.0**-22


def test_scores_depend_on_the_distance_of_positions_only():
    """In exact arithmetic; in f32 to a few roundings."""
    q, k = [0.5, -1.25, 2.0, 0.75], [1.5, 0.25, -0.5, 1.0]
    scores = [
        float(reduce.dot(rotated(q, p + 3, "f32"), rotated(k, p, "f32"), "storage=f32,acc=f64")) for p in range(60)
    ]
    assert max(scores) - min(scores) < 2.0**-18


# --- as engines make them ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compute", ["f32", "bf16"])
@pytest.mark.parametrize("made", ["pow", "iterated", "exp", "exp2"])
@pytest.mark.parametrize("kept", [None, "bf16"])
@pytest.mark.parametrize(("size", "theta"), [(8, 10000.0), (16, 500000.0), (6, 1.5)])
def test_each_way_to_the_angles_is_its_scalar_twin(size, theta, made, kept, compute):
    words = f"f32,rope.table.frequencies={made},rope.table.compute={compute}"
    words += f",rope.table.frequency_format={kept}" if kept else ""
    cos, sin = table([0, 1, 7, 100], words, size=size, theta=theta)
    for row, position in enumerate((0, 1, 7, 100)):
        want = scalar_llama.rope_row(position, theta, size, compute=compute, output="f32", made=made, kept=kept)
        assert_same(cos[row], want[0])
        assert_same(sin[row], want[1])


def test_exp2_of_a_theta_that_is_a_power_of_two_is_exact():
    got = inverse_frequencies(config(8, 65536.0), format_of("f32"), form="exp2")
    assert got.tolist() == [1.0, 2.0**-4, 2.0**-8, 2.0**-12]


def test_the_four_ways_agree_to_some_ulps_and_differ_in_bits():
    made = [inverse_frequencies(config(64, 100000.0), format_of("f32"), form=form) for form in ("pow", "exp", "exp2")]
    for other in made[1:]:
        distance = ulp_distance(other, made[0], "f32")
        assert 0 < distance.max() <= 16  # the exponent, up to 11.2, is rounded: 2^3 half ulps, for exp and log each


@pytest.mark.parametrize(("theta", "position", "error"), [
    (1e4, 256, 0.2917), (1e4, 4095, 1.679), (5e5, 256, 0.449), (5e5, 4095, 1.891),
])  # fmt: skip
def test_frequencies_in_bf16_turn_far_positions_by_a_known_error(theta, position, error):
    """What model.to(bfloat16) does to transformers' buffer of frequencies; head size 128."""
    rounded, plain = (table([position], f"f32{words}", size=128, theta=theta)[0] for words in (
        ",rope.table.frequency_format=bf16", ""))  # fmt: skip
    assert abs(np.abs(rounded.astype(np.float64) - plain.astype(np.float64)).max() - error) < 0.0006


def test_the_iterated_angle_drifts_from_the_power_with_the_pair():
    cos, sin = (
        np.array(t)
        for t in zip(
            *(table([4095], f"f32,rope.table.frequencies={made}", size=128) for made in ("pow", "iterated")),
            strict=True,
        )
    )
    turned = np.hypot(cos[0] - cos[1], sin[0] - sin[1])[0]
    assert turned[0] == 0
    assert 2.0**-24 < turned.max() < 64 * 4095 * 2.0**-24  # 64 products, each half an ulp of an angle below 4096


@pytest.mark.parametrize("scaling", [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8192},
])  # fmt: skip
def test_scaled_angles_of_the_iteration_are_the_scaled_frequencies_to_some_ulps(scaling):
    """ggml divides the angle where transformers scales the frequency."""
    made = [np.array(table([1], f"f32,rope.table.frequencies={word}", size=128, theta=500000.0, rope_scaling=scaling))
            for word in ("pow", "iterated")]  # fmt: skip
    assert np.abs(made[0][1].astype(np.float64) / made[1][1] - 1).max() < 128 * 2.0**-24
    plain = np.array(table([1], "f32", size=128, theta=500000.0))
    assert (plain[1] != made[0][1]).any()


@pytest.mark.parametrize("library", ["glibc", "mlx", "torch-x86"])
def test_other_cosines_and_sines_are_near_the_correctly_rounded_ones(library):
    positions = [0, 1, 5, 119, 120, 121, 4095]
    words = f"f32,rope.table.functions={library}"
    for ours, theirs in zip(table(positions, "f32", size=64), table(positions, words, size=64), strict=True):
        bound = 2.0**-24 if library != "mlx" else 2.0**-22  # Cephes' polynomials: within 4 half ulps of 1
        assert np.abs(ours.astype(np.float64) - theirs).max() <= bound


def test_the_librarys_functions_are_of_float32():
    with pytest.raises(RecipeError, match="functions='glibc' is made of float32 steps: compute must be f32, not bf16"):
        recipe_of("f32,rope.table.functions=glibc,rope.table.compute=bf16")


INTERLEAVED_ROTATION = "f32,attn.rope.pairs=interleaved"


def test_interleaved_pairs_have_the_known_numbers():
    x = np.array([[[1.0, 2.0, 3.0, 4.0]]], np.float32)
    cos, sin = table([1])
    got = attention.rotate(x, cos, sin, recipe_of(INTERLEAVED_ROTATION).at("attn.rope")).out
    assert np.abs(got[0, 0] - INTERLEAVED).max() < 2.0**-22


@pytest.mark.parametrize("form", ["each", "once", "fma"])
def test_interleaved_pairs_of_permuted_elements_are_half_split_pairs_permuted(form):
    x = round_to(np.random.default_rng(5).standard_normal((3, 2, 8)), "bf16")
    cos, sin = table([0, 3, 11], "bf16", size=8)
    paired, plain = (recipe_of(f"bf16,attn.rope.form={form},attn.rope.pairs={pairs}").at("attn.rope")
                     for pairs in ("interleaved", "half-split"))  # fmt: skip
    got = attention.rotate(attention.in_pairs(x, paired), cos, sin, paired).out
    want = attention.in_pairs(attention.rotate(x, cos, sin, plain).out, paired)
    assert got.dtype == want.dtype
    assert_same(got, want)
    assert attention.in_pairs(x, paired)[0, 0].tolist() == x[0, 0][[0, 4, 1, 5, 2, 6, 3, 7]].tolist()


# --- PyTorch ----------------------------------------------------------------------------------------------------------


SCALINGS = {
    "default": {},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192},
    "llama3, odd": {"rope_type": "llama3", "factor": 32, "low_freq_factor": 1, "high_freq_factor": 3,
                    "original_max_position_embeddings": 100},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
    "yarn, whole": {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 16.0,
                    "beta_slow": 2.0, "mscale": 0.707, "mscale_all_dim": 1.0, "truncate": False},
    "yarn, its factor": {"rope_type": "yarn", "factor": 1.5, "original_max_position_embeddings": 77,
                         "attention_factor": 1.37},
    "yarn, no blend": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4, "beta_fast": 4.0,
                       "beta_slow": 2.0},
}  # fmt: skip


def theirs_of(entries, size, theta):
    """transformers' rotary embedding of a config."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    return LlamaRotaryEmbedding(LlamaConfig(
        head_dim=size, hidden_size=4 * size, num_attention_heads=4, max_position_embeddings=16384,
        rope_parameters={"rope_theta": theta, "rope_type": "default", **entries}))  # fmt: skip


def is_power_correct(theta, size):
    """(C/2,): True where PyTorch's power is the correctly rounded one, as it is for all but one in a hundred."""
    import torch

    theirs = theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    exponent = ops.div(np.arange(0, size, 2, dtype=np.float64), float(size), "f32").astype(np.float64)
    return theirs.numpy() == functions.pow(theta, exponent, "f32").astype(np.float32)


@pytest.mark.torch
@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize(("size", "theta"), [(8, 10000.0), (64, 10000.0), (128, 500000.0), (128, 1e6), (96, 10000.0)])
def test_frequencies_are_those_of_transformers_in_bits_wherever_the_power_is(name, size, theta):
    theirs = theirs_of(SCALINGS[name], size, theta)
    of_config = config(size, theta, rope_scaling=SCALINGS[name] or None, max_position_embeddings=16384)
    ours, same = inverse_frequencies(of_config, format_of("f32")), is_power_correct(theta, size)
    assert np.count_nonzero(~same) <= 1
    np.testing.assert_array_equal(ours[same], theirs.inv_freq.numpy()[same])
    assert ulp_distance(ours, theirs.inv_freq.numpy(), "f32").max() <= 2
    assert attention_factor(of_config.rope_scaling) == theirs.attention_scaling


@pytest.mark.torch
@pytest.mark.parametrize("length", [16384, 16385, 20000, 32768])
@pytest.mark.parametrize(("size", "theta"), [(8, 10000.0), (64, 10000.0), (128, 500000.0)])
def test_dynamic_frequencies_go_by_the_length_as_those_of_transformers(length, size, theta):
    import torch

    theirs = theirs_of(SCALINGS["dynamic"], size, theta)
    theirs(torch.zeros(1), torch.arange(length - 3, length)[None])
    of_config = config(size, theta, rope_scaling=SCALINGS["dynamic"], max_position_embeddings=16384)
    ours = inverse_frequencies(of_config, format_of("f32"), length=length)
    ulps = ulp_distance(ours, theirs.inv_freq.numpy(), "f32")
    assert ulps.max() <= 4  # theta itself is made of a power, and taken to a power: an ulp of each
    assert np.count_nonzero(ulps) <= len(ulps) // 2
