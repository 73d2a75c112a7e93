"""Which kernels PyTorch runs on this machine, so which recipe a test can hold against it."""

from __future__ import annotations

import pytest

from softfloat_llm.live.comparison import kernels_here, recipe_here
from softfloat_llm.live.torch_host import host_facts


def recipe_or_skip(attention, fmt, *, mkldnn=True):
    """The recipe for what runs here. Skips where these bits were not seen: other instructions, another maker's MKL."""
    host = host_facts(uses_mkldnn=mkldnn)
    name = recipe_here(host, fmt, attention)
    if host.capability != "AVX512":
        pytest.skip(f"{name} is for vectors of AVX-512, PyTorch uses {host.capability} here: {host}")
    if kernels_here(host, fmt, attention) not in ("avx512bf16", "native"):
        pytest.skip(f"{name}: orders that were not seen run beside us are held against recorded bits only: {host}")
    return name
