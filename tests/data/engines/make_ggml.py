"""Record what ggml's CPU backend gives for single operations: tests/data/engines/ggml.npz.

    python make_ggml.py FOLDER [OUT.npz]

FOLDER holds libggml.so, libggml-base.so and libggml-cpu.so, as `cmake --build BUILD --target ggml` puts them into
BUILD/bin, and llama-cpp-python into llama_cpp/lib. Needs NumPy and ml_dtypes only. See README.md for what was used.
"""

from __future__ import annotations

import ctypes
import sys
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

    def rope(
        self,
        x: np.ndarray,
        positions: np.ndarray,
        theta: float,
        scale: float = 1.0,
        divisors: np.ndarray | None = None,
    ) -> np.ndarray:
        """x (T, H, C), pairs of neighbours; angles times scale, and over the divisors (C/2,) of each pair."""
        rest = [c_float(v) for v in (theta, scale, 0.0, 1.0, 32.0, 1.0)]
        factors = None if divisors is None else self.tensor(divisors)
        made = self.base.ggml_rope_ext(self.context, self.tensor(x), self.integers(positions), factors,
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


# --- what is recorded -------------------------------------------------------------------------------------------------


def drawn(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def norms(ggml: Ggml, rng: np.random.Generator) -> dict[str, np.ndarray]:
    x, weight = drawn(rng, 3, 576, scale=3.0), drawn(rng, 576)
    return {"norm.x": x, "norm.weight": weight, "norm.y": ggml.rms_norm(x, weight, 1e-5)}


def rotations(ggml: Ggml, rng: np.random.Generator) -> dict[str, np.ndarray]:
    positions = np.array([0, 1, 2, 17, 100, 500, 4095, 8191])
    x, thetas = drawn(rng, len(positions), 1, 64), (10000.0, 100000.0)
    made = {f"rope.{theta:g}.y": ggml.rope(x, positions, theta) for theta in thetas}
    return {"rope.x": x, "rope.positions": positions, **made}


def products(ggml: Ggml, rng: np.random.Generator, kind: str) -> dict[str, np.ndarray]:
    """One row and five, of 576 and of 1536 terms; x is given in f32 and rounded by ggml to the weights' format."""
    found = {}
    for terms in (576, 1536):
        x, weight = drawn(rng, 5, terms), drawn(rng, 4, terms).astype(TYPES[kind][1])
        found |= {f"linear.{kind}.{terms}.x": x, f"linear.{kind}.{terms}.weight": weight.view(np.uint16)}
        found |= {f"linear.{kind}.{terms}.y{rows}": ggml.mul_mat(x[:rows], weight) for rows in (1, 5)}
    return found


def attentions(ggml: Ggml, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """One query, a few, and a tile of 64 and more; keys and values are padded to 256 as llama.cpp does."""
    found = {}
    for queries, length, heads in ((1, 40, 3), (5, 33, 3), (66, 130, 1)):
        q = drawn(rng, heads, queries, 64)
        k, v = (drawn(rng, 1, length, 64).astype(np.float16) for _ in range(2))
        padded = [np.pad(x, ((0, 0), (0, 256 - length), (0, 0))) for x in (k, v)]
        mask = np.full((queries, 256), -np.inf, np.float32)
        for row in range(queries):
            mask[row, : length - queries + row + 1] = 0
        name = f"attention.{queries}.{length}"
        found |= {f"{name}.q": q, f"{name}.k": k, f"{name}.v": v}
        found[f"{name}.y"] = ggml.attention(q, *padded, mask, 0.125)
    return found


def activations(ggml: Ggml, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """silu(gate), and times up; 104 wide, so that a vector is left over; far values too."""
    gate, up = drawn(rng, 4, 104, scale=4.0), drawn(rng, 4, 104)
    gate[0, :8] = [0.0, -0.0, 88.0, -88.0, 100.0, -100.0, 1e-30, -1e-30]
    return {"silu.gate": gate, "silu.up": up, "silu.y": ggml.silu(gate), "silu.product": ggml.swiglu(gate, up)}


def soft_maxima(ggml: Ggml, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Softmax of 256 scores, of which 200 to 204 are seen: what is used where flash attention is off."""
    x, mask = drawn(rng, 1, 5, 256, scale=3.0), np.zeros((5, 256), np.float32)
    for row in range(5):
        mask[row, 200 + row :] = -np.inf
    return {"softmax.x": x, "softmax.seen": np.arange(200, 205), "softmax.y": ggml.soft_max(x, mask, 0.125)}


def scaled_rotations(ggml: Ggml, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Linear scaling by 3, and llama3's of Llama 3.1 (factor 8, 1 to 4, 8192), whose divisors stand in a GGUF file."""
    positions, x = np.array([0, 1, 17, 500, 4095]), drawn(rng, 5, 1, 128)
    divisors = llama3_divisors(128)
    made = {"linear": ggml.rope(x, positions, 500000.0, scale=float(np.float32(1) / np.float32(3)))}
    made["llama3"] = ggml.rope(x, positions, 500000.0, divisors=divisors)
    found = {f"scaled.{name}.y": y for name, y in made.items()}
    return {"scaled.x": x, "scaled.positions": positions, "scaled.divisors": divisors, **found}


def llama3_divisors(size: int) -> np.ndarray:
    """As llama.cpp's conversion/llama.py makes them with float32 tensors, where 1 over one is rounded by itself."""
    one, theta, factor, low, high, length = np.float32(1), 500000.0, 8.0, 1.0, 4.0, 8192
    frequencies = one / np.array(
        [np.float32(theta ** float(np.float32(i / size))) for i in range(0, size, 2)], np.float32
    )
    divisors = []
    for frequency in frequencies:
        wavelength = (one / frequency) * np.float32(2 * np.pi)
        smooth = ((one / wavelength) * np.float32(length) - np.float32(low)) / np.float32(high - low)
        blended = one / ((one - smooth) / np.float32(factor) + smooth)
        divisors.append(one if wavelength < length / high else factor if wavelength > length / low else blended)
    return np.array(divisors, np.float32)


def main(folder: Path, out: Path) -> None:
    ggml, rng = Ggml(folder), np.random.default_rng(20)
    found = {"version": np.array(ggml.version)}
    for part in (norms, rotations, attentions, activations, soft_maxima):
        found |= part(ggml, rng)
    for kind in ("f16", "bf16"):
        found |= products(ggml, rng, kind)
    found |= scaled_rotations(ggml, rng)
    np.savez_compressed(out, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).with_name("ggml.npz"))
