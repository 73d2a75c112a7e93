"""Multi-operand adders: arrays against exact fractions, published samples, trees, and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from softfloat_llm.errors import OrderError, PrecisionError
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.accumulate import arithmetic_of, terms_of, terms_until_nonfinite
from softfloat_llm.numerics.adders import adder_of, units
from softfloat_llm.numerics.formats import f16, f32, format_of
from softfloat_llm.numerics.orders import Order
from softfloat_llm.numerics.precision import precision_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.numerics.trees import read_tree, write_tree
from tests.adders_oracle import fused_dot
from tests.oracle import assert_same

UNITS = list(units().values())


def storage_of(adder):
    return f32 if adder.truncates_input else adder.input


def precision_for(adder, order=None):
    acc = f16 if adder.output is f16 else f32
    return f"storage={storage_of(adder)},acc={acc},output={acc},order={order or f'fused:{adder}'}"


# --- against exact fractions ----------------------------------------------------------------------------------------


def adversarial(fmt, shape, rng):
    """Values of all sizes with zeros and subnormals, then of few sizes, so that sums cancel and lose bits."""
    lowest, highest = fmt.emin - fmt.trailing_bits, min(fmt.emax, 60)
    wide = np.ldexp(rng.uniform(-2, 2, shape), rng.integers(lowest, highest, shape))
    near = np.ldexp(rng.uniform(-2, 2, shape), rng.integers(-3, 4, shape))
    tiny = np.ldexp(rng.uniform(-2, 2, shape), rng.integers(lowest, fmt.emin + 3, shape))
    rows = np.arange(shape[0])[:, None]
    values = np.choose(rows % 4, [wide, near, near, tiny])
    values = np.where(rng.random(shape) < 0.1, 0.0, values)
    return round_to(values, fmt, overflow="saturate").astype(np.float64)


def cancelling(a, b, c_format, rng):
    """c near the negative of the sum in half of the rows, of any size in the others."""
    near = -np.add.reduce(a * b, axis=1) * (1 + rng.uniform(-1, 1, len(a)) * 2.0 ** rng.integers(-26, -5, len(a)))
    wide = np.ldexp(rng.uniform(-2, 2, len(a)), rng.integers(c_format.emin - 20, min(c_format.emax, 60), len(a)))
    c = np.where(rng.random(len(a)) < 0.5, near, np.where(rng.random(len(a)) < 0.2, 0.0, wide))
    return round_to(c, c_format, overflow="saturate").astype(np.float64)


@pytest.mark.parametrize("adder", UNITS, ids=str)
def test_every_unit_equals_its_parameters_in_exact_fractions(adder):
    rng = np.random.default_rng(len(adder.name))
    k, fmt = 2 * adder.terms + 3, storage_of(adder)
    a, b = adversarial(fmt, (40, k), rng), adversarial(fmt, (40, k), rng)
    b[1::8, 1 : adder.terms : 2], a[1::8, 1 : adder.terms : 2] = b[1::8, :1], -a[1::8, :1]  # exact cancellation
    c = cancelling(a, b, f16 if adder.output is f16 else f32, rng)
    got = reduce.dot(a, b, precision_for(adder), init=c)
    want = [fused_dot(adder, *row, start) for *row, start in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)]
    assert_same(got, want, c)


@pytest.mark.parametrize("text", ["1:3", "2:10:ties_to_even", "8", "16:30:toward_negative:-140", "5:23:to_odd:-512"])
@pytest.mark.parametrize("acc", ["f32", "bf16", "f16", "e8m13"])
def test_adders_by_their_parameters_equal_exact_fractions(text, acc):
    rng = np.random.default_rng(7)
    a, b = adversarial(format_of("f16"), (24, 19), rng), adversarial(format_of("f16"), (24, 19), rng)
    c = cancelling(a, b, format_of(acc), rng)
    got = reduce.dot(a, b, f"storage=f16,acc={acc},output=f32,order=fused:{text}", init=c)
    want = [
        fused_dot(adder_of(text), *row, start, storage="f16", acc=acc)
        for *row, start in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    assert_same(got, want, c)


@pytest.mark.parametrize("name", ["nvidia-hopper-bf16", "amd-cdna1-bf16", "amd-cdna2-bf16-1k", "amd-cdna3-bf16"])
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan, 3e38])
def test_infinities_nan_and_overflow_are_those_of_the_exact_form(name, odd):
    adder = adder_of(name)
    odd = round_to(odd, "bf16")
    for a0, b0, a1, c in itertools.product((odd, 1.0), (0.0, -1.0, odd), (odd, -odd, 0.0), (0.0, np.inf, -3e38)):
        a, b, start = [a0, a1, 1.0], [b0, 1.0, 1.0], round_to(c, "f32")
        got = reduce.dot(a, b, precision_for(adder), init=start)
        assert_same(got, fused_dot(adder, a, b, start), str((a, b, start)))


@pytest.mark.parametrize("adder", [u for u in UNITS if u.rounding == "toward_zero"], ids=str)
def test_a_sum_beyond_the_range_is_infinite_toward_zero_too(adder):
    if adder.input.emax < 64:
        return
    at = precision_for(adder)
    assert reduce.dot([2.0**64, 1.0], [2.0**63, 1.0], at, init=2.0**126) == 2.0**127 + 2.0**126
    assert reduce.dot([2.0**64, 1.0], [2.0**63, 1.0], at, init=2.0**127) == np.inf
    assert reduce.dot([-(2.0**64), 1.0], [2.0**64, 1.0], at) == -np.inf


# --- published samples ----------------------------------------------------------------------------------------------


SAMPLE = {
    "a": "9b940000 19f30000 9a2e0000 1a670000 9a250000 9b4e0000 9b290000 9a330000"
    " 99e00000 1a140000 99140000 99d10000 9ae90000 1b1a0000 9a9c0000 1b3a0000",
    "b": "9aaf0000 99f30000 9acc0000 1b7c0000 19ed0000 1b250000 9a1b0000 9a200000"
    " 9af70000 9a480000 1ae10000 1b320000 1b120000 1b0e0000 9a680000 17350000",
}


def test_one_sample_of_an_h100_tells_the_exponent_as_which_zeros_count():
    """Source: MATLAB-tensor-core, issue 7, example 1 (the result of the hardware)."""
    a, b = (np.array([int(word, 16) for word in SAMPLE[x].split()], np.uint32).view(np.float32) for x in "ab")
    measured = float.fromhex("0x1.6p-146")
    assert reduce.dot(a, b, "storage=bf16,output=f32,order=fused:nvidia-hopper-bf16") == measured
    for exponent in (-131, -132, -134, -512):
        other = reduce.dot(a, b, f"storage=bf16,output=f32,order=fused:16:25:toward_zero:{exponent}")
        assert other == float.fromhex("0x1.4p-146")


# --- sums, products, blocks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nvidia-hopper-bf16", "nvidia-hopper-tf32", "amd-cdna1-bf16", "amd-cdna3-bf16"])
def test_matmul_is_the_dot_of_each_row_and_column_whatever_the_tile(name):
    rng = np.random.default_rng(3)
    at = precision_for(adder_of(name))
    a, b = adversarial(format_of("bf16"), (33, 37), rng), adversarial(format_of("bf16"), (37, 700), rng)
    start = round_to(rng.standard_normal((33, 700)), f32)
    for init in (None, start):
        want = reduce.dot(a[:, None, :], b.T[None], at, init=init)
        assert_same(reduce.matmul(a, b, at, init=init), want)
        assert_same(reduce.matmul(a, b, at, init=init, workers=2), want)


def test_terms_that_are_missing_are_zeros_and_sums_are_products_by_one():
    rng = np.random.default_rng(4)
    for adder in UNITS:
        at, x = precision_for(adder), adversarial(storage_of(adder), (8, adder.terms + 3), rng)
        padded = np.concatenate([x, np.zeros((8, 2 * adder.terms))], axis=1)
        assert_same(reduce.sum(padded, at), reduce.sum(x, at))
        assert_same(reduce.sum(x, at), reduce.dot(x, np.ones_like(x), at))
        assert Order(f"fused:{adder}").is_shape_free


@pytest.mark.parametrize("k", [0, 1])
def test_sums_of_nothing_and_of_one_term(k):
    for adder in UNITS:
        at = precision_for(adder)
        assert_same(reduce.dot([1.0] * k, [1.5] * k, at), 1.5 * k)
        assert_same(reduce.dot([1.0] * k, [-1.5] * k, at, init=3.0), 3.0 - 1.5 * k)
        assert_same(reduce.dot([0.0] * k, [-1.5] * k, at), 0.0)


def test_blocks_of_a_unit_are_new_chains_that_are_added_in_float32():
    """Slow accumulation: each 128 terms from +0, the results one after another in float32."""
    rng = np.random.default_rng(5)
    a, b = (round_to(rng.standard_normal(300), "e4m3fn") for _ in range(2))
    got = reduce.dot(a, b, "storage=e4m3fn,output=f32,order=blocked:128 > fused:nvidia-hopper-e4m3", init=0.3125)
    want = np.float32(0.3125)
    for start in range(0, 300, 128):
        block = slice(start, start + 128)
        want += np.float32(fused_dot(adder_of("nvidia-hopper-e4m3"), a[block].tolist(), b[block].tolist()))
    assert got == want


def test_results_of_an_fp8_unit_lie_in_its_14_bit_register():
    rng = np.random.default_rng(6)
    a, b = (round_to(rng.standard_normal((50, 64)), "e4m3fn") for _ in range(2))
    got = reduce.dot(a, b, "storage=e4m3fn,output=f32,order=fused:nvidia-hopper-e4m3")
    assert_same(round_to(got, "e8m13", "toward_zero"), got)


def test_the_first_instruction_that_leaves_the_range_is_found():
    at = precision_of("storage=f16,acc=f16,order=fused:nvidia-volta-f16-f16")
    x = np.array([1.0] * 6 + [60000.0] * 6)
    program, terms = at.order.tree(12).program(), terms_of(x, np.ones(12), at)
    assert terms_until_nonfinite(program, terms, arithmetic_of(at.acc, at), 12) == 8
    assert terms_until_nonfinite(at.order.tree(6).program(), terms, arithmetic_of(at.acc, at), 6) == 6


# --- trees ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "n", "tree"),
    [
        ("fused:4", 0, "0"), ("fused:4", 3, "[0, 1, 2]"), ("fused:2", 5, "[[[0, 1], 2, 3], 4]"),
        ("blocked:3 > fused:2", 6, "[[0, 1], 2]+[[3, 4], 5]"),
        ("fused:nvidia-blackwell-mma-e4m3", 34, f"[{', '.join(map(str, range(32)))}]+[32, 33]"),
        ("fused:nvidia-hopper-mma-e4m3-f16", 6, "[[0, 1, 4, 5], 2, 3]"),
        ("fused:amd-cdna2-f16", 6, "((0+1)+(2+3))+(4+5)"),
    ],
)  # fmt: skip
def test_the_tree_of_a_unit_is_flat_where_it_adds_at_once(text, n, tree, tmp_path):
    whole = Order(text).tree(n)
    assert str(whole) == tree
    assert sorted(whole.leaves) == list(range(n))
    write_tree(whole, tmp_path / "tree.json")
    assert read_tree(tmp_path / "tree.json") == whole


@pytest.mark.parametrize("adder", [u for u in UNITS if u.model != "exact"], ids=str)
def test_every_unit_reveals_itself_to_the_mask_probe(adder):
    """+M at i, -M at j, ones elsewhere. An exact adder loses nothing, so the probe cannot see it."""
    fmt, n = adder.input, adder.terms + 5
    largest = min(fmt.emax, 60 if adder.output is not f16 else 7)
    one, m = max(fmt.smallest_subnormal, 2.0**-10), 2.0**largest
    pairs = list(itertools.combinations(range(n), 2))[:: 1 + n // 8]
    a, b = np.full((len(pairs), n), one), np.full((len(pairs), n), one)
    for row, (i, j) in enumerate(pairs):
        a[row, [i, j]], b[row, [i, j]] = (m, -m), m
    tree = Order(f"fused:{adder}").tree(n)
    counted = reduce.dot(a, b, precision_for(adder)).astype(np.float64) / one**2
    if (m / one) ** 2 > n * 2.0 ** (adder.fraction_bits + 2):  # the format reaches so far that all ones are lost
        assert counted.tolist() == [tree.survivors(i, j) for i, j in pairs]


def test_a_flat_join_of_a_file_is_a_shape_and_no_order(tmp_path):
    write_tree(Order("fused:4").tree(8), tmp_path / "tree.json")
    with pytest.raises(OrderError, match="fused:UNIT does"):
        Order(f"tree:@{tmp_path / 'tree.json'}")


# --- words ----------------------------------------------------------------------------------------------------------


def test_every_unit_has_a_source_and_evidence():
    assert len(UNITS) == 70
    for adder in UNITS:
        assert adder.source
        assert adder.evidence.endswith(".")
        assert adder.name == adder.name.strip().lower()
        assert Order(str(Order(f"fused:{adder}"))).adder == adder


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fused", "fused:UNIT"), ("fused:nvidia-hoper-bf16", "Did you mean 'nvidia-hopper-bf16'?"),
        ("fused:0", "from 1 to 1024; found '0'"), ("fused:8:60", "from 1 to 46"), ("fused:1024:46", "at most 53"),
        ("fused:8:24:rz", "unknown rounding mode"), ("fused:8:24:toward_zero:5", "from -512 to 0"),
        ("fused:8:24:toward_zero:-132:1", "too many"), ("fused:8 > seq", "'fused' has no blocks"),
        ("fused:", "Unknown"),
    ],
)  # fmt: skip
def test_what_is_no_adder_is_refused(text, says):
    with pytest.raises(OrderError) as caught:
        Order(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        ("acc=exact", "neither compensated nor exact"), ("acc=f32+kahan", "neither compensated nor exact"),
        ("acc=f16", "it gives values of f32"), ("product=f32", "its products are exact"),
        ("rounding=toward_positive", "it has toward_zero"), ("subnormals=ftz", "what it flushes is part of it"),
        ("acc.overflow=saturate", "infinite"), ("storage=f16", "it reads bf16"), ("storage=f32", "it reads bf16"),
    ],
)  # fmt: skip
def test_stages_that_a_unit_does_not_have_are_refused(stages, says):
    text = f"order=fused:nvidia-hopper-bf16,{stages}"
    with pytest.raises(PrecisionError) as caught:
        precision_of(text if "storage" in stages else f"storage=bf16,{text}")
    assert says in str(caught.value)


def test_zeros_count_as_less_than_the_accumulator_can_hold():
    precision_of("storage=f16,acc=f16,order=fused:8:24:ties_to_even:-21")
    with pytest.raises(PrecisionError, match="zeros would count"):
        precision_of("storage=f16,acc=f16,order=fused:8:24:ties_to_even:-3")
