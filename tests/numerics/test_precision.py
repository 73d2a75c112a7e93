"""Precision: text form, defaults, JAX's spelling, refusals."""

from __future__ import annotations

import itertools

import pytest

from softfloat_llm.errors import FormatError, OrderError, PrecisionError
from softfloat_llm.numerics.modes import MODES, SUBNORMALS
from softfloat_llm.numerics.precision import EXACT, Accumulator, PerStage, Precision, accumulator_of, precision_of


def test_what_is_not_said_has_the_documented_default():
    at = precision_of("storage=bf16")
    assert (str(at.output), str(at.acc), at.product, str(at.order)) == ("bf16", "f32", None, "seq")
    assert at.rounding == PerStage(*["ties_to_even"] * 4)
    assert at.subnormals == PerStage(*["keep"] * 4)
    assert at.overflow == PerStage(*["ieee"] * 4)
    assert precision_of("acc=f16").storage == precision_of("storage=f32").storage
    assert str(precision_of("storage=tf32").output) == "f32"


@pytest.mark.parametrize(
    "text",
    [
        "storage=f16,acc=f16,order=lanes:8",
        "storage=bf16,product=bf16,acc=f32+kahan,output=f32,order=blocked:32 > lanes:2",
        "storage=f32,acc=exact,output=bf16,rounding=toward_zero",
        "storage=bf16,acc=f32,subnormals=ftz+daz,output.overflow=saturate,acc.rounding=toward_negative",
        "storage=f64,product=f64,acc=f64,output=f64,order=pairwise",
        "storage=e4m3fn,acc=e5m7,order=split-k:4:bf16,product.subnormals=ftz",
        "storage=tf32,acc=f32+neumaier,order=perm:7",
    ],
)
def test_a_precision_parses_back_from_what_it_prints(text):
    at = precision_of(text)
    assert precision_of(str(at)) == at
    assert hash(precision_of(str(at))) == hash(at)
    assert precision_of(dict(at.items())) == at
    assert precision_of(at) is at


def test_every_combination_of_stage_words_parses_back():
    for mode, subnormals, overflow in itertools.product(MODES, SUBNORMALS, ("ieee", "saturate")):
        for stage in ("storage", "product", "acc", "output"):
            at = Precision(rounding={stage: mode}, subnormals={stage: subnormals}, overflow=overflow)
            assert precision_of(str(at)) == at
            assert getattr(at.rounding, stage) == mode


def test_one_stage_overrides_the_word_for_all_in_any_sequence():
    for text in ("acc.rounding=to_odd,rounding=toward_zero", "rounding=toward_zero,acc.rounding=to_odd"):
        assert precision_of(text).rounding == PerStage("toward_zero", "toward_zero", "to_odd", "toward_zero")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("BF16_BF16_F32", "storage=bf16,acc=f32"), ("F16_F16_F16", "storage=f16,acc=f16"),
        ("TF32_TF32_F32", "storage=tf32,acc=f32"), ("F32_F32_F32", "storage=f32"),
        ("F64_F64_F64", "storage=f64,product=f64,acc=f64"),
    ],
)  # fmt: skip
def test_jax_names_mean_their_stages(name, text):
    assert precision_of(name) == precision_of(text)
    assert precision_of(text).jax_name == name


def test_a_precision_without_a_jax_name_has_none():
    assert precision_of("storage=bf16,acc=f32,order=pairwise").jax_name is None
    assert precision_of("storage=e4m3fn").jax_name is None


def test_accumulators():
    assert accumulator_of("exact") == EXACT
    assert accumulator_of("bf16+kahan") == Accumulator(accumulator_of("bf16").format, "kahan")
    assert str(accumulator_of("fp32+neumaier")) == "f32+neumaier"
    assert accumulator_of(EXACT) is EXACT


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("storage=bf61", FormatError, "Did you mean 'bf16'?"), ("acum=f32", PrecisionError, "Unknown precision key"),
        ("storage", PrecisionError, "found 'storage'."), ("f16", PrecisionError, "Did you mean 'storage=f16'"),
        ("f16+kahan", PrecisionError, "Did you mean 'acc=f16"), ("half,acc=f32", PrecisionError, "mean 'storage=half'"),
        ("storage=f16,lanes:8", PrecisionError, "found 'lanes:8'. Did you mean 'order=lanes:8'"),
        ("storage=bf16,storage=f16", PrecisionError, "given twice"),
        ("acc=f32+dekker", PrecisionError, "kahan or neumaier"), ("order=lane:8", OrderError, "Unknown order"),
        ("rounding=nearest", FormatError, "Did you mean 'ties_to_even'"),
        ("acc.subnormals=flush", FormatError, "Known: keep"),
        ("BF16_F32_F32", PrecisionError, "JAX"), ("BF16_BF16_F32_X3", PrecisionError, "JAX"),
        ("", PrecisionError, "KEY=WORD"),
        ("accu.rounding=to_odd", PrecisionError, "Unknown precision key"), ("storage=", PrecisionError, "KEY=WORD"),
        ("storage=f64", PrecisionError, "needs product=f64"),
        ("storage=f64,acc=exact", PrecisionError, "needs product"),
        ("storage=f64,product=f64,acc=f64,product.rounding=toward_zero", PrecisionError, "ties_to_even"),
    ],
)  # fmt: skip
def test_a_malformed_precision_is_refused_saying_what_was_expected(text, error, says):
    with pytest.raises(error) as caught:
        precision_of(text)
    assert says in str(caught.value)
    assert caught.value.exit_code == 2


def test_an_unknown_stage_is_named():
    with pytest.raises(PrecisionError, match=r"unknown stage 'accu'.* Did you mean 'acc'\?"):
        Precision(rounding={"accu": "to_odd"})


@pytest.mark.parametrize("more", ["acc.overflow=saturate", "acc.subnormals=ftz", "product.rounding=toward_zero"])
def test_sums_of_f64_are_the_hardwares_only(more):
    with pytest.raises(PrecisionError, match="Storage f64 needs"):
        precision_of(f"storage=f64,product=f64,acc=f64,output=f64,{more}")
