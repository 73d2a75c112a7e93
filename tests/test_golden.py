"""Whole runs keep their bits: digests of a grid of recipes, in this process and in others that compute differently.

The grid files are described in `golden_grid.py`; data/golden/README.md records the runs in other Pythons and NumPys.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from softfloat_llm.recipe import recipe_of
from tests import golden_grid
from tests.golden_grid import FOLDER, ROOT, cases_of

TINY, SMOLLM2 = FOLDER / "tiny.json", FOLDER / "smollm2.json"
OTHER_CORE = "ARMV8" if platform.machine() in ("aarch64", "arm64") else "Nehalem"


def dispatched():
    """The SIMD features beyond the baseline that NumPy uses on this machine."""
    from numpy._core import _multiarray_umath as umath

    return [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__.get(name)]


def grid_elsewhere(*words, **variables):
    """Run the grid in a fresh process with these environment variables; its answer must be that nothing moved."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    command = [sys.executable, str(ROOT / "tests" / "golden_grid.py"), *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.stdout.strip(), done.returncode) == ("every digest is the same", 0), done.stdout + done.stderr


@pytest.mark.parametrize("name", cases_of(TINY))
def test_tiny_keeps_its_bits(name):
    assert list(golden_grid.differences({name: cases_of(TINY)[name]})) == []


@pytest.mark.smollm2
@pytest.mark.parametrize("name", cases_of(SMOLLM2))
def test_smollm2_keeps_its_bits(name, smollm2_folder):
    assert list(golden_grid.differences({name: cases_of(SMOLLM2)[name]})) == []


def test_the_grid_holds_with_simd_dispatch_cut():
    if not (features := dispatched()):
        pytest.skip("NumPy dispatches nothing on this machine")
    grid_elsewhere(NPY_DISABLE_CPU_FEATURES=" ".join(features))


def test_the_grid_holds_with_another_blas_core_and_more_threads_of_it():
    grid_elsewhere(OPENBLAS_CORETYPE=OTHER_CORE, OPENBLAS_NUM_THREADS="4")


@pytest.mark.parametrize(
    "words", [("--workers", "2"), ("--backend", "numba"), ("--backend", "numba", "--workers", "2")]
)
def test_the_grid_holds_with_other_hands(words):
    if "numba" in words:
        pytest.importorskip("numba")
    grid_elsewhere(*words)


@pytest.mark.smollm2
@pytest.mark.parametrize(
    ("words", "variables"),
    [
        ((), {"NPY_DISABLE_CPU_FEATURES": " ".join(dispatched())}),
        ((), {"OPENBLAS_CORETYPE": OTHER_CORE}),
        (("--workers", "2"), {}),
        (("--backend", "numba"), {}),
    ],
    ids=["simd cut", "another core", "two workers", "numba"],
)
def test_the_grid_of_smollm2_holds_elsewhere(words, variables, smollm2_folder):
    grid_elsewhere(SMOLLM2, *words, **variables)


def test_the_grid_covers_what_it_promises():
    cases = cases_of(TINY)
    precisions = [recipe_of(case["recipe"]).at("lm_head").precision for case in cases.values()]
    combinations = {(str(p.storage), str(p.product), str(p.acc), str(p.order), p.rounding) for p in precisions}
    assert len(combinations) >= 24
    assert {str(p.storage) for p in precisions} >= {"f32", "bf16", "f16", "tf32", "e5m7", "e4m3fn", "e4m3"}
    assert len(cases_of(SMOLLM2)) == 6
    for case in (*cases.values(), *cases_of(SMOLLM2).values()):
        assert case["digest"].startswith("sha256:")
        assert case["taps"].startswith("sha256:")


def test_a_digest_moves_when_one_bit_does():
    case = cases_of(TINY)["bf16"]
    assert golden_grid.digest_of_case(case) == case["digest"]
    assert golden_grid.digest_of_case(case | {"recipe": "bf16,lm_head.acc=bf16"}) != case["digest"]
    moved = case | {"recipe": "bf16,lm_head.order=reverse"}  # hidden by the output's rounding, not by the taps' digest
    assert golden_grid.result_of_case(moved)["taps"] != case["taps"]


def test_the_script_names_each_case_that_moved(tmp_path, capsys):
    grid = json.loads(TINY.read_text())
    grid["cases"] = {"bf16": grid["cases"]["bf16"] | {"digest": "sha256:0"}}
    (tmp_path / "grid.json").write_text(golden_grid.text_of(grid))
    assert golden_grid.main([str(tmp_path / "grid.json")]) == 1
    assert "bf16: digest sha256:" in capsys.readouterr().out


def test_the_script_writes_only_when_asked(tmp_path):
    grid = json.loads(TINY.read_text())
    grid["cases"] = {"bf16": grid["cases"]["bf16"] | {"digest": "sha256:0"}}
    path = Path(tmp_path / "grid.json")
    path.write_text(golden_grid.text_of(grid))
    before = path.read_bytes()
    golden_grid.main([str(path)])
    assert path.read_bytes() == before
    assert golden_grid.main([str(path), "--write"]) == 0
    assert cases_of(path)["bf16"] == cases_of(TINY)["bf16"]
