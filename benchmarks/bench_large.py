"""A large checkpoint in little memory: 1.1 billion bf16 weights, 8 tokens, in a process of its own.

The shape of TinyLlama-1.1B, 2.2 GB in a temporary folder: the most memory that the process ever held, mapped pages of
the file included.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from benchmarks.peaks import found_by
from benchmarks.rows import Goal, Row
from benchmarks.settings import Settings
from benchmarks.timing import perf_counter
from softfloat_llm.numerics.formats import Array

GOAL = Goal(1.5)  # GB
CONFIG: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "max_position_embeddings": 2048, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}
RECIPES = ("bf16", "f16")
_RUN = """
import sys
from softfloat_llm.runs import simulate
run = simulate(tokens=[1, 5, 9, 17, 33, 65, 129, 257], model=sys.argv[1], recipe=sys.argv[2], taps=())
told = run.digest
"""


def rows(settings: Settings) -> Iterator[Row]:
    """Each recipe. The folder is removed afterwards."""
    config = CONFIG | SMALL if settings.is_quick else CONFIG
    with tempfile.TemporaryDirectory(prefix="softfloat-llm-large-") as name:
        weights = write_model(Path(name), config)
        for recipe in RECIPES[:1] if settings.is_quick else RECIPES:
            began = perf_counter()
            peak, digest = found_by(_RUN, name, recipe)
            what, spent = f"{weights / 1e9:.1f} billion weights, 8 tokens, {recipe}", perf_counter() - began
            yield Row("large", what, peak, "GB at its peak", "numpy", seconds=spent, goal=GOAL, note=digest[:23])


def write_model(folder: Path, config: dict[str, Any]) -> int:
    """The config, and random tensors, never all in memory. How many weights they are."""
    from softfloat_llm.llama.config import config_from_dict
    from softfloat_llm.llama.weights import tensor_shapes

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, start = {}, 0
    for name, shape in tensor_shapes(config_from_dict(config)).items():
        stop = start + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for row in header.values():
            _write_tensor(file, tuple(row["shape"]), rng)  # type: ignore[arg-type]
    return start // 2


def _write_tensor(file: IO[bytes], shape: tuple[int, ...], rng: np.random.Generator) -> None:
    """Weights of a size that activations survive; those of a norm are about 1."""
    if len(shape) == 1:
        file.write(_bytes(1 + _normal(shape[0], rng)))
        return
    block = _bytes(_normal(64 * shape[1], rng))  # 64 rows, again and again, each time from another one on
    for done in range(0, shape[0], 64):
        first = 2 * shape[1] * (done // 64 % 64)
        file.write((block[first:] + block[:first])[: 2 * shape[1] * min(64, shape[0] - done)])


def _normal(count: int, rng: np.random.Generator) -> Array:
    return rng.standard_normal(count, dtype=np.float32) * np.float32(0.02)


def _bytes(values: Array) -> bytes:
    return values.astype(ml_dtypes.bfloat16).tobytes()
