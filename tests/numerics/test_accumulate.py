"""The evident arithmetic: compensated sums against their papers, the exact accumulator against fractions, DAZ, init."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.accumulate import (
    NativeF32,
    arithmetic_of,
    follow,
)
from softfloat_llm.numerics.carriers import widen
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.formats import format_of
from softfloat_llm.numerics.modes import MODES
from softfloat_llm.numerics.native_sums import enters_in_turn, native_squares, native_sum
from softfloat_llm.numerics.precision import precision_of
from softfloat_llm.numerics.rounding import round_to
from tests.oracle import ExactMachine, add_up, assert_same, joined, kahan_sum, neumaier_sum

COMPENSATED = {"kahan": kahan_sum, "neumaier": neumaier_sum}


def wide_terms(rng, shape, fmt="f32"):
    """Terms of many sizes, so that every addition loses bits."""
    return round_to(np.ldexp(rng.standard_normal(shape), rng.integers(-12, 13, shape)), fmt, overflow="saturate")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("method", COMPENSATED)
def test_compensated_sums_equal_the_paper_step_by_step(method, fmt, mode):
    rng = np.random.default_rng(5)
    at = f"storage={fmt},acc={fmt}+{method},rounding={mode}"
    for n in (0, 1, 2, 3, 10, 40):
        x = wide_terms(rng, (6, n), fmt)
        machine = ExactMachine(fmt, mode)
        want = [COMPENSATED[method](row, machine) for row in x.astype(np.float64).tolist()]
        assert_same(reduce.sum(x, at), want)


@pytest.mark.parametrize("method", COMPENSATED)
def test_compensated_dot_products_round_each_exact_product_to_the_accumulator(method):
    rng = np.random.default_rng(6)
    a, b = wide_terms(rng, (5, 30), "f16"), wide_terms(rng, (5, 30), "f16")
    products = a.astype(np.float64) * b.astype(np.float64)
    want = [COMPENSATED[method](row, ExactMachine("f16")) for row in products.tolist()]
    assert_same(reduce.dot(a, b, f"storage=f16,acc=f16+{method}"), want)


@pytest.mark.parametrize("method", COMPENSATED)
def test_compensated_lanes_join_by_the_value_of_each_lane(method):
    """Each lane is compensated; the value of one enters the other as a term of its own."""
    rng = np.random.default_rng(7)
    x = wide_terms(rng, (6, 21), "bf16").astype(np.float64)
    machine = ExactMachine("bf16")
    got = reduce.sum(x, f"storage=bf16,acc=bf16+{method},order=lanes:2")
    want = []
    for row in x.tolist():
        odd = COMPENSATED[method](row[1::2], machine)
        want.append(COMPENSATED[method]([*row[0::2], odd], machine))
    assert_same(got, want)


def test_kahan_and_neumaier_keep_what_a_plain_sum_loses():
    x = [1.0] + [2.0**-24] * 256
    assert reduce.sum(x, "storage=f32,acc=f32") == 1.0
    assert reduce.sum(x, "storage=f32,acc=f32+kahan") == 1 + 2.0**-16
    peters = [1.0, 1e30, 1.0, -1e30]  # where Neumaier's variant wins
    peters = round_to(peters, "f32")
    assert reduce.sum(peters, "storage=f32,acc=f32+kahan") == 0.0
    assert reduce.sum(peters, "storage=f32,acc=f32+neumaier") == 2.0


# --- The exact accumulator ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("output", ["f32", "bf16", "f16", "e4m3fn", "f64"])
def test_the_exact_sum_is_the_fraction_rounded_once(output, mode):
    rng = np.random.default_rng(8)
    at = f"storage=f32,acc=exact,output={output},rounding={mode}"
    for n in (1, 2, 9, 64):
        x = wide_terms(rng, (12, n))
        x[:6] *= np.float32(2.0**-100)
        x[3] = -x[3, ::-1] if n == 1 else np.concatenate([x[3, : n // 2], -x[3, : n // 2], np.zeros(n % 2, np.float32)])
        sums = [sum(map(Fraction, row), Fraction(0)) for row in x.astype(np.float64).tolist()]
        zero = -0.0 if mode == "toward_negative" else 0.0
        assert_same(reduce.sum(x, at), [round_exact(s if s else zero, output, mode) for s in sums])


@pytest.mark.parametrize("storage", ["f16", "bf16", "f32", "e4m3fn"])
def test_the_exact_dot_product_is_the_fraction_rounded_once_in_every_order(storage):
    rng = np.random.default_rng(9)
    a, b = wide_terms(rng, (4, 50), storage), wide_terms(rng, (4, 50), storage)
    pairs = zip(a.astype(float).tolist(), b.astype(float).tolist(), strict=True)
    sums = [sum((Fraction(x) * Fraction(y) for x, y in zip(*p, strict=True)), Fraction(0)) for p in pairs]
    want = [round_exact(s, "f32") for s in sums]
    for order in ("seq", "pairwise", "perm:5", "lanes:8"):
        at = f"storage={storage},acc=exact,output=f32,order={order}"
        assert_same(reduce.dot(a, b, at), want)
        assert_same(np.diagonal(reduce.matmul(a, b.T, at)), want)


def test_the_exact_sum_survives_what_a_float64_sum_cannot():
    x = round_to([2.0**100, 1.0, -(2.0**100), 2.0**-140], "f32")
    assert reduce.sum(x, "storage=f32,acc=exact") == 1.0
    assert reduce.sum(x, "storage=f32,acc=exact,rounding=toward_positive") == 1 + 2.0**-23


def test_exact_sums_of_nothing_of_specials_and_of_zeros():
    at = "storage=bf16,acc=exact"
    assert_same(reduce.sum([], at), 0.0)
    assert_same(reduce.sum(np.zeros((0, 5)), at), np.zeros(0))
    assert_same(reduce.sum(np.zeros((2, 0)), at), np.zeros(2))
    assert_same(reduce.sum([np.inf, 1.0], at), np.inf)
    assert_same(reduce.sum([np.inf, -np.inf], at), np.nan)
    assert_same(reduce.sum([-0.0, -0.0], at), 0.0)  # as every running sum, it starts at +0
    assert_same(reduce.sum([1.0, -1.0], at + ",rounding=toward_negative"), -0.0)
    assert_same(reduce.sum([0.0, 0.0], at + ",rounding=toward_negative"), 0.0)


def test_an_exact_sum_starts_at_init():
    assert reduce.sum([2.0**-140], "storage=f32,acc=exact,rounding=toward_positive", init=1.0) == 1 + 2.0**-23


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=12))
def test_the_exact_sum_does_not_depend_on_the_sequence_of_terms(x):
    at = "storage=f32,acc=exact"
    assert_same(reduce.sum(x, at), reduce.sum(x[::-1], at))
    total = sum(map(Fraction, x), Fraction(0))
    assert_same(reduce.sum(x, at), round_exact(total, "f32"))


# --- Modes, overflow, subnormals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_the_accumulator_rounds_each_step(mode):
    x = wide_terms(np.random.default_rng(10), (8, 25), "bf16")
    want = [add_up(row, ExactMachine("bf16", mode)) for row in x.astype(float).tolist()]
    assert_same(reduce.sum(x, f"storage=bf16,acc=bf16,acc.rounding={mode}"), want)
    machine = ExactMachine("bf16", mode)
    lanes = [[add_up(row[lane::4], machine) for lane in range(4)] for row in x.astype(float).tolist()]
    want = [joined(partials, "half", machine) for partials in lanes]
    assert_same(reduce.sum(x, f"storage=bf16,acc=bf16,acc.rounding={mode},order=lanes:4"), want)


def test_a_saturating_accumulator_stays_at_the_largest_value():
    x = np.array([60000, 60000, -60000], np.float16)
    assert reduce.sum(x, "storage=f16,acc=f16") == math.inf
    assert reduce.sum(x, "storage=f16,acc=f16,acc.overflow=saturate") == 65504.0 - 60000.0


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_daz_flushes_both_operands_where_partial_sums_join(is_mirrored):
    """2^-126 (1.25 - 1) = 2^-128 is kept (no ftz), but as an operand of the join it counts as a zero."""
    x = 2.0**-126 * np.array([1.25, -1.0, 1.0, 0.0])
    x = np.roll(x, 2) if is_mirrored else x
    assert reduce.sum(x, "storage=f32,acc=f32,order=pairwise,acc.subnormals=daz") == 2.0**-126
    assert reduce.sum(x, "storage=f32,acc=f32,order=pairwise") == 1.25 * 2.0**-126


def test_daz_flushes_a_rounded_product_but_not_a_fused_one():
    a, b, start = [2.0**-100], [2.0**-27], 2.0**-126
    assert reduce.dot(a, b, "storage=f32,acc=f32,acc.subnormals=daz", init=start) == 1.5 * 2.0**-126
    assert reduce.dot(a, b, "storage=f32,product=f32,acc=f32,acc.subnormals=daz", init=start) == 2.0**-126


def test_the_accumulator_starts_at_init_in_a_chain_and_is_added_to_a_tree():
    """256 + 1 + 1 in bf16: a chain that starts at 256 loses both; a tree adds 2 to it."""
    ones = np.ones(2)
    assert reduce.sum(ones, "storage=bf16,acc=bf16", init=256.0) == 256.0
    assert reduce.sum(ones, "storage=bf16,acc=bf16,order=pairwise", init=256.0) == 258.0
    assert reduce.sum(ones, "storage=bf16,acc=bf16,order=blocked:2", init=256.0) == 258.0


def test_the_input_is_not_changed():
    x = wide_terms(np.random.default_rng(0), 9).astype(format_of("f32").dtype)
    before = x.tobytes()
    for acc in ("f32", "f32+kahan", "f32+neumaier", "exact", "bf16"):
        reduce.sum(x, f"storage=f32,acc={acc},subnormals=ftz+daz")
    assert x.tobytes() == before


def test_an_exact_sum_whose_partial_sums_leave_float64_is_exact_all_the_same():
    at = "storage=f64,product=f64,acc=exact,output=f64"
    assert reduce.sum([1e308, 1e308, -1e308], at) == 1e308
    assert reduce.sum([1e308, 1e308], at) == np.inf


@pytest.mark.parametrize("order", ["seq", "lanes:4", "blocked:5", "pairwise"])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 17, 64])
def test_float32_additions_of_runs_of_terms_are_the_plain_steps(order, n):
    """A run of evenly spaced terms is a view of them; its twin takes the terms one by one."""
    at = precision_of(f"storage=bf16,product=f32,acc=f32,order={order}")
    terms = wide_terms(np.random.default_rng(4), (n, 7)).astype(np.float64)
    program = at.order.tree(n).program()
    native = arithmetic_of(at.acc, at, terms)
    assert isinstance(native, NativeF32)
    got = follow(program, terms.__getitem__, native, (7,), None)
    assert_same(got, follow(program, lambda k: terms[k], arithmetic_of(at.acc, at), (7,), None))


@pytest.mark.parametrize("order", ["seq", "lanes:4", "blocked:5", "pairwise"])
@pytest.mark.parametrize("fmt", ["bf16", "f16", "f32", "e4m3fn"])
def test_squares_in_float32_are_a_dot_product_with_itself(fmt, order):
    """Also where squares overflow, or are subnormal, and where there are none."""
    at = precision_of(f"storage={fmt},product=f32,acc=f32,order={order},output=f32")
    for n in (0, 1, 2, 65):
        drawn = np.random.default_rng(n).standard_normal((5, n))
        x = round_to(drawn * np.array([1.0, 2.0**-70, 2.0**66, 2.0**-60, 0.0])[:, None], fmt)
        assert_same(native_squares(x, at), reduce.dot_stages(x, x, at).acc)


@pytest.mark.parametrize("words", [
    "product=f64", "product=bf16", "product.rounding=toward_zero", "acc.rounding=toward_zero", "acc=f32+kahan",
    "acc=exact", "acc=f16", "acc.subnormals=ftz", "storage.subnormals=daz", "product.overflow=saturate", "storage=f16",
])  # fmt: skip
def test_other_squares_are_not_for_float32(words):
    keys = {"storage": "bf16", "product": "f32"} | dict([words.split("=")])
    assert native_squares(round_to(np.ones((2, 3)), "bf16"), precision_of(keys)) is None


@pytest.mark.parametrize("order", ["seq", "reverse", "pairwise", "lanes:4"])
def test_native_sums_are_those_of_the_program(order):
    """One after another too, where a state of +0 is not added first: -0 alone sums to +0."""
    at = precision_of(f"storage=f32,acc=f32,order={order}")
    x = np.random.default_rng(3).standard_normal((3, 2, 37)).astype(np.float32)
    x[0], x[1, 0], x[2, 0, 5] = -0.0, 0.0, np.nan
    found = native_sum(x, at)
    for row, total in zip(x.reshape(6, -1), found.reshape(-1), strict=True):
        expected = follow(at.order.tree(37).program(), widen(row).__getitem__, arithmetic_of(at.acc, at), (), None)
        assert np.float32(expected).tobytes() == total.tobytes() or (np.isnan(expected) and np.isnan(total))
    assert native_sum(widen(x), at) is None
    assert native_sum(x, precision_of("storage=f32,acc=f32,rounding=toward_zero")) is None
    assert enters_in_turn(at.order, 37) == (order == "seq")
    assert not enters_in_turn(at.order, 0)
