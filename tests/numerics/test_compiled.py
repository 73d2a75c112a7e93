"""Compiled loops that take weights as they are stored give the bits of NumPy's, whoever reads which columns."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from softfloat_llm.numerics import compiled, kernels
from softfloat_llm.numerics.formats import format_of
from softfloat_llm.numerics.precision import precision_of
from softfloat_llm.numerics.rounding import round_to

pytest.importorskip("numba")


@pytest.mark.parametrize("rows", [1, 5, 35])
@pytest.mark.parametrize("order", ["seq", "pairwise", "reverse", "perm:3", "blocked:8 > lanes:2"])
@pytest.mark.parametrize("text", ["bf16,acc=f32", "f16,acc=f32", "bf16,acc=f32,product=f32", "f16,acc=f16"])
def test_codes_are_widened_on_the_way_to_the_same_bits(text, order, rows, monkeypatch):
    looked_at: list[bool] = []

    class Seen(dict):
        def __getitem__(self, dtype):
            looked_at.append(True)
            return super().__getitem__(dtype)

    for steps in (compiled.CompiledNative, compiled.CompiledFused):
        monkeypatch.setattr(steps, "_of_codes", Seen(steps._of_codes))
    at = precision_of(f"storage={text},order={order}")
    rng, fmt = np.random.default_rng(rows), format_of(text.split(",")[0])
    a = round_to(rng.standard_normal((rows, 67)), fmt).astype(fmt.dtype)
    b = round_to(rng.standard_normal((67, 1003)) * 2.0 ** rng.integers(-20, 3, 1003), fmt).astype(fmt.dtype)
    b[:, 3], b[5], a[0, 2] = 0.0, -0.0, fmt.smallest_subnormal
    expected = kernels.matmul(a, b, at)
    for workers in (1, 2, 3):
        assert kernels.matmul(a, b, at, backend="numba", workers=workers).tobytes() == expected.tobytes()
    if order != "pairwise":  # whose terms each begin a sum
        assert bool(looked_at) == ("acc=f32" in text)
    b[7, 9] = np.inf
    found, expected = kernels.matmul(a, b, at, backend="numba", workers=2), kernels.matmul(a, b, at)
    np.testing.assert_array_equal(found, expected)


_KINDS = (
    "storage=f32,acc=f32", "storage=f32,acc=f32,product=f32", "storage=bf16,acc=f32", "storage=f16,acc=f32,product=f32",
    "storage=f16,acc=f16", "storage=f16,acc=f16,product=f16", "storage=bf16,acc=e8m12",
)  # fmt: skip
_PRODUCTS = """
import hashlib, sys
import numpy as np
from softfloat_llm.numerics.kernels import matmul
from softfloat_llm.numerics.precision import precision_of
from softfloat_llm.numerics.rounding import round_to
for words in sys.argv[2:]:
    at, rng = precision_of(words), np.random.default_rng(7)
    a, b = (round_to(rng.standard_normal(shape), at.storage).astype(at.storage.dtype) for shape in ((5, 60), (60, 900)))
    for right in (b, np.asfortranarray(b)):
        print(hashlib.sha256(matmul(a, right, at, backend=sys.argv[1], workers=2).tobytes()).hexdigest())
"""


def test_what_processes_have_compiled_is_found_by_another_and_not_taken_for_something_else(tmp_path):
    def told(*words: str) -> str:
        command, environment = (
            [sys.executable, "-c", _PRODUCTS, *words],
            os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
        )
        return subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout

    def kept() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb*")}

    for words in _KINDS:
        told("numba", words)
    before = kept()
    assert len(before) > len(_KINDS)
    assert told("numba", *_KINDS) == told("numpy", *_KINDS)
    assert kept() == before
