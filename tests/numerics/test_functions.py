"""The functions against MPFR (`tests/data/hardware`), their relations on every input, arguments and portability.

`test_functions_against_decimal` has the other modes and formats, `test_special_values` infinities, zeros and NaN.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from softfloat_llm.errors import FormatError
from softfloat_llm.numerics import functions
from softfloat_llm.numerics.formats import bf16, f32
from softfloat_llm.numerics.modes import MODES

ONE_ARGUMENT = ("exp", "log", "rsqrt", "sin", "cos", "tanh", "sigmoid")
HARDWARE = Path(__file__).parents[1] / "data" / "hardware"

# --- Gold -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ONE_ARGUMENT)
@pytest.mark.parametrize(("fmt", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_every_16_bit_result_of_mpfr_is_ours(fmt, dtype, name):
    with np.load(HARDWARE / "gold16.npz") as gold:
        ours = getattr(functions, name)(gold[f"{fmt}_x"].view(dtype))
        np.testing.assert_array_equal(ours.view(np.uint16), gold[f"{fmt}_{name}"])


@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_every_f32_result_of_mpfr_is_ours(name):
    with np.load(HARDWARE / "gold32.npz") as gold:
        inputs = next(key for key in gold if key.endswith("_x") and name in key.split("_"))
        ours = getattr(functions, name)(gold[inputs].view(np.float32))
        np.testing.assert_array_equal(ours.view(np.uint32), gold[f"{name}_y"])


# --- Relations that hold for every input ----------------------------------------------------------------------------

EXACT_RESULTS = {  # at +-0, at 1, and at the powers of four: 2^-24 ... 2^14 of f16, 2^-132 ... 2^126 of bf16
    "exp": 2, "log": 1, "sin": 2, "cos": 2, "tanh": 2, "sigmoid": 2,
    ("rsqrt", "float16"): 20, ("rsqrt", "bfloat16"): 130,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_the_modes_fit_together_on_every_16_bit_input(name, dtype):
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    results = {mode: getattr(functions, name)(x, mode=mode) for mode in MODES}
    with np.errstate(invalid="ignore"):
        value = {mode: r.astype(np.float64) for mode, r in results.items()}
        down, up = value["toward_negative"], value["toward_positive"]
        is_number = np.isfinite(x.astype(np.float64)) & np.isfinite(down) & np.isfinite(up)
        is_exact = (down == up)[is_number]
    assert np.count_nonzero(is_exact) == EXACT_RESULTS.get((name, np.dtype(dtype).name), EXACT_RESULTS.get(name))
    code = {mode: r.view(np.uint16)[is_number].astype(np.int64) for mode, r in results.items()}
    steps = np.abs((code["toward_positive"] & 0x7FFF) - (code["toward_negative"] & 0x7FFF))
    assert np.array_equal(steps == 0, is_exact)
    assert steps.max() == 1
    for mode in MODES:
        assert np.all((code[mode] == code["toward_positive"]) | (code[mode] == code["toward_negative"]))
    assert np.all(is_exact | (code["to_odd"] & 1 == 1))
    assert np.array_equal(np.abs(value["toward_zero"]), np.minimum(np.abs(down), np.abs(up)), equal_nan=True)


@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_shape_layout_and_chunks_do_not_change_a_bit(name):
    rng = np.random.default_rng(7)
    x = rng.integers(0, 1 << 32, (3, 5000), np.uint32).view(np.float32)
    function = getattr(functions, name)
    with np.errstate(invalid="ignore"):
        whole = function(x)
        assert whole.shape == x.shape
        np.testing.assert_array_equal(function(np.asfortranarray(x)), whole)
        np.testing.assert_array_equal(function(x.T[::-2]), whole.T[::-2])
        parts = [function(part) for part in np.split(x.ravel(), 8)]
        np.testing.assert_array_equal(np.concatenate(parts), whole.ravel())
        assert repr(function(x[1, 7])) == repr(whole[1, 7].item())
        assert function(x[:0]).shape == (0, 5000)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
def test_tables_of_16_bit_formats_hold_what_small_calls_compute(dtype, mode):
    x = np.arange(0, 1 << 16, 13, np.uint16).view(dtype)
    assert x.size > functions._WORTH_A_TABLE
    for name in ONE_ARGUMENT:
        function = getattr(functions, name)
        small = np.concatenate([function(part, mode=mode) for part in np.array_split(x, 3)])
        np.testing.assert_array_equal(function(x, mode=mode).view(np.uint16), small.view(np.uint16))


# --- What a person may ask for --------------------------------------------------------------------------------------


def test_results_lie_in_the_carrier_dtype_and_scalars_are_python_floats():
    assert functions.exp(np.zeros(2, ml_dtypes.bfloat16)).dtype == ml_dtypes.bfloat16
    assert functions.exp(np.zeros(2), "tf32").dtype == np.float32
    assert functions.exp([0, 1], "f16").dtype == np.float16
    assert type(functions.exp(np.float32(0))) is float
    assert functions.exp(np.float32(1), "bf16") == 2.71875


def test_exp_wide_and_its_kin_are_the_functions_without_the_carrier():
    x = np.random.default_rng(8).uniform(0, 9, (4, 300))
    for name in ("exp", "rsqrt"):
        wide = getattr(functions, f"{name}_wide")(x, bf16, "toward_zero")
        assert wide.dtype == np.float64
        np.testing.assert_array_equal(wide, getattr(functions, name)(x, bf16, "toward_zero").astype(np.float64))


def test_wrong_words_are_refused():
    with pytest.raises(FormatError, match="needs the format"):
        functions.exp(1.0)
    with pytest.raises(FormatError, match="at most 32 bits"):
        functions.exp(1.0, "f64")
    with pytest.raises(FormatError, match="rounding mode"):
        functions.exp(1.0, "f32", "up")
    with pytest.raises(FormatError, match="share one format"):
        functions.pow(np.ones(2, np.float16), np.ones(2, np.float32))


# --- The same bits everywhere ---------------------------------------------------------------------------------------

DIGEST = """
import hashlib, sys
import numpy as np
from softfloat_llm.numerics import functions
from softfloat_llm.numerics.formats import f32, bf16
x = np.random.default_rng(9).integers(0, 1 << 32, 20000, np.uint32).view(np.float32)
x = np.concatenate([x, np.linspace(-20, 20, 20000, dtype=np.float32)]).astype(np.float64)
digest = hashlib.sha256()
for name, function in functions.FUNCTIONS.items():
    args = (np.abs(x), x[::-1]) if name == "pow" else (x,)
    with np.errstate(all="ignore"):
        digest.update(function.approximate(*(np.where(np.isfinite(a) & (a != 0), a, 1.0) for a in args)).tobytes())
    for mode in ("ties_to_even", "toward_negative"):
        digest.update(functions.function_wide(name, args, f32, mode).astype("<f4").tobytes())
