"""Grids of printed numbers, tensors read in the wrong format, rounding rules from samples: each finds its own truth."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from softfloat_llm.analysis.identify_format import hard_inputs, identify_format, rules
from softfloat_llm.analysis.identify_logits import identify_logits
from softfloat_llm.analysis.identify_tensor import identify_tensor
from softfloat_llm.errors import ArrayError, WordError
from softfloat_llm.numerics.carriers import widen
from softfloat_llm.numerics.formats import format_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.numerics.ulps import ulp
from tests.oracle import assert_same

# --- logits -----------------------------------------------------------------------------------------------------------


def test_logits_of_a_text_are_bf16_in_16_to_32():
    found = identify_logits(["22.375", "22.25", "20.125", "19.5", "18.875", "17.25"])
    assert str(found.coarsest.format) == "bf16"
    assert [(part.interval, part.step, part.count) for part in found.binades] == [("[16, 32)", -3, 6)]
    assert "multiples of 0.125" in str(found)
    assert found.coarsest.evidence > 20
    assert found.shift is None


@pytest.mark.parametrize("places", [2, 3, 4, 6])
@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_the_format_of_printed_logits_is_found_whatever_they_were_rounded_to_in_print(name, places):
    rng = np.random.default_rng(places)
    values = widen(round_to(rng.uniform(16, 32, 20), name))
    found = identify_logits([f"{x:.{places}f}" for x in values])
    own = format_of(name)
    known = [fit.format for fit in found.formats]
    assert own in known
    if 10.0**-places < float(ulp(20.0, own)) / 4:
        assert found.coarsest.format == own
        assert found.coarsest.evidence > 20
    else:
        assert found.coarsest.format.precision <= own.precision


def test_float32_logits_are_not_taken_for_a_half_format():
    rng = np.random.default_rng(1)
    found = identify_logits([f"{x:.5f}" for x in rng.uniform(16, 32, 20)])
    assert found.coarsest.format.precision > 11
    assert found.shift is None


@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_log_probabilities_keep_the_grid_of_their_logits(name):
    rng = np.random.default_rng(2)
    logits = np.sort(widen(round_to(rng.normal(20, 2, 500), name)))[::-1]
    logs = (logits - math.log(math.fsum(np.exp(logits)))).astype(np.float32)
    found = identify_logits([f"{x:.6f}" for x in logs[:12]])
    assert found.is_log
    assert found.shift.step == int(math.log2(ulp(20.0, name)))
    assert f"{name} in [16, 32)" in found.shift.origins
    assert "log-probabilities of logits on that grid" in str(found)
    from_array = identify_logits(logs[:12])
    assert from_array.shift.step == found.shift.step


def test_a_log_probability_around_11_in_bf16_has_a_step_of_a_sixteenth():
    found = identify_logits(["-11.0625", "-11", "-8.9375", "-15.5", "-12.125", "-9.75", "-10.5625"])
    assert str(found.coarsest.format) == "bf16"
    assert found.binades[-1].step == -4


def test_every_value_of_small_formats_fits_its_own_format():
    for name in ("e4m3fn", "e5m2", "e2m1fn", "e3m2fn"):
        fmt = format_of(name)
        found = identify_logits(widen(round_to(np.linspace(-fmt.max, fmt.max, 40), name)))
        assert fmt in [fit.format for fit in found.formats]
        assert found.coarsest.format.precision <= fmt.precision


def test_few_numbers_are_no_evidence_and_said_so():
    assert "too few or too coarse" in str(identify_logits(["5"]))
    assert identify_logits(["0", "0.0"]).binades == ()


def test_what_is_not_finite_is_left_out_and_nothing_left_is_refused():
    assert identify_logits(["22.375", "nan", "-inf"]).numbers == 1
    for nothing in ([], ["nan"], np.array([np.inf]), np.zeros(0)):
        with pytest.raises(ArrayError, match="no grid"):
            identify_logits(nothing)
    with pytest.raises(WordError, match="no number"):
        identify_logits(["22.375", "abc"])
    with pytest.raises(ArrayError, match="real numbers"):
        identify_logits(np.array(["a"]))


def test_a_long_list_is_looked_at_in_part():
    rng = np.random.default_rng(4)
    found = identify_logits(round_to(rng.normal(size=10_000) * 8, "bf16").astype(np.float32))
    assert found.given == 10_000
    assert found.numbers == 1024
    assert str(found.coarsest.format) == "bf16"


def test_numbers_of_any_size_have_an_answer():
    found = identify_logits(["1e300", "1e-300", "-1e308"])
    assert found.coarsest is None
    assert "no known format" in str(found)


# --- tensors ----------------------------------------------------------------------------------------------------------

KINDS = {
    "weights": lambda rng, n: rng.normal(size=n) * 0.02,
    "activations": lambda rng, n: rng.standard_t(3, n),
    "logits": lambda rng, n: rng.normal(8, 4, n),
    "uniform": lambda rng, n: rng.uniform(-1, 1, n),
    "large": lambda rng, n: rng.normal(size=n) * 300,
}
DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DTYPES)
def test_a_tensor_read_in_the_other_format_is_found_out_and_one_read_right_is_not(name, kind):
    right, wrong = DTYPES[name], DTYPES["f16" if name == "bf16" else "bf16"]
    tensor = KINDS[kind](np.random.default_rng(3), 3000).astype(right)
    told, misread, bare = (identify_tensor(x) for x in (tensor, tensor.view(wrong), tensor.view(np.uint16)))
    assert told.best.name == misread.best.name == bare.best.name == name
    assert (told.is_misread, misread.is_misread, bare.is_misread) == (False, True, None)
    assert misread.evidence > 100
    assert "read in the wrong format" in str(misread)
    assert "as it was read" in str(told)


@pytest.mark.parametrize("name", DTYPES)
def test_numbers_of_one_sign_that_crowd_around_one_value_are_not_decided_wrongly(name):
    rng = np.random.default_rng(3)
    for values in (1 + 0.1 * rng.normal(size=3000), np.abs(rng.normal(size=3000)), np.exp(rng.normal(-6, 2, 3000))):
        found = identify_tensor(values.astype(DTYPES[name]))
        assert found.is_misread is not True


@pytest.mark.parametrize("name", DTYPES)
def test_swapped_bytes_are_found_out(name):
    tensor = (np.random.default_rng(4).normal(size=2000) * 0.05).astype(DTYPES[name])
    found = identify_tensor(tensor.view(np.uint16).byteswap().view(DTYPES[name]))
    assert found.best.name == f"{name}, bytes swapped"
    assert found.is_misread


def test_a_misread_tensor_that_was_widened_is_found_out_too():
    tensor = np.random.default_rng(5).normal(size=(50, 40)).astype(np.float16).view(ml_dtypes.bfloat16)
    assert identify_tensor(tensor.astype(np.float32)).is_misread
    assert identify_tensor(tensor.astype(np.float64)).best.name == "f16"


def test_the_embedding_of_the_built_in_model_reads_well():
    from softfloat_llm.io.checkpoint import open_model

    weights = open_model("tiny").weights
    stored = next(x for x in weights.values() if x.ndim == 2)
    half = round_to(stored, "bf16")
    assert identify_tensor(half).is_misread is False
    assert identify_tensor(half.view(np.float16)).is_misread is True


def test_too_little_is_no_evidence():
    for tensor in (np.ones(1000, np.float16), np.array([0.5, 1.5], np.float16), np.float16([0, 0, 3])):
        found = identify_tensor(tensor)
        assert found.is_misread is None
        assert "cannot be said" in str(found)


def test_tensors_of_nan_and_of_zeros_and_of_other_formats():
    assert identify_tensor(np.full(100, np.nan, np.float16)).looked_at == 100
    for nothing in (np.zeros(5, np.float16), np.zeros(0, np.uint16)):
        with pytest.raises(ArrayError, match="nothing but zeros"):
            identify_tensor(nothing)
    for other in (np.float32([0.1, 1 / 3]), np.zeros(3, np.int64), np.array(["a"])):
        with pytest.raises(ArrayError, match="expected values of bf16 or f16"):
            identify_tensor(other)


# --- rounding rules ---------------------------------------------------------------------------------------------------


def hard(fmt):
    values = [x for x in hard_inputs(fmt) if abs(x) < Fraction(2) ** 1000]
    return [*values, Fraction(1, 10), Fraction(-1, 3), Fraction(0)]


@pytest.mark.parametrize("name", ["bf16", "f16", "e4m3fn", "e5m2", "tf32", "e8m0fnu"])
def test_every_rule_is_among_the_fits_of_its_own_samples_and_all_fits_give_the_same(name):
    fmt = format_of(name)
    inputs = hard(fmt)
    objects = np.empty(len(inputs), object)
    objects[:] = inputs
    every = [rule for rule in rules(widen(round_to(np.array([1.0, 0.5]), name))) if rule.format == fmt]
    results = [widen(rule.apply(objects)) for rule in every]
    keys = [np.where(np.isnan(r), np.nan, r).tobytes() for r in results]
    for place in range(0, len(every), 23):
        found = identify_format(list(zip(inputs, results[place].tolist(), strict=True)))
        fits = {rule for rule in found.fits if rule.format == fmt}
        assert fits == {rule for rule, key in zip(every, keys, strict=True) if key == keys[place]}, str(every[place])


def test_samples_that_do_not_tell_come_with_one_that_would():
    found = identify_format([("257", "256"), ("-257", "-256"), ("0.1", "0.10009765625")])
    assert str(found.fits[0]) == "bf16, ties_to_even"
    assert "through" in found.open
    assert found.probe is not None
    ends = [y for y, _ in found.probe.results]
    assert len({repr(y) for y in ends}) == len(ends) > 1
    for y, same in found.probe.results:
        for rule in same:
            objects = np.empty(1, object)
            objects[:] = [found.probe.x]
            assert_same(widen(rule.apply(objects))[0], y)


@pytest.mark.parametrize(
    ("pairs", "rule"),
    [
        ([(3811, 3812), (22.277479, 22.28125)], "f16, ties_to_even"),
        ([("464", "448"), ("464.5", "nan"), ("4.25", "4")], "e4m3fn, ties_to_even"),
        ([("464.5", "448"), ("1000", "448"), ("4.25", "4")], "e4m3fn, ties_to_even, overflow saturate"),
        ([("61439", "57344"), ("61440", "inf")], "e5m2, ties_to_even"),
        ([("247", "240"), ("248", "nan")], "e4m3fnuz, ties_to_even"),
        ([("3.14", "3.125"), ("-3.14", "-3.125")], "bf16, toward_zero"),
        ([("1.01953125", "1.0234375")], "bf16, ties_to_away"),
        ([("1+2^-8+2^-40", "1")], "bf16, ties_to_even, through f32"),
        ([("1+3*2^-11", "1.001953125"), ("1+2^-11", "1")], "tf32, ties_to_even"),
        ([("3.0", "4"), ("0.75", "1")], "e8m0fnu, ties_to_even"),
    ],
)
def test_casts_that_people_met(pairs, rule):
    found = identify_format(pairs)
    assert rule in map(str, found.fits)


def test_the_cast_of_ml_dtypes_from_float64_is_found_to_go_through_float32():
    rng = np.random.default_rng(6)
    x = 1 + rng.integers(0, 128, 300) * 2.0**-7 + 2.0**-8 + rng.choice([-1, 1], 300) * 2.0**-40
    found = identify_format(list(zip(x.tolist(), x.astype(ml_dtypes.bfloat16).astype(float).tolist(), strict=True)))
    assert {rule.through for rule in found.fits if rule.mode == "ties_to_even"} == {"f32"}


def test_results_that_no_rule_gives_have_a_nearest_one():
    found = identify_format([("1", "1"), ("2", "3"), ("257", "256")])
    assert not found.fits
    assert found.nearest[0][1] == 1
    assert "The nearest misses 1 of 3" in str(found)
    none = identify_format([("1/3", "1/3")])
    assert "No format holds the results" in str(none)


def test_odd_pairs():
    assert identify_format([("nan", "nan"), ("inf", "inf"), ("-0", "-0")]).fits
    assert identify_format([("1e400", "inf")]).fits
    assert not identify_format([("-0", "0"), ("1", "-1")]).fits
    with pytest.raises(ArrayError, match="0 pairs"):
        identify_format([])
    with pytest.raises(ArrayError, match="20001 pairs"):
        identify_format([("1", "1")] * 20_001)
    with pytest.raises(WordError):
        identify_format([("one", "1")])


def test_answers_are_plain_json_short_text_and_html():
    answers = [
        identify_logits(["22.375", "22.25"]),
        identify_tensor(np.float16([0.1, 0.2])),
        identify_format([("257", "256")]),
        identify_format([("1", "2")]),
    ]
    for found in answers:
        body = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert body["schema"] == "softfloat-llm/identify/1"
        assert len(str(found).splitlines()) < 25
        assert found._repr_html_().startswith("<div>")
        assert found.text(verbose=True)
