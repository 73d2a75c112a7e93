"""Rounding by float64's own rounding and underflow: every value and middle of small formats, and what it cannot."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.numerics import kernels
from softfloat_llm.numerics.accumulate import arithmetic_of, follow
from softfloat_llm.numerics.formats import decode, format_of
from softfloat_llm.numerics.operands import rounded_product
from softfloat_llm.numerics.precision import precision_of
from softfloat_llm.numerics.rounding import round_wide
from softfloat_llm.numerics.tiles import in_turn
from softfloat_llm.numerics.underflow_rounding import constants_of, lowest_bit, reach, steps_of

FORMATS = ["f16", "bf16", "e5m2", "e4m3", "e3m4", "e5m7", "tf32"]


def values_of(fmt):
    """All finite values that are not negative, in order (of tf32, those of some binades)."""
    if fmt.bits <= 16:
        wide = decode(np.arange(1 << fmt.bits, dtype=fmt.code_dtype), fmt)
    else:
        binades = [fmt.emin, fmt.emin + 1, -1, 0, 1, fmt.emax]
        wide = np.concatenate([np.ldexp(1 + np.arange(1 << 10) / (1 << 10), e) for e in binades])
        wide = np.append(wide, np.arange(1 << 10) * fmt.smallest_subnormal)
    return np.unique(np.abs(wide[np.isfinite(wide)]))


def around_every_middle(fmt):
    """Each value, the middle to the next, and a little beside both, down to the last bit that may be there."""
    values = values_of(fmt)
    gaps = np.diff(values)
    found = [values, values[:-1] + gaps / 2]
    for bits in (2, 3, 7, 51 - fmt.precision):
        for sign in (-1, 1):
            found += [values[:-1] + sign * gaps * 2.0**-bits, values[:-1] + gaps / 2 + sign * gaps * 2.0**-bits]
    every = np.concatenate(found)
    every = every[(every >= 0) & (every <= fmt.max) & (np.remainder(every, lowest_bit(fmt)) == 0)]
    return np.concatenate([every, -every])


@pytest.mark.parametrize("name", FORMATS)
def test_every_value_and_what_lies_around_every_middle_is_rounded_once(name):
    fmt = format_of(name)
    steps = steps_of(precision_of(f"storage={name},acc={name}"))
    every = around_every_middle(fmt)
    expected = round_wide(every, fmt)
    for step in range(0, steps.count, 3):  # each step has constants of its own
        acc, terms = np.zeros((1, every.size)), np.zeros((step + 1, 1, every.size))
        terms[step] = every * steps.factors[step]
        with np.errstate(under="ignore", over="ignore"):
            steps.run(acc, terms, step + 1, has_floor=True)
        assert (acc[0] == expected).all()  # -0 == +0: signs of zeros are put back by `Narrow`
        assert (np.signbit(terms[-1, 0]) == np.signbit(every))[every != 0].all()


@pytest.mark.parametrize("name", FORMATS)
def test_without_a_floor_normal_sums_and_whole_subnormals_are_rounded_the_same(name):
    fmt = format_of(name)
    steps = steps_of(precision_of(f"storage={name},acc={name}"))
    every = around_every_middle(fmt)
    every = every[np.remainder(every, fmt.smallest_subnormal) == 0]
    acc = np.zeros((1, every.size))
    steps.run(acc, every[None, None] * steps.factors[0], 1, has_floor=False)
    assert (acc[0] == round_wide(every, fmt)).all()


def test_products_are_rounded_by_every_pair_of_constants():
    at = precision_of("storage=f16,acc=f16,product=f16")
    steps, fmt = steps_of(at), format_of("f16")
    rng = np.random.default_rng(3)
    pairs = decode(rng.integers(0, 1 << 16, (2, steps.count + 3, 1, 20000), np.uint16), fmt)
    pairs = np.where(np.isfinite(pairs) & (np.abs(pairs) < 250), pairs, 2.0**-10)
    products = pairs[0] * pairs[1]
    factors = in_turn(steps.factors, 1, len(products))[..., None]
    found = products * factors
    with np.errstate(under="ignore"):
        steps.round_products(found, np.empty_like(found), 1)
    assert (found / (factors * 2.0 ** -constants_of(fmt).shift) == round_wide(products, fmt)).all()


def sums(a, b, at, start=None):
    """The evident form."""
    left, right = np.asarray(a, np.float64), np.asarray(b, np.float64)
    program = at.order.tree(left.shape[1]).program()
    terms = rounded_product(left.T[:, :, None], right[:, None, :], at)
    return follow(program, terms.__getitem__, arithmetic_of(at.acc, at), (left.shape[0], right.shape[1]), start)


@pytest.mark.parametrize("backend", kernels.BACKENDS)
@pytest.mark.parametrize(("name", "power"), [("f16", 5), ("f16", 9), ("bf16", 5), ("bf16", 60)])
def test_a_trifle_that_carries_a_sum_just_below_a_power_of_two_takes_another_way(backend, name, power):
    """32 - 2^-48 lies so close below 32 that 2^42 t + t is in the next binade: by itself, it comes out as 31.98."""
    if backend == "numba":
        pytest.importorskip("numba")
    at = precision_of(f"storage={name},acc={name}")
    fmt, shift = format_of(name), constants_of(format_of(name)).shift
    large, trifle = 2.0**power, 2.0 ** (power - 53)
    steps, acc = steps_of(at), np.full((1, 1), large)
    with np.errstate(under="ignore"):
        steps.run(acc, np.array([[[-trifle * steps.factors[0]]]]), 1, has_floor=True)
    assert acc[0, 0] != large  # so the condition is needed,
    assert trifle < reach(fmt, large)  # and it is seen
    for exponent in range(power - 55, power - shift + 4):
        a = np.array([[large, 2.0 ** (exponent // 2)], [-large, 2.0 ** (exponent // 2)]])
        b = np.array([[1.0, 1.0], [-(2.0 ** (exponent - exponent // 2)), 2.0 ** (exponent - exponent // 2)]])
        if np.array_equal(round_wide(a, fmt), a) and np.array_equal(round_wide(b, fmt), b):
            assert (kernels.matmul(a, b, at, backend=backend) == sums(a, b, at)).all()


@pytest.mark.parametrize("backend", kernels.BACKENDS)
@pytest.mark.parametrize("text", ["f16,acc=f16", "bf16,acc=bf16", "f16,acc=f16,product=f16", "f16,acc=bf16"])
def test_long_chains_whose_conditions_hold_for_some_terms_only(backend, text):
    """Terms of ordinary size, trifles and zeros, in chains of several rounds of constants."""
    if backend == "numba":
        pytest.importorskip("numba")
    at, rng = precision_of(f"storage={text}"), np.random.default_rng(11)
    for trifles in (0.02, 0.5):
        scale = rng.choice([1.0, 2.0**-20, 0.0], (2, 200), p=[0.9 - trifles, trifles, 0.1])
        a = round_wide(rng.standard_normal((3, 200)) * 8 * scale[0], at.storage)
        b = round_wide(rng.standard_normal((200, 40)) * 8 * scale[1][:, None], at.storage)
        assert (kernels.matmul(a, b, at, backend=backend) == sums(a, b, at)).all()


def test_formats_that_float64_has_no_room_for_have_no_steps():
    assert steps_of(precision_of("storage=tf32,acc=e8m20")) is None  # too many bits
    assert constants_of(format_of("f64")) is None  # too far


def bits(x):
    return np.asarray(x, np.float64).view(np.uint64)


@pytest.mark.parametrize("backend", kernels.BACKENDS)
def test_a_sum_that_is_a_trifle_beside_the_next_term_takes_another_way(backend):
    """-1 + 3 * 2^-53 has 53 bits and lies just below a power of two, and the trifle is what the sum was before."""
    if backend == "numba":
        pytest.importorskip("numba")
    at = precision_of("storage=bf16,acc=bf16,product=bf16")
    trifles = np.arange(1.0, 256.0) * 2.0 ** -np.arange(46.0, 61.0)[:, None]
    one, ones = np.full((len(trifles), 1), -1.0), np.ones((1, trifles.shape[1]))
    assert (kernels.matmul(one, ones, at, init=trifles, backend=backend) == sums(one, ones, at, trifles)).all()
    row = trifles.reshape(1, -1)  # the trifle as the term before
    a, b = np.array([[1.0, -1.0, -1.0]]), np.stack([row[0], 0 * row[0] + 1, 0 * row[0] + 1])
    assert (kernels.matmul(a, b, at, backend=backend) == sums(a, b, at)).all()


@pytest.mark.parametrize("backend", kernels.BACKENDS)
def test_a_sum_that_starts_at_minus_zero_stays_so_while_zeros_enter(backend):
    """With products on the accumulator's grid, no other sum can become -0."""
    if backend == "numba":
        pytest.importorskip("numba")
    at, start = precision_of("storage=f16,acc=f16,product=f16"), np.array([[-0.0, 0.0, -0.0, 1.0]])
    a, b = np.array([[-0.0, 0.0]]), np.array([[2.0, 2.0, 2.0, 2.0], [-2.0, -2.0, 2.0, -2.0]])
    assert (bits(kernels.matmul(a, b, at, init=start, backend=backend)) == bits(sums(a, b, at, start))).all()


