"""S14: autocast chooses a format for each operation: of a region's outputs only some are low precision."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.runs import simulate

PROMPT = [711, 456, 440, 14, 419, 456]
CPU, CUDA = "torch-autocast-bf16-cpu", "torch-autocast-bf16-cuda"
LOW = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "kv.v", "scores", "scale", "pv",
       "act", "act_mul", "lm_head")  # fmt: skip
HIGH = ("embed", "norm.input", "norm.post_attention", "norm.final", "rope.table", "attn.rope", "kv.k", "mask",
        "softmax", "residual")  # fmt: skip


@pytest.fixture(scope="module")
def tiny():
    return open_model("tiny")


def formats_of(run):
    return {name: str(run.format_of_tap(name)) for name in run.names}


@pytest.mark.parametrize("recipe", [CPU, CUDA])
def test_s14_products_are_low_precision_and_what_meets_the_f32_stream_is_not(tiny, recipe):
    formats = formats_of(simulate(tokens=PROMPT, model=tiny, recipe=recipe, taps=("*.out",)))
    count = {fmt: sum(1 for found in formats.values() if found == fmt) for fmt in ("bf16", "f32")}
    print(f"{recipe}: {count['bf16']} outputs in bf16, {count['f32']} in f32")
    assert sum(count.values()) == len(formats)
    for name, found in formats.items():
        site = name.removesuffix(".out")
        wanted = "bf16" if site.endswith(LOW) else "f32"
        assert site.endswith(LOW) != site.endswith(HIGH), site
        assert found == wanted, name


def test_s14_the_same_tensor_has_two_formats_on_its_way(tiny):
    """q leaves its layer in bf16, becomes f32 in the rotation, and meets k in bf16 again; so do probabilities."""
    formats = formats_of(simulate(tokens=PROMPT, model=tiny, recipe=CPU, taps=("layers.0.attn.*",)))
    way = ("q_proj.out", "rope.in", "rope.out", "scores.in", "scores.out", "mask.out", "softmax.out", "pv.in", "pv.out")
    assert [formats[f"layers.0.attn.{stage}"] for stage in way] == [
        "bf16", "f32", "f32", "bf16", "bf16", "f32", "f32", "bf16", "bf16"
    ]  # fmt: skip


def test_s14_it_is_neither_the_f32_model_nor_the_bf16_model(tiny):
    runs = {
        r: simulate(tokens=PROMPT, model=tiny, recipe=r, taps=("*.out",)) for r in (CPU, "f32", "transformers-eager")
    }
    wide = {r: run["logits"].astype(np.float64) for r, run in runs.items()}
    error = {r: float(np.abs(wide[r] - wide["f32"]).max()) for r in runs}
    print({r: round(e, 4) for r, e in error.items()})
    assert 0 < error[CPU] < error["transformers-eager"]
    residual = "layers.0.attn.residual.out"
    assert str(runs[CPU].format_of_tap(residual)) == "f32"
    assert str(runs["transformers-eager"].format_of_tap(residual)) == "bf16"


def test_s14_cpu_and_cuda_have_other_lists_and_the_same_formats(tiny):
    cpu, cuda = (simulate(tokens=PROMPT, model=tiny, recipe=recipe, taps=("*",)) for recipe in (CPU, CUDA))
    assert formats_of(cpu) == formats_of(cuda)
    norm = "layers.0.norm.input.out"  # their kernels order and divide otherwise, which bf16 logits may hide
    assert cpu[norm].tobytes() != cuda[norm].tobytes()
