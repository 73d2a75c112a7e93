"""`softfloat-llm reproduce`: claims that were made elsewhere, checked: what is expected beside what is obtained."""

from __future__ import annotations

from typing import Annotated

import typer

from softfloat_llm.claims.reproduce import ALL, CLAIMS
from softfloat_llm.claims.reproduce import reproduce as reproduce_claims
from softfloat_llm.cli.options import OutputFlags, grouped, quoted
from softfloat_llm.cli.screen import answer_of, say, show, show_json, watched


@grouped
def reproduce(
    claim: Annotated[
        str,
        typer.Argument(metavar="ID|all", help=f"One of {next(iter(CLAIMS))} to {list(CLAIMS)[-1]}, or all of them."),
    ] = ALL,
    *,
    model: Annotated[
        str, typer.Option("--model", metavar="NAME|PATH", help="tiny, smollm2, or the folder of the original weights.")
    ] = "tiny",
    workers: Annotated[int, typer.Option("--workers", min=1, metavar="N", help="As for simulate; the bits stay.")] = 1,
    backend: Annotated[
        str, typer.Option("--backend", metavar="numpy|numba", help="As for simulate; the bits stay.")
    ] = "numpy",
    output: OutputFlags,
) -> int:
    """softfloat-llm reproduce S6 --model smollm2

    Check a claim about number formats and language models, or all of them: what is expected beside what is obtained.
    On a model of SmolLM2-135M's shape that is not the one which fetch makes, the numbers that were measured on the
    original weights are expected too. The exit code is 1 where a claim does not hold.
    """
    with watched(is_quiet=output.is_quiet) as progress:
        found = reproduce_claims(claim, model=model, workers=workers, backend=backend, progress=progress)
    if output.as_json:
        show_json("reproduce", found.to_dict())
    else:
        text = found.text(verbose=output.is_verbose, then=_then(claim, model, is_verbose=output.is_verbose))
        show(answer_of(text) if output.is_quiet else text)
    if found.failing:
        say(f"Not reproduced: {', '.join(one.id for one in found.failing)}.")
    return 0 if found.is_reproduced else 1


def _then(claim: str, model: str, *, is_verbose: bool) -> str:
    """One claim of all of them, then the same on SmolLM2, then the JSON."""
    asked = ALL if claim.lower() == ALL else claim
    on = "" if model == "tiny" else f" --model {quoted(model)}"
    if asked == ALL and not is_verbose:
        return f"softfloat-llm reproduce S6{on}"
    if model == "tiny":
        return f"softfloat-llm reproduce {quoted(asked)} --model smollm2"
    return f"softfloat-llm reproduce {quoted(asked)}{on} --json"