@pytest.mark.parametrize("text", ["tf32,acc=tf32", "f16,acc=f16,product=bf16", "e4m3,acc=e4m3,product=f32"])
def test_compiled_steps_that_go_one_by_one_say_which_signs_the_sums_have(text):
    """A row of zeros makes `enter` give zeros their signs, from what every way of adding must have left there."""
    pytest.importorskip("numba")
    at, rng = precision_of(f"storage={text}"), np.random.default_rng(4)
    for scale in (1.0, at.acc.format.max / 300):  # the second may be beyond the range
        a = round_wide(rng.standard_normal((3, 30)) * 8 * rng.choice([1.0, 2.0**-6], 30), at.storage)
        b = round_wide(rng.standard_normal((30, 17)) * rng.choice([scale, 2.0**-50], (30, 1)), at.storage)
        a[1] = 0.0
        assert (bits(kernels.matmul(a, b, at, backend="numba")) == bits(sums(a, b, at))).all()


@pytest.mark.parametrize("name", FORMATS)
def test_more_steps_than_the_range_of_float64_has_room_for_are_made_in_rounds(name):
    at = precision_of(f"storage={name},acc={name}")
    steps, fmt = steps_of(at), format_of(name)
    n = 2 * steps.count + 1
    terms = round_wide(np.random.default_rng(5).standard_normal((n, 1, 500)) * min(1.0, fmt.max / 256), fmt)
    expected = np.zeros((1, 500))
    for term in terms:
        expected = round_wide(expected + term, fmt)
    acc = np.zeros((1, 500))
    with np.errstate(under="ignore"):
        steps.run(acc, terms * in_turn(steps.factors, 0, n)[..., None], n, has_floor=True)
    assert (acc == expected).all()


