"""The map of a sweep: what its numbers are of, which axes it takes, its picture, and tables that fit a terminal."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from softfloat_llm.errors import ReportError
from softfloat_llm.sweeps.grid import Grid
from softfloat_llm.sweeps.sweep import SHOWN, WIDTH, Sweep, cut, load, sweep
from softfloat_llm.sweeps.sweep_map import VALUES, sweep_map_of
from tests.browser import chromium
from tests.console import Console

pytest.importorskip("pyarrow")
LONG = "The cup is on the very long table in the kitchen of the house where Anna lives"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 cells of two models, one of which is not there, in two recipes, an order with two seeds, and two prompts."""
    path = tmp_path_factory.mktemp("sweep")
    recipes = ("bf16,lm_head.output=e2m1fn,attn.softmax.acc=bf16,norm.acc=f16", "f16")
    grid = Grid(("tiny", "no/such"), ("The cup is", LONG), recipes, orders=("perm:{seed}",), seeds=(1, 2))
    sweep(grid, path)
    return path


@pytest.fixture
def found(folder: Path) -> Sweep:
    return load(folder)


def test_a_spot_of_the_map_is_of_all_cells_with_its_two_labels(found):
    made = sweep_map_of(found.rows, found.places, "recipe", "order", "flips")
    assert (made.rows, made.columns) == (found.grid.recipes, ("perm:{seed}",))
    for recipe in made.rows:
        rows = [row for row in found.rows if row["recipe"] == recipe and row["error"] is None]
        spot = made.spots[recipe, "perm:{seed}"]
        assert (spot.value, spot.steps, spot.cells, spot.failed) == (sum(r["flips"] for r in rows), len(rows), 8, 4)


@pytest.mark.parametrize("value", VALUES)
def test_each_value_is_joined_as_it_says(found, value):
    made = sweep_map_of(found.rows, found.places, "seed", "prompt", value)
    rows = [r for r in found.rows if r["seed"] == 2 and r["prompt"] == LONG and r["error"] is None]
    assert made.spots["2", LONG].value == VALUES[value][1](row[value] for row in rows)


def test_the_axes_of_a_map_are_those_on_which_the_cells_differ(found):
    assert (found.map().rows_by, found.map().columns_by) == ("recipe", "prompt")
    assert sweep_map_of(found.rows, found.places, None, "recipe").rows_by == "prompt"
    assert sweep_map_of(found.rows, found.places, "model", None).columns_by == "recipe"
    assert sweep_map_of(found.rows, found.places, "model", "recipe").words("no/such") == ("error", "error")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("recip", None, "flips"), "Did you mean 'recipe'"), (("seed", "seed", "flips"), "given for both"),
        ((None, None, "flip"), "Did you mean 'flips'"),
    ],
)  # fmt: skip
def test_an_axis_or_value_that_a_map_has_not_is_refused(found, words, message):
    with pytest.raises(ReportError, match=message):
        sweep_map_of(found.rows, found.places, *words)


def test_the_tables_fit_a_terminal_and_are_whole_when_all_is_asked(found):
    for shown in (found, replace(found, rows_by="prompt", columns_by="recipe", value="max_kl")):
        tables = [line for line in shown.text().splitlines() if line.startswith("|")]
        assert max(map(len, tables)) <= WIDTH
        assert f"({len(found.rows) - SHOWN} further rows are not shown: -v)" in shown.text()
        assert shown.text().count("\n") < 25
    assert LONG in found.text(verbose=True)


def test_a_text_that_is_cut_keeps_its_ends():
    for most in range(8, 30):
        assert len(cut("abcdefghijklmnopqrstuvwxyz", most)) == min(most, 26)
    assert cut("abcdefghijklmnopqrstuvwxyz", 9) == "abcd…wxyz"


def test_the_program_draws_what_lies_in_a_folder(folder, tmp_path, console: Console):
    pytest.importorskip("matplotlib")
    words = ["sweep", "--out", folder, "--rows", "prompt", "--columns", "recipe", "--value", "max_kl"]
    answer = console(*words, "--heatmap", tmp_path / "map.svg")
    assert answer.code == 1  # half of the cells are errors
    assert answer.err == f"The heat map is {tmp_path / 'map.svg'}.\n"
    picture = (tmp_path / "map.svg").read_text()
    assert picture.startswith("<svg ")
    assert "Largest divergence of a step in nats" in picture
    assert console(*words, "--heatmap", tmp_path / "map.svg").code == 3
    assert console(*words, "--heatmap", tmp_path / "map.svg", "--replace").code == 1
    assert (tmp_path / "map.svg").read_text() == picture
    other = console("sweep", "--out", folder, "--heatmap", tmp_path / "map.png")
    assert (other.code, "ends in .svg" in " ".join(other.err.split())) == (2, True)
    refused = console("sweep", "--out", folder, "--rows", "promt")
    assert (refused.code, "Did you mean 'prompt'" in refused.err) == (2, True)


@pytest.mark.browser
@pytest.mark.parametrize(("rows", "columns"), [("recipe", "prompt"), ("prompt", "recipe")])
def test_no_two_texts_of_the_picture_overlap_in_a_browser(found, rows, columns, tmp_path):
    pytest.importorskip("matplotlib")
    from softfloat_llm.report.sweep_picture import sweep_picture

    picture = sweep_picture(replace(found, rows_by=rows, columns_by=columns).map())
    script = """const s = document.querySelector('svg').getBoundingClientRect();
    const boxes = [...document.querySelectorAll('svg text')].filter(t => t.textContent.trim())
      .map(t => [t.getBoundingClientRect(), t.textContent]);
    const bad = boxes.filter(([b]) => b.left < s.left || b.right > s.right || b.top < s.top || b.bottom > s.bottom)
      .map(([b, t]) => 'outside: ' + t);
    boxes.forEach(([a, t], i) => boxes.slice(i + 1).forEach(([b, u]) => {
      if (a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom) bad.push(t + ' / ' + u);
    }));
    document.title = boxes.length + ' texts; ' + bad.join('; ');"""
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><title></title><body>{picture}<script>{script}</script>", encoding="utf-8")
    words = [chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", page.as_uri()]
    told = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    title = re.search(r"<title>(.*?)</title>", told)
    assert title is not None
    assert re.fullmatch(r"[1-9]\d+ texts; ", title[1]), title[1]
