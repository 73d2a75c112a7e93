"""Sweeps: the cells of a grid, a row of each whoever does it, errors as rows, and what survives an interruption."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from softfloat_llm.analysis.compare import compare
from softfloat_llm.errors import GridError, SweepError
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.runs import simulate
from softfloat_llm.sweeps import sweep as sweeping
from softfloat_llm.sweeps.cell import row_of
from softfloat_llm.sweeps.grid import Cell, Grid, grid_of, grid_of_file
from softfloat_llm.sweeps.store import Store
from softfloat_llm.sweeps.sweep import sweep
from softfloat_llm.sweeps.workers import rows_of

pytest.importorskip("pyarrow")
SMALL = Grid(
    recipes=("bf16", "f16,acc=f16"), orders=("seq", "lanes:8"), prompts=("The capital of France is", "Two"), steps=2
)


def test_a_grid_makes_each_cell_once_and_seeds_only_where_they_are_used():
    grid = Grid(recipes=("bf16", "f16", "bf16"), orders=("seq", "perm:{seed}"), seeds=(1, 2, 3))
    cells = grid.cells()
    assert len(cells) == 2 * (1 + 3)
    assert [(c.order, c.seed) for c in cells[:4]] == [("seq", None), ("perm:1", 1), ("perm:2", 2), ("perm:3", 3)]
    assert len({cell.name for cell in cells}) == len(cells)
    asked = {"model_digest": cells[0].model_digest, "files": cells[0].files}
    assert cells[0].name == Cell("tiny", grid.prompts[0], "bf16", "seq", None, 1, "f32", **asked).name


@pytest.mark.parametrize(("given", "told"), [
    ({"orders": ["seq", "perm:{seed}"], "seeds": [1, 2, 2, 3], "recipes": ["bf16", "f16"]},
     "1 model x 1 prompt x 2 recipes x 2 orders, 2 of these 4 with 3 seeds each: 8 cells"),
    ({"orders": ["perm:{seed}"], "seeds": [1, 2]}, "1 model x 1 prompt x 1 recipe x 1 order x 2 seeds"),
    ({"storages": ["bf16"], "accs": ["f32", "f16"]}, "1 model x 1 prompt x 1 storage x 2 accs"),
    ({"recipes": ["bf16", "bf16,acc=f16"], "accs": ["f16"]}, "1 model x 1 prompt x 2 recipes x 1 acc"),
    ({"recipes": ["x{seed}"], "seeds": [1], "orders": ["seq"]}, "1 model x 1 prompt x 1 recipe x 1 order x 1 seed"),
    ({"recipes": ["bf16", "stochastic-{seed}"], "orders": ["seq", "perm:{seed}", "lanes:8"], "seeds": [1, 2]},
     "1 model x 1 prompt x 2 recipes x 3 orders, 4 of these 6 with 2 seeds each: 10 cells"),
    ({"recipes": ["bf16", "bf16,rounding=x"], "roundings": ["x", "y"]}, "1 model x 1 prompt x 2 recipes x 2 roundings"),
])  # fmt: skip
def test_the_heading_multiplies_out_to_the_cells(given, told):
    """Nothing of these is run: the words need mean nothing."""
    grid = grid_of(given, "here")
    places = tuple(place for _, place in grid.places({"tiny": "not opened"}))
    found = sweeping.Sweep(grid, Path("table"), (), places)
    assert found.heading() == [("sweep", f"{told}, 1 step, against f32")]
    assert found.left == len(grid.cells())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"recipe": ["bf16"]}, "Did you mean 'recipes'"), ({"recipes": "bf16"}, "expected a list of texts"),
        ({"recipes": []}, "needs recipes"), ({"seeds": [1]}, "No recipe, rounding or order uses the seeds"),
        ({"orders": ["perm:{seed}"]}, "there are no seeds"), ({"steps": 0}, "at least one token"),
        ({"steps": True}, "expected int"), ({"seeds": [1.5]}, "a list of int"),
    ],
)  # fmt: skip
def test_a_grid_without_meaning_is_refused(table, message):
    with pytest.raises(SweepError, match=message):
        grid_of(table, "here")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"prompts": (5,)}, "expected a list of texts"), ({"prompts": "Two"}, "expected a list of texts"),
        ({"steps": 1.5}, "expected int"), ({"prompts": ("\ud800",)}, "half a character"),
        ({"orders": ("perm:{seed}",), "seeds": (1 << 70,)}, "more than 64 bits"),
    ],
)  # fmt: skip
def test_a_grid_that_no_table_could_hold_is_refused_before_the_first_cell(words, message):
    with pytest.raises(SweepError, match=message):
        Grid(**words)


def test_a_recipe_file_that_was_changed_is_done_again_and_the_same_one_is_not(tmp_path):
    path = tmp_path / "mine.toml"
    grid = Grid(recipes=(str(path),), prompts=("Two",))
    with pytest.raises(GridError, match=r"Reading the recipe .*mine.toml"):
        sweep(grid, tmp_path / "out")
    path.write_text('name = "mine"\nbase = "bf16"\n')
    (first,) = sweep(grid, tmp_path / "out").rows
    assert Store(tmp_path / "out").missing(grid.cells()) == []
    path.write_text('name = "mine"\nbase = "f16"\n')
    assert Store(tmp_path / "out").missing(grid.cells()) == list(grid.cells())
    (second,) = sweep(grid, tmp_path / "out").rows
    assert first["error"] is None
    assert second["error"] is None
    assert first["digest"] != second["digest"]


def test_a_grid_comes_from_a_toml_file(tmp_path):
    (tmp_path / "grid.toml").write_text('recipes = ["bf16"]\norders = ["perm:{seed}"]\nseeds = [4]\nsteps = 3\n')
    assert grid_of_file(tmp_path / "grid.toml") == Grid(recipes=("bf16",), orders=("perm:{seed}",), seeds=(4,), steps=3)
    (tmp_path / "ranges.toml").write_text('recipes = ["bf16,order=perm:{seed}"]\nseeds = "7,0..2"\n')
    assert grid_of_file(tmp_path / "ranges.toml").seeds == (7, 0, 1, 2)
    (tmp_path / "back.toml").write_text('seeds = "3..0"\n')
    with pytest.raises(GridError, match=r"Sweep .*back.toml: The range '3..0' runs backwards: write 0..3."):
        grid_of_file(tmp_path / "back.toml")
    (tmp_path / "bad.toml").write_text("recipes = ")
    with pytest.raises(SweepError, match=r"Reading the sweep .*bad.toml"):
        grid_of_file(tmp_path / "bad.toml")


def test_a_row_says_what_compare_says():
    cell = Cell("tiny", "The capital of France is", "f16,acc=f16", "lanes:4", None, 3, "f32")
    row, model = row_of(cell), open_model("tiny")
    reference = simulate(cell.prompt, model=model, recipe="f32", steps=3)
    run = simulate(model=model, recipe="f16,acc=f16,order=lanes:4", teacher=reference)
    found = compare(run, reference)
    assert row["error"] is None
    assert row["digest"] == run.digest
    assert row["tokens"] == list(run.generated)
    assert (row["flips"], row["max_abs"], row["max_ulp"]) == (found.flips, found.max_abs, found.max_ulp)
    assert row["least_margin"] == min(step.margin for step in found.steps)
    assert 0 < row["mean_kl"] <= row["max_kl"]


def test_what_cannot_be_done_is_a_row_with_its_error_and_the_others_go_on(tmp_path):
    """No such model; a prompt without tokens; sites that do not fit; a recipe that cannot take the order."""
    misfit, fused = "bf16,mlp.residual.storage=f32", "bf16,product=bf16"
    grid = Grid(models=("tiny", "no/such"), recipes=("bf16", misfit, fused), orders=("fused:16",), prompts=("Two", ""))
    found = sweep(grid, tmp_path)
    assert len(found.rows) == 12
    assert len(found.failed) == 11
    words = " ".join(row["error"] for row in found.failed)
    for error in ("RecipeError: site 'mlp.residual'", "TokenError", "CheckpointError: Model 'no/such'", "fused:16"):
        assert error in words
    assert "1 of 12 cells done" in str(found)


def test_the_table_is_the_same_bytes_whoever_did_the_cells(tmp_path):
    alone, pooled = sweep(SMALL, tmp_path / "alone"), sweep(SMALL, tmp_path / "pool", workers=2)
    assert alone.rows == pooled.rows
    assert alone.path.read_bytes() == pooled.path.read_bytes()
    assert [row["cell"] for row in alone.rows] == [cell.name for cell in SMALL.cells()]


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path, monkeypatch):
    done = []

    def two_and_stop(cells, **_):
        for cell in cells[:2]:
            done.append(cell.name)
            yield row_of(cell)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sweeping, "rows_of", two_and_stop)
        with pytest.raises(KeyboardInterrupt):
            sweep(SMALL, tmp_path)
    seen = []
    monkeypatch.setattr(sweeping, "rows_of", lambda cells, **_: (seen.append(c.name) or row_of(c) for c in cells))
    found = sweep(SMALL, tmp_path)
    assert len(found.rows) == len(SMALL.cells())
    assert set(seen) == {cell.name for cell in SMALL.cells()} - set(done)
    assert found.rows == sweep(SMALL, tmp_path).rows


def test_a_file_that_is_no_row_is_done_again(tmp_path):
    grid = Grid(recipes=("bf16",))
    (cell,) = grid.cells()
    sweep(grid, tmp_path)
    (tmp_path / "cells" / f"{cell.name}.parquet").write_bytes(b"PAR1 damaged")
    assert Store(tmp_path).missing([cell]) == [cell]
    assert sweep(grid, tmp_path).rows[0]["error"] is None


def test_a_worker_of_the_pool_that_is_killed_loses_no_cell(tmp_path):
    grid = Grid(recipes=("bf16", "f16"), orders=("seq", "lanes:8", "pairwise"), prompts=("a",))
    cells, rows = grid.cells(), []
    killed = threading.Event()
    for row in rows_of(cells, workers=2):
        rows.append(row)
        if not killed.is_set():
            os.kill(_children()[0], signal.SIGKILL)
            killed.set()
    assert sorted(row["cell"] for row in rows) == sorted(cell.name for cell in cells)
    assert all(row["error"] is None for row in rows)


def _children():
    """The processes of the pool: those that `multiprocessing` spawned."""
    import multiprocessing

    return [child.pid for child in multiprocessing.active_children()]


def test_a_scheduler_that_is_not_there_is_told_of(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("softfloat_llm.sweeps.workers.PATIENCE_SECONDS", 2)
    started = time.monotonic()
    with pytest.raises(SweepError, match="cannot be reached"):
        sweep(Grid(), tmp_path, scheduler="tcp://127.0.0.1:1")
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("address", ["localhost", "tcp://localhost", "", "tcp://:8786", "tcp//localhost:8786"])
def test_an_address_of_another_form_is_refused_before_anybody_is_asked(address, tmp_path):
    pytest.importorskip("distributed")
    with pytest.raises(SweepError, match="tcp://HOST:PORT"):
        sweep(Grid(), tmp_path, scheduler=address)


def test_the_answer_shows_errors_first_and_a_map_of_flips(tmp_path):
    found = sweep(SMALL, tmp_path)
    text = str(found)
    assert "8 of 8 cells done" in text
    assert "| flips by recipe, order" in text
    assert text.count("\n") < 25
    assert found.to_dict()["cells"][0]["cell"] == SMALL.cells()[0].name
    assert np.isfinite([row["max_abs"] for row in found.rows]).all()
