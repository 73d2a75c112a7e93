"""The story of a sum is true: its steps give the sum bit for bit, and their losses add up to the error exactly."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest

from softfloat_llm.analysis.explain_sum import explain_dot, explain_sum
from softfloat_llm.analysis.explain_sum_text import SHOWN_STEPS, chosen_steps
from softfloat_llm.errors import FormatError, PrecisionError, WordError
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.rounding import round_to
from tests.oracle import assert_same

ORDERS = (
    "seq", "reverse", "pairwise", "tree:adj", "tree:half", "lanes:4", "lanes:8:adj", "lanes:4:seq", "lanes:4x2",
    "blocked:5", "split-k:3", "split-k:3:bf16", "perm:7", "vector:4", "ilp:4", "cascade:4", "swap:2",
    "blocked:8 > lanes:2", "split-k:2 > pairwise",
)  # fmt: skip
ACCUMULATORS = ("f32", "f16", "bf16", "f32+kahan", "bf16+neumaier", "e5m2")
UNITS = (
    "fused:8", "fused:4:10:ties_to_even", "fused:nvidia-hopper-bf16", "fused:nvidia-volta-f16",
    "fused:nvidia-hopper-mma-e4m3-f16", "fused:amd-cdna3-bf16", "fused:amd-cdna2-bf16",
)  # fmt: skip


def known_units():
    from softfloat_llm.numerics.adders import units

    return [text for text in UNITS if ":" in text[6:] or text[6:].isdecimal() or text[6:] in units()]


def lists(n, seed, storage="bf16"):
    rng = np.random.default_rng(seed)
    a, b = (rng.normal(size=n) * 2.0 ** rng.integers(-6, 7, n) for _ in range(2))
    return (round_to(x, storage).astype(np.float64) for x in (a, b))


def check(story, right):
    assert_same(story.result, right)
    if story.at.acc.format is not None and story.steps:
        assert_same(story.steps[-1].after, story.acc)
    if story.error is not None:
        assert story.product_error + story.step_error + story.output_error == story.error
    for step in story.steps:
        if step.exact is not None and math.isfinite(step.after):
            assert Fraction(step.after) - step.exact == step.error
    assert len(str(story).splitlines()) < 40
    json.dumps(story.to_dict(), allow_nan=False)


@pytest.mark.parametrize("acc", ACCUMULATORS)
@pytest.mark.parametrize("order", ORDERS)
def test_the_steps_are_the_sum_and_their_losses_its_error(order, acc):
    for n in (1, 7, 24):
        a, b = lists(n, n)
        for product in ("exact", "bf16"):
            at = f"storage=bf16,product={product},acc={acc},order={order}"
            check(explain_dot(a, b, at), reduce.dot(a, b, at))
        at = f"storage=bf16,acc={acc},order={order},rounding=toward_zero,subnormals=ftz+daz"
        check(explain_sum(a, at), reduce.sum(a, at))


@pytest.mark.parametrize("order", known_units())
def test_the_steps_of_a_matrix_unit_are_its_sum_and_what_it_cuts_is_what_it_loses(order):
    from softfloat_llm.numerics.orders import Order

    adder = Order(order).adder
    storage = str(adder.input or "bf16")
    acc = str(adder.output or "f32")
    for n in (3, 16, 40):
        a, b = lists(n, n, "e4m3fn" if storage in ("e4m3fn", "e4m3", "e4m3fnuz") else "bf16")
        if storage == "f16":
            a, b = (round_to(x, "f16").astype(np.float64) for x in (a, b))
        at = f"storage={storage},acc={acc},output={acc},order={order}"
        story = explain_dot(a, b, at, init=0.25)
        check(story, reduce.dot(a, b, at, init=0.25))
        for number, found in story.alignments.items():
            step = story.steps[number - 1]
            for one in found:
                assert all(v.kept % one.unit == 0 and abs(v.cut) < one.unit for v in one.values)
            if adder.accumulator == "aligned" and math.isfinite(found[-1].result):
                assert found[-1].result == step.after
                if len(found) == 1:
                    assert Fraction(step.after) - found[0].kept == step.error + found[0].cut


@pytest.mark.parametrize(
    ("terms", "at", "right"),
    [
        ([256, 1, 1], "storage=bf16,acc=bf16", 256), ([256, 2], "storage=bf16,acc=bf16", 258),
        (["2^24", *[1] * 7], "storage=f32", 16777216), (["2^24", *[1] * 7], "storage=f32,order=lanes:2", 16777220),
        (["2^24", *[1] * 7], "storage=f32,order=lanes:4", 16777222), ([256, 1, 1, 1], "storage=bf16", 260),
        ([256, 1, 1, 1], "storage=bf16,acc=bf16,order=split-k:2", 258),
        ([256, 1, 1, 1], "storage=bf16,acc=bf16,order=reverse", 260),
        ([256, 1, 1, 1], "storage=bf16,order=split-k:2:bf16", 258), ([1] * 4096, "storage=f16,acc=f16", 2048),
        ([1] * 4096, "storage=f16,acc=f16,order=lanes:8", 4096), ([1] * 300, "storage=bf16,acc=bf16", 256),
        ([60000, 60000, -60000], "storage=f16,acc=f16", math.inf),
        ([60000, -60000, 60000], "storage=f16,acc=f16", 60000),
        ([60000, 60000, -60000], "storage=f16,acc=f32", 60000), ([2048, *[1] * 8], "storage=f16,acc=f16", 2048),
    ],
)  # fmt: skip
def test_sums_that_people_met(terms, at, right):
    story = explain_sum(terms, at)
    assert story.result == right
    check(story, right)


def test_what_is_swallowed_is_counted_and_the_first_worst_step_named():
    story = explain_sum([1] * 300, "storage=bf16,acc=bf16")
    assert len(story.swallowed) == 44
    assert story.worst.number == 257
    text = str(story)
    assert "44 of 300 terms are swallowed whole" in text
    assert "Most is lost at step 257: 257 becomes 256 (-0.5 ulp, a tie)." in text
    assert "(290 further steps not shown: 36 with an error, 36 swallowed; -v shows all)" in text


def test_the_step_that_leaves_the_range_is_named():
    story = explain_sum([60000, 60000, -60000], "storage=f16,acc=f16")
    assert story.overflow.number == 2
    assert "leaves the range of f16 at step 2: term 1 makes 120000, the largest is 65504" in str(story)


def test_products_additions_and_output_share_the_error_of_a_dot():
    x = ["0.8896484375", "0.767578125", "0.712890625", "0.76318359375", "0.5224609375"]
    y = ["0.76416015625", "0.82861328125", "0.99169921875", "0.5947265625", "0.61865234375"]
    rounded, fused = (explain_dot(x, y, f"storage=f16,product={p},acc=f16") for p in ("f16", "exact"))
    assert (rounded.result, fused.result) == (2.80078125, 2.796875)
    assert rounded.product_error
    assert not fused.product_error
    assert "the products made" in str(rounded)


def test_numbers_that_the_storage_lacks_are_rounded_first_and_said_so():
    story = explain_sum(["0.1", "0.5"], "storage=bf16")
    assert story.left == (0.10009765625, 0.5)
    assert story.changed == 1
    assert "1 of 2 numbers were no values of bf16" in str(story)


def test_a_long_table_keeps_the_ends_and_the_worst_steps():
    rng = np.random.default_rng(3)
    story = explain_sum(round_to(rng.normal(size=500), "bf16"), "storage=bf16,acc=bf16")
    chosen = chosen_steps(story.steps)
    assert len(chosen) == SHOWN_STEPS
    assert {1, 2, 499, 500} <= {step.number for step in chosen}
    assert max(abs(s.error) for s in chosen) == max(abs(s.error) for s in story.steps)
    assert len(str(story).splitlines()) < 25
    assert len(story.text(verbose=True).splitlines()) > 500


@pytest.mark.parametrize(
    ("terms", "at"),
    [
        ([], "storage=bf16"), (["nan", 1], "storage=bf16"), (["inf", "-inf"], "storage=bf16,acc=bf16"),
        (["-0", "-0"], "storage=bf16,acc=bf16"), ([1, 2], "storage=bf16,acc=exact"), (["1e300"], "storage=f16,acc=f16"),
        (["nan", "inf", 1, -1] * 4, "storage=bf16,order=fused:8"), (["1e-45"], "storage=f32"),
    ],
)  # fmt: skip
def test_nothing_special_breaks_the_story(terms, at):
    story = explain_sum(terms, at)
    stored = round_to(np.array([float(t) for t in terms]), story.at.storage)
    check(story, reduce.sum(stored, at))
    assert story._repr_html_()


def test_wrong_shapes_and_words_are_refused():
    with pytest.raises(PrecisionError, match="a has 2 numbers, b has 1"):
        explain_dot([1, 2], [1], "storage=bf16")
    with pytest.raises(PrecisionError, match="one list of real numbers"):
        explain_sum(np.ones((2, 2)), "storage=bf16")
    with pytest.raises(PrecisionError, match="one list of real numbers"):
        explain_sum(np.array([1j]), "storage=bf16")
    with pytest.raises(PrecisionError, match="100001 terms"):
        explain_sum(np.ones(100_001), "storage=bf16")
    with pytest.raises(WordError, match="no number"):
        explain_sum(["one"], "storage=bf16")
    with pytest.raises(FormatError):
        explain_sum([1], "storage=bf61")
    with pytest.raises(FormatError, match="init"):
        explain_sum([1], "storage=bf16,acc=bf16", init="0.1")


def test_a_long_sum_is_told_in_time():
    story = explain_sum(np.ones(20_000), "storage=bf16,acc=f32")
    assert (story.result, len(story.steps)) == (20_000 // 128 * 128, 20_000)
