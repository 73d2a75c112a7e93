"""Matrix units against results of real GPUs: V100, A100, A2, Ada, L40S, H100, H200 and B200, 48 cases of 300.

The data stay where they are (../shared/gpu, see its README); without them these tests are skipped.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.orders import Order
from tests.oracle import assert_same, differs

DATA = Path(__file__).parents[2] / "shared" / "gpu" / "tensor_cores.npz"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="no results of real GPUs in ../shared/gpu")

ARCHITECTURES = {
    "V100": "volta", "A100": "ampere", "A2": "ampere", "Ada": "ada", "L40S": "ada", "H100": "hopper", "H200": "hopper",
    "B200": "blackwell",
}  # fmt: skip
INPUTS = {"fp16": "f16", "bf16": "bf16", "tf32": "tf32", "E4M3": "e4m3", "E5M2": "e5m2"}
STORAGES = {"tf32": "f32", "e4m3": "e4m3fn"}  # tf32 units read float32 words
F32_CASES = {"V100": ("fp16",)} | {
    gpu: ("fp16", "bf16", "tf32", *(("E4M3", "E5M2") if gpu not in ("A100", "A2") else ()))
    for gpu in ("A100", "A2", "Ada", "L40S", "H100", "H200", "B200")
}
F16_CASES = dict.fromkeys(ARCHITECTURES, ("fp16",))
F16_CASES |= dict.fromkeys(("Ada", "H100", "H200", "B200"), ("fp16", "E4M3", "E5M2"))
CASES = [
    (gpu, fmt, output)
    for output, cases in (("f32", F32_CASES), ("f16", F16_CASES))
    for gpu, formats in cases.items()
    for fmt in formats
]


@cache
def data():
    with np.load(DATA) as arrays:
        return {key: arrays[key].view(np.float32) for key in arrays.files}


def unit_of(gpu, fmt, output):
    """The unit that made the results: on Hopper and Blackwell f16 results, and B200's FP8 ones, are of mma.sync."""
    is_mma = output == "f16" or (gpu == "B200" and fmt in ("E4M3", "E5M2"))
    path = "mma-" if is_mma and ARCHITECTURES[gpu] in ("hopper", "blackwell") else ""
    return f"nvidia-{ARCHITECTURES[gpu]}-{path}{INPUTS[fmt]}" + ("-f16" if output == "f16" else "")


def operands(gpu, fmt, output):
    """a, b, c as the instruction got them. H100's and H200's wgmma ran with c = 0, as their script says."""
    a, b, c = (data()[f"{gpu}_{fmt}_{name}"] for name in "abc")
    if gpu in ("H100", "H200") and fmt in ("E4M3", "E5M2") and output == "f32":
        c = np.zeros_like(c)
    return a, b, c.astype(np.float16) if output == "f16" else c


def result(gpu, fmt, output, order=None, acc=None):
    a, b, c = operands(gpu, fmt, output)
    storage = STORAGES.get(INPUTS[fmt], INPUTS[fmt])
    order = order or f"fused:{unit_of(gpu, fmt, output)}"
    return reduce.dot(a, b, f"storage={storage},acc={acc or output},output={output},order={order}", init=c)


def wanted(gpu, fmt, output):
    return data()[f"{gpu}_{fmt}_d_{output.replace('f', 'fp')}"]


@pytest.mark.parametrize(("gpu", "fmt", "output"), CASES)
def test_a_unit_gives_the_bits_of_the_real_one(gpu, fmt, output):
    assert_same(result(gpu, fmt, output), wanted(gpu, fmt, output))


def test_every_case_of_the_data_is_here():
    assert len(CASES) == 48
    assert {f"{g}_{f}_d_{o.replace('f', 'fp')}" for g, f, o in CASES} == {key for key in data() if "_d_" in key}


@pytest.mark.parametrize(
    ("gpu", "fmt", "acc"),
    [
        ("V100", "fp16", "f32"), ("A100", "bf16", "f32"), ("Ada", "fp16", "f32"), ("H100", "bf16", "f32"),
        ("H100", "fp16", "f32"), ("B200", "bf16", "f32"), ("H100", "E4M3", "e8m13"),
    ],
)  # fmt: skip
def test_the_data_tell_terms_fraction_bits_and_rounding(gpu, fmt, acc):
    """The unit by its parameters is right; each of them changed by itself is wrong somewhere."""
    adder, want = Order(f"fused:{unit_of(gpu, fmt, 'f32')}").adder, wanted(gpu, fmt, "f32")

    def by(terms=adder.terms, bits=adder.fraction_bits, mode="toward_zero"):
        return result(gpu, fmt, "f32", f"fused:{terms}:{bits}:{mode}:{adder.zero_exponent}", acc)

    assert_same(by(), want)
    for other in (by(terms=adder.terms // 2), by(bits=adder.fraction_bits - 1), by(bits=adder.fraction_bits + 1)):
        assert differs(other, want).sum() > 5
    assert differs(by(mode="ties_to_even"), want).sum() > 20


def test_the_halves_of_fp8_by_mma_are_told_by_the_data():
    """Contiguous blocks of 16 through the f16 path, with c at the start, are not what the instruction does."""
    got = result("H100", "E4M3", "f16", "fused:16:25:ties_to_even:-22")
    assert differs(got, wanted("H100", "E4M3", "f16")).sum() > 20
