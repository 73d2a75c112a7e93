"""matmul, by its fast forms and at every length, against dot products computed by real instructions.

The vectors are those of `tests/data/hardware` (AVX512-FP16 and AVX-512; see its README). All rows of a meet all rows of
b, so that each file's vectors are one matrix product.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from softfloat_llm.numerics.formats import Array, format_of
from softfloat_llm.numerics.reduce import matmul
from tests.oracle import HARDWARE_MODES, assert_same, hardware, values_of_bits

F16_WORDS = {
    "seq_muladd": "acc=f16,product=f16", "s32_fma_halve": "acc=f16,order=lanes:32",
    "s32_muladd_halve": "acc=f16,product=f16,order=lanes:32", "s32_fma_pair": "acc=f16,order=lanes:32:adj",
    "s8_fma_halve": "acc=f16,order=lanes:8", "seq_f32acc_fma": "acc=f32,output=f32",
    **{f"seq_fma_{word}": f"acc=f16,acc.rounding={mode}" for word, mode in HARDWARE_MODES.items()},
}  # fmt: skip
F32_WORDS = {
    "seq_fma": "acc=f32", "seq_muladd": "product=f32", "s16_fma_halve": "order=lanes:16",
    "s16_muladd_halve": "product=f32,order=lanes:16", "seq_fma_ftzdaz": "subnormals=ftz+daz",
    "seq_muladd_ftzdaz": "product=f32,subnormals=ftz+daz",
    **{f"seq_fma_{word}": f"acc.rounding={mode}" for word, mode in HARDWARE_MODES.items()},
}  # fmt: skip


@cache
def cases(name: str) -> list[str]:
    """The vectors' names, such as normal_k64."""
    return sorted(key[:-2] for key in hardware(name) if key.endswith("_a") and "_k" in key)


def is_compared(name: str, base: str, word: str, text: str, dtype: type) -> bool:
    """Asserts that one result of one set of vectors is the same; False where the file has no such result."""
    arrays = hardware(name)
    if f"{base}_{word}" not in arrays:
        return False
    a, b = (arrays[f"{base}_{x}"].view(dtype) for x in "ab")
    storage = format_of(np.dtype(dtype))
    out: Array = matmul(a, b.T, f"storage={storage},{text}")
    assert_same(out, values_of_bits(arrays[f"{base}_{word}"], str(format_of(out.dtype))), (base, word))
    return True


@pytest.mark.parametrize("word", F16_WORDS)
def test_f16_matmul_equals_avx512_fp16(word: str) -> None:
    found = [is_compared("f16_dot", base, word, F16_WORDS[word], np.float16) for base in cases("f16_dot")]
    assert any(found)


@pytest.mark.parametrize("word", F32_WORDS)
def test_f32_matmul_equals_avx512(word: str) -> None:
    found = [is_compared("f32_dot", base, word, F32_WORDS[word], np.float32) for base in cases("f32_dot")]
    assert any(found) or word == "seq_fma_rne"  # nearest is called seq_fma there
