"""Stochastic rounding: known answers of the generator, the probability counted out, and words that no shape moves."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from softfloat_llm.errors import FormatError, PrecisionError
from softfloat_llm.numerics import kernels, reduce
from softfloat_llm.numerics.formats import bf16, f16
from softfloat_llm.numerics.ops import add
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import round_block, round_sum, round_to, round_wide
from softfloat_llm.numerics.stochastic import Part, Stochastic, philox_block, stochastic_of
from softfloat_llm.numerics.ulps import neighbours

ALL_ONES = 0xFFFF_FFFF
KNOWN_ANSWERS = [  # Random123 1.14, tests/kat_vectors, philox4x32 10
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((ALL_ONES,) * 4, (ALL_ONES,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_the_generator_gives_the_known_answers(counter, key, words):
    block = philox_block(counter, key[0] | key[1] << 32)
    assert " ".join(f"{int(word):08x}" for word in block) == words


class Given(Stochastic):
    """Random integers that a test chooses."""

    def random(self, shape):
        return np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2.0**self.bits


@pytest.mark.parametrize("bits", [1, 3, 8])
@pytest.mark.parametrize("value", [1.0, 1.3, -1.3, 2.0**-7 + 2.0**-20, 257.0, 3e-41, 1 + 2.0**-8 + 2.0**-40])
def test_of_all_random_integers_the_share_of_the_fraction_rounds_away(bits, value):
    """Exhaustive over the 2^bits integers: the count is floor(2^bits * fraction), the fraction by exact rationals."""
    found = round_wide(np.full(2**bits, value), bf16, Given(bits))
    low, high = (Fraction(v) for v in neighbours(value, bf16))
    near, far = (low, high) if value > 0 else (high, low)
    fraction = Fraction(0) if near == far else (Fraction(value) - near) / (far - near)
    assert np.count_nonzero(found == float(far)) == (2**bits if near == far else int(fraction * 2**bits))
    assert set(found.tolist()) <= {float(near), float(far)}


def test_beyond_the_largest_value_it_overflows_as_often_as_it_rounds_up():
    halfway = (f16.max + 65536.0) / 2
    found = round_wide(np.full(256, halfway), f16, Given(8))
    assert np.count_nonzero(np.isinf(found)) == 128
    saturated = round_wide(np.full(256, halfway), f16, Given(8), overflow="saturate")
    assert saturated.max() == f16.max


def test_an_exact_sum_is_rounded_once():
    """1 + 2^-7 - 2^-70: float64 makes it 1 + 2^-7, which would always be the upper neighbour."""
    found = round_sum(np.full(256, 1 + 2.0**-7), np.full(256, -(2.0**-70)), bf16, Given(8))
    assert np.count_nonzero(found > 1.0) == 255  # floor(256 (1 - 2^-63))


@pytest.mark.parametrize("mode", ["stochastic", "stochastic:4", "stochastic:28:7"])
def test_an_elements_word_does_not_depend_on_the_array_around_it(mode):
    x = np.random.default_rng(0).standard_normal((6, 50))
    whole = round_to(x, "bf16", mode)
    np.testing.assert_array_equal(round_to(x.reshape(-1), "bf16", mode).reshape(6, 50), whole)
    np.testing.assert_array_equal(round_to(x.T.copy().T, "bf16", mode), whole)
    rule = stochastic_of(mode)
    for cut in (1, 7, 299):
        later = round_to(x.reshape(-1)[cut:], "bf16", rule.from_index(cut))
        np.testing.assert_array_equal(later, whole.reshape(-1)[cut:])
    tile = round_to(x[2:5, 10:30], "bf16", rule.for_part(Part(2, 10, 50)))
    np.testing.assert_array_equal(tile, whole[2:5, 10:30])


def test_blocks_of_a_large_array_are_one_array():
    x = np.random.default_rng(1).standard_normal((1 << 18) + 100).astype(np.float32)
    np.testing.assert_array_equal(round_block(x, bf16, "stochastic"), round_to(x, bf16, "stochastic"))


def test_fractions_and_floats_round_alike():
    x = np.random.default_rng(2).standard_normal(200)
    exact = np.array([Fraction(v) for v in x], dtype=object)
    np.testing.assert_array_equal(round_to(exact, "f16", "stochastic:20"), round_to(x, "f16", "stochastic:20"))


def test_it_is_unbiased_where_nearest_is_not():
    """100,000 roundings of 1 + 2^-10 to bf16: expectation 1 + 2^-10; the mean's standard error is 2.6e-6 · 4."""
    x = np.full(100_000, 1 + 2.0**-10)
    mean = float(round_to(x, "bf16", "stochastic").astype(np.float64).mean())
    deviation = 2.0**-7 * np.sqrt(0.125 * 0.875 / len(x))
    assert abs(mean - (1 + 2.0**-10)) < 5 * deviation
    assert round_to(x, "bf16").astype(float).mean() == 1.0


