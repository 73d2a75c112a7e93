"""What stops a sweep before anything runs, what flags and seeds make of a grid, and what a cell is named by."""

from __future__ import annotations

import os
import shutil

import ml_dtypes
import numpy as np
import pytest

from softfloat_llm import tiny
from softfloat_llm.errors import CheckpointError, GridError, PrecisionError, SweepError
from softfloat_llm.recipe import recipe_of
from softfloat_llm.sweeps import models
from softfloat_llm.sweeps.cell import row_of
from softfloat_llm.sweeps.grid import Grid, grid_of
from softfloat_llm.sweeps.sweep import load, sweep
from softfloat_llm.sweeps.words import recipe_of_text

pytest.importorskip("pyarrow")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ({"recipes": ("bf16", "bf17")}, "Did you mean 'bf16'"), ({"orders": ("lans:8",)}, "Did you mean 'lanes:8'"),
        ({"roundings": ("toward_zeros",)}, "Did you mean 'toward_zero'"), ({"accs": ("f17",)}, "Did you mean 'f16'"),
        ({"storages": ("bf61",)}, "Did you mean 'bf16'"), ({"models": ("tinny",)}, "Did you mean 'tiny'"),
        ({"reference": "f33"}, "Did you mean 'f32'"), ({"recipes": ("no.toml",)}, "Reading the recipe no.toml"),
        ({"recipes": ("bf16,acc=f16",), "accs": ("f32",)}, "'acc' is given twice"),
        ({"recipes": ("bf16,attn.sofmax.acc=f32",)}, "attn.sofmax"),
        ({"roundings": ("stochastic:16:{seed}",), "seeds": (1, -1)}, "with the seed -1"),
    ],
)  # fmt: skip
def test_a_word_without_meaning_stops_a_sweep_before_its_folder_is_made(words, hint, tmp_path):
    with pytest.raises(GridError, match=hint) as found:
        sweep(Grid(**words), tmp_path / "out")
    assert found.value.exit_code == 2
    assert not (tmp_path / "out").exists()


def test_an_unknown_backend_stops_a_sweep_too(tmp_path):
    with pytest.raises(PrecisionError, match="Did you mean 'numba'"):
        sweep(Grid(), tmp_path, backend="nummba")


def test_flags_are_put_upon_each_recipe_and_stand_alone_where_there_is_none():
    table = {"storages": ["bf16", "f16"], "accs": ["f32", "f16"], "roundings": ["toward_zero"]}
    texts = [cell.recipe for cell in grid_of(table, "here").cells()]
    assert texts == [
        f"storage={storage},acc={acc},rounding=toward_zero" for storage in ("bf16", "f16") for acc in ("f32", "f16")
    ]
    (cell,) = grid_of({"recipes": ["candle-bf16-metal"], "accs": ["f16"]}, "here").cells()
    assert cell.recipe == "candle-bf16-metal,acc=f16"
    assert cell.name == grid_of({"recipes": ["candle-bf16-metal,acc=f16"]}, "here").cells()[0].name


def test_flags_can_be_put_upon_a_recipe_that_lies_in_a_file(tmp_path):
    (tmp_path / "mine.toml").write_text('name = "mine"\nbase = "bf16"\n')
    found = recipe_of_text(f"{tmp_path / 'mine.toml'},acc=f16,rounding=toward_zero")
    assert found.words() == recipe_of("bf16,acc=f16,rounding=toward_zero").words()


def test_each_seed_of_a_stochastic_rounding_and_of_a_permutation_is_a_run_of_its_own(tmp_path):
    """4 of the cells round by random words, 4 sum in a random order: no two of the 7 digests agree."""
    grid = Grid(
        recipes=("bf16,acc=bf16",), roundings=("ties_to_even", "stochastic:16:{seed}"), orders=("seq", "perm:{seed}"),
        seeds=(1, 2), prompts=("Two",),
    )  # fmt: skip
    rows = sweep(grid, tmp_path).rows
    assert [row["seed"] for row in rows] == [None, 1, 2, 1, 2, 1, 2]
    assert len({row["digest"] for row in rows}) == len(rows)
    assert rows[4]["recipe"] == "bf16,acc=bf16,rounding=stochastic:16:2"
    assert rows[6]["order"] == "perm:2"


def test_a_model_whose_weights_were_changed_is_done_again(tmp_path):
    """The file keeps its name, its size, and its date of change."""
    folder, grid = tmp_path / "model", Grid(models=(str(tmp_path / "model"),), prompts=("Two",))
    shutil.copytree(tiny.FOLDER, folder)
    (first,) = sweep(grid, tmp_path / "out").rows
    assert sweep(grid, tmp_path / "out").rows == (first,)
    file = folder / "model.safetensors"
    before, body = file.stat(), bytearray(file.read_bytes())
    body[-2:] = np.array([3.0], ml_dtypes.bfloat16).tobytes()
    file.unlink()
    file.write_bytes(body)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    (second,) = sweep(grid, tmp_path / "out").rows
    assert second["model_digest"] != first["model_digest"]
    assert second["digest"] != first["digest"]
    assert load(tmp_path / "out").rows == (second,)


def test_a_cell_of_other_weights_than_the_workers_model_is_an_error():
    (cell,) = Grid(prompts=("Two",)).cells()
    object.__setattr__(cell, "model_digest", "0" * 64)
    assert "has other weights than when the sweep began" in row_of(cell)["error"]


@pytest.mark.parametrize(("error", "told"), [
    (FileNotFoundError(2, "No such file", "a.gguf"), "FileNotFoundError: a.gguf: No such file"),
    (MemoryError(), "MemoryError"), (ValueError("first.\nsecond"), "ValueError: first"),
    (CheckpointError("Ours.\n  In two lines."), "CheckpointError: Ours.\n  In two lines."),
])  # fmt: skip
def test_a_row_tells_an_error_in_words(error, told):
    assert models.told(error) == told


def test_a_folder_without_a_sweep_is_told_in_words(tmp_path):
    with pytest.raises(SweepError, match=r"no sweep that can be read \(.*grid.json: No such file or directory\)\. Say"):
        load(tmp_path)


def test_the_compiled_backend_gives_the_same_table(tmp_path):
    pytest.importorskip("numba")
    grid = Grid(recipes=("bf16", "f16,acc=f16"), orders=("seq", "lanes:8"), prompts=("Two",), steps=2)
    plain, compiled = sweep(grid, tmp_path / "a"), sweep(grid, tmp_path / "b", backend="numba")
    assert plain.path.read_bytes() == compiled.path.read_bytes()
    assert not plain.failed


def test_a_sweep_is_read_again_without_its_model_and_also_where_it_is_not_over(tmp_path):
    grid = Grid(recipes=("bf16", "f16"), orders=("seq", "lanes:8"), prompts=("Two",))
    found = sweep(grid, tmp_path)
    assert load(tmp_path) == found
    next((tmp_path / "cells").glob("*.parquet")).unlink()
    assert "1 still to be done" in str(load(tmp_path))
    with pytest.raises(SweepError, match="is no folder of a sweep"):
        load(tmp_path / "other")
    (tmp_path / "grid.json").write_text("{}")
    with pytest.raises(SweepError, match="holds no sweep that can be read"):
        load(tmp_path)
