"""Record what PyTorch's math backend gives for attention where no sum has an order: torch_math.npz.

    python make_torch_math.py [OUT.npz]

Each query has one element, so a score is one product; each column of the values has one key, so an output is one too.
What is left are the roundings: of both scalings, of the softmax in f32, and of the output. Needs torch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
HEADS, GROUPS = 4, 2


def operands(rng: np.random.Generator, queries: int, length: int, size: int) -> list[np.ndarray]:
    q, v = np.zeros((HEADS, queries, size), np.float32), np.zeros((GROUPS, length, size), np.float32)
    k = (2 * rng.standard_normal((GROUPS, length, size))).astype(np.float32)
    for head in range(HEADS):
        for row in range(queries):
            q[head, row, rng.integers(0, size)] = 8 * rng.normal()
    for group in range(GROUPS):
        for column in range(size):
            v[group, rng.integers(0, length), column] = rng.normal()
    return [q, k, v]


def main(out: Path) -> None:
    rng, found = np.random.default_rng(22), {"version": np.array(torch.__version__)}
    for kind, dtype in TYPES.items():
        for queries, length, size in ((1, 40, 64), (7, 7, 128), (5, 33, 64)):
            parts = [torch.from_numpy(x)[None].to(dtype) for x in operands(rng, queries, length, size)]
            mask = torch.ones(queries, length, dtype=torch.bool).tril(length - queries)
            with sdpa_kernel(SDPBackend.MATH):
                attention = torch.nn.functional.scaled_dot_product_attention
                y = attention(*parts, attn_mask=None if queries == 1 else mask, enable_gqa=True)
            for name, value in zip("qkvy", (*parts, y), strict=True):
                codes = value[0].contiguous().view(torch.int16).numpy().view(np.uint16)
                found[f"{kind}.{queries}.{length}.{name}"] = codes
    np.savez_compressed(out, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("torch_math.npz"))
