"""`softfloat-llm sweep`: many recipes, orders, prompts and seeds at once, each a row of one table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from softfloat_llm.cli.options import OutputFlags, grouped, prompt_of
from softfloat_llm.cli.screen import show, show_json, watched
from softfloat_llm.cli.simulate import answer_of
from softfloat_llm.sweeps.grid import Grid, grid_of, grid_of_file

_SEEDS = re.compile(r"(\d+)\.\.(\d+)")


@grouped
def sweep(
    file: Annotated[
        Path | None, typer.Argument(metavar="GRID.toml", help="The grid: models, prompts, recipes, orders, seeds ...")
    ] = None,
    *,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where the rows go; what lies there is not redone.")
    ],
    model: Annotated[list[str] | None, typer.Option("--model", metavar="NAME|PATH", help="Repeatable.")] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", metavar="TEXT|@FILE", help="A prompt; @FILE: one a line. Repeatable."),
    ] = None,
    recipe: Annotated[list[str] | None, typer.Option("--recipe", metavar="RECIPE", help="Repeatable.")] = None,
    order: Annotated[
        list[str] | None, typer.Option("--order", metavar="ORDER", help="Of matrix products; perm:{seed}. Repeatable.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="A..B|A,B,...", help="What {seed} stands for, in turn.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, metavar="N", help="Tokens a run.")] = None,
    against: Annotated[str | None, typer.Option("--against", metavar="RECIPE", help="The reference (f32).")] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, metavar="N", help="Local processes.")] = 1,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", metavar="tcp://HOST:PORT", help="A Dask cluster does the cells.")
    ] = None,
    output: OutputFlags,
) -> int:
    """softfloat-llm sweep --recipe bf16 --recipe f16 --order seq --order lanes:8 --steps 8 --out DIR

    Run every cell of a grid against the reference, teacher forced, and keep a row of each: errors, flips, ties,
    margins, divergence, digest. A sweep that was interrupted goes on where it was. Exit 1 where a cell is an error.
    """
    from softfloat_llm.sweeps.sweep import sweep as run_sweep

    flags = {
        "models": model, "prompts": _prompts(prompt), "recipes": recipe, "orders": order, "seeds": _seeds(seeds),
        "steps": steps, "reference": against,
    }  # fmt: skip
    grid = _grid(file, {key: value for key, value in flags.items() if value is not None})
    with watched(is_quiet=output.is_quiet) as progress:
        found = run_sweep(grid, out, workers=workers, scheduler=scheduler, progress=progress)
    if output.as_json:
        show_json("sweep", found.to_dict())
    else:
        text = found.text(verbose=output.is_verbose)
        show(answer_of(text) if output.is_quiet else text)
    return 1 if found.failed else 0


def _grid(file: Path | None, flags: dict[str, object]) -> Grid:
    """The grid of the flags, or of the file: not of both, which could contradict each other."""
    if file is None:
        return grid_of(flags, "by flags")
    if flags:
        raise typer.BadParameter(f"{file} says what is swept; take {', '.join(flags)} out of the words, or the file.")
    return grid_of_file(file)


def _prompts(words: list[str] | None) -> list[str] | None:
    if words is None:
        return None
    found: list[str] = []
    for word in words:
        text = prompt_of(word) or ""
        found += [line for line in text.splitlines() if line.strip()] if word.startswith("@") else [text]
    return found


def _seeds(words: str | None) -> list[int] | None:
    if words is None:
        return None
    if match := _SEEDS.fullmatch(words.strip()):
        return list(range(int(match[1]), int(match[2]) + 1))
    parts = [part.strip() for part in words.split(",")]
    if wrong := [part for part in parts if not part.isdecimal()]:
        raise typer.BadParameter(f"{wrong[0]!r} is no seed; expected 0..9, or numbers such as 1,2,3.")
    return [int(part) for part in parts]