def test_no_terms_leave_a_sum_as_it_is():
    at, acc = precision_of("storage=f16,acc=f16"), np.full((2, 3), 1.5)
    steps_of(at).run(acc, [], 0, has_floor=True)
    assert (acc == 1.5).all()
    assert (kernels.matmul(np.zeros((2, 0)), np.zeros((0, 3)), at, init=acc) == 1.5).all()


@pytest.mark.parametrize("backend", kernels.BACKENDS)
@pytest.mark.parametrize("product", ["exact", "f16"])
def test_sums_that_cannot_be_made_by_underflow_leave_those_beside_them_as_they_are(backend, product):
    """The first 600 columns are large, so that the least terms may be trifles beside them; the others are small."""
    if backend == "numba":
        pytest.importorskip("numba")
    at, rng = precision_of(f"storage=f16,acc=f16,product={product}"), np.random.default_rng(13)
    scale = np.where((np.arange(60) < 30) | (np.arange(60) >= 40), 1.0, 2.0**-14)  # some terms are nearly nothing
    a = round_wide(rng.standard_normal((2, 60)) * scale, at.storage)
    b = round_wide(rng.standard_normal((60, 1300)) * np.where(np.arange(1300) < 600, 512.0, 2.0**-9), at.storage)
    expected = sums(a, b, at)
    for workers in (1, 3):
        assert kernels.matmul(a, b, at, backend=backend, workers=workers).tobytes() == expected.tobytes()
