"""`softfloat-llm ranges`: the largest and smallest values of a run, held against a format."""

from __future__ import annotations

from typing import Annotated

import typer

from softfloat_llm.analysis.ranges import ranges as ranges_of
from softfloat_llm.analysis.what_if import WhatIf
from softfloat_llm.analysis.what_if import what_if as what_if_of
from softfloat_llm.cli.asked import RunOrPrompt, all_taps_of
from softfloat_llm.cli.options import AskFlags, OutputFlags, PrecisionFlags, grouped
from softfloat_llm.cli.screen import answer_of, show, show_json, watched


@grouped
def ranges(
    what: RunOrPrompt = None,
    *,
    format: Annotated[str, typer.Option("--format", metavar="F", help="What the values are held against.")] = "f16",
    what_if: Annotated[
        str | None,
        typer.Option("--what-if", metavar="KEY=WORD,...", help="A dry run: what acc=f16 would do to the sums."),
    ] = None,
    kv_scales: Annotated[
        str | None, typer.Option("--kv-scales", metavar="F", help="The scales that a KV cache in F would need.")
    ] = None,
    precision: PrecisionFlags,
    asked: AskFlags,
    output: OutputFlags,
) -> int:
    """softfloat-llm ranges --model tiny --what-if acc=f16

    Say how large and how small the values of each site are, how far from f16's 65504 (the squares that a norm sums
    too), what would overflow first, and what would become subnormal or zero. A run that was saved says it of the taps
    that it kept; without one, a prompt is run with all taps (in f32 without precision flags).
    """
    with watched(is_quiet=output.is_quiet) as progress:
        run, model = all_taps_of(what, precision, asked, progress)
        dry: WhatIf | None = None
        if what_if is not None:
            dry = what_if_of(run, what_if, model(), workers=asked.workers)
        found = ranges_of(run, format=format, kv_format=kv_scales, what_if=dry)
    if output.as_json:
        show_json("ranges", found.to_dict())
        return 0
    text = found.text(verbose=output.is_verbose)
    show(answer_of(text) if output.is_quiet else text)
    return 0
