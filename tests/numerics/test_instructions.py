"""Instructions of real CPUs as precisions and orders: every item of the hardware files, bit for bit."""

from __future__ import annotations

import ml_dtypes
import pytest

from softfloat_llm.numerics import reduce
from tests.oracle import assert_same, differs, hardware, values_of_bits

VDPBF16PS = "storage=bf16,output=f32,order={order},subnormals=ftz+daz"  # acc f32, products fused, ties to even
TDPBF16PS = "storage=bf16,output=f32,order=blocked:32 > lanes:2,subnormals=ftz+daz"


def bf16_of(bits):
    return bits.view(ml_dtypes.bfloat16)


def matrices(name, endings):
    """(key, ending) of every result of the dot products of a file."""
    keys = [key for key in hardware(name) if key.endswith(endings)]
    return [(key.removesuffix(end), end) for key in keys for end in endings if key.endswith(end)]


def test_one_vdpbf16ps_takes_the_odd_element_first_and_flushes_every_operand_and_result():
    arrays = hardware("bf16_dp")
    start, a, b = values_of_bits(arrays["one_acc"], "f32"), bf16_of(arrays["one_a"]), bf16_of(arrays["one_b"])
    got = reduce.dot(a, b, VDPBF16PS.format(order="swap:2"), init=start)
    assert_same(got, values_of_bits(arrays["one_y"], "f32"), start, a[:, 0], b[:, 0], a[:, 1], b[:, 1])


@pytest.mark.parametrize(("key", "ending"), matrices("bf16_dp", ("_seq", "_s16_halve")))
def test_chains_of_vdpbf16ps_are_pairs_in_reverse_in_one_lane_or_in_sixteen(key, ending):
    arrays = hardware("bf16_dp")
    a, b = bf16_of(arrays[f"{key}_a"]), bf16_of(arrays[f"{key}_b"])
    order = {"_seq": "swap:2", "_s16_halve": "lanes:16x2 > swap:2"}[ending]
    got = reduce.matmul(a, b.T, VDPBF16PS.format(order=order))
    assert_same(got, values_of_bits(arrays[key + ending], "f32"))


@pytest.mark.parametrize("key", [key for key, _ in matrices("amx_bf16", ("_y",))])
def test_tdpbf16ps_adds_an_even_and_an_odd_chain_of_each_32_to_what_stands_there(key):
    arrays = hardware("amx_bf16")
    a, b = bf16_of(arrays[f"{key}_a"]), bf16_of(arrays[f"{key}_b"])
    start, want = values_of_bits(arrays[f"{key}_c"], "f32"), values_of_bits(arrays[f"{key}_y"], "f32")
    got = [reduce.matmul(a[t], b[t].T, TDPBF16PS, init=start[t]) for t in range(len(want))]
    assert_same(got, want, start)


def test_the_data_tell_the_order_of_a_pair_and_the_flush():
    arrays = hardware("bf16_dp")
    start, a, b = values_of_bits(arrays["one_acc"], "f32"), bf16_of(arrays["one_a"]), bf16_of(arrays["one_b"])
    want = values_of_bits(arrays["one_y"], "f32")
    for wrong in (VDPBF16PS.format(order="seq"), "storage=bf16,output=f32,order=swap:2"):
        assert differs(reduce.dot(a, b, wrong, init=start), want).sum() > 100, wrong
