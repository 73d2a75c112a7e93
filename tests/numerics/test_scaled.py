"""Block-scaled storage: the specification in exact rationals, GGUF against the gguf package, and the counts."""

from __future__ import annotations

from fractions import Fraction

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from softfloat_llm.errors import FormatError
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.formats import decode, format_of
from softfloat_llm.numerics.scaled import SCALED, quantise

MX = {"mxfp8-e4m3": "e4m3fn", "mxfp8-e5m2": "e5m2", "mxfp6-e3m2": "e3m2fn", "mxfp6-e2m3": "e2m3fn", "mxfp4": "e2m1fn"}


def blocks_of(rng, rows=40, width=64):
    """Rows of all sizes, float32: ordinary ones, tiny and huge ones, some with zeros, some all zero."""
    x = rng.standard_normal((rows, width)) * 2.0 ** rng.integers(-60, 60, (rows, 1))
    x[rng.random(x.shape) < 0.1] = 0.0
    x[0] = 0.0
    return x.astype(np.float32)


def by_rationals(block, element):
    """OCP MX 1.0, section 6.3, one block: the shared exponent, then each element rounded once, saturating."""
    largest = max(abs(Fraction(float(v))) for v in block)
    exponent = -127
    if largest:
        while Fraction(2) ** (exponent + 1) * Fraction(2) ** element.emax <= largest and exponent < 127:
            exponent += 1
    scale = Fraction(2) ** exponent
    rounded = [round_exact(Fraction(float(v)) / scale, element, overflow="saturate") for v in block]
    return [float(Fraction(v) * scale) for v in rounded]


@pytest.mark.parametrize("name", MX)
def test_microscaling_is_what_the_specification_says(name):
    x = blocks_of(np.random.default_rng(1))
    expected = [by_rationals(row[i : i + 32], format_of(MX[name])) for row in x for i in (0, 32)]
    np.testing.assert_array_equal(quantise(x, name).decoded.reshape(-1, 32), np.float32(expected))


@pytest.mark.parametrize("name", MX)
def test_every_element_under_every_scale_comes_back(name):
    """All codes of the element with its largest among them: what is stored already is not changed."""
    element = format_of(MX[name])
    values = decode(np.arange(1 << element.bits), element)
    values = values[np.isfinite(values)]
    padded = np.concatenate([values, np.zeros(-len(values) % 31)]).reshape(-1, 31)
    blocks = np.concatenate([np.full((len(padded), 1), element.max), padded], axis=1)
    for exponent in (-100, -1, 0, 5, 90):
        scaled = blocks * 2.0**exponent
        np.testing.assert_array_equal(quantise(scaled, name).decoded, scaled.astype(np.float32))


def test_a_block_that_is_not_finite_is_nan_and_the_others_are_not():
    x = np.ones((1, 64), np.float32)
    x[0, 3] = np.inf
    found = quantise(x, "mxfp8-e4m3")
    assert np.isnan(found.decoded[0, :32]).all()
    assert (found.decoded[0, 32:] == 1).all()
    assert found.counts == (0, 0, 31, 64)


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_1"])
def test_gguf_formats_are_the_gguf_packages(name):
    kind = GGMLQuantizationType[name.upper()]
    x = np.random.default_rng(2).standard_normal((300, 64)).astype(np.float32)
    x[0], x[1], x[2, :32] = 0.0, 1.0, -2.5
    x[3:50] = np.rint(x[3:50] * 16)  # many halves
    x[50:90] *= np.float32(2) ** np.arange(-149, -109, dtype=np.float32)[:, None]  # 1/d is beyond float32
    x[90, :32], x[91, :32] = np.arange(-16, 16), np.arange(16, -16, -1)  # the largest negative, and positive
    x[92, :4] = -8, 8, 7.5, -7.5
    with np.errstate(all="ignore"):
        packed = gguf.quants.quantize(x, kind)
    np.testing.assert_array_equal(quantise(x, name).decoded, gguf.quants.dequantize(packed, kind).reshape(x.shape))


