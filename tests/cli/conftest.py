from __future__ import annotations

from pathlib import Path

import pytest

from softfloat_llm.runs import simulate
from tests.console import Console


@pytest.fixture
def console(capsys: pytest.CaptureFixture[str]) -> Console:
    return Console(capsys)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Saved runs: `ref` in f32, `same` like it, `bf16` taught by it; `flip` chooses another token than `flip ref`."""
    folder = tmp_path_factory.mktemp("runs")
    ref = simulate(recipe="f32", steps=2)
    near_tie = "The cup is"
    runs = {
        "ref": ref,
        "same": simulate(recipe="f32", steps=2),
        "bf16": simulate(recipe="bf16", teacher=ref),
        "flip ref": simulate(near_tie, recipe="f32"),
        "flip": simulate(near_tie, recipe="bf16"),
    }
    return {name: run.save(folder / name.replace(" ", "-")) for name, run in runs.items()}
