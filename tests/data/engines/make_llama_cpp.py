"""Record the logits that llama.cpp gives for a whole model: tests/data/engines/llama_cpp.npz.

    python write_gguf.py FOLDER f16 smollm2-f16.gguf; python write_gguf.py FOLDER bf16 smollm2-bf16.gguf
    LLAMA_CPP_LIB_PATH=BUILD/bin python make_llama_cpp.py smollm2-f16.gguf smollm2-bf16.gguf [OUT.npz]

Each prompt is one batch with logits of all its positions, then its greedy tokens come one at a time; one thread; flash
attention as llama.cpp decides (on, for a CPU); 512 positions. Needs llama-cpp-python, or its llama_cpp folder and a
library that was built from its vendor/llama.cpp.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from pathlib import Path

import numpy as np
from llama_cpp import llama_cpp as lib

PROMPTS = {
    "five": [504, 3575, 282, 4649, 314],
    "eighty": [(37 * i * i + 11 * i + 5) % 49152 for i in range(80)],
}
STEPS = 3
LARGEST = 8


class Session:
    """A model and a context, to which tokens are given batch by batch."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self.model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = 512, threads, threads
        self.context = lib.llama_init_from_model(self.model, params)
        self.size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.position = 0

    def logits(self, ids: list[int]) -> np.ndarray:
        """The logits (T, V) of these tokens, after those that came before."""
        batch = lib.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.logits[i] = token, self.position + i, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        if lib.llama_decode(self.context, batch):
            raise RuntimeError("llama_decode failed")
        self.position += len(ids)
        rows = [np.ctypeslib.as_array(lib.llama_get_logits_ith(self.context, i), (self.size,)) for i in range(len(ids))]
        found = np.stack(rows)
        lib.llama_batch_free(batch)
        return found

    def close(self) -> None:
        lib.llama_free(self.context)
        lib.llama_model_free(self.model)


def record(path: Path, name: str, ids: list[int]) -> dict[str, np.ndarray]:
    """A digest of each row of logits, the largest of them with their ids, and the greedy tokens."""
    session, greedy = Session(path), []
    rows = session.logits(ids)
    for _ in range(STEPS):
        greedy.append(int(rows[-1].argmax()))
        rows = np.concatenate([rows, session.logits(greedy[-1:])])
    session.close()
    top = np.argsort(-rows, axis=-1, kind="stable")[:, :LARGEST]
    return {f"{name}.ids": np.array(ids), f"{name}.greedy": np.array(greedy), f"{name}.top": top.astype(np.int32),
            f"{name}.top_logits": np.take_along_axis(rows, top, -1),
            f"{name}.sha256": np.array([hashlib.sha256(row.tobytes()).hexdigest() for row in rows])}  # fmt: skip


def quiet(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    pass


if __name__ == "__main__":
    files = dict(zip(("f16", "bf16"), map(Path, sys.argv[1:3]), strict=True))
    out = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(__file__).with_name("llama_cpp.npz")
    callback = lib.llama_log_callback(quiet)
    lib.llama_log_set(callback, ctypes.c_void_p())
    lib.llama_backend_init()
    found: dict[str, np.ndarray] = {"system": np.array(lib.llama_print_system_info().decode())}
    for kind, path in files.items():
        for name, ids in PROMPTS.items():
            found |= record(path, f"{kind}.{name}", ids)
    np.savez_compressed(out, **found)
