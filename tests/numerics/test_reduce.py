"""sum, dot and matmul: every order against an evaluator that reads the table's words; real dot products; refusals."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from softfloat_llm.errors import FormatError, PrecisionError
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.carriers import carry
from softfloat_llm.numerics.formats import f16, f32
from softfloat_llm.numerics.orders import permutation
from softfloat_llm.numerics.precision import precision_of
from softfloat_llm.numerics.rounding import round_to, round_wide
from softfloat_llm.numerics.side_by_side import SideBySide
from tests.oracle import HARDWARE_MODES, ExactMachine, assert_same, hardware, sum_in_order, values_of_bits

ORDERS = [
    "seq", "reverse", "pairwise", "tree:adj", "tree:half", "lanes:2", "lanes:8", "lanes:5:adj", "lanes:3:seq",
    "blocked:8", "blocked:16 > lanes:2", "blocked:4 > pairwise", "split-k:3", "split-k:4:bf16", "split-k:2 > pairwise",
    "perm:11", "perm:4 > blocked:4 > lanes:4:adj", "split-k:1:f16", "lanes:1", "blocked:8:f16",
    "blocked:5:bf16 > lanes:2", "lanes:2 > blocked:3:f16", "lanes:4:bf16", "lanes:3:seq:f16",
    "lanes:2:adj:f16 > pairwise", "lanes:1:f16", "blocked:16 > lanes:16:f16",
]  # fmt: skip
LENGTHS = range(1, 71)


def permuted(terms, seed):
    return [terms[i] for i in permutation(len(terms), seed)]


def operands(fmt, seed=0):
    """Two rows of 70 values of all sizes (three binades either side of 1), so that each addition rounds."""
    rng = np.random.default_rng(seed)
    return [round_to(np.ldexp(rng.standard_normal((2, 70)), rng.integers(-3, 4, (2, 70))), fmt) for _ in range(2)]


@pytest.mark.parametrize("acc", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("order", ORDERS)
def test_sum_of_1_to_70_terms_follows_the_words_of_its_order(order, acc):
    x, _ = operands("f32")
    at = precision_of(f"storage=f32,acc={acc},output=f32,order={order}")
    machine = ExactMachine(acc)
    for n in LENGTHS:
        terms = x[0, :n].astype(float).tolist()
        assert_same(reduce.sum(x[0, :n], at), sum_in_order(order, terms, machine, permute=permuted), n)


@pytest.mark.parametrize("product", ["exact", "acc"])
@pytest.mark.parametrize("acc", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("order", ORDERS)
def test_dot_and_matmul_of_1_to_70_terms_follow_the_words_of_their_order(order, acc, product):
    """a (2, n) and b (n, 2): the diagonal of the product is two dot products."""
    storage = "f32" if acc == "f32" else acc
    product = acc if product == "acc" else "exact"
    a, b = operands(storage, seed=1)
    at = precision_of(f"storage={storage},product={product},acc={acc},output=f32,order={order}")
    machine = ExactMachine(acc)
    exact = a.astype(np.float64) * b.astype(np.float64)
    terms = exact if product == "exact" else np.array([[machine.round(t) for t in row] for row in exact.tolist()])
    for n in LENGTHS:
        want = sum_in_order(order, terms[0, :n].tolist(), machine, permute=permuted)
        assert_same(reduce.dot(a[0, :n], b[0, :n], at), want, n)
        assert_same(reduce.matmul(a[:, :n], b[:, :n].T, at)[0, 0], want, n)


@pytest.mark.parametrize("mode", ["toward_zero", "toward_negative", "ties_to_away", "to_odd"])
@pytest.mark.parametrize("order", ORDERS)
def test_other_modes_and_initial_values_follow_the_words_too(order, mode):
    a, b = operands("bf16", seed=2)
    at = precision_of(f"storage=bf16,acc=bf16,output=bf16,order={order},rounding={mode}")
    machine = ExactMachine("bf16", mode)
    exact = (a.astype(np.float64) * b.astype(np.float64))[0].tolist()
    for n in (1, 2, 3, 4, 7, 16, 17, 33, 64, 70):
        for init in (None, -0.0, 3.25, -192.0):
            want = sum_in_order(order, exact[:n], machine, init, permuted)
            assert_same(reduce.dot(a[0, :n], b[0, :n], at, init=init), want, n, str(init))
            start = None if init is None else np.full((2, 2), init)
            assert_same(reduce.matmul(a[:, :n], b[:, :n].T, at, init=start)[0, 0], want, n, str(init))


@pytest.mark.parametrize("order", ORDERS)
def test_sums_of_nothing_are_zero_or_where_they_start(order):
    at = f"storage=f16,acc=f16,order={order}"
    assert_same(reduce.sum(np.zeros((3, 0)), at), np.zeros(3))
    assert_same(reduce.dot([], [], at), 0.0)
    assert_same(reduce.sum([], at, init=7.0), 7.0)
    assert_same(reduce.matmul(np.zeros((2, 0)), np.zeros((0, 3)), at), np.zeros((2, 3)))


# --- Real instructions ----------------------------------------------------------------------------------------------


def dot_products(name, dtype, dist, k):
    arrays = hardware(name)
    a, b = (arrays[f"{dist}_k{k}_{x}"].view(dtype) for x in "ab")
    return a[:, None, :], b[None, :, :], {key: arrays[key] for key in arrays if key.startswith(f"{dist}_k{k}_")}


F16_ORDERS = {
    "seq_fma_rne": "order=seq", "seq_muladd": "product=f16", "s32_fma_halve": "order=lanes:32",
    "s32_muladd_halve": "product=f16,order=lanes:32", "s32_fma_pair": "order=lanes:32:adj",
    "s8_fma_halve": "order=lanes:8", "seq_f32acc_fma": "acc=f32,output=f32",
    **{f"seq_fma_{word}": f"rounding={HARDWARE_MODES[word]}" for word in ("rd", "ru", "rz")},
}  # fmt: skip


@pytest.mark.parametrize("words", F16_ORDERS)
@pytest.mark.parametrize("dist", ["normal", "overflow", "underflow", "absorb", "swing"])
def test_f16_dot_products_equal_avx512_fp16(dist, words):
    for k in (8, 64):
        a, b, outputs = dot_products("f16_dot", np.float16, dist, k)
        if f"{dist}_k{k}_{words}" in outputs:
            text = F16_ORDERS[words]
            acc = "" if "acc=" in text else ",acc=f16"
            want = values_of_bits(outputs[f"{dist}_k{k}_{words}"], "f32" if "acc=f32" in text else "f16")
            assert_same(reduce.dot(a, b, f"storage=f16,{text}{acc}"), want)


F32_ORDERS = {
    "seq_fma": "order=seq", "seq_muladd": "product=f32", "s16_fma_halve": "order=lanes:16",
    "s16_muladd_halve": "product=f32,order=lanes:16", "seq_fma_ftzdaz": "subnormals=ftz+daz",
    "seq_muladd_ftzdaz": "product=f32,subnormals=ftz+daz",
    **{f"seq_fma_{word}": f"rounding={HARDWARE_MODES[word]}" for word in ("rd", "ru", "rz")},
}  # fmt: skip


@pytest.mark.parametrize("words", F32_ORDERS)
@pytest.mark.parametrize("dist", ["normal", "wide", "underflow", "tiny", "overflow"])
def test_f32_dot_products_equal_avx512(dist, words):
    lengths = {int(key.split("_k")[1].split("_")[0]) for key in hardware("f32_dot") if key.startswith(f"{dist}_k")}
    for k in sorted(lengths)[:2]:
        a, b, outputs = dot_products("f32_dot", np.float32, dist, k)
        if f"{dist}_k{k}_{words}" in outputs:
            want = values_of_bits(outputs[f"{dist}_k{k}_{words}"], "f32")
            assert_same(reduce.dot(a, b, f"storage=f32,{F32_ORDERS[words]}"), want)


# --- Stages ---------------------------------------------------------------------------------------------------------


def test_the_stages_show_the_accumulator_before_the_last_rounding():
    stages = reduce.sum_stages([256.0, 1.0, 1.0, 1.0], "storage=bf16,acc=f32")
    assert (stages.acc, stages.out) == (259.0, 260.0)
    assert stages.acc.dtype == f32.dtype
    assert stages.out.dtype == ml_dtypes.bfloat16
    exact = reduce.dot_stages([256.0], [1.0], "storage=bf16,acc=exact")
    assert exact.acc == exact.out == 256.0


def test_results_have_the_carrier_of_the_output_and_scalars_are_floats():
    assert type(reduce.sum([1.0], "storage=f16,acc=f16")) is float
    assert reduce.sum(np.ones((2, 3)), "storage=f16,acc=f32,output=bf16").dtype == ml_dtypes.bfloat16
    assert reduce.matmul(np.ones((2, 3)), np.ones((3, 4)), "storage=f32,output=e5m7").dtype == np.float32


def test_sum_takes_any_axis_and_dot_broadcasts():
    x = np.arange(24.0).reshape(2, 3, 4)
    at = "storage=f32"
    for axis in (-3, -2, -1, 0, 1, 2):
        assert_same(reduce.sum(x, at, axis), x.sum(axis))
    assert_same(reduce.dot(x, np.ones(4), at), x.sum(-1))
    assert_same(reduce.dot(x[:, None], np.ones((5, 1, 4)), at), np.broadcast_to(x.sum(-1)[:, None], (2, 5, 3)))


@pytest.mark.parametrize("workers", [2, 3])
def test_the_bits_do_not_depend_on_the_number_of_workers(workers):
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((9, 40)).astype(np.float16), rng.standard_normal((40, 33)).astype(np.float16)
    for acc in ("f16", "f32", "exact"):
        at = f"storage=f16,acc={acc},order=blocked:8 > lanes:2"
        assert_same(reduce.matmul(a, b, at, workers=workers), reduce.matmul(a, b, at))


def test_matmul_is_the_dot_product_of_rows_and_columns():
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((3, 50)).astype(np.float16), rng.standard_normal((50, 4)).astype(np.float16)
    for text in ("acc=f16", "acc=f32", "acc=f16,order=lanes:8", "product=f16,acc=f16", "acc=f32+kahan", "acc=exact"):
        at = f"storage=f16,{text}"
        assert_same(reduce.matmul(a, b, at), reduce.dot(a[:, None, :], b.T[None], at))


def test_nan_and_infinities_stay_in_their_row():
    a = np.ones((3, 4), np.float16)
    a[1, 2], a[2, 0] = np.nan, np.inf
    got = reduce.matmul(a, np.ones((4, 2)), "storage=f16,acc=f16,order=lanes:2")
    assert_same(got, [[4.0, 4.0], [np.nan, np.nan], [np.inf, np.inf]])


# --- Refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "at", "says"),
    [
        ([257.0], "storage=bf16", "Operand x has the value 257.0, which storage=bf16 cannot hold"),
        ([np.inf], "storage=e4m3fn", "inf"), ([np.nan], "storage=e2m1fn", "nan"),
        ([2**53 + 1], "storage=f32", "more bits"),
        ([1j], "storage=f32", "real numbers"), (["1"], "storage=f32", "real numbers"),
        ([0.0], "storage=e8m0fnu", "0.0"),
    ],
)  # fmt: skip
def test_an_operand_that_the_storage_cannot_hold_is_refused_not_rounded(x, at, says):
    with pytest.raises(FormatError, match=says):
        reduce.sum(np.array(x), at)
    with pytest.raises(FormatError):
        reduce.matmul(np.array([x]), np.ones((1, 1)), at)


def test_an_initial_value_that_the_accumulator_cannot_hold_is_refused_not_rounded():
    with pytest.raises(FormatError, match=r"Operand init has the value 257.0, which acc=bf16"):
        reduce.sum([1.0], "storage=bf16,acc=bf16", init=257.0)
    assert reduce.sum([1.0], "storage=bf16,acc=f32,output=f32", init=257.0) == 258.0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: reduce.dot([1, 2], [1, 2, 3], "storage=f32"), r"\(2,\), b has \(3,\)"),
        (lambda: reduce.dot(1.0, 2.0, "storage=f32"), "last axis"),
        (lambda: reduce.dot(np.ones((2, 3)), np.ones((4, 3)), "storage=f32"), "last axis"),
        (lambda: reduce.sum(1.0, "storage=f32"), "axis -1"),
        (lambda: reduce.sum(np.ones((2, 3)), "storage=f32", 2), "axis 2"),
        (lambda: reduce.matmul(np.ones((2, 3)), np.ones((2, 3)), "storage=f32"), r"b \(K, N\)"),
        (lambda: reduce.matmul(np.ones(3), np.ones(3), "storage=f32"), r"a \(M, K\)"),
        (lambda: reduce.sum(np.ones((2, 3)), "storage=f32", init=np.ones(3)), "init has the shape"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_the_shapes(call, says):
    with pytest.raises(PrecisionError, match=says):
        call()


def test_the_operands_are_not_changed():
    a, b = np.full((3, 5), 2.0**-20, np.float16), np.ones((5, 2), np.float16)
    before = a.tobytes(), b.tobytes()
    for acc in ("f16", "f32", "exact", "f32+kahan"):
        reduce.matmul(a, b, f"storage=f16,acc={acc},subnormals=ftz+daz")
        reduce.sum(a, f"storage=f16,acc={acc},subnormals=ftz+daz", init=1.0)
    assert (a.tobytes(), b.tobytes()) == before
    assert f16.dtype == a.dtype


@pytest.mark.parametrize("acc", ["f32", "tf32", "e8m12"])
def test_sums_in_float32_are_rounded_last_by_one_cast_and_as_by_way_of_float64(acc):
    at = precision_of(f"storage=f16,acc={acc},output=bf16")
    assert reduce._is_last_one_cast(at)
    sums = round_to(np.random.default_rng(5).standard_normal(1 << 16) * 2.0 ** np.linspace(-150, 120, 1 << 16), acc)
    found = reduce.rounded_output(sums, at)
    assert found.acc.tobytes() == sums.tobytes()
    assert found.out.tobytes() == carry(round_wide(sums.astype(np.float64), at.output), at.output).tobytes()


@pytest.mark.parametrize("output", ["f16", "bf16", "f32"])
def test_every_sum_in_f16_is_rounded_last_as_by_way_of_float64(output):
    at = precision_of(f"storage=f16,acc=f16,output={output}")
    codes = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):
        wide = codes.astype(np.float64)
        found = reduce.rounded_output(wide, at)
        assert found.acc.tobytes() == carry(wide, f16).tobytes()
        assert found.out.tobytes() == carry(round_wide(wide, at.output), at.output).tobytes()


def test_layers_that_are_summed_and_rounded_alike_are_rounded_as_one_with_the_bits_of_each():
    rng = np.random.default_rng(4)
    a, whole = (round_to(rng.standard_normal(shape), "bf16") for shape in ((3, 40), (40, 12)))
    parts = SideBySide((whole[:, :5], whole[:, 5:]), whole)
    alike, other = (precision_of(f"storage=bf16,acc=f32,output={output}") for output in ("bf16", "f32"))
    for ats in ([alike, alike], [alike, other]):
        found = reduce.stages_of_each(a, parts, ats)
        for stages, part, at in zip(found, parts.parts, ats, strict=True):
            alone = reduce.matmul_stages(a, np.ascontiguousarray(part), at)
            assert [x.tobytes() for x in stages] == [x.tobytes() for x in alone]
