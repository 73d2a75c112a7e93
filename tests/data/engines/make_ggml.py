"""Record what ggml's CPU backend gives for single operations: tests/data/engines/ggml.npz.

    python make_ggml.py FOLDER [OUT.npz]

FOLDER holds libggml.so, libggml-base.so and libggml-cpu.so, as `cmake --build BUILD --target ggml` puts them into
BUILD/bin, and llama-cpp-python into llama_cpp/lib. Needs NumPy and ml_dtypes only. See README.md for what was used.
"""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import ml_dtypes
import numpy as np

TYPES = {"f32": (0, np.dtype(np.float32)), "f16": (1, np.dtype(np.float16)), "bf16": (30, np.dtype(ml_dtypes.bfloat16))}
POINTERS = "ggml_init ggml_new_tensor_4d ggml_get_data ggml_rms_norm ggml_mul ggml_mul_mat ggml_rope_ext"
POINTERS += " ggml_soft_max_ext ggml_flash_attn_ext ggml_swiglu_split ggml_silu ggml_new_graph"
MEGABYTES = 256


class InitParams(ctypes.Structure):
    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


class Ggml:
    """Tensors in and out of one context, one operation at a time, by one thread."""

    def __init__(self, folder: Path) -> None:
        self.base, self.cpu = (
            ctypes.CDLL(str(folder / f"lib{name}.so"), mode=ctypes.RTLD_GLOBAL) for name in ("ggml-base", "ggml-cpu")
        )
        for name in POINTERS.split():
            getattr(self.base, name).restype = c_void_p
        self.base.ggml_version.restype = self.base.ggml_commit.restype = c_char_p
        self.cpu.ggml_cpu_init()
        self.context = c_void_p(self.base.ggml_init(InitParams(MEGABYTES << 20, None, False)))

    @property
    def version(self) -> str:
        return f"ggml {self.base.ggml_version().decode()} {self.base.ggml_commit().decode()}"

    def tensor(self, array: np.ndarray, kind: str | None = None) -> c_void_p:
        """A tensor of the array's shape, its last axis ggml's first."""
        code, dtype = TYPES[kind] if kind else next(t for t in TYPES.values() if t[1] == array.dtype)
        array = np.ascontiguousarray(array.astype(dtype))
        sizes = [c_int64(n) for n in (*array.shape[::-1], 1, 1, 1, 1)[:4]]
        made = c_void_p(self.base.ggml_new_tensor_4d(self.context, code, *sizes))
        ctypes.memmove(self.base.ggml_get_data(made), array.ctypes.data, array.nbytes)
        return made

    def integers(self, values: np.ndarray) -> c_void_p:
        made = c_void_p(self.base.ggml_new_tensor_4d(self.context, 26, *(c_int64(n) for n in (len(values), 1, 1, 1))))
        ctypes.memmove(self.base.ggml_get_data(made), values.astype(np.int32).ctypes.data, 4 * len(values))
        return made

    def run(self, result: int, shape: tuple[int, ...], threads: int = 1) -> np.ndarray:
        """What the graph that ends in `result` gives, float32 of this shape."""
        result = c_void_p(result)
        graph = c_void_p(self.base.ggml_new_graph(self.context))
        self.base.ggml_build_forward_expand(graph, result)
        if self.cpu.ggml_graph_compute_with_ctx(self.context, graph, c_int(threads)):
            raise RuntimeError("ggml_graph_compute_with_ctx failed")
        out = np.empty(shape, np.float32)
        ctypes.memmove(out.ctypes.data, self.base.ggml_get_data(result), out.nbytes)
        return out

    # --- operations; shapes in C order ------------------------------------------------------------------------------

    def rms_norm(self, x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
        normal = c_void_p(self.base.ggml_rms_norm(self.context, self.tensor(x), c_float(eps)))
        return self.run(self.base.ggml_mul(self.context, normal, self.tensor(weight)), x.shape)

    def mul_mat(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        made = self.base.ggml_mul_mat(self.context, self.tensor(weight), self.tensor(x))
        return self.run(made, (*x.shape[:-1], weight.shape[-2]))

    def rope(self, x: np.ndarray, positions: np.ndarray, theta: float) -> np.ndarray:
        """x (T, H, C), pairs of neighbours."""
        rest = [c_float(v) for v in (theta, 1.0, 0.0, 1.0, 32.0, 1.0)]
        made = self.base.ggml_rope_ext(self.context, self.tensor(x), self.integers(positions), None,
                                       c_int(x.shape[-1]), c_int(0), c_int(8192), *rest)  # fmt: skip
        return self.run(made, x.shape)

    def soft_max(self, x: np.ndarray, mask: np.ndarray, scale: float) -> np.ndarray:
        made = self.base.ggml_soft_max_ext(
            self.context, self.tensor(x), self.tensor(mask), c_float(scale), c_float(0.0)
        )
        return self.run(made, x.shape)

    def attention(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray, scale: float) -> np.ndarray:
        """q (H, T, C) float32, k and v (G, S, C), mask (T, S) of 0 and -inf; the result (T, H, C)."""
        zero = c_float(0.0)
        made = self.base.ggml_flash_attn_ext(self.context, *(self.tensor(x) for x in (q, k, v)),
                                             self.tensor(mask, "f16"), c_float(scale), zero, zero)  # fmt: skip
        return self.run(made, (q.shape[1], q.shape[0], v.shape[2]))

    def swiglu(self, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        return self.run(self.base.ggml_swiglu_split(self.context, self.tensor(gate), self.tensor(up)), gate.shape)

    def silu(self, x: np.ndarray) -> np.ndarray:
        return self.run(self.base.ggml_silu(self.context, self.tensor(x)), x.shape)
