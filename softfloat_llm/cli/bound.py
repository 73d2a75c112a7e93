"""`softfloat-llm bound`: how far right results may lie apart, and what a test must allow."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer

from softfloat_llm.analysis.answers import Answer
from softfloat_llm.analysis.bands import sum_band
from softfloat_llm.analysis.logit_bands import model_band
from softfloat_llm.analysis.site_bands import site_band
from softfloat_llm.cli.asked import RunOrPrompt, all_taps_of, last_step_of
from softfloat_llm.cli.options import AskFlags, OutputFlags, PrecisionFlags, grouped
from softfloat_llm.cli.screen import answer_of, show, show_json, watched
from softfloat_llm.io.progress import Progress
from softfloat_llm.numerics.rounding import round_to


@grouped
def bound(
    what: RunOrPrompt = None,
    *,
    orders: Annotated[
        str, typer.Option("--orders", metavar="N|ORDER,...", help="So many seeded orders, or those named.")
    ] = "8",
    sites: Annotated[
        str, typer.Option("--sites", metavar="SELECTOR", help="Whose order changes: matmul, mlp.down_proj, '*'.")
    ] = "matmul",
    sums: Annotated[
        str | None,
        typer.Option("--sums", metavar="PLACE", help="The sums of one place alone: layers.0.mlp.down_proj."),
    ] = None,
    dot: Annotated[
        tuple[str, str] | None, typer.Option("--dot", metavar="A B", help="One dot product: --dot 256,1,1 1,1,1.")
    ] = None,
    precision: PrecisionFlags,
    asked: AskFlags,
    output: OutputFlags,
) -> int:
    """softfloat-llm bound "The cup is" --orders 8

    Sum the same terms in many orders, each of them right, and say how far the results lie apart: what a test must
    allow. Beside it, the bounds that can be derived. For a model's logits, one place's sums, or one dot product. With a
    prompt in place of a run, it is run first (recipe bf16 without precision flags).
    """
    chosen = int(orders) if orders.isdecimal() else [word.strip() for word in orders.split(",")]
    with watched(is_quiet=output.is_quiet) as progress:
        found = _answer(what, chosen, sites, sums, dot, precision, asked, progress)
    if output.as_json:
        show_json("bound", found.to_dict())
        return 0
    text = found.text(verbose=output.is_verbose)
    show(answer_of(text) if output.is_quiet else text)
    return 0


def _answer(
    what: str | None,
    orders: int | list[str],
    sites: str,
    sums: str | None,
    dot: tuple[str, str] | None,
    precision: PrecisionFlags,
    asked: AskFlags,
    progress: Progress | None,
) -> Answer:
    if dot is not None:
        if what is not None or sums is not None or asked.words():
            raise typer.BadParameter("--dot is about two rows of numbers: it takes no run, prompt, model or --sums.")
        at = precision.recipe().at("lm_head").precision
        rows = [np.asarray(round_to(_numbers(text), at.storage)) for text in dot]
        return sum_band(rows[0], rows[1], at, orders=orders)
    if sums is not None:
        run, model = all_taps_of(what, precision, asked, progress, default="bf16")
        return site_band(run, sums, model(), orders=orders)
    question, recipe = last_step_of(what, precision, asked, progress)
    return model_band(question, recipe, orders=orders, at=sites)


def _numbers(text: str) -> list[float]:
    """The numbers of a text. Raises typer.BadParameter for what is none."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    try:
        found = [float.fromhex(word) if "x" in word.lower() else float(word) for word in words]
    except ValueError:
        raise typer.BadParameter(f"{text!r}: expected numbers such as 256,1,1 or 0x1p+8,1.") from None
    if not found:
        raise typer.BadParameter(f"{text!r} holds no number.")
    return found
