"""What PyTorch's own kernels gave, recognised from inputs and outputs alone."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from softfloat_llm.analysis.identify import identify

pytestmark = pytest.mark.torch


def numpy_of(tensor):
    import torch

    bits = tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()
    return bits.view(ml_dtypes.bfloat16) if tensor.dtype == torch.bfloat16 else bits


def found(operation, **tensors):
    arrays = {name: numpy_of(t) if hasattr(t, "numpy") else np.asarray(t) for name, t in tensors.items()}
    return identify(operation, arrays)


def drawn(*shape, dtype="bfloat16"):
    import torch

    return (torch.randn(*shape, generator=torch.Generator().manual_seed(1)) * 2).to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_two_forms_of_a_norm_are_told_apart(dtype):
    import torch

    x, weight = drawn(6, 64, dtype=dtype), drawn(64, dtype=dtype)
    wide = x.float()
    llama = weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
    once = torch.nn.functional.rms_norm(x, (64,), weight, 1e-6)
    assert found("norm", x=x, weight=weight, eps=1e-6, out=llama).settled["form"] == "round-then-weight"
    told = found("norm", x=x, weight=weight, eps=1e-6, out=once)
    assert told.fits
    assert "round-then-weight" not in {fit.candidate.word("form") for fit in told.fits}


def test_a_softmax_in_float32_shows_its_exponential_and_its_reciprocal():
    import torch

    x = drawn(6, 96, dtype="float32")
    told = found("softmax", x=x, out=torch.softmax(x, -1))
    assert told.settled["exp"] == "sleef-u10"
    assert told.settled["form"] == "reciprocal"


def test_silu_of_a_half_format_is_one_quotient_rounded_once():
    import torch

    x = drawn(6, 96)
    assert found("silu", x=x, out=torch.nn.functional.silu(x)).settled["form"] == "quotient"


def test_a_linear_layer_in_bf16_has_a_wide_accumulator():
    import torch

    x, weight = drawn(8, 96), drawn(12, 96)
    told = found("linear", x=x, weight=weight, out=torch.nn.functional.linear(x, weight))
    assert "f32" in {fit.candidate.word("acc") for fit in told.fits}
    assert "bf16" not in {fit.candidate.word("acc") for fit in told.fits}
    assert told.settled["product"] == "exact"


def test_a_cast_to_bf16_is_one_rounding_to_even():
    from softfloat_llm.analysis.identify_format import identify_format

    x = drawn(500, dtype="float32")
    x[:3] = x.new_tensor([257.0, 259.0, 1.00390625])
    pairs = list(zip(x.tolist(), x.bfloat16().tolist(), strict=True))
    assert {(str(rule.format), rule.mode) for rule in identify_format(pairs).fits} == {("bf16", "ties_to_even")}
