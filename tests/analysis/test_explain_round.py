"""The story of a rounding is true: the neighbours are the neighbours, the distances add up, the reason decides."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from softfloat_llm.analysis.explain_round import explain_round
from softfloat_llm.analysis.reading import number_of
from softfloat_llm.errors import FormatError, WordError
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.formats import decode, format_of
from softfloat_llm.numerics.modes import MODES

INF, NAN = math.inf, math.nan
SMALL = {"e3m2fn": 1, "e2m1fn": 1, "e3m0": 1, "e2m2": 1, "e4m3fn": 9, "e5m2": 11, "e4m3fnuz": 9, "e8m0fnu": 17}
"""Formats, and which of their values are taken: every one, every ninth."""


def same(x, y):
    return (math.isnan(x) and math.isnan(y)) or (x == y and math.copysign(1, x) == math.copysign(1, y))


def finite_values(fmt):
    codes = np.arange(1 << fmt.bits, dtype=np.uint32)
    values = decode(codes, fmt)
    return sorted({Fraction(v) for v in values[np.isfinite(values)].tolist()})


def places(fmt, step=1):
    """Values, midpoints, and points a little beside each; some beyond the end."""
    values = finite_values(fmt)
    for low, high in list(pairwise(values))[::step]:
        middle, gap = (low + high) / 2, high - low
        yield from (low, low + gap / 9, middle - gap / 1000, middle, middle + gap / 1000)
    top, gap = values[-1], values[-1] - values[-2]
    yield from (top, top + gap / 3, top + gap / 2, top + gap * 2 / 3, top + gap, top * 3)


def check(x, fmt, mode, overflow="ieee", subnormals="keep"):
    story = explain_round(x, fmt, mode, overflow=overflow, subnormals=subnormals)
    right = round_exact(x, fmt, mode, overflow=overflow, subnormals=subnormals)
    assert same(story.result, right), (x, fmt, mode)
    below, above = story.below, story.above
    for neighbour, sign in ((below, -1), (above, 1)):
        if neighbour is not None:
            assert Fraction(neighbour.value) == x + sign * neighbour.distance
            assert neighbour.distance >= 0
    if story.midpoint is not None:
        assert 2 * story.midpoint == Fraction(below.value) + Fraction(above.value)
    if below is not None and above is not None and max(abs(below.value), abs(above.value)) <= fmt.max:
        assert (below.value, above.value) == (
            round_exact(x, fmt, "toward_negative"), round_exact(x, fmt, "toward_positive")
        )  # fmt: skip
    if math.isfinite(story.result) and story.kind not in ("flushed", "saturated", "no such value"):
        assert story.result in [n.value for n in (below, above) if n is not None] + [0.0] * (x == 0)
    check_kind(story, x, mode)


def check_kind(story, x, mode):
    match story.kind:
        case "exact":
            assert Fraction(story.result) == x
        case "tie":
            assert x == story.midpoint
            assert mode.startswith("ties")
        case "nearest":
            chosen = abs(Fraction(story.result) - x)
            others = [n.distance for n in (story.below, story.above) if n is not None]
            assert chosen == min(others)
            assert x != story.midpoint
        case "directed":
            assert not mode.startswith("ties")
            assert story.error != 0
        case "overflow":
            assert not math.isfinite(story.result)
        case "saturated":
            assert abs(story.result) == story.format.max
            assert abs(x) > story.format.max
        case "flushed":
            assert story.result == 0
            assert abs(x) < story.format.smallest_normal


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SMALL)
def test_values_midpoints_and_their_sides_in_small_formats(name, mode):
    fmt = format_of(name)
    for x in places(fmt, SMALL[name]):
        check(x, fmt, mode)


def test_every_value_midpoint_and_their_sides_of_e4m3fn():
    for x in places(format_of("e4m3fn")):
        check(x, format_of("e4m3fn"), "ties_to_even")


@pytest.mark.parametrize("name", ["e5m2", "e4m3fn", "e2m1fn"])
@pytest.mark.parametrize(("overflow", "subnormals"), [("saturate", "keep"), ("ieee", "ftz"), ("saturate", "ftz")])
def test_every_place_with_saturation_and_flushing(name, overflow, subnormals):
    fmt = format_of(name)
    for x in places(fmt, SMALL[name]):
        check(x, fmt, "ties_to_even", overflow, subnormals)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_places_all_over_the_16_bit_formats(name):
    fmt = format_of(name)
    for x in places(fmt, 1201):
        check(x, fmt, "ties_to_even")


@pytest.mark.parametrize(
    ("x", "fmt", "right", "kind"),
    [
        ("3811", "f16", 3812, "tie"), ("3811", "bf16", 3808, "nearest"), ("257", "bf16", 256, "tie"),
        ("22.277479", "bf16", 22.25, "nearest"), ("0x1.aep-18", "f16", 6.4373016357421875e-06, "tie"),
        ("4.25", "e4m3fn", 4, "tie"), ("4.75", "e4m3fn", 5, "tie"), ("464", "e4m3fn", 448, "tie"),
        ("464.5", "e4m3fn", NAN, "overflow"), ("1000", "e4m3fn", NAN, "overflow"),
        ("0.001", "e4m3fn", 2**-9, "nearest"), ("2^-10", "e4m3fn", 0, "tie"), ("61439", "e5m2", 57344, "nearest"),
        ("61440", "e5m2", INF, "overflow"),
        ("247", "e4m3fnuz", 240, "nearest"), ("248", "e4m3fnuz", NAN, "overflow"), ("3.0", "e8m0fnu", 4, "tie"),
        ("0.75", "e8m0fnu", 1, "tie"), ("0.1", "e4m3fn", 0.1015625, "nearest"), ("0.1", "e5m2", 0.09375, "nearest"),
        ("1 + 2^-11", "tf32", 1, "tie"), ("1 + 3*2^-11", "tf32", 1.001953125, "tie"), ("nan", "f16", NAN, "special"),
        ("-inf", "bf16", -INF, "special"), ("inf", "e4m3fn", NAN, "no such value"),
        ("0", "e8m0fnu", NAN, "no such value"),
        ("-1", "e8m0fnu", NAN, "no such value"), ("-0", "bf16", -0.0, "zero"), ("-0", "e4m3fnuz", 0.0, "zero"),
        ("7", "e2m1fn", 6, "saturated"), ("nan", "e2m1fn", -0.0, "no such value"),
    ],
)  # fmt: skip
def test_casts_that_people_met(x, fmt, right, kind):
    story = explain_round(x, fmt)
    assert same(story.result, right)
    assert story.kind == kind
    assert str(story)


def test_a_decimal_that_float64_takes_for_a_tie_may_lie_beside_it():
    """It is how Python prints the bf16 value 0x1.aep-18, which is a tie in f16; the decimal is a little less."""
    story = explain_round("6.407499313354492e-06", "f16")
    assert (story.result, story.kind) == (6.377696990966797e-06, "nearest")
    assert [(way.format.name, way.result, way.differs) for way in story.through] == [
        ("f64", 6.4373016357421875e-06, True), ("f32", 6.4373016357421875e-06, True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("x", "fmt", "words", "kind"),
    [
        ("464.5", "e4m3fn", {"overflow": "saturate"}, "saturated"), ("1e-40", "f32", {"subnormals": "ftz"}, "flushed"),
        ("1e-50", "f32", {"subnormals": "ftz"}, "nearest"), ("1e-40", "f32", {"subnormals": "daz"}, "operand flushed"),
        ("f32:0x00000001", "bf16", {"subnormals": "daz"}, "operand flushed"),
        ("70000", "f16", {"mode": "toward_zero"}, "saturated"),
        ("3.14", "bf16", {"mode": "toward_zero"}, "directed"), ("inf", "e4m3fn", {"overflow": "saturate"}, "saturated"),
        ("0x1.fffffcp-127", "f32", {"subnormals": "ftz"}, "flushed"),
    ],
)  # fmt: skip
def test_what_decided_under_other_rules(x, fmt, words, kind):
    assert explain_round(x, fmt, **words).kind == kind


def test_tininess_is_judged_after_rounding_with_unbounded_exponent():
    kept = explain_round("2^-126 - 2^-151", "f32", subnormals="ftz")
    flushed = explain_round("2^-126 - 2^-150", "f32", subnormals="ftz")
    assert (kept.result, flushed.result) == (2.0**-126, 0.0)
    assert (kept.kind, flushed.kind) == ("nearest", "flushed")


def test_double_rounding_through_f32_is_shown_where_it_differs_and_only_there():
    story = explain_round("1 + 2^-8 + 2^-40", "bf16")
    assert [(way.format.name, way.first, way.result, way.differs) for way in story.through] == [
        ("f64", 1 + 2**-8 + 2**-40, 1.0078125, False), ("f32", 1.00390625, 1.0, True)
    ]  # fmt: skip
    assert "Through f32 it would be rounded twice: 1.00390625, then 1." in str(story)
    assert "twice" not in str(explain_round("22.277479", "bf16"))
    assert not explain_round("0.1", "f64").through


def test_the_answer_says_the_tie_with_its_bits():
    text = str(explain_round("257", "bf16"))
    assert "256 = 0x1p+8 = bf16:0x4380." in text
    assert "takes the one whose last significand bit is 0, 256, not 258 (trailing bits 0000000 against 0000001)" in text
    assert "1.0000000|1 x 256" in text


def test_a_decimal_is_taken_as_the_rational_that_it_is():
    assert explain_round("0.1", "f64").error == Fraction(0.1) - Fraction(1, 10)
    assert explain_round(0.1, "f64").error == 0


def test_subnormal_results_say_how_many_bits_they_have():
    assert "has 1 of 11 significand bits" in str(explain_round("3e-8", "f16"))
    assert "underflows" in str(explain_round("1e-8", "f16"))


@pytest.mark.parametrize("x", ["nan", "inf", "-0", "0", "464.5", "1/3", "1e-300", "-1e300", "1e1000", "-1e-1500"])
@pytest.mark.parametrize("fmt", ["bf16", "f64", "e8m0fnu", "e2m1fn", "e4m3fnuz"])
def test_json_has_no_bare_nan_and_the_html_escapes(x, fmt):
    story = explain_round(x, fmt)
    body = json.loads(json.dumps(story.to_dict(), allow_nan=False))
    assert (body["schema"], body["what"]) == ("softfloat-llm/explain/1", "round")
    assert story._repr_html_().startswith("<div>")
    assert story.text(verbose=True)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("abc", "bf16"), WordError), (("1", "bf61"), FormatError), (("1", "bf16", "to_zero"), FormatError),
        (("", "bf16"), WordError),
    ],
)  # fmt: skip
def test_wrong_words_are_refused(words, error):
    with pytest.raises(error):
        explain_round(*words)


def test_a_number_may_come_as_itself():
    assert explain_round(number_of("257"), "bf16") == explain_round("257", "bf16")
    assert explain_round(257, "bf16").result == 256.0


@pytest.mark.parametrize("x", ["0.1", "-0.1", "1/3", "1e-40", "1e38", "257", "-2^-149", "3.4e38", "22.277479"])
@pytest.mark.parametrize("fmt", ["bf16", "f16", "f32", "f64", "e5m2"])
def test_the_values_that_are_shown_mean_exactly_the_values_that_are_meant(x, fmt):
    story = explain_round(x, fmt)
    shown = {row[0]: row[1] for row in story.tables()[0].rows}
    for name, found in (("below", story.below), ("above", story.above)):
        if found is not None and name in shown:
            assert number_of(shown[name].partition(" (~")[0]).exact == Fraction(found.value)
    if math.isfinite(story.result):
        assert number_of(story.sentences()[0].partition(" = ")[0].partition(" (~")[0]).exact == Fraction(story.result)
