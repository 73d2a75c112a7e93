"""Record the logits that llama.cpp gives for a whole model: tests/data/engines/llama_cpp.npz.

    python write_gguf.py FOLDER f16 smollm2-f16.gguf; python write_gguf.py FOLDER bf16 smollm2-bf16.gguf
    LLAMA_CPP_LIB_PATH=BUILD/bin python make_llama_cpp.py smollm2-f16.gguf smollm2-bf16.gguf [OUT.npz]

Each prompt is one batch, then its greedy tokens come one at a time; one thread; flash attention as llama.cpp decides
(on, for a CPU). Needs llama-cpp-python, or its llama_cpp folder and a library that was built from its vendor/llama.cpp.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from pathlib import Path

import numpy as np
from llama_cpp import llama_cpp as lib

PROMPTS = {
    "five": [504, 3575, 282, 4649, 314],  # "The capital of France is"
    "story": [6403, 2123, 258, 655, 28, 665, 436, 253, 1838, 4431, 3365, 8182, 618],
    "long": [(37 * i * i + 11 * i + 5) % 49152 for i in range(50)],
}
STEPS = 8
LARGEST = 200


def logits_of(path: Path, ids: list[int], steps: int, flash: int, threads: int = 1) -> tuple[np.ndarray, list[int]]:
    """Last-position logits (1 + steps, V) and the greedy tokens."""
    model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = 512, threads, threads
    params.flash_attn_type = flash
    context = lib.llama_init_from_model(model, params)
    size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    rows, tokens, fed = [], [], list(ids)
    for _ in range(steps + 1):
        array = (lib.llama_token * len(fed))(*fed)
        if lib.llama_decode(context, lib.llama_batch_get_one(array, len(fed))):
            raise RuntimeError("llama_decode failed")
        row = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), (size,)).copy()
        rows.append(row)
        tokens.append(int(row.argmax()))
        fed = tokens[-1:]
    lib.llama_free(context)
    lib.llama_model_free(model)
    return np.stack(rows), tokens[:steps]


def record(path: Path, kind: str, name: str, ids: list[int]) -> dict[str, np.ndarray]:
    """The largest logits of each row with their ids, and a digest of all of them."""
    rows, tokens = logits_of(path, ids, STEPS, lib.LLAMA_FLASH_ATTN_TYPE_AUTO)
    order = np.argsort(-rows, axis=-1, kind="stable")[:, :LARGEST]
    parts = {"ids": np.array(ids), "greedy": np.array(tokens), "top": order.astype(np.int32),
             "top_logits": np.take_along_axis(rows, order, -1),
             "sha256": np.array([hashlib.sha256(row.tobytes()).hexdigest() for row in rows])}  # fmt: skip
    return {f"{name}.{kind}.{key}": value for key, value in parts.items()}


def quiet(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    pass


if __name__ == "__main__":
    files = dict(zip(("f16", "bf16"), map(Path, sys.argv[1:3]), strict=True))
    out = sys.argv[3] if len(sys.argv) > 3 else Path(__file__).with_name("llama_cpp.npz")
    callback = lib.llama_log_callback(quiet)
    lib.llama_log_set(callback, ctypes.c_void_p())
    lib.llama_backend_init()
    found: dict[str, np.ndarray] = {}
    for kind, path in files.items():
        for name, ids in PROMPTS.items():
            found |= record(path, kind, name, ids)
    np.savez_compressed(out, **found)
