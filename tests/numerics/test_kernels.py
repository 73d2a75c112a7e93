"""Every fast form of matmul against its slow twin: `accumulate.follow` over rounded products, bit for bit."""

from __future__ import annotations

import itertools
import os
import signal
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest

from softfloat_llm.errors import FormatError
from softfloat_llm.numerics import kernels
from softfloat_llm.numerics.accumulate import arithmetic_of, exact_sum, follow
from softfloat_llm.numerics.formats import Array, Format, decode, format_of
from softfloat_llm.numerics.modes import MODES
from softfloat_llm.numerics.operands import carried, operand, rounded_product
from softfloat_llm.numerics.paths import path_of
from softfloat_llm.numerics.precision import EXACT, Precision, precision_of
from softfloat_llm.numerics.rounding import round_to

ORDERS = [
    "seq", "reverse", "pairwise", "tree:adj", "tree:half", "lanes:4", "lanes:8:adj", "blocked:7", "split-k:3",
    "split-k:2:bf16", "perm:5", "blocked:32 > lanes:2", "blocked:9:bf16", "blocked:16:f16 > lanes:2", "lanes:8:bf16",
]  # fmt: skip
MASKED_ORDERS = ["seq", "lanes:4", "split-k:3", "blocked:9:bf16", "pairwise"]  # of many forms that differ in one step
FAST = {
    "f32 native, exact products": ("f16,acc=f32", "native"),
    "f32 native, products that can leave float32": ("bf16,acc=f32", "native"),
    "f32 native, tf32 products": ("tf32,acc=f32", "native"),
    "f32 native, 8-bit products": ("e4m3fn,acc=f32", "native"),
    "f32 native, rounded products": ("f32,acc=f32,product=f32", "native"),
    "f32 native, products rounded to bf16": ("bf16,acc=f32,product=bf16", "native"),
    "f32 native, products of f32 rounded to f16": ("f32,acc=f32,product=f16", "native"),
    "f32 native, flushing (VDPBF16PS)": ("bf16,acc=f32,subnormals=ftz+daz", "native"),
    "f32 native, flushing, rounded products": ("f32,acc=f32,product=f32,subnormals=ftz+daz", "native"),
    "f64 native": ("f32,acc=f64", "native"),
    "f64 native, rounded products": ("f64,acc=f64,product=f64", "native"),
    "f64 native, products rounded to f32": ("f32,acc=f64,product=f32", "native"),
    "f64 native, products rounded to bf16": ("f16,acc=f64,product=bf16", "native"),
    "f32 fused": ("f32,acc=f32", "fused"),
    "f16 fused": ("f16,acc=f16", "narrow"),
    "f16, rounded products": ("f16,acc=f16,product=f16", "narrow"),
    "bf16 fused": ("bf16,acc=bf16", "narrow"),
    "bf16, rounded products": ("bf16,acc=bf16,product=bf16", "narrow"),
    "bf16, products of f32 rounded to f32": ("f32,acc=bf16,product=f32", "narrow"),
    "tf32 fused": ("tf32,acc=tf32", "narrow"),
    "f16 storage, bf16 fused": ("f16,acc=bf16", "narrow"),
    "bf16 storage, f16 fused": ("bf16,acc=f16", "narrow"),
    "e4m3 fused": ("e4m3,acc=e4m3", "narrow"),
    "e5m2 storage, e5m7 fused": ("e5m2,acc=e5m7", "narrow"),
    "e3m4, products rounded to f16": ("e3m4,acc=e3m4,product=f16", "narrow"),
}
FAST |= {
    f"{text}, {mode}": (f"{text},acc.rounding={mode}", "masked")
    for text in ("f16,acc=f16", "bf16,acc=bf16", "f16,acc=f32", "e4m3fn,acc=e4m3fn", "f16,acc=f16,product=f16")
    for mode in MODES
    if mode != "ties_to_even"
} | {
    "f16, saturating": ("f16,acc=f16,acc.overflow=saturate", "masked"),
    "e4m3fn fused": ("e4m3fn,acc=e4m3fn", "masked"),
    "e4m3fnuz, products rounded to f16": ("e4m3fnuz,acc=e4m3fnuz,product=f16", "masked"),
    "e2m3fn fused, toward zero": ("e2m3fn,acc=e2m3fn,acc.rounding=toward_zero", "masked"),
}
EVIDENT = [
    "f32,acc=f32,acc.rounding=toward_zero", "f16,acc=f16,subnormals=ftz+daz", "f32,acc=f32+kahan",
    "f16,acc=f16+neumaier", "f32,acc=f16", "f32,acc=bf16", "f32,acc=f32,subnormals=ftz+daz",
    "bf16,acc=f32,product=f32,product.rounding=toward_zero", "f16,acc=f32,product=e4m3fn", "f32,acc=f16,product=f64",
    "f16,acc=f16,acc.rounding=toward_zero,product=f16,product.rounding=toward_zero",
]  # fmt: skip