def test_seeds_and_stages_take_words_of_their_own():
    x = np.random.default_rng(3).standard_normal(4000)
    one, two = (round_to(x, "bf16", f"stochastic:16:{seed}") for seed in (1, 2))
    assert 500 < np.count_nonzero(one != two) < 3500
    at = Precision("bf16", acc="bf16", product="bf16", rounding="stochastic")
    assert len({str(at.rules(stage)["mode"]) for stage in ("storage", "product", "acc", "output")}) == 4


SUMS = ("storage=f16,acc=f16", "storage=bf16,acc=bf16,product=bf16,order=lanes:4", "storage=f16,acc=f32+kahan",
        "storage=bf16,acc=exact", "storage=bf16,acc=bf16,order=pairwise,output=e4m3fn")  # fmt: skip


@pytest.mark.parametrize("text", SUMS)
def test_a_product_of_matrices_has_the_words_of_its_elements_whatever_the_tiles(text, monkeypatch):
    at = Precision(**{**dict(pair.split("=") for pair in text.split(","))}, rounding="stochastic:12:5")
    rng = np.random.default_rng(4)
    a, b = round_to(rng.standard_normal((19, 23)), at.storage), round_to(rng.standard_normal((23, 300)), at.storage)
    whole = reduce.matmul(a, b, at)
    monkeypatch.setattr(kernels, "_WIDENED", 1)  # 64 columns a tile
    monkeypatch.setattr(kernels, "_ROWS", 4)
    np.testing.assert_array_equal(reduce.matmul(a, b, at), whole)
    np.testing.assert_array_equal(reduce.matmul(a, b, at, workers=2), whole)
    assert np.count_nonzero(
        whole != reduce.matmul(a, b, Precision(at.storage, acc=at.acc, order=at.order, output=at.output))
    )


def test_a_dot_product_is_the_element_of_a_product_of_matrices():
    at = Precision("bf16", acc="bf16", product="bf16", rounding="stochastic:9")
    rng = np.random.default_rng(5)
    a, b = round_to(rng.standard_normal((1, 40)), bf16), round_to(rng.standard_normal((40, 1)), bf16)
    assert reduce.dot(a[0], b[:, 0], at) == reduce.matmul(a, b, at)[0, 0]


def test_a_long_sum_of_small_terms_does_not_stall():
    """4096 ones in bf16: nearest stops at 256; by random words the expectation is 4096."""
    at = Precision("bf16", acc="bf16", rounding={"acc": "stochastic"})
    totals = reduce.sum(np.ones((64, 4096)), at).astype(float)
    assert reduce.sum(np.ones(4096), "storage=bf16,acc=bf16") == 256
    assert 3800 < totals.mean() < 4400
    assert totals.std() > 0


def test_what_cannot_be_is_refused():
    for mode in ("stochastic:0", "stochastic:29", f"stochastic:8:{1 << 64}"):
        with pytest.raises(FormatError, match="1 to 28 bits"):
            round_to(1.0, "bf16", mode)
    with pytest.raises(FormatError, match=r"Did you mean 'stochastic'"):
        round_to(1.0, "bf16", "stochastik")
    with pytest.raises(FormatError, match=r"round_to f64 by stochastic:8:1: .* Take a narrower format"):
        round_to(1 + 2**-60, "f64", "stochastic:8:1")
    with pytest.raises(FormatError, match="is for round_to and the stages"):
        add(1.0, 1.0, "bf16", "stochastic")
    with pytest.raises(PrecisionError, match="no further bits"):
        Precision("f16", acc="f64", rounding={"acc": "stochastic"})
    with pytest.raises(PrecisionError, match="not before an exact accumulator"):
        Precision("f16", acc="exact", product="f16", rounding={"product": "stochastic"})


@pytest.mark.parametrize("mode", [None, 3, b"stochastic"])
def test_what_is_no_word_is_no_mode(mode):
    with pytest.raises(FormatError, match="Unknown rounding mode"):
        round_to(1.1, "bf16", mode)
