"""Every fast form of matmul against its slow twin: `accumulate.follow` over rounded products, bit for bit."""

from __future__ import annotations

import itertools
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest

from softfloat_llm.numerics import kernels
from softfloat_llm.numerics.accumulate import arithmetic_of, exact_sum, follow
from softfloat_llm.numerics.formats import Array, Format, decode, format_of
from softfloat_llm.numerics.operands import operand, rounded_product
from softfloat_llm.numerics.precision import EXACT, Precision, precision_of
from softfloat_llm.numerics.rounding import MODES, round_to

ORDERS = [
    "seq", "reverse", "pairwise", "tree:adj", "tree:half", "lanes:4", "lanes:8:adj", "blocked:7", "split-k:3",
    "split-k:2:bf16", "perm:5", "blocked:32 > lanes:2",
]  # fmt: skip
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
EVIDENT = [
    *(f"f16,acc=f16,acc.rounding={mode}" for mode in MODES if mode != "ties_to_even"),
    "f32,acc=f32,acc.rounding=toward_zero", "f16,acc=f32,acc.rounding=to_odd", "f16,acc=f16,subnormals=ftz+daz",
    "f16,acc=f16,acc.overflow=saturate", "f32,acc=f32+kahan", "f16,acc=f16+neumaier", "f32,acc=f16", "f32,acc=bf16",
    "f32,acc=f32,subnormals=ftz+daz", "bf16,acc=f32,product=f32,product.rounding=toward_zero", "e4m3fn,acc=e4m3fn",
    "f16,acc=f32,product=e4m3fn", "f32,acc=f16,product=f64",
]  # fmt: skip


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
    found = found.astype(np.float64)
    is_same = (found.view(np.int64) == expected.view(np.int64)) | (np.isnan(found) & np.isnan(expected))
    where = np.argwhere(~is_same)
    assert is_same.all(), f"{what}: {len(where)} of {is_same.size} differ, first {found[~is_same][0].hex()} at {where[0]}, expected {expected[~is_same][0].hex()}"


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
    for order in ORDERS:
        at = at_of(text, order)
        assert kernels.path_of(at) == path
        rng = rng_of(name, make.__name__, order)
        for k in (33, 70):
            a, b = make(rng, (5, k), at.storage), make(rng, (k, 33), at.storage)
            assert_same_bits(kernels.matmul(a, b, at), twin(a, b, at), (name, order, k))


@pytest.mark.parametrize("text", EVIDENT)
def test_the_other_modes_take_the_evident_form(text: str) -> None:
    assert kernels.path_of(at_of(text)) == "evident"
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
        for order in ("seq", "pairwise", "split-k:2:bf16"):
            with_order = at_of(FAST[name][0], order)
            assert_same_bits(kernels.matmul(a, b, with_order, init=init), twin(a, b, with_order, init), (m, k, n, order))


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
    if at.storage.bits == 64 and make in (any_code, finite_code, huge, cancelling):
        pytest.skip("fsum itself overflows")
    for k in (0, 1, 7, 33):
        a, b = make(rng, (5, k), at.storage), make(rng, (k, 9), at.storage)
        assert_same_bits(kernels.matmul(a, b, at), twin(a, b, at), (text, k))
        init = everyday(rng, (5, 9), format_of("f32")).astype(np.float64)
        init[0, :3] = np.inf, -0.0, 1e300
        assert_same_bits(kernels.matmul(a, b, at, init=init), twin(a, b, at, init), (text, k, "init"))