@pytest.fixture(params=kernels.BACKENDS, autouse=True)
def _each_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test here is made with each backend's steps."""
    if request.param == "numba":
        pytest.importorskip("numba")
    monkeypatch.setattr(kernels, "NUMPY", kernels.kit_of(request.param))


def at_of(text: str, order: str = "seq") -> Precision:
    return precision_of(f"storage={text},order={order}")


def twin(a: Array, b: Array, at: Precision, init: Array | None = None) -> Array:
    left, right = operand(a, "a", at), operand(b, "b", at)
    if at.acc == EXACT:
        terms = rounded_product(left[:, None, :], right.T[None, :, :], at)
        if init is not None:
            terms = np.concatenate([terms, init[..., None]], axis=-1)
        with np.errstate(all="ignore"):
            return exact_sum(terms, at)
    program = at.order.tree(a.shape[1]).program()
    shape = (a.shape[0], b.shape[1])
    return follow(
        program, lambda k: rounded_product(left[:, k, None], right[k], at), arithmetic_of(at.acc, at), shape, init
    )


def assert_same_bits(found: Array, expected: Array, what: Any = "") -> None:
    with np.errstate(invalid="ignore"):  # signalling NaN
        found = found.astype(np.float64)
    is_same = (found.view(np.int64) == expected.view(np.int64)) | (np.isnan(found) & np.isnan(expected))
    where = np.argwhere(~is_same)
    if len(where):
        first, wanted = float(found[~is_same][0]).hex(), float(expected[~is_same][0]).hex()
        pytest.fail(f"{what}: {len(where)} of {is_same.size} differ, at {where[0]} {first}, expected {wanted}")


def rng_of(*key: Any) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def everyday(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format) -> Array:
    return round_to(rng.standard_normal(shape) * 2.0 ** rng.integers(-3, 2), fmt)


def any_code(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format) -> Array:
    if fmt.bits == 64:
        return rng.integers(0, 1 << 64, shape, np.uint64).view(np.float64)
    return decode(rng.integers(0, 1 << fmt.bits, shape, np.uint64), fmt).astype(fmt.dtype)


def finite_code(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format) -> Array:
    values = any_code(rng, shape, fmt).astype(np.float64)
    return np.where(np.isfinite(values), values, 1.0).astype(fmt.dtype)


def tiny(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format) -> Array:
    scale = fmt.smallest_normal ** rng.choice([0.5, 0.6, 1.0])
    return round_to(rng.standard_normal(shape) * scale * rng.choice([0.0, 0.01, 1.0, 1.0], shape), fmt)


def huge(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format) -> Array:
    scale = fmt.max ** rng.choice([0.4, 0.5, 0.55])
    return round_to(rng.standard_normal(shape) * scale * rng.choice([1e-3, 1.0], shape), fmt, overflow="saturate")


def short(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format) -> Array:
    """Small integers by powers of two, far apart: many exact ties, many cancellations, zeros of both signs."""
    values = rng.integers(-3, 4, shape) * 2.0 ** rng.choice([-fmt.precision, 0, 0, 1, 4], shape)
    return round_to(np.where(rng.random(shape) < 0.1, -0.0, values), fmt, overflow="saturate")


def trifles(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format) -> Array:
    """A trifle enters first and decides ties of what comes later (where the format reaches far enough)."""
    far = max(fmt.smallest_normal, 2.0**-60) ** rng.choice([0.5, 1.0])
    values = (1 + rng.integers(0, 2, shape) * fmt.eps) * rng.choice([-1, 1], shape)
    return round_to(values * rng.choice([far, 1.0, 0.0], shape, p=[0.3, 0.4, 0.3]), fmt)


