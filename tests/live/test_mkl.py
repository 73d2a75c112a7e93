"""The orders of PyTorch's float32 linear layers (MKL), against PyTorch on the CPU at hand: Intel's and AMD's differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from softfloat_llm.llama import blocks
from softfloat_llm.numerics import reduce
from softfloat_llm.recipe import recipe_of

pytestmark = pytest.mark.torch

SHAPES = [(576, 192), (576, 576), (576, 1536), (1536, 576)]  # (K, N) of SmolLM2


def cpu() -> str:
    """Vendor and flags of the CPU, as Linux tells them; nothing elsewhere."""
    file = Path("/proc/cpuinfo")
    return file.read_text().partition("\n\n")[0] if file.exists() else ""


def operands(rows, terms, columns):
    rng = np.random.default_rng([rows, terms, columns])
    return (rng.standard_normal((n, terms)).astype(np.float32) for n in (rows, columns))


def pytorchs(x, w):
    import torch

    if not torch.backends.mkl.is_available() or torch.get_num_threads() != 2:
        pytest.skip("the orders were read off with MKL and two threads")
    with torch.inference_mode():
        return torch.nn.functional.linear(torch.from_numpy(x)[None], torch.from_numpy(w))[0].numpy()


@pytest.mark.skipif("GenuineIntel" not in cpu() or "avx512f" not in cpu(), reason="no Intel CPU with AVX-512 here")
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 14, 15, 16, 34, 60])
def test_linear_layers_on_an_intel_cpu_are_those_of_the_recipe(rows):
    spec = recipe_of("transformers-eager-f32-cpu-mkl").at("attn.q_proj")
    for terms, columns in SHAPES:
        x, w = operands(rows, terms, columns)
        np.testing.assert_array_equal(pytorchs(x, w), blocks.linear(x, w, spec).out, err_msg=f"{terms} {columns}")


@pytest.mark.skipif("AuthenticAMD" not in cpu() or "avx2" not in cpu(), reason="no AMD CPU with AVX2 here")
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 10, 12, 14, 34])
def test_linear_layers_on_an_amd_cpu_take_fours_of_rows_below_twelve_and_chunks_of_192(rows):
    for terms, columns in SHAPES:
        x, w = operands(rows, terms, columns)
        chunked = rows if rows >= 12 else rows - rows % 4
        few = "product=f32,order=" + ("gemv:t-4" if rows == 1 else "lanes:4")
        parts = [
            reduce.matmul(part, w.T, f"storage=f32,acc=f32,output=f32,{how}")
            for part, how in ((x[:chunked], "order=blocked:192 > seq"), (x[chunked:], few))
        ]
        np.testing.assert_array_equal(pytorchs(x, w), np.concatenate(parts), err_msg=f"{terms} {columns}")
