"""PyTorch's cosine and sine: the polynomial is the best of its kind, the table of angles is PyTorch's bit for bit."""

from __future__ import annotations

import hashlib
import platform
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from softfloat_llm.numerics import functions, ops, torch_functions
from softfloat_llm.numerics.carriers import widen
from softfloat_llm.numerics.formats import f32
from softfloat_llm.numerics.functions import function_wide

RECORDED = np.load(Path(__file__).parents[1] / "data" / "references" / "float32.npz")
OURS = {"cos": torch_functions.cos, "sin": torch_functions.sin}


def table_of_angles():
    """8192 positions times 32 frequencies of theta = 100,000, in float32."""
    powers = functions.pow(1e5, np.arange(0, 64, 2) / 64, "f32")
    frequencies = ops.div(1.0, widen(powers), "f32")
    return (np.arange(8192, dtype=np.float32)[:, None] * frequencies[None]).astype(np.float64)


@pytest.mark.parametrize("name", OURS)
def test_a_table_of_262144_angles_is_pytorchs_own_and_not_the_correctly_rounded_one(name):
    angles = table_of_angles()
    ours = OURS[name](angles).astype("<f4")
    assert hashlib.sha256(ours.tobytes()).hexdigest() == str(RECORDED[f"rope.{name}_sha256"])
    correct = function_wide(name, (angles[::64].reshape(-1),), f32)
    assert 0.01 < np.mean(ours[::64].reshape(-1) != correct) < 0.06


def test_the_polynomial_has_the_least_relative_error_of_its_kind():
    """With 4 coefficients, 5 extrema of one size and alternating sign (Chebyshev; de la Vallee Poussin)."""
    r = np.linspace(1e-3, np.pi / 2, 200_001)
    s = r * r
    error = (r + r * s * np.polyval(torch_functions._SINE[::-1], s)) / np.sin(r) - 1
    turns = np.flatnonzero(np.diff(np.sign(error)))
    extrema = [part[np.argmax(np.abs(part))] for part in np.split(error, turns + 1)]
    assert len(extrema) == 5
    assert all(x * y < 0 for x, y in pairwise(extrema))
    np.testing.assert_allclose(np.abs(extrema), 6.0539e-9, rtol=1e-4)


def test_the_multiple_of_pi_is_chosen_in_float32():
    """Beside odd multiples of pi / 2 the nearest one and the one that float32 chooses differ, and so do the results."""
    x = np.arange(1, 6000, 2) * (np.pi / 2)
    near = np.concatenate(
        [widen(np.nextafter(np.float32(x), np.float32(v))) for v in (0, 1e9)] + [widen(np.float32(x))]
    )
    exact = np.rint(near / np.pi)
    chosen = np.rint(widen(np.float32(near * float(np.float32(1 / np.pi)))))
    assert np.count_nonzero(exact != chosen) > 100
    assert np.abs(torch_functions.sin(near) - np.sin(near)).max() < 1e-7


def test_zeros_signs_and_what_is_not_finite():
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(torch_functions.sin(x), [0.0, -0.0, np.nan, np.nan, np.nan])
    assert np.signbit(torch_functions.sin(x)[:2]).tolist() == [False, True]
    np.testing.assert_array_equal(torch_functions.cos(x), [1.0, 1.0, np.nan, np.nan, np.nan])
    y = np.float64(np.float32([0.3, 1.7, 40.0, 800.0, 20_000.0]))
    np.testing.assert_array_equal(torch_functions.sin(-y), -torch_functions.sin(y))
    np.testing.assert_array_equal(torch_functions.cos(-y), torch_functions.cos(y))


def test_beyond_the_limit_they_are_correctly_rounded():
    x = np.float64(np.float32([10_000.001, 123_456.0, 3e38]))
    np.testing.assert_array_equal(torch_functions.cos(x), function_wide("cos", (x,), f32))


@pytest.mark.torch
@pytest.mark.skipif(platform.machine() != "x86_64", reason="PyTorch computes them so on x86-64")
@pytest.mark.parametrize("name", OURS)
def test_pytorchs_own_on_this_machine(name):
    import torch

    if not (torch.backends.mkl.is_available() and "AVX512" in torch.backends.cpu.get_cpu_capability()):
        pytest.skip("measured where PyTorch has MKL and AVX-512")
    x = np.random.default_rng(7).uniform(-10_000, 10_000, 1_000_000).astype(np.float32)
    theirs = getattr(torch, name)(torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(theirs, OURS[name](x.astype(np.float64)).astype(np.float32))
