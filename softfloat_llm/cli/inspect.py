"""`softfloat-llm inspect`: the audit of a checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from softfloat_llm.analysis.inspect import inspect as inspect_model
from softfloat_llm.cli.options import OutputFlags, grouped, quoted
from softfloat_llm.cli.screen import answer_of, show, show_json, watched


@grouped
def inspect(
    model: Annotated[str, typer.Argument(metavar="DIR|NAME", help="As --model of simulate.")] = "tiny",
    *,
    output: OutputFlags,
) -> int:
    """softfloat-llm inspect smollm2

    Say what was understood of a checkpoint: its config with every default taken, the site and format of each tensor,
    its rotary frequencies, what was ignored; and how many values are zero, subnormal or not finite, or would be in f16
    and bf16. -v lists every tensor, key and frequency.
    """
    with watched(is_quiet=output.is_quiet) as progress:
        found = inspect_model(model, progress=progress)
    if output.as_json:
        show_json("inspect", found.to_dict())
        return 0
    text = found.text(verbose=output.is_verbose, then=f"simulate --model {quoted(model)} --storage f16")
    show(answer_of(text) if output.is_quiet else text)
    return 0
