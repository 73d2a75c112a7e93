"""The forms of blocks beside PyTorch's own operations: all halves where one tensor enters, random rows for norms."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.live.transformers_model import from_torch, to_torch
from softfloat_llm.llama import blocks
from softfloat_llm.llama.cache import kept
from softfloat_llm.numerics.formats import decode, format_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.recipe import recipe_of
from tests.oracle import assert_same

pytestmark = pytest.mark.torch

DTYPES = {"bf16": "bfloat16", "f16": "float16"}
HALVES = tuple(DTYPES)
EPS, WIDTH = 1e-5, 576
PYTORCH = "norm.order=cascade:8,norm.root=one-over-sqrt"


def finite(fmt):
    """Every finite value of a format, as one row."""
    values = decode(np.arange(1 << 16, dtype=np.uint16), fmt)
    return values[np.isfinite(values.astype(np.float64))][None]


def tensor(values, fmt):
    import torch

    return to_torch(torch, values, format_of(fmt))


@pytest.mark.parametrize("fmt", HALVES)
@pytest.mark.parametrize("form", ["quotient", "stepwise", "times-sigmoid"])
def test_silu_of_every_half_is_pytorch_s_in_the_same_steps(fmt, form):
    import torch

    x = finite(fmt)
    t = tensor(x, fmt)
    steps = {
        "quotient": lambda: torch.nn.functional.silu(t),
        "stepwise": lambda: t / (1 + (-t).exp()),
        "times-sigmoid": lambda: t * torch.sigmoid(t),
    }
    got = blocks.silu(x, recipe_of(f"{fmt},mlp.act.form={form},mlp.act.exp=sleef-u10").at("mlp.act")).out
    assert_same(got, from_torch(steps[form]()), x)


def mean_of_squares(x):
    return x.pow(2).mean(-1, keepdim=True)


def root(x):
    """1 over the root, both correctly rounded: that is what torch.rsqrt does."""
    import torch

    return torch.rsqrt(mean_of_squares(x) + EPS)


def pytorch_s_own(s, total, w):
    import torch

    return torch.nn.functional.rms_norm(s, (WIDTH,), w, EPS)


def sgl_fused(s, total, w):
    import torch

    mean = total.pow(2).sum(-1, keepdim=True) * torch.tensor(1 / WIDTH)
    return (s.float() * w.float()) * torch.rsqrt(mean + EPS)


def candle_cpu(s, total, w):
    import torch

    shifted = mean_of_squares(s.float()) + EPS
    rms = torch.from_numpy(np.sqrt(shifted.numpy()))  # torch.sqrt of float32 is MKL's, an ulp off for some values
    return (s / rms.to(s.dtype)) * w


def ggml(s, total, w):
    import torch

    squares = s.float().pow(2).double().cumsum(-1)[..., -1:]  # a running sum, one term after another
    return (s.float() * torch.rsqrt((squares / WIDTH).float() + EPS)) * w.float()


# name: what PyTorch does to s (the sum as it is stored), the f32 sum and the weight; and what a recipe says for it
NORMS = {
    "N1, transformers": (lambda s, total, w: w * (s.float() * root(s.float())).to(s.dtype), PYTORCH),
    "N2, F.rms_norm": (pytorch_s_own, f"{PYTORCH},norm.form=weight-then-round"),
    "N3, SGLang's fused kernel": (
        sgl_fused, f"{PYTORCH},norm.form=weight-first,norm.takes=unrounded-statistics,norm.mean=times-reciprocal"
    ),
    "N4, FlashInfer": (
        lambda s, total, w: (total * root(total)) * w.float(),
        f"{PYTORCH},norm.form=weight-then-round,norm.takes=unrounded",
    ),
    "N6, candle on a CPU": (candle_cpu, "norm.order=cascade:8,norm.root=divide,norm.root_format=output"),
    "N7, candle on Metal": (
        lambda s, total, w: (s * root(s.float()).to(s.dtype)) * w, f"{PYTORCH},norm.root_format=output"
    ),
    "N8, ggml": (
        ggml,
        "norm.form=weight-then-round,norm.root=one-over-sqrt,norm.acc=f64,norm.mean=divide-accumulator,norm.output=f32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fmt", HALVES)
@pytest.mark.parametrize("name", NORMS)
def test_the_norm_of_each_engine_is_pytorch_s_in_the_same_steps(name, fmt):
    theirs, words = NORMS[name]
    rng = np.random.default_rng(0)
    stream, x = (round_to(rng.standard_normal((60, WIDTH)) * 3, fmt) for _ in range(2))
    weight = round_to(rng.standard_normal(WIDTH), fmt)
    total = tensor(stream, fmt).float() + tensor(x, fmt).float()
    s = total.to(tensor(x, fmt).dtype)
    at = recipe_of(f"{fmt},{words}").at
    stored = blocks.residual(stream, x, at("attn.residual")).out
    unrounded = blocks.unrounded_residual(stream, x, at("attn.residual"))
    assert_same(stored, from_torch(s))
    assert_same(unrounded, from_torch(total))
    got = blocks.rms_norm(stored, weight, at("norm.post_attention"), EPS, unrounded=unrounded).out
    want = theirs(s, total, tensor(weight, fmt))
    assert_same(got, from_torch(want if name.startswith("N8") else want.to(s.dtype)))


@pytest.mark.parametrize("fmt", HALVES)
@pytest.mark.parametrize("scale", [1.0, 0.7])
def test_every_half_is_cached_in_e4m3fn_as_sglang_does_in_pytorch(fmt, scale):
    """`k.div_(k_scale)` in the half format, then the cast, which saturates."""
    import torch

    x = finite(fmt)
    spec = recipe_of(f"{fmt},kv=e4m3fn,kv.overflow=saturate,kv.scale={scale}").at("kv.k")
    held = tensor(x, fmt).div_(scale).to(torch.float8_e4m3fn)
    assert_same(kept(x, spec, format_of(fmt)).out, from_torch(held.float()), x)
