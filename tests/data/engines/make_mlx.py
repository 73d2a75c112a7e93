"""Record what MLX's CPU backend gives for single operations, and mlx-lm's Llama for a whole model: mlx.npz.

    python make_mlx.py FOLDER [OUT.npz]

FOLDER is SmolLM2-135M-Instruct in safetensors. Needs the packages mlx[cpu] and mlx-lm, the latter without what it asks
for (`pip install --no-deps mlx-lm`): only its model file is used.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

TYPES = {"bf16": mx.bfloat16, "f16": mx.float16}
THETAS = (10000.0, 100000.0, 500000.0)
POSITIONS = (0, 1, 2, 17, 100, 500, 1000, 4095)
PROMPTS = {"five": [504, 3575, 282, 4649, 314]}
STEPS = 3
LARGEST = 8


def codes(x: mx.array) -> np.ndarray:
    """The bits of an array: of uint16 for the 16-bit formats."""
    return np.array(x if x.dtype == mx.float32 else x.view(mx.uint16))


def drawn(rng: np.random.Generator, *shape: int, kind: str, scale: float = 1.0) -> mx.array:
    return mx.array((rng.standard_normal(shape) * scale).astype(np.float32)).astype(TYPES[kind])


def operations(rng: np.random.Generator, kind: str) -> dict[str, mx.array]:
    found = {}
    x, weight = drawn(rng, 3, 576, kind=kind, scale=3.0), drawn(rng, 576, kind=kind)
    found |= {"norm.x": x, "norm.weight": weight, "norm.y": mx.fast.rms_norm(x, weight, 1e-5)}
    x = drawn(rng, 1, 1, 1, 64, kind=kind)
    found["rope.x"] = x[0, 0, 0]
    for theta in THETAS:
        for name, is_paired in (("half-split", False), ("interleaved", True)):
            rows = [mx.fast.rope(x, 64, traditional=is_paired, base=theta, scale=1.0, offset=p) for p in POSITIONS]
            found[f"rope.{theta:g}.{name}.y"] = mx.concatenate(rows)[:, 0, 0]
    for terms in (576, 1536):
        x, weight = drawn(rng, 5, terms, kind=kind), drawn(rng, 4, terms, kind=kind)
        found |= {f"linear.{terms}.x": x, f"linear.{terms}.weight": weight}
        found |= {f"linear.{terms}.y{rows}": x[:rows] @ weight.T for rows in (1, 5)}
    for queries, length, size in ((1, 40, 64), (5, 40, 64), (7, 7, 128)):
        q = drawn(rng, 1, 3, queries, size, kind=kind)
        k, v = (drawn(rng, 1, 1, length, size, kind=kind) for _ in range(2))
        mask = None if queries == 1 else "causal"
        y = mx.fast.scaled_dot_product_attention(q, k, v, scale=size**-0.5, mask=mask)
        found |= {f"attention.{queries}.{length}.{n}": part[0] for n, part in zip("qkvy", (q, k, v, y), strict=True)}
    gate, up = drawn(rng, 2, 200, kind=kind, scale=4.0), drawn(rng, 2, 200, kind=kind)
    product = mx.compile(lambda gate, up: nn.silu(gate) * up, shapeless=True)
    found |= {"silu.gate": gate, "silu.up": up, "silu.y": nn.silu(gate), "silu.product": product(gate, up)}
    x = drawn(rng, 4, 200, kind=kind, scale=3.0)
    return found | {"softmax.x": x, "softmax.y": mx.softmax(x, axis=-1, precise=True)}


def functions(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """exp, cos and sin of float32."""
    x = np.concatenate([rng.normal(0, 3, 200), rng.uniform(-90, 90, 200), [0, -0.0, 88, -88, 88.1, -87.5, 1e-30]])
    angles = np.concatenate([rng.uniform(-10, 10, 200), rng.uniform(0, 8192, 300), [0.0]])
    x, angles = x.astype(np.float32), angles.astype(np.float32)
    found = {"x": x, "exp": mx.exp(mx.array(x)), "angles": angles}
    found |= {"cos": mx.cos(mx.array(angles)), "sin": mx.sin(mx.array(angles))}
    return {f"f32.{name}": np.array(value) for name, value in found.items()}


def model_of(folder: Path, kind: str) -> Any:
    """mlx-lm's Llama, without the rest of that package."""
    if "mlx_lm" not in sys.modules:
        package = types.ModuleType("mlx_lm")
        package.__path__ = list(importlib.util.find_spec("mlx_lm").submodule_search_locations)
        sys.modules["mlx_lm"] = package
    from mlx_lm.models import llama

    config = json.loads((folder / "config.json").read_text())
    model = llama.Model(llama.ModelArgs.from_dict(config))
    weights = mx.load(str(folder / "model.safetensors"))
    model.load_weights([(name, tensor.astype(TYPES[kind])) for name, tensor in weights.items()], strict=False)
    return model


def record(folder: Path, kind: str, ids: list[int]) -> dict[str, np.ndarray]:
    """A digest of the bits of each row of logits, the largest of them with their ids, and the greedy tokens."""
    model = model_of(folder, kind)
    from mlx_lm.models.cache import KVCache

    cache, rows, greedy, fed = [KVCache() for _ in model.layers], [], [], list(ids)
    for _ in range(STEPS + 1):
        logits = model(mx.array([fed]), cache=cache)[0]
        rows.append(logits)
        greedy.append(int(mx.argmax(logits[-1])))
        fed = greedy[-1:]
    every = mx.concatenate(rows)
    bits, wide = codes(every), np.array(every.astype(mx.float32))
    top = np.argsort(-wide, axis=-1, kind="stable")[:, :LARGEST]
    return {"ids": np.array(ids), "greedy": np.array(greedy[:STEPS]), "top": top.astype(np.int32),
            "top_logits": np.take_along_axis(bits, top, -1),
            "sha256": np.array([hashlib.sha256(row.tobytes()).hexdigest() for row in bits])}  # fmt: skip


def main(folder: Path, out: Path) -> None:
    mx.set_default_device(mx.cpu)
    rng = np.random.default_rng(21)
    found: dict[str, np.ndarray] = {"version": np.array(mx.__version__), "positions": np.array(POSITIONS)}
    found |= functions(rng)
    for kind in TYPES:
        found |= {f"{kind}.{name}": codes(value) for name, value in operations(rng, kind).items()}
        for name, ids in PROMPTS.items():
            found |= {f"{kind}.{name}.{key}": value for key, value in record(folder, kind, ids).items()}
    np.savez_compressed(out, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).with_name("mlx.npz"))
