"""`softfloat-llm sweep`: many recipes, orders, prompts and seeds at once, each a row of one table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from softfloat_llm.cli.options import OutputFlags, grouped, prompt_of, whole_numbers
from softfloat_llm.cli.screen import answer_of, say, show, show_json, watched
from softfloat_llm.errors import nearest
from softfloat_llm.report.page import check_page
from softfloat_llm.report.sweep_picture import save_sweep_picture
from softfloat_llm.sweeps.grid import AXES, Grid, grid_of, grid_of_file
from softfloat_llm.sweeps.sweep import Sweep, load
from softfloat_llm.sweeps.sweep import sweep as run_sweep
from softfloat_llm.sweeps.sweep_map import VALUES

_MAP = "Map"


@dataclass(frozen=True)
class GridFlags:
    """A grid by flags."""

    model: Annotated[list[str] | None, typer.Option("--model", metavar="NAME|PATH", help="Repeatable.")] = None
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", metavar="TEXT|@FILE", help="A prompt; @FILE: one a line. Repeatable."),
    ] = None
    recipe: Annotated[list[str] | None, typer.Option("--recipe", metavar="RECIPE", help="Repeatable.")] = None
    storage: Annotated[
        list[str] | None, typer.Option("--storage", metavar="F", help="Put upon each recipe. Repeatable.")
    ] = None
    acc: Annotated[list[str] | None, typer.Option("--acc", metavar="F", help="Put upon each recipe. Repeatable.")] = (
        None
    )
    rounding: Annotated[
        list[str] | None,
        typer.Option("--rounding", metavar="M", help="Put upon each recipe; stochastic:16:{seed}. Repeatable."),
    ] = None
    order: Annotated[
        list[str] | None, typer.Option("--order", metavar="ORDER", help="Of matrix products; perm:{seed}. Repeatable.")
    ] = None
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="A..B|A,B,...", help="What {seed} stands for, in turn.")
    ] = None
    steps: Annotated[int | None, typer.Option("--steps", min=1, metavar="N", help="Tokens a run.")] = None
    against: Annotated[str | None, typer.Option("--against", metavar="RECIPE", help="The reference (f32).")] = None

    def grid(self, file: Path | None) -> Grid | None:
        """The grid of the flags or of the file: not of both, which could contradict each other; None without either."""
        flags = self._given()
        if file is None:
            return grid_of(flags, "by flags") if flags else None
        if flags:
            raise typer.BadParameter(
                f"{file} says what is swept; take {', '.join(flags)} out of the words, or the file."
            )
        return grid_of_file(file)

    def _given(self) -> dict[str, object]:
        flags = {
            "models": self.model, "prompts": _prompts(self.prompt), "recipes": self.recipe, "storages": self.storage,
            "accs": self.acc, "roundings": self.rounding, "orders": self.order, "seeds": _seeds(self.seeds),
            "steps": self.steps, "reference": self.against,
        }  # fmt: skip
        return {key: words for key, words in flags.items() if words is not None}


@dataclass(frozen=True)
class MapFlags:
    """What the map shows, and the picture of it."""

    heatmap: Annotated[
        Path | None,
        typer.Option("--heatmap", metavar="FILE.svg", rich_help_panel=_MAP, help="Draw the map (extra `report`)."),
    ] = None
    rows: Annotated[
        str | None, typer.Option("--rows", metavar="AXIS", rich_help_panel=_MAP, help=f"One of {', '.join(AXES)}.")
    ] = None
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="AXIS", rich_help_panel=_MAP, help="Another one of them.")
    ] = None
    value: Annotated[
        str, typer.Option("--value", metavar="COLUMN", rich_help_panel=_MAP, help=f"One of {', '.join(VALUES)}.")
    ] = "flips"
    replace: Annotated[
        bool, typer.Option("--replace", rich_help_panel=_MAP, help="Let --heatmap replace an earlier file.")
    ] = False

    def check(self) -> None:
        """What the map is asked is checked before the cells are done. Raises typer.BadParameter or ReportError."""
        for flag, axis in (("--rows", self.rows), ("--columns", self.columns)):
            if axis is not None and axis not in AXES:
                raise typer.BadParameter(f"{flag} {axis!r} is unknown.{nearest(axis, AXES)} Known: {', '.join(AXES)}.")
        if self.rows is not None and self.rows == self.columns:
            raise typer.BadParameter(f"--rows and --columns are both {self.rows}: a map has two axes.")
        if self.value not in VALUES:
            raise typer.BadParameter(
                f"--value {self.value!r} is unknown.{nearest(self.value, VALUES)} Known: {', '.join(VALUES)}."
            )
        if self.heatmap is not None:
            if self.heatmap.suffix.lower() != ".svg":
                raise typer.BadParameter(
                    f"--heatmap {self.heatmap}: the map is an SVG picture; give a name that ends in .svg."
                )
            check_page(self.heatmap, replace=self.replace)


@grouped
def sweep(
    file: Annotated[
        Path | None, typer.Argument(metavar="GRID.toml", help="The grid: models, prompts, recipes, orders, seeds ...")
    ] = None,
    *,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where the rows go; what lies there is not redone.")
    ],
    axes: GridFlags,
    workers: Annotated[int, typer.Option("--workers", min=1, metavar="N", help="Local processes.")] = 1,
    backend: Annotated[
        str, typer.Option("--backend", metavar="numpy|numba", help="Of every worker; the bits stay.")
    ] = "numpy",
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", metavar="tcp://HOST:PORT", help="A Dask cluster does the cells.")
    ] = None,
    chart: MapFlags,
    output: OutputFlags,
) -> int:
    """softfloat-llm sweep --recipe bf16 --recipe f16 --order seq --order lanes:8 --steps 8 --out DIR

    Run every cell of a grid against the reference, teacher forced, and keep a row of each: errors, flips, ties,
    margins, divergence, digest. A sweep that was interrupted goes on where it was; without a grid, what lies in DIR is
    shown and nothing is run. A word that means nothing by itself stops the sweep; what fails in a cell is a row with
    its error, and makes exit code 1.
    """
    chart.check()
    grid = axes.grid(file)
    how: dict[str, Any] = {"workers": workers, "backend": backend, "scheduler": scheduler}
    found = load(out) if grid is None else _swept(grid, out, how, is_quiet=output.is_quiet)
    found = replace(found, rows_by=chart.rows, columns_by=chart.columns, value=chart.value)
    if output.as_json:
        show_json("sweep", found.to_dict())
    else:
        text = found.text(verbose=output.is_verbose)
        show(answer_of(text) if output.is_quiet else text)
    if chart.heatmap is not None:
        save_sweep_picture(found.map(), chart.heatmap, replace=chart.replace)
        say(f"The heat map is {chart.heatmap}.")
    return 1 if found.failed else 0


def _swept(grid: Grid, out: Path, how: dict[str, Any], *, is_quiet: bool) -> Sweep:
    """All cells done, those that were there already left as they are."""
    try:
        with watched(is_quiet=is_quiet) as progress:
            return run_sweep(grid, out, progress=progress, **how)
    except KeyboardInterrupt:
        say(f"{len(load(out).rows)} rows are kept in {out}: the same line goes on where it was.")
        raise


def _prompts(words: list[str] | None) -> list[str] | None:
    if words is None:
        return None
    found: list[str] = []
    for word in words:
        text = prompt_of(word) or ""
        found += [line for line in text.splitlines() if line.strip()] if word.startswith("@") else [text]
    return found


def _seeds(words: str | None) -> list[int] | None:
    return None if words is None else whole_numbers(words, "seed")
