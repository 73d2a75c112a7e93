"""Record what PyTorch's attention gives on a CPU where no sum of products has an order: torch_attention.npz.

    python make_torch_attention.py [OUT.npz]

Each query has one element, so a score is one product; each column of the values has one key, so an output is one too.
What is left are the roundings and the softmax: of the math backend, and of the flash kernel past 512 keys, which it
takes in blocks. Needs torch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
CODES = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
MATH = {"kinds": ("bf16", "f16"), "cases": ((1, 40, 64), (7, 7, 128), (5, 33, 64))}
FLASH = {"kinds": ("bf16", "f16", "f32"), "cases": ((1, 600, 64), (3, 1100, 64))}
HEADS, GROUPS = 4, 2


def operands(rng: np.random.Generator, queries: int, length: int, size: int) -> list[np.ndarray]:
    """q (H, T, C), k and v (G, S, C). All queries have their element at the same place, so one column of k counts."""
    q, k, v = (np.zeros(shape, np.float32) for shape in ((HEADS, queries, size), *[(GROUPS, length, size)] * 2))
    column = rng.integers(0, size)
    q[:, :, column] = 8 * rng.standard_normal((HEADS, queries))
    k[:, :, column] = (2 + (np.arange(length) > length // 2)) * rng.standard_normal((GROUPS, length))
    for group in range(GROUPS):
        for place in range(size):
            v[group, rng.integers(0, length), place] = rng.normal()
    return [q, k, v]


def record(rng: np.random.Generator, kind: str, backend: SDPBackend, case: tuple[int, int, int]) -> dict:
    queries, length, size = case
    parts = [torch.from_numpy(x)[None].to(TYPES[kind]) for x in operands(rng, queries, length, size)]
    mask = None if queries == 1 else torch.ones(queries, length, dtype=torch.bool).tril(length - queries)
    with sdpa_kernel(backend):
        y = torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask, enable_gqa=True)
    found = {}
    for name, value in zip("qkvy", (*parts, y), strict=True):
        codes = value[0].contiguous().view(CODES[value.dtype]).numpy()
        found[f"{backend.name.split('_')[0].lower()}.{kind}.{queries}.{length}.{name}"] = codes.view(
            f"u{codes.itemsize}"
        )
    return found


def main(out: Path) -> None:
    torch.set_num_threads(1)
    rng, found = np.random.default_rng(22), {"version": np.array(torch.__version__)}
    for backend, what in ((SDPBackend.MATH, MATH), (SDPBackend.FLASH_ATTENTION, FLASH)):
        for kind in what["kinds"]:
            for case in what["cases"]:
                found |= record(rng, kind, backend, case)
    np.savez_compressed(out, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("torch_attention.npz"))
