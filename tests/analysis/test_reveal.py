"""Reveal finds the order, the accumulator and the roundings of kernels that it is told nothing about."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from softfloat_llm.analysis.probes import Mask, Subject, each_row
from softfloat_llm.analysis.recognise import Shape
from softfloat_llm.analysis.reveal import reveal
from softfloat_llm.analysis.reveal_text import drawn, revealed_text, to_dict
from softfloat_llm.errors import ProbeError
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.adders import units
from softfloat_llm.numerics.formats import f16, f32
from softfloat_llm.numerics.orders import Order
from softfloat_llm.numerics.precision import precision_of
from softfloat_llm.numerics.rounding import round_to
from tests.numerics.test_adders import precision_for
from tests.numerics.test_orders import STORED, TABLE

STAGES = ["storage=f32,acc=f32", "storage=bf16,acc=f32", "storage=f16,acc=f16", "storage=f32,acc=f32,product=f32"]
LIBRARIES = ["vector:8", "ilp:4", "cascade:8", "pairwise:8", "dot:8x8", "gemv:t", "gemv:n"]


def ours(at):
    return lambda a, b: reduce.dot(a, b, at)


def found_of(text, n, **options):
    at = precision_of(text)
    return reveal(ours(at), n, storage=at.storage, output=at.output, **options)


# --- every declared order -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*TABLE, *LIBRARIES])
def test_every_declared_order_reveals_itself(text):
    """For 1 to 70 terms, with fma, exact products, sums in f16, and rounded products, each in turn."""
    stages = itertools.cycle(STAGES[len(text) % 4 :] + STAGES[: len(text) % 4])
    for n, words in zip((1, 2, 3, 7, 16, 33, 70), stages, strict=False):
        at = precision_of(f"{words},order={text}")
        found = reveal(ours(at), n, storage=at.storage, output=at.output)
        assert found.is_confirmed or "sign of a zero" in found.findings[0], (n, words, found.findings)
        if n >= 3:
            shape = Shape(found.tree)
            assert shape.is_same(Shape(Order(text).tree(n)), entering=words in (STAGES[0], STAGES[2]))
            assert str(found.precision.acc) == str(at.acc)
            assert (found.precision.product is None) == (at.product is None) or not shape.entering


@pytest.mark.parametrize("text", ["seq", "lanes:8:adj", "blocked:32 > lanes:2", "perm:7", "cascade:8", "dot:8x8"])
def test_orders_of_130_terms_reveal_themselves(text):
    found = found_of(f"storage=f32,acc=f32,order={text}", 130)
    assert found.is_confirmed
    assert Shape(found.tree).is_same(Shape(Order(text).tree(130)), entering=True)


@pytest.mark.parametrize("text", STORED)
def test_partial_sums_that_are_stored_in_a_format_are_found(text):
    found = found_of(f"storage=f32,acc=f32,order={text}", 19)
    assert found.is_confirmed
    assert found.order is not None or text == "blocked:16 > lanes:16:f16"  # as good as products rounded to f16


@pytest.mark.parametrize("adder", list(units().values()), ids=str)
def test_every_matrix_unit_reveals_itself(adder):
    """Its shape, the bits that it keeps and its rounding; among units that do the same, by name.

    Operands of few bits are never lost in a unit of many: then any order gives its sums.
    """
    at = precision_of(precision_for(adder))
    found = reveal(ours(at), int(2.5 * adder.terms) + 1, storage=at.storage, output=at.output)
    assert found.is_confirmed
    if found.traits.fraction_bits is not None:
        assert found.traits.fraction_bits == adder.fraction_bits
    is_lossless = adder.input.precision <= 4 and adder.input.emax <= 4
    names = (found.order, *found.alike)
    assert f"fused:{adder}" in names or is_lossless or adder.model == "pairwise"


@pytest.mark.parametrize(
    "text", ["fused:8", "fused:4:23", "fused:16:25", "fused:8:30:ties_to_even", "blocked:12 > fused:4"]
)
@pytest.mark.parametrize("output", ["f32", "bf16"])
def test_an_adder_is_found_by_its_parameters(text, output):
    found = found_of(f"storage=bf16,output={output},order={text}", 40)
    assert (found.order, found.is_confirmed) == (text, True)


@pytest.mark.parametrize(
    "mode", ["ties_to_even", "ties_to_away", "toward_zero", "toward_positive", "toward_negative", "to_odd"]
)
def test_the_rounding_of_partial_sums_and_of_the_output_is_found(mode):
    found = found_of(f"storage=bf16,acc=f32,order=lanes:4,rounding={mode}", 19)
    assert (found.order, found.traits.mode, found.traits.output_mode) == ("lanes:4", mode, mode)
    assert found.is_confirmed


@pytest.mark.parametrize("words", ["keep", "ftz+daz", "ftz"])
def test_flushing_is_found(words):
    found = found_of(f"storage=bf16,order=swap:2,subnormals={words}", 12)
    assert found.is_confirmed, found.findings
    assert found.traits.flushes_operands == ("daz" in words)
    assert found.traits.flushes_sums == ("ftz" in words)


def test_which_of_two_products_is_rounded_first_counts_where_that_flushes_it():
    """VDPBF16PS takes the odd element first; of three terms, only a product below the normal values shows it."""
    for n in (3, 4, 5):
        found = found_of("storage=bf16,order=swap:2,subnormals=ftz+daz", n)
        assert (found.order, found.is_confirmed) == ("swap:2", True)


@pytest.mark.parametrize("acc", ["f16", "bf16", "e8m13", "tf32", "f32", "f64"])
def test_the_accumulator_is_found(acc):
    found = found_of(f"storage=f16,acc={acc},output=f32,order=blocked:4 > lanes:2", 25)
    assert (str(found.precision.acc), found.is_confirmed) == (acc, True)


# --- what makes it hard ---------------------------------------------------------------------------------------------


def test_a_sum_that_the_output_cannot_count():
    """bf16 counts to 256: the terms are counted in parts."""
    found = found_of("storage=bf16,acc=f32,output=bf16,order=blocked:32 > lanes:2,subnormals=ftz+daz", 300)
    assert (found.order, found.is_confirmed) == ("blocked:32 > lanes:2", True)


def test_a_sum_that_the_accumulator_cannot_count():
    """bf16 counts to 256, f16 to 2048, and 2^15 / 2^-24 is the widest range of f16's terms."""
    found = found_of("storage=bf16,acc=bf16,order=lanes:16", 300)
    assert (found.order, str(found.precision.acc), found.is_confirmed) == ("lanes:16", "bf16", True)
    n = 2100

    def halves(x):
        x = np.pad(x, ((0, 0), (0, 4096 - n)))
        while x.shape[1] > 1:
            x = x[:, : x.shape[1] // 2] + x[:, x.shape[1] // 2 :]
        return x[:, 0]

    found = reveal(halves, n, storage="f16", takes="terms")
    assert (found.order, str(found.precision.acc), found.is_confirmed) == ("tree:half", "f16", True)


def test_terms_too_large_for_the_accumulator_are_not_used():
    """An f32 kernel that sums in f16 makes infinities of 2^60: smaller terms are taken."""
    found = found_of("storage=bf16,acc=f16,output=bf16,order=lanes:2", 21)
    assert (found.order, str(found.precision.acc), found.is_confirmed) == ("lanes:2", "f16", True)


@pytest.mark.parametrize("n", [1, 2])
def test_one_and_two_terms(n):
    found = found_of("storage=bf16,acc=f32,output=f32", n)
    assert (found.order, found.is_confirmed) == ("seq", True)


def test_a_kernel_that_is_not_steady_is_said_to_be():
    rng = np.random.default_rng()

    def shuffled(a, b):
        places = rng.permutation(a.shape[1])
        return reduce.dot(a[:, places], b[:, places], "storage=f32")

    found = reveal(shuffled, 40, storage="f32")
    assert (found.order, found.tree, found.is_confirmed) == (None, None, False)
    assert "not steady" in found.findings[0]
    assert "none was found" in revealed_text(found, "a shuffled sum")


def test_a_kernel_that_is_seldom_unsteady_is_not_confirmed():
    """One call in ten adds in reverse: whichever answers it touches, they contradict others."""
    calls = itertools.count()

    def seldom(a, b):
        order = "reverse" if next(calls) % 10 == 9 else "seq"
        return reduce.dot(a, b, f"storage=f32,order={order}")

    found = reveal(seldom, 30, storage="f32")
    assert not found.is_confirmed
    assert found.findings


def test_a_kernel_that_splits_its_terms_between_threads():
    """Each thread sums its part; the parts are added in the order of the threads."""

    def threaded(a, b):
        parts = np.array_split(np.arange(a.shape[1]), 3)
        with ThreadPoolExecutor(3) as pool:
            sums = list(pool.map(lambda places: reduce.dot(a[:, places], b[:, places], "storage=f32"), parts))
        return reduce.sum(np.stack(sums, axis=-1), "storage=f32")

    found = reveal(threaded, 36, storage="f32")
    assert (found.order, found.is_confirmed) == ("blocked:12", True)


def test_threads_that_add_as_they_end_are_not_steady():
    lock, rng = threading.Lock(), np.random.default_rng()

    def racing(a, b):
        total = np.zeros(len(a), np.float32)

        def add(places):
            nonlocal total
            part = reduce.dot(a[:, places], b[:, places], "storage=f32")
            with lock:
                total = total + part

        parts = rng.permutation(np.arange(a.shape[1]).reshape(6, -1))  # as they end
        for places in parts:
            thread = threading.Thread(target=add, args=(places,))
            thread.start()
            thread.join()
        return total

    assert "not steady" in reveal(racing, 36, storage="f32").findings[0]


@pytest.mark.parametrize("acc", ["f32+kahan", "f32+neumaier", "exact"])
def test_compensated_and_exact_sums_are_told_apart(acc):
    found = found_of(f"storage=f32,acc={acc}", 19)
    assert (str(found.precision.acc), found.is_confirmed) == (acc, True)


def test_a_kernel_that_is_no_sum_is_refused():
    with pytest.raises(ProbeError, match="no size of terms came through"):
        reveal(lambda a, b: np.max(a * b, axis=-1), 9, storage="f32")


def test_a_kernel_that_does_more_than_summing_is_not_confirmed():
    found = reveal(lambda a, b: np.abs(reduce.dot(a, b, "storage=f32")), 9, storage="f32")
    assert not found.is_confirmed
    assert "sums of other terms differ" in found.findings[0]


def test_operands_that_are_rounded_before_they_are_multiplied_are_seen():
    """As PyTorch's float32 products are where `set_float32_matmul_precision("medium")` lets them be."""

    def medium(a, b):
        return reduce.dot(round_to(a, "bf16"), round_to(b, "bf16"), "storage=bf16,output=f32,order=lanes:2")

    found = reveal(medium, 12, storage="f32")
    assert (found.order, found.is_confirmed) == ("lanes:2", False)
    assert found.findings[0].startswith("operands keep 8 bits")


def test_a_mean_is_read_through_its_factor():
    found = reveal(
        lambda x: np.divide(reduce.sum(x, "storage=f32,order=cascade:8"), np.float32(300)),
        300, storage="f32", takes="terms", factor=1 / 300, finish=lambda s: s.astype(np.float32) / np.float32(300),
    )  # fmt: skip
    assert (found.order, found.is_confirmed) == ("cascade:8", True)


def test_a_kernel_of_one_sum_is_asked_row_by_row():
    found = reveal(each_row(lambda a, b: reduce.dot(a, b, "storage=f32,order=lanes:2")), 8, storage="f32")
    assert (found.order, found.is_confirmed) == ("lanes:2", True)
    with pytest.raises(ProbeError, match=r"shape \(\)"):
        reveal(lambda a, b: 1.0, 8, storage="f32")


def test_no_terms_are_refused():
    with pytest.raises(ProbeError, match="at least one"):
        reveal(lambda a, b: a, 0, storage="f32")


def test_a_stored_partial_sum_and_a_wider_accumulator_in_one_kernel():
    """Eight lanes in f32, joined, and a rest whose products are rounded to f32 and added in f64."""

    def mixed(a, b):
        whole = reduce.dot(a[:, :16], b[:, :16], "storage=f32,order=lanes:8").astype(np.float64)
        for k in range(16, a.shape[1]):
            whole = whole + (a[:, k] * b[:, k]).astype(np.float64)
        return whole.astype(np.float32)

    found = reveal(mixed, 19, storage="f32")
    assert found.is_confirmed
    assert str(found.precision.acc) == "f64"
    assert str(found.tree).startswith("f32(")


# --- NumPy, which is installed here ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["f16", "f32", "f64"])
@pytest.mark.parametrize("n", [7, 19, 128, 300])
def test_numpys_sum_is_pairwise_over_eight_lanes(fmt, n):
    found = reveal(lambda x: np.sum(x, axis=-1), n, storage=fmt, takes="terms")
    assert found.is_confirmed
    assert Shape(found.tree).is_same(Shape(Order("pairwise:8").tree(n)), entering=False)
    assert str(found.precision.acc) == ("f64" if fmt == "f64" else "f32")
    if n in (19, 300):
        assert found.order == "pairwise:8"


# --- parts ----------------------------------------------------------------------------------------------------------


def test_about_n_log_n_sums_are_asked_for():
    for text in ("seq", "reverse", "lanes:8", "pairwise", "blocked:16 > lanes:2"):
        asked = {n: found_of(f"storage=f32,order={text}", n).rows for n in (32, 128)}
        assert asked[128] < 8 * asked[32]


def test_the_least_mask_reads_units_beside_ulps_of_m():
    mask = Mask(60, 0, 0, bits=24, most=40).least(40)
    assert (mask.big, mask.modulus) == (30, 64)
    subject = Subject(lambda x: x[:, 0] * 128.0 + x[:, 1], 2, f32, f32, takes="terms")
    assert subject.counts(np.array([[3.0, 5.0], [0.0, 5.0], [1.0, 0.5]]), mask).tolist()[:2] == [5.0, 5.0]
    assert np.isnan(subject.counts(np.array([[1.0, 0.5]]), mask)[0])


def test_a_probe_is_made_of_operands_that_the_storage_holds():
    seen = []

    def kernel(a, b):
        seen.append((a, b))
        return reduce.dot(a, b, "storage=f16,acc=f32,output=f32")

    subject = Subject(kernel, 2, f16, f32)
    assert subject.ask(np.array([[2.0**25, 2.0**-14]]), 10).tolist() == [2.0**25]
    assert subject.ask(np.array([[2.0**30, 2.0**-28]])).tolist() == [2.0**30]
    assert [(a.dtype, b.dtype) for a, b in seen] == [(np.float16, np.float16)] * 2


# --- words ----------------------------------------------------------------------------------------------------------


def test_the_answer_in_words():
    text = revealed_text(found_of("storage=bf16,order=fused:8", 19), "a unit")
    assert "kernel   a unit: 19 products of bf16, results in bf16" in text
    assert "order    fused:8   (the same here: " in text
    assert "fused:nvidia-ampere-bf16" in text
    assert "0 differ in a bit" in text
    assert "|- + 8 + 9" not in text
    assert "[0 + 1 + 2 + 3 + 4 + 5 + 6 + 7] at once" in text


def test_the_answer_as_json():
    told = to_dict(found_of("storage=f32,order=lanes:2", 5))
    assert (told["order"], told["tree"], told["confirmed"]) == ("lanes:2", "(0+2+4)+(1+3)", True)
    assert told["seen"]["fma"] is True
    assert told["stages"]["acc"] == "f32"


def test_a_deep_tree_is_drawn_without_recursion():
    assert drawn(Order("reverse").tree(5000).shape) == ["4999 + 4998 + ... + 0 (5000 terms)"]