DATA = [everyday, any_code, finite_code, tiny, huge, short, trifles]


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("make", DATA)
def test_fast_form_equals_its_twin_in_every_order(name: str, make: Any) -> None:
    text, path = FAST[name]
    for order in ORDERS if path != "masked" else MASKED_ORDERS:
        at = at_of(text, order)
        assert path_of(at) == path
        rng = rng_of(name, make.__name__, order)
        a, b = make(rng, (5, 47), at.storage), make(rng, (47, 33), at.storage)
        assert_same_bits(kernels.matmul(a, b, at), twin(a, b, at), (name, order))


@pytest.mark.parametrize("text", EVIDENT)
def test_the_other_modes_take_the_evident_form(text: str) -> None:
    assert path_of(at_of(text)) == "evident"
    for order, make in itertools.product(["seq", "pairwise", "lanes:4"], [everyday, finite_code, huge]):
        at = at_of(text, order)
        rng = rng_of(text, order, make.__name__)
        a, b = make(rng, (5, 33), at.storage), make(rng, (33, 7), at.storage)
        assert_same_bits(kernels.matmul(a, b, at), twin(a, b, at), (text, order))


@pytest.mark.parametrize("name", FAST)
def test_fast_form_equals_its_twin_in_every_shape_and_with_initial_values(name: str) -> None:
    at = at_of(FAST[name][0])
    for m, k, n in itertools.product((1, 2, 5, 33), (0, 1, 2, 33), (1, 2, 5, 33)):
        rng = rng_of(name, m, k, n)
        a, b = finite_code(rng, (m, k), at.storage), finite_code(rng, (k, n), at.storage)
        assert_same_bits(kernels.matmul(a, b, at), twin(a, b, at), (m, k, n))
        assert at.acc.format is not None
        init = finite_code(rng, (m, n), at.acc.format).astype(np.float64)
        for order in ("seq", "pairwise", "split-k:2:bf16", "blocked:8:bf16"):
            with_order = at_of(FAST[name][0], order)
            found = kernels.matmul(a, b, with_order, init=init)
            assert_same_bits(found, twin(a, b, with_order, init), (m, k, n, order))


EXACT_TEXTS = [
    "f16,acc=exact", "bf16,acc=exact", "f32,acc=exact", "f32,acc=exact,output=f64", "e5m2,acc=exact,output=f32",
    "f32,acc=exact,output=bf16", "tf32,acc=exact,output=f16", "bf16,acc=exact,output=f32,product=bf16",
    "f64,acc=exact,product=f64", "f32,acc=exact,subnormals=ftz+daz",
    *(f"f32,acc=exact,output=f16,output.rounding={mode}" for mode in MODES),
    *(f"f32,acc=exact,output=f64,output.rounding={mode}" for mode in MODES),
]  # fmt: skip