sys.stdout.write(digest.hexdigest())
"""


def fresh_process(**environment):
    done = subprocess.run(
        [sys.executable, "-c", DIGEST], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    assert len(done.stdout) == hashlib.sha256().digest_size * 2
    return done.stdout


def test_simd_dispatch_changes_no_bit():
    from numpy._core import _multiarray_umath as features

    present = [name for name in features.__cpu_dispatch__ if features.__cpu_features__.get(name)]
    if not present:
        pytest.skip("this NumPy or CPU has no SIMD dispatch beyond the baseline")
    assert fresh_process() == fresh_process(NPY_DISABLE_CPU_FEATURES=" ".join(present))


def test_few_reciprocal_roots_one_by_one_are_those_of_many():
    """And what one by one does not decide, or is special, is left to the way of many."""
    rng = np.random.default_rng(5)
    usual = np.ldexp(1 + rng.random(4000), rng.integers(-150, 128, 4000)).astype(np.float32).astype(np.float64)
    special = [0.0, -0.0, np.inf, -1.0, np.nan, 2.0**-1074, 2.0**900, 0.25, 2.0**-149, float(np.float32(3.4e38))]
    hard = 1 / (1 + 2.0**-24 * np.arange(1, 200, 2)) ** 2  # whose roots lie next to the middle of two results
    x = np.concatenate([usual, special, hard])
    many = functions.rsqrt_wide(x, f32)
    few = np.concatenate([functions.rsqrt_wide(part, f32) for part in np.array_split(x, len(x) // 4)])
    assert few.tobytes() == many.tobytes()
    assert functions.rsqrt_wide(np.array([[0.25]]), f32).shape == (1, 1)