def test_nvfp4_scales_twice():
    """The largest is 6 * 448 t, t the tensor's scale; a block up to 3 has 0.5 t: 3, 1.5 and 0.25 are values of it."""
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 2688.0  # 6 * 448: the tensor's scale is 1
    x[0, 16:20] = 3.0, 1.5, 0.25, 0.1
    found = quantise(x, "nvfp4")
    assert found.decoded[0, 0] == 2688
    assert found.decoded[0, 16:20].tolist() == [3.0, 1.5, 0.25, 0.0]
    assert found.parts.scales.ravel().tolist() == [448.0, 0.5]
    assert found.counts.flushed == 1


def test_int8_is_symmetric_and_by_row_or_tensor():
    x = np.array([[127.0, -63.5, 1.0], [0.5, 0.25, -0.5]], np.float32)
    assert quantise(x, "int8").decoded[0].tolist() == [127.0, -64.0, 1.0]
    assert quantise(x, "int8").decoded[1].tolist() == [0.0, 0.0, 0.0]
    np.testing.assert_allclose(quantise(x, "int8-channel").decoded[1], [0.5, 0.25, -0.5], rtol=0, atol=0.5 / 254)
    assert quantise(np.zeros((2, 3)), "int8").decoded.tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("name", SCALED)
def test_storing_twice_is_storing_once_for_powers_of_two_and_no_value_is_far_off(name):
    """|x - decoded| <= half a step of the largest element's binade times the scale; a block's largest sets the step."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((16, 64)).astype(np.float32)
    found = quantise(x, name)
    assert found.counts.nan == 0
    assert found.decoded.shape == x.shape
    largest = np.abs(x).max() if SCALED[name].block == "tensor" else np.abs(x).max(axis=1, keepdims=True)
    assert (np.abs(found.decoded - x) <= largest * 0.26).all()  # fp4's widest gap is 4 to 6, at a scale up to max / 4
    if name.startswith("mx"):
        np.testing.assert_array_equal(quantise(found.decoded, name).decoded, found.decoded)


def test_clipped_values_are_counted():
    x = np.zeros((1, 32), np.float32)
    x[0, :2] = 511.0, 448.0  # the shared exponent is that of 256: 511 lies beyond 448
    assert quantise(x, "mxfp8-e4m3").counts.clipped == 1
    assert quantise(x, "mxfp8-e4m3").decoded[0, 0] == 448


def test_a_value_that_is_rounded_to_the_largest_element_is_not_clipped():
    """q8_0's d is rounded to f16, at times down: the largest is then 127 and a bit. 464 ties to 448 in e4m3fn."""
    x = np.random.default_rng(4).standard_normal((50, 64)).astype(np.float32)
    assert quantise(x, "q8_0").counts.clipped == 0
    x = np.zeros(32, np.float32)
    x[:3] = 464.0, 464.5, -465.0
    assert quantise(x, "mxfp8-e4m3").counts.clipped == 2


def test_what_is_clipped_by_a_one_sided_range_or_becomes_infinite_is_counted_and_what_is_flushed_only_as_that():
    x = np.zeros(32, np.float32)
    x[:2] = -8, 8  # elements -8 to 7
    assert quantise(x, "q4_0").counts == (1, 0, 0, 32)
    assert quantise(np.full(32, 2.0**127), "q8_0").counts == (32, 0, 0, 32)  # the scale is beyond f16
    assert quantise(np.full(32, 2.0**-149), "q8_0").counts == (0, 32, 0, 32)


def test_what_does_not_fit_is_refused():
    with pytest.raises(FormatError, match="Only real numbers"):
        quantise(np.full(32, 1j), "mxfp4")
    with pytest.raises(FormatError, match="blocks of 32 along the last axis, which has 33"):
        quantise(np.ones((2, 33)), "mxfp4")
    with pytest.raises(FormatError, match="Did you mean 'mxfp4'"):
        quantise(np.ones((2, 32)), "mxfp44")


def test_a_cache_in_fp8_under_the_largest_magnitude():
    """600, 3.3, 0.0004, -500 under 600 / 448: what the largest element of e4m3fn makes of them, and one is flushed."""
    found = quantise([[600.0, 3.3, 0.0004, -500.0]], "fp8")
    np.testing.assert_allclose(found.decoded[0], [600, 3.3482142857142856, 0, -514.2857142857142], rtol=2.0**-23)
    assert found.counts == (0, 1, 0, 4)
    assert quantise([[600.0, 1.0], [1.0, 0.5]], "fp8-channel").decoded[1].tolist() == [1.0, 0.5]
