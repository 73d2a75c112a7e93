"""PyTorch's autocast beside our recipe of it: the format of each result, and on the CPU that it names, every bit."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.live.torch_host import host_facts
from softfloat_llm.live.transformers_model import build, from_torch
from softfloat_llm.numerics.formats import format_of
from softfloat_llm.runs import simulate

pytestmark = pytest.mark.torch

RECIPE = "torch-autocast-bf16-cpu-avx512bf16"
OUTSIDE = {"model.embed_tokens": "embed", "model.norm": "norm.final", "lm_head": "lm_head"}
INSIDE = {
    "input_layernorm": "norm.input", "self_attn.q_proj": "attn.q_proj", "self_attn.k_proj": "attn.k_proj",
    "self_attn.v_proj": "attn.v_proj", "self_attn.o_proj": "attn.o_proj", "mlp.gate_proj": "mlp.gate_proj",
    "post_attention_layernorm": "norm.post_attention", "mlp.up_proj": "mlp.up_proj", "mlp.act_fn": "mlp.act",
    "mlp.down_proj": "mlp.down_proj", "": "mlp.residual",
}  # fmt: skip


@cache
def autocast(name, prompt, steps):
    """What the modules of an f32 model give under torch.autocast('cpu'), by our taps' names; tokens fed; cache."""
    import torch

    model, opened = build(open_model(name), format_of("f32"), "eager"), open_model(name)
    names = dict(OUTSIDE)
    for layer in range(opened.config.num_hidden_layers):
        names |= {f"model.layers.{layer}.{m}".rstrip("."): f"layers.{layer}.{site}" for m, site in INSIDE.items()}
    seen = {tap: [] for tap in names.values()}
    modules = dict(model.named_modules())

    def keep(tap):
        def hook(module, given, result):
            seen[tap].append(result[0] if isinstance(result, tuple) else result)

        return hook

    for module, tap in names.items():
        modules[module].register_forward_hook(keep(tap))
    fed, cached = list(prompt), None
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for step in range(steps):
            out = model(torch.tensor([fed if step == 0 else fed[-1:]]), past_key_values=cached, use_cache=True)
            cached = out.past_key_values
            fed.append(int(out.logits[0, -1].float().argmax()))
    arrays = {tap: np.concatenate([from_torch(part).reshape(-1, part.shape[-1]) for part in parts])
              for tap, parts in seen.items()}  # fmt: skip
    dtypes = {x: str(getattr(cached.layers[0], x).dtype) for x in ("keys", "values")}
    return arrays, tuple(fed[:-1]), dtypes


def test_each_result_has_the_format_that_the_recipe_says():
    arrays, _, cached = autocast("tiny", (711, 456, 440), 1)
    run = simulate(tokens=(711, 456, 440), recipe="torch-autocast-bf16-cpu", taps=("*.out",))
    for tap, array in arrays.items():
        assert format_of(array.dtype) == run.format_of_tap(f"{tap}.out"), tap
    assert cached == {"keys": "torch.float32", "values": "torch.bfloat16"}
    assert [str(run.format_of_tap(f"layers.0.kv.{x}.out")) for x in "kv"] == ["f32", "bf16"]


def assert_same_bits(name, prompt, steps):
    if host_facts().instruction_set != "avx512bf16":
        pytest.skip("the recipe's orders are those of a CPU with AVX512-BF16 and no AMX")
    arrays, fed, _ = autocast(name, prompt, steps)
    run = simulate(tokens=prompt, model=name, recipe=RECIPE, steps=steps, taps=("*.out",))
    assert run.fed == fed
    for tap, array in arrays.items():
        got = run[f"{tap}.out"].reshape(array.shape)
        assert np.count_nonzero(got.astype(np.float64) != array.astype(np.float64)) == 0, tap


@pytest.mark.parametrize("length", [1, 2, 6, 17, 40])
def test_the_tiny_model_has_pytorch_s_bits_under_autocast(length):
    assert_same_bits("tiny", tuple(range(40, 40 + length)), 3)


@pytest.mark.smollm2
def test_smollm2_has_pytorch_s_bits_under_autocast(smollm2_folder):
    assert_same_bits("smollm2", (504, 3575, 282, 4649, 314), 2)
