"""The options of a live run: which engine is run beside a run of ours, and how."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from softfloat_llm.cli.asked import run_of, saved_run
from softfloat_llm.cli.options import PassFlags, PrecisionFlags
from softfloat_llm.errors import nearest
from softfloat_llm.io.progress import Progress
from softfloat_llm.runs import Run

if TYPE_CHECKING:
    from softfloat_llm.live.comparison import LiveComparison

ENGINES = ("torch",)
_PANEL = "Live engine"
_ATTENTIONS = "eager|sdpa|math"


@dataclass(frozen=True)
class LiveFlags:
    """What is run beside a run, and how."""

    engine: Annotated[
        str | None, typer.Option("--live", rich_help_panel=_PANEL, metavar="torch", help="Run PyTorch now, as REF.")
    ] = None
    attention: Annotated[
        str | None,
        typer.Option("--attention", rich_help_panel=_PANEL, metavar=_ATTENTIONS, help="The recipe's unless said."),
    ] = None
    format: Annotated[
        str | None,
        typer.Option(
            "--format", rich_help_panel=_PANEL, metavar="bf16|f16|f32", help="The recipe's storage unless said."
        ),
    ] = None
    mkldnn: Annotated[
        bool | None,
        typer.Option("--mkldnn/--no-mkldnn", rich_help_panel=_PANEL, help="oneDNN; the recipe's unless said."),
    ] = None
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, rich_help_panel=_PANEL, metavar="N", help="Threads of PyTorch.")
    ] = None

    def words(self) -> list[str]:
        """The flags as a command line has them."""
        named = {"live": self.engine, "attention": self.attention, "format": self.format, "threads": self.threads}
        given = [f"--{name} {word}" for name, word in named.items() if word is not None]
        return given + ([] if self.mkldnn is None else ["--mkldnn" if self.mkldnn else "--no-mkldnn"])

    def refuse(self) -> None:
        """Raises typer.BadParameter where a word is given that only a live run could follow."""
        if given := self.words():
            raise typer.BadParameter(f"{given[0]} is for a live run: add --live torch.")

    def check(self) -> None:
        """Raises typer.BadParameter where the engine is none that can be run."""
        if self.engine not in ENGINES:
            raise typer.BadParameter(
                f"--live {self.engine!r} is unknown.{nearest(str(self.engine), ENGINES)} Known: {', '.join(ENGINES)}."
            )


def live_comparison(
    what: str | None,
    live: LiveFlags,
    precision: PrecisionFlags,
    passes: PassFlags,
    progress: Progress | None,
    *,
    is_local: bool = False,
) -> LiveComparison:
    """A saved run, or the run that the words make, held against the engine run now.

    Without a recipe the one for this machine is taken: `transformers-eager-bf16-cpu-...`.
    """
    from softfloat_llm.live.comparison import compare_live

    live.check()
    run = _run(what, live, precision, passes, progress)
    return compare_live(
        run,
        attention=live.attention,
        format=live.format,
        mkldnn=live.mkldnn,
        threads=live.threads,
        taps=passes.taps or None,
        is_local=is_local,
    )


def _run(
    what: str | None, live: LiveFlags, precision: PrecisionFlags, passes: PassFlags, progress: Progress | None
) -> Run:
    if saved_run(what) is not None:
        return run_of(what, precision, replace(passes, taps=[]), progress, default="f32")
    return run_of(what, precision, passes, progress, default=_recipe_here(live))


def _recipe_here(live: LiveFlags) -> str:
    """The recipe for the kernels that run here, where the package brings one; else what all of them have in common."""
    from softfloat_llm.live.comparison import recipe_here
    from softfloat_llm.live.torch_host import host_facts
    from softfloat_llm.recipe import recipe_names

    host = host_facts(uses_mkldnn=live.mkldnn is not False)
    name = recipe_here(host, live.format or "bf16", live.attention or "eager")
    return name if name in recipe_names() else f"transformers-eager,storage={live.format or 'bf16'}"
