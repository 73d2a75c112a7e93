"""A large checkpoint in little memory: `python -m benchmarks large [FOLDER]`.

Writes a Llama of 1.1 billion random bf16 weights (2.2 GB, the shape of TinyLlama-1.1B) into the folder, where it is not
there yet, and runs 8 tokens of it in a process of its own: the most memory that the process ever held, mapped pages of
the file included, against 1.5 GB.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np

GOAL = 1.5  # GB
CONFIG = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "max_position_embeddings": 2048, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
_RUN = """
import resource, sys
from softfloat_llm.runs import simulate
run = simulate(tokens=[1, 5, 9, 17, 33, 65, 129, 257], model=sys.argv[1], recipe=sys.argv[2], taps=())
print(run.digest, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9)
"""


def write_model(folder: Path) -> None:
    """The config, and random tensors one after another: the file is never whole in memory."""
    from softfloat_llm.llama.config import config_from_dict
    from softfloat_llm.llama.weights import tensor_shapes

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    header, start = {}, 0
    for name, shape in tensor_shapes(config_from_dict(CONFIG)).items():
        stop = start + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for row in header.values():
            shape = row["shape"]
            for _ in range(shape[0] if len(shape) == 2 else 1):
                values = rng.standard_normal(shape[-1], dtype=np.float32) * np.float32(0.02)
                file.write((values if len(shape) == 2 else values + 1).astype(ml_dtypes.bfloat16).tobytes())


def main(words: list[str]) -> None:
    folder = Path(words[0]) if words else Path(tempfile.gettempdir()) / "softfloat-llm-large"
    if not (folder / "model.safetensors").is_file():
        write_model(folder)
    for recipe in ("bf16", "f16"):
        told = subprocess.run(
            [sys.executable, "-c", _RUN, str(folder), recipe], capture_output=True, text=True, check=True
        )
        digest, peak = told.stdout.split()
        print(f"1.1 billion weights, 8 tokens, {recipe}: {float(peak):.2f} GB at most; goal {GOAL}:", end=" ")
        print("met" if float(peak) <= GOAL else "MISSED", digest[:23])