def cancelling(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format) -> Array:
    """Columns k of a in pairs that nearly cancel where b repeats its rows."""
    values = finite_code(rng, shape, fmt).astype(np.float64)
    if shape[0] == 5:
        values[:, 1::2] = -values[:, 0 : shape[1] // 2 * 2 : 2]
        values[:, -1:] = fmt.smallest_subnormal
    else:
        values[1::2] = values[0 : shape[0] // 2 * 2 : 2]
    return values.astype(fmt.dtype)


@pytest.mark.parametrize("text", EXACT_TEXTS)
@pytest.mark.parametrize("make", [*DATA, cancelling])
def test_exact_sums_equal_the_one_by_one_form(text: str, make: Any) -> None:
    at = at_of(text)
    rng = rng_of(text, make.__name__)
    for k in (0, 1, 7, 33):
        a, b = make(rng, (5, k), at.storage), make(rng, (k, 9), at.storage)
        assert_same_bits(kernels.matmul(a, b, at), twin(a, b, at), (text, k))
        init = everyday(rng, (5, 9), format_of("f32")).astype(np.float64)
        init[0, :3] = np.inf, -0.0, 1e300
        assert_same_bits(kernels.matmul(a, b, at, init=init), twin(a, b, at, init), (text, k, "init"))


# --- cases that random data hardly meets ----------------------------------------------------------------------------


def tied_factors(bits: int) -> list[tuple[float, float]]:
    """Pairs of significands of `bits` bits whose product lies in the middle of two others."""
    values = range(1 << (bits - 1), 1 << bits)
    low = 1 << (bits - 1)  # of a product of 2 * bits - 1 bits, bits - 1 are cut
    ties = ((x, y) for x in values for y in values if x * y < 1 << (2 * bits - 1) and x * y % low == low // 2)
    return [(float(x), float(y)) for x, y in itertools.islice(ties, 8)]


@pytest.mark.parametrize("exponent", [-16, -18, -19, -20, -21, -22, -24, -50])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_trifle_in_a_bf16_accumulator_decides_a_tie_far_above_it(sign: float, exponent: int) -> None:
    """2^-100 lies beyond float64's reach of a product of 2^15, and still decides where its middle goes."""
    at = at_of("bf16,acc=bf16")
    for x, y in tied_factors(8):
        a = np.array([[2.0**exponent, x]], at.storage.dtype)
        b = np.array([[sign * 2.0**exponent], [y]], at.storage.dtype)
        with_trifle = kernels.matmul(a, b, at)
        assert_same_bits(with_trifle, twin(a, b, at), (x, y))
        assert (with_trifle > x * y) == (sign > 0)


@pytest.mark.parametrize("text", ["bf16,acc=bf16", "f16,acc=f16", "f32,acc=bf16,product=f32", "e5m2,acc=e5m2"])
def test_a_sum_that_underflowed_keeps_its_sign_among_zeros(text: str) -> None:
    """-tiny rounds to -0; -0 + -0 = -0, but -0 + 0 = +0. Zeros are exact ones and underflowed products."""
    at = at_of(text)
    least = at.storage.smallest_subnormal
    rng = rng_of(text)
    for _ in range(20):
        a = rng.choice([least, -least, 0.0, -0.0], (5, 7), p=[0.2, 0.2, 0.1, 0.5]).astype(at.storage.dtype)
        b = rng.choice([least, 0.0, 2.0 ** -(at.storage.bits // 2)], (7, 9)).astype(at.storage.dtype)
        assert_same_bits(kernels.matmul(a, b, at), twin(a, b, at), text)


def test_a_product_that_underflows_to_minus_zero_meets_a_sum_that_is_minus_zero() -> None:
    at = at_of("f32,acc=bf16,product=f32")
    a, b = np.array([[-(2.0**-70), -(2.0**-75)]], np.float32), np.array([[2.0**-70], [2.0**-75]], np.float32)
    found = kernels.matmul(a, b, at)
    assert_same_bits(found, twin(a, b, at))
    assert np.signbit(found).all()


def test_an_f32_fma_decides_ties_that_float64_cannot_see() -> None:
    """acc = 1 + 2^-23 after the first term; the next product is half an ulp, 2^-47 of it more or less."""
    at = at_of("f32,acc=f32")
    for factor in (1 + 2.0**-23, 1 - 2.0**-24, 1 + 2.0**-12, 1.0):
        for scale in (1.0, 2.0**-100, 2.0**60):
            a = np.array([[1 + 2.0**-23, factor], [1.0, factor]], np.float32)
            b = np.array([[scale], [scale * 2.0**-24 * (1 - (factor - 1))]], np.float32)
            assert_same_bits(kernels.matmul(a, b, at), twin(a, b, at), (factor, scale))


def test_f32_sums_below_the_normal_range_are_rounded_once() -> None:
    """2^-127 + 2^-150 + 2^-186: the last bit decides the tie of the subnormals, and is beyond float64's reach."""
    at = at_of("f32,acc=f32")
    x, y = 1 + 2.0**-12, 1 - 2.0**-12 + 2.0**-24  # their product is 1 + 2^-36
    a = np.array([[2.0**-63, x * 2.0**-75]], np.float32)
    b = np.array([[2.0**-64, -(2.0**-64)], [y * 2.0**-75, -y * 2.0**-75]], np.float32)
    found = kernels.matmul(a, b, at)
    assert_same_bits(found, twin(a, b, at))
    assert found.tolist() == [[2.0**-127 + 2.0**-149, -(2.0**-127) - 2.0**-149]]


@pytest.mark.parametrize("text", ["bf16,acc=f32,subnormals=ftz+daz", "f32,acc=f32,product=f32,subnormals=ftz+daz"])
def test_flushing_is_seen_just_where_sums_reach_the_normal_range(text: str) -> None:
    at = at_of(text)
    rng = rng_of(text)
    for exponent in range(-72, -44, 2):
        a, b = (round_to(rng.standard_normal(shape) * 2.0**exponent, at.storage) for shape in ((5, 33), (33, 9)))
        assert_same_bits(kernels.matmul(a, b, at), twin(a, b, at), exponent)


def test_an_f16_sum_that_overflowed_does_not_come_back() -> None:
    """65504 + 16 is the middle, which goes to infinity; so does its mirror, and -32 afterwards finds an infinity."""
    at = at_of("f16,acc=f16")
    for last in (15.0, 16.0, 17.0, 32.0):
        for sign in (1.0, -1.0):
            a = np.array([[65504.0, last, -32.0, -65504.0]], np.float16) * np.float16(sign)
            b = np.ones((4, 3), np.float16)
            found = kernels.matmul(a, b, at)
            assert_same_bits(found, twin(a, b, at), (last, sign))
            assert np.isinf(found).all() == (last >= 16.0)


def test_an_f16_sum_can_overflow_because_of_where_it_starts() -> None:
    at = at_of("f16,acc=f16")
    rng = rng_of("start")
    a, b = everyday(rng, (5, 33), at.storage), everyday(rng, (33, 9), at.storage) * np.float16(16)
    for start in (65504.0, -65504.0, 60000.0, -np.inf, np.nan):
        init = np.full((5, 9), start)
        assert_same_bits(kernels.matmul(a, b, at, init=init), twin(a, b, at, init), start)


@pytest.mark.parametrize("mode", MODES)
def test_formats_of_one_and_two_bits_are_rounded_and_overflow_as_their_twins(mode: str) -> None:
    """Trifles that are each rounded up to a whole place reach e3m1's end in 14 terms; of one bit, a tie goes up."""
    for text in ("f16,acc=e3m1", "f16,acc=e4m0", "e4m3,acc=e2m1fn"):
        at = at_of(f"{text},acc.rounding={mode}")
        trifles, ties = np.full((2, 16), [[2.0**-9], [-(2.0**-9)]]), 1.5 * 2.0 ** np.arange(-5.0, 3.0)[None]
        for a, b in ((trifles, np.full((16, 2), 2.0**-5)), (np.array([[1.0], [-1.0]]), ties)):
            assert_same_bits(kernels.matmul(a, b, at), twin(a, b, at), f"{text} {mode}")


# --- inputs, memory, workers ----------------------------------------------------------------------------------------

EVERY_PATH = ["f16,acc=f32", "bf16,acc=f32", "f32,acc=f32", "f16,acc=f16", "f16,acc=f32+kahan", "bf16,acc=exact"]


@pytest.mark.parametrize("text", EVERY_PATH)
def test_inputs_may_be_read_only_views_and_are_not_changed(text: str) -> None:
    at = at_of(text)
    rng = rng_of(text)
    a, b = everyday(rng, (10, 66), at.storage)[::2, ::2], everyday(rng, (24, 33), at.storage).T
    init = np.broadcast_to(np.arange(24.0), (5, 24))
    kept = [x.copy() for x in (a, b)]
    for x in (a, b):
        x.flags.writeable = False
    expected = twin(np.ascontiguousarray(a), np.ascontiguousarray(b), at, init)
    assert_same_bits(kernels.matmul(a, b, at, init=init), expected)
    assert_same_bits(kernels.matmul(a[:, ::-1], b[::-1], at), twin(a[:, ::-1], b[::-1], at))
    for x, before in zip((a, b), kept, strict=True):
        assert x.tobytes() == before.tobytes()


@pytest.mark.parametrize("text", EVERY_PATH)
def test_operands_of_another_dtype_are_checked_and_give_the_same_bits(text: str) -> None:
    at = at_of(text)
    rng = rng_of(text, "dtype")
    a, b = everyday(rng, (3, 20), at.storage), everyday(rng, (20, 70), at.storage)
    expected = twin(a, b, at)
    assert_same_bits(kernels.matmul(a.astype(np.float64), b.astype(np.float64), at), expected)
    wrong = b.astype(np.float64)
    wrong[19, 69] = 1.0 + 2.0**-40
    with pytest.raises(FormatError, match=r"Operand b has the value 1\.0000000000009095"):
        kernels.matmul(a, wrong, at)


@pytest.mark.parametrize("storage", ["f16", "bf16", "e5m2", "e4m3fn", "e4m3fnuz"])
@pytest.mark.parametrize("width", [8, 7])
def test_every_code_is_widened_to_its_value(storage: str, width: int) -> None:
    """As a contiguous block and as the view of weights (n, K), of even and odd K."""
    fmt, at = format_of(storage), at_of(storage)
    codes = np.arange(1 << fmt.bits).astype(fmt.code_dtype)
    rows = np.concatenate([codes, codes[::-1]])[: len(codes) * 2 // width * width].reshape(-1, width).view(fmt.dtype)
    for block in (rows, rows.T, rows[::3].T):
        expected = decode(np.ascontiguousarray(block).view(fmt.code_dtype), fmt)
        for dtype in (np.float32, np.float64):
            with np.errstate(invalid="ignore"):  # signalling NaN
                found = carried(block, "b", at, np.dtype(dtype))
            assert found.dtype == dtype
            assert found.flags.c_contiguous
            assert_same_bits(found, expected)


@pytest.mark.parametrize("text", EVERY_PATH)
def test_workers_and_tiles_do_not_change_a_bit(text: str) -> None:
    at = at_of(text, "blocked:16 > lanes:2")
    rng = rng_of(text, "workers")
    a, b = everyday(rng, (20, 40), at.storage), everyday(rng, (2100, 40), at.storage).T
    whole = kernels.matmul(a, b, at)
    for workers in (2, 3):
        assert kernels.matmul(a, b, at, workers=workers).tobytes() == whole.tobytes()
    parts = [[kernels.matmul(rows, b[:, n : n + 77], at) for n in range(0, 2100, 77)] for rows in (a[:1], a[1:])]
    assert np.block(parts).tobytes() == whole.tobytes()


def test_numpys_buffer_is_as_long_afterwards_as_it_was() -> None:
    at, usual = at_of("f16,acc=f16"), np.getbufsize()
    kernels.matmul(np.ones((2, 3)), np.ones((3, 4)), at)
    assert np.getbufsize() == usual
    with pytest.raises(FormatError):
        kernels.matmul(np.ones((2, 3)), np.full((3, 4), 1e9), at)
    assert np.getbufsize() == usual


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own() -> None:
    at = at_of("f16,acc=f32")
    a, b = everyday(rng_of("fork"), (4, 8), at.storage), everyday(rng_of("fork"), (8, 400), at.storage)
    whole = kernels.matmul(a, b, at, workers=2)
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends it where it waits for a thread that is not there
        os._exit(kernels.matmul(a, b, at, workers=2).tobytes() != whole.tobytes())
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("text", EVERY_PATH)
def test_the_extra_memory_is_a_few_tiles(text: str) -> None:
    """32 MiB at most, where all products would take 256 MiB and the weights in float64 alone 32."""
    at = at_of(text)
    a, b = np.ones((8, 64), at.storage.dtype), np.ones((65536, 64), at.storage.dtype).T
    tracemalloc.start()
    try:
        out = kernels.matmul(a, b, at)
        assert tracemalloc.get_traced_memory()[1] - out.nbytes < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("storage", "product", "acc"), [("f16", "f16", "bf16"), ("bf16", "f16", "tf32"), ("f16", "f16", "e8m20")]
)
def test_a_product_beyond_its_own_format_is_infinite_however_wide_the_accumulator_is(storage, product, acc):
    a, b = np.array([[300.0, 1.0]]), np.array([[300.0], [1.0]])
    at = precision_of(f"storage={storage},product={product},acc={acc},output=f32")
    assert kernels.matmul(a, b, at).tolist() == [[np.inf]]


def test_a_nan_that_is_stored_in_a_format_without_nan_is_the_zero_of_a_positive_one() -> None:
    at = precision_of("storage=f16,acc=f16,order=blocked:2:e2m1fn")
    a, b = np.array([[1.0, 1.0]]), np.array([[np.nan], [-np.nan]])
    for columns in (b, -b, np.repeat(b, 70, axis=1)):
        found = kernels.matmul(a, columns, at)
        assert (found == 0).all()
        assert np.signbit(found).all()  # as round_to(+NaN, "e2m1fn")
