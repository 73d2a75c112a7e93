"""Small inputs that people met in the field, with the value that exact arithmetic gives; each stands for a kind."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from softfloat_llm.llama.config import config_from_dict
from softfloat_llm.llama.rope import inverse_frequencies
from softfloat_llm.numerics import ops, reduce
from softfloat_llm.numerics.formats import decode, format_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.numerics.ulps import ulp_distance
from tests.checkpoints import config_dict
from tests.oracle import assert_same

INF, NAN = math.inf, math.nan

# --- Casts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "fmt", "right"),
    [
        (3811, "f16", 3812.0), (3811, "bf16", 3808.0), (257, "bf16", 256.0), (22.277479, "bf16", 22.25),
        (6.407499313354492e-06, "bf16", 6.407499313354492e-06), (6.407499313354492e-06, "f16", 6.4373016357421875e-06),
        (4.25, "e4m3fn", 4.0), (4.75, "e4m3fn", 5.0), (464, "e4m3fn", 448.0), (464.5, "e4m3fn", NAN),
        (1000, "e4m3fn", NAN), (0.001, "e4m3fn", 0.001953125), (2**-10, "e4m3fn", 0.0),
        (61439, "e5m2", 57344.0), (61440, "e5m2", INF), (247, "e4m3fnuz", 240.0), (248, "e4m3fnuz", NAN),
        (3.0, "e8m0fnu", 4.0), (0.75, "e8m0fnu", 1.0),
        (0.1, "e4m3fn", 0.1015625), (0.1, "e5m2", 0.09375), (0.1, "bf16", 0.10009765625),
        (22.30, "bf16", 22.25), (22.27, "bf16", 22.25), (22.30, "f16", 22.296875), (22.27, "f16", 22.265625),
        (22.40, "bf16", 22.375), (22.35, "bf16", 22.375), (22.40, "f16", 22.40625), (22.35, "f16", 22.34375),
    ],
)  # fmt: skip
def test_cast_to_the_nearest_value(x, fmt, right):
    assert_same(round_to(x, fmt), right)
    assert_same(round_to(np.array([x]), fmt), [right])


@pytest.mark.parametrize("x", [464.5, 1000, -1000])
def test_a_saturating_cast_to_e4m3fn_stops_at_448(x):
    assert round_to(x, "e4m3fn", overflow="saturate") == math.copysign(448, x)


@pytest.mark.parametrize(
    ("x", "fmt", "mode", "right"),
    [
        (3.14, "bf16", "toward_zero", 3.125), (3.14, "bf16", "ties_to_even", 3.140625),
        (1.01953125, "bf16", "ties_to_even", 1.015625),
        (1.01953125, "bf16", "ties_to_away", 1.0234375),  # what "half up" does to a positive number
        (1 + 2**-11, "tf32", "ties_to_even", 1.0), (1 + 2**-11, "tf32", "toward_zero", 1.0),
        (1 + 2**-11, "tf32", "ties_to_away", 1.0009765625), (1 + 3 * 2**-11, "tf32", "ties_to_even", 1.001953125),
        (1 + 3 * 2**-11, "tf32", "toward_zero", 1.0009765625), (1 + 3 * 2**-11, "tf32", "ties_to_away", 1.001953125),
    ],
)  # fmt: skip
def test_cast_in_another_mode(x, fmt, mode, right):
    assert round_to(x, fmt, mode) == right


def test_a_product_of_bf16_rounds_up_only_toward_positive():
    assert 1.3125 * 7.96875 == 10.458984375
    assert ops.mul(1.3125, 7.96875, "bf16") == 10.4375
    assert ops.mul(1.3125, 7.96875, "bf16", "toward_positive") == 10.5


@pytest.mark.parametrize(
    ("code", "in_e4m3fn", "in_e4m3fnuz"),
    [
        (0x38, 1.0, 0.5), (0x7E, 448.0, 224.0), (0x80, -0.0, NAN), (0x7F, NAN, 240.0), (0xFF, NAN, -240.0),
        (0x08, 2.0**-6, 2.0**-7), (0x01, 2.0**-9, 2.0**-10),
    ],
)  # fmt: skip
def test_one_byte_means_two_values_in_two_formats(code, in_e4m3fn, in_e4m3fnuz):
    assert_same(decode(np.uint8(code), "e4m3fn"), in_e4m3fn)
    assert_same(decode(np.uint8(code), "e4m3fnuz"), in_e4m3fnuz)


def test_all_bf16_codes_through_f32_and_back_are_the_identity():
    codes = np.arange(1 << 16, dtype=np.uint16)
    values = codes.view(ml_dtypes.bfloat16)
    back = round_to(round_to(values, "f32"), "bf16").view(np.uint16)
    is_number = (codes & 0x7FFF) <= 0x7F80
    assert np.array_equal(back[is_number], codes[is_number])
    assert ((back[~is_number] & 0x7FFF) > 0x7F80).all()


def test_two_logits_one_ulp_apart_in_bf16_are_six_apart_in_f16():
    logits = np.array([22.371271, 22.277479], np.float32)
    in_bf16, in_f16 = round_to(logits, "bf16"), round_to(logits, "f16")
    assert in_bf16.astype(float).tolist() == [22.375, 22.25]
    assert in_f16.astype(float).tolist() == [22.375, 22.28125]
    assert int(ulp_distance(in_bf16[0], in_bf16[1], "bf16")) == 1
    assert int(ulp_distance(in_f16[0], in_f16[1], "f16")) == 6


# --- Sums and dot products ------------------------------------------------------------------------------------------

ONES_AFTER_2_24 = [2.0**24] + [1.0] * 7
X = [0.8896484375, 0.767578125, 0.712890625, 0.76318359375, 0.5224609375]
Y0 = [0.76416015625, 0.82861328125, 0.99169921875, 0.5947265625, 0.61865234375]
Y1 = [0.68994140625, 0.85205078125, 0.95751953125, 0.89990234375, 0.98681640625]


@pytest.mark.parametrize(
    ("terms", "at", "right"),
    [
        ([256, 1, 1], "storage=bf16,acc=bf16", 256.0),
        ([256, 2], "storage=bf16,acc=bf16", 258.0),  # 256 + (1 + 1)
        ([256, 1, 1], "storage=bf16,acc=bf16,order=reverse", 258.0),
        (ONES_AFTER_2_24, "storage=f32", 16777216.0),
        (ONES_AFTER_2_24, "storage=f32,order=lanes:2", 16777220.0),
        (ONES_AFTER_2_24, "storage=f32,order=lanes:4", 16777222.0),
        (ONES_AFTER_2_24, "storage=f32,order=lanes:8", 16777222.0),
        ([256, 1, 1, 1], "storage=bf16,acc=f32", 260.0),
        ([256, 1, 1, 1], "storage=bf16,acc=bf16", 256.0),
        ([256, 1, 1, 1], "storage=bf16,acc=bf16,order=split-k:2", 258.0),
        ([256, 1, 1, 1], "storage=bf16,acc=bf16,order=reverse", 260.0),
        ([256, 1, 1, 1], "storage=bf16,acc=f32,order=split-k:2:bf16", 258.0),
        ([1] * 4096, "storage=f16,acc=f16", 2048.0),
        ([1] * 4096, "storage=f16,acc=f16,order=lanes:8", 4096.0),
        ([1] * 4096, "storage=f16,acc=f32", 4096.0),
        ([1] * 8192, "storage=f16,acc=f16,order=lanes:32", 8192.0),
        ([1] * 32768, "storage=f16,acc=f16,order=lanes:8", 16384.0),
        ([1] * 300, "storage=bf16,acc=bf16", 256.0),
        ([60000, 60000, -60000], "storage=f16,acc=f16", INF),
        ([60000, -60000, 60000], "storage=f16,acc=f16", 60000.0),
        ([60000, 60000, -60000], "storage=f16,acc=f32", 60000.0),
        ([60000, -60000, 60000], "storage=f16,acc=f32", 60000.0),
        ([2048] + [1] * 8, "storage=f16,acc=f16", 2048.0),
        ([2048] + [1] * 8, "storage=f16,acc=f32", 2056.0),
    ],
)
def test_sum(terms, at, right):
    assert reduce.sum(terms, at) == right
    assert reduce.dot(terms, np.ones(len(terms)), at) == right


def test_257_and_1_on_two_ranks_lose_the_1_where_partials_travel_in_bf16():
    """Rank 0 sums 256 + 1, rank 1 sums 1 + 0."""
    terms = [256, 1, 1, 0]
    assert reduce.sum(terms, "storage=bf16,acc=f32,order=split-k:2") == 258.0
    assert reduce.sum(terms, "storage=bf16,acc=f32,order=split-k:2:bf16") == 256.0


def test_a_running_sum_of_600_ones_in_bf16_ends_at_256():
    total = 0.0
    for n in range(1, 601):
        total = reduce.sum([1.0], "storage=bf16,acc=bf16", init=total)
        assert total == min(n, 256)
    assert reduce.sum(np.ones(600), "storage=bf16,acc=bf16") == 256.0


def test_256_times_256_overflows_where_the_product_is_f16():
    assert reduce.dot([256], [256], "storage=f16,product=f16,acc=f32,output=f32") == INF
    assert reduce.dot([256], [256], "storage=f16,acc=f32,output=f32") == 65536.0
    assert round_to(reduce.dot([256], [256], "storage=f16,acc=f32,output=f32"), "f16") == INF


def test_a_dot_product_of_321000_survives_only_as_f32():
    a, b = [600.0], [535.0]
    assert reduce.dot(a, b, "storage=f16,acc=f32,output=f32") == 321000.0
    assert round_to(reduce.dot(a, b, "storage=f16,acc=f32"), "f32") == INF
    assert reduce.dot(a, b, "storage=f16,acc=f32,output.overflow=saturate") == 65504.0


@pytest.mark.parametrize(
    ("y", "at", "right"),
    [
        (Y0, "storage=f16,product=f16,acc=f16", 2.80078125), (Y0, "storage=f16,acc=f16", 2.796875),
        (Y0, "storage=f16,acc=f32", 2.80078125), (Y1, "storage=f16,product=f16,acc=f16", 3.15234375),
        (Y1, "storage=f16,acc=f16", 3.15234375), (Y1, "storage=f16,acc=f32", 3.15234375),
    ],
)  # fmt: skip
def test_fused_and_rounded_products_may_differ(y, at, right):
    assert reduce.dot(X, y, at) == right


def test_a_residual_sum_of_257_and_1_depends_on_when_it_is_rounded():
    rounded_first = ops.add(round_to(257, "bf16"), 1, "bf16")
    rounded_after = round_to(ops.add(257, 1, "f32"), "bf16")
    assert (rounded_first, rounded_after) == (256.0, 258.0)


def test_200_random_orders_of_2_24_and_seven_ones_stay_within_their_bounds():
    """The exact sum 2^24 + 7 itself ties to 16777224: seven ones before 2^24 give that, none before it 16777216."""
    sums = {reduce.sum(ONES_AFTER_2_24, f"storage=f32,order=perm:{seed}") for seed in range(200)}
    assert min(sums) == 16777216.0
    assert max(sums) == 16777224.0 == round_to(2**24 + 7, "f32")


# --- Model parts ------------------------------------------------------------------------------------------------------
# The others lie beside the blocks that they are about, in llama/: test_blocks.py (norms, residual, range),
# test_attention.py (softmax sums, what is scaled), test_rope.py, test_cache.py, test_decode.py.


def test_a_scale_that_is_a_power_of_two_may_meet_the_query_or_the_score():
    """Head size 64: 64^-1/2 = 0.125 is exact, so scaling commutes with every rounding (short of underflow)."""
    values = decode(np.arange(1 << 16), "bf16").astype(np.float64)
    values = values[np.isfinite(values) & (np.abs(values) < 2.0**60) & (np.abs(values) > 2.0**-60)]
    for q in (1.0078125, 3.0, -0.3359375):
        scaled_first = round_to(round_to(q * 0.125, "bf16") * values, "bf16")
        scaled_last = round_to(round_to(q * values, "bf16").astype(np.float64) * 0.125, "bf16")
        assert np.array_equal(scaled_first, scaled_last)


def test_a_dynamic_rope_beyond_its_length_turns_slower():
    """Head size 4, theta 1e4, factor 2, trained on 8 positions, used on 16: theta becomes 1e4 (2 16/8 - 1)^2 = 9e4."""
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    config = config_from_dict(
        config_dict(head_dim=4, rope_theta=10000.0, rope_scaling=scaling, max_position_embeddings=8)
    )
    wanted = {8: [1.0, 0.01], 16: [1.0, 90000**-0.5]}
    for length, frequencies in wanted.items():
        found = inverse_frequencies(config, format_of("f32"), length=length)
        assert ulp_distance(found, round_to(np.array(frequencies), "f32").astype(np.float64), "f32").max() <= 4
