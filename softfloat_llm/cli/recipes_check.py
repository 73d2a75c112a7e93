"""`softfloat-llm recipes check`: who can run a recipe, who refuses it, and in which words."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from softfloat_llm.analysis.wording import labelled, markdown_table, recipe_line
from softfloat_llm.cli.options import OutputFlags, PrecisionFlags, grouped
from softfloat_llm.cli.screen import show, show_json
from softfloat_llm.recipe import Recipe, recipe_of
from softfloat_llm.refusals import Refusal, check, elsewhere, engines, is_known_to_run, remarks
from softfloat_llm.report.recipe_tables import group_names

_STORAGES = ("f32", "f16", "bf16", "e4m3fn")


@grouped
def check_verb(
    engine: Annotated[str | None, typer.Argument(metavar="ENGINE", help="candle-cpu, transformers-sdpa, ...")] = None,
    *,
    precision: PrecisionFlags,
    output: OutputFlags,
) -> int:
    """softfloat-llm recipes check candle-cpu

    Say whether an engine runs a recipe, in which words it refuses it, and what people do instead. Without precision,
    all of f32, f16, bf16 and e4m3fn; without ENGINE, every engine. Exit code 1 where an engine that is named refuses.
    """
    is_asked = bool(precision.words())
    if engine is not None and is_asked:
        return _one(precision.recipe(), engine, output)
    names = list(engines()) if engine is None else [engine]
    recipes = [precision.recipe()] if is_asked else [recipe_of(f"storage={fmt}") for fmt in _STORAGES]
    found = {name: {recipe: check(recipe, name) for recipe in recipes} for name in names}
    if output.as_json:
        body = {name: {r.name: [asdict(one) for one in row] for r, row in of.items()} for name, of in found.items()}
        show_json("recipes-check", {"engines": body})
    else:
        show(_survey_text(found) if engine is None else _engine_text(engine, found[engine]))
    return 0


def _one(recipe: Recipe, engine: str, output: OutputFlags) -> int:
    refusals = check(recipe, engine)
    if output.as_json:
        facts = {"engine": engine, "recipe": recipe.name, "refusals": [asdict(one) for one in refusals]}
        show_json("recipes-check", facts | {"remarks": [asdict(one) for one in remarks(recipe, engine)]})
    else:
        show(_verdict(recipe, engine, refusals) if output.is_quiet else _one_text(recipe, engine, refusals))
    return 1 if refusals else 0


def _verdict(recipe: Recipe, engine: str, refusals: list[Refusal]) -> str:
    if refusals:
        return f"{engine} refuses it at {refusals[0].sites[0]}: {refusals[0].says}"
    return f"{engine} runs it." if is_known_to_run(recipe, engine) else f"No refusal by {engine} is known."


def _one_text(recipe: Recipe, engine: str, refusals: list[Refusal]) -> str:
    lines = [labelled("recipe", recipe_line(recipe)), labelled("answer", _verdict(recipe, engine, refusals))]
    if refusals:
        rows = [[group_names(one.sites), one.says, one.why] for one in refusals]
        lines += ["", markdown_table(["sites", "says", "because"], rows), ""]
        lines += [labelled("instead", f"{one.what}\n{one.command}") for one in refusals[0].instead]
        lines.append(labelled("source", refusals[0].source))
    lines += [labelled("note", f"{one.what}\n{one.command}") for one in remarks(recipe, engine)]
    return "\n".join([*lines, labelled("next", "softfloat-llm recipes check")])


def _word(recipe: Recipe, engine: str, refusals: list[Refusal]) -> str:
    return "refused" if refusals else "runs" if is_known_to_run(recipe, engine) else "-"


def _engine_text(engine: str, found: dict[Recipe, list[Refusal]]) -> str:
    """What one engine says of each storage, and what it refuses for other reasons."""
    rows = []
    for recipe, refusals in found.items():
        rows += [[recipe.name, group_names(one.sites), one.says] for one in refusals]
        rows += [] if refusals else [[recipe.name, "", _word(recipe, engine, refusals)]]
    lines = [labelled("engine", f"{engine}: {engines()[engine]}"), ""]
    lines.append(markdown_table(["recipe", "sites", "says"], rows))
    other = [[one.why, one.says] for one in elsewhere(engine)]
    lines += ["", markdown_table(["where", "says"], other)] if other else []
    return "\n".join([*lines, "", labelled("next", f"softfloat-llm recipes check {engine} --storage bf16")])


def _survey_text(found: dict[str, dict[Recipe, list[Refusal]]]) -> str:
    recipes = list(next(iter(found.values())))
    verdicts = [[name, *(_word(r, name, row[r]) for r in recipes)] for name, row in found.items()]
    table = markdown_table(["engine", *(recipe.name for recipe in recipes)], verdicts)
    if len(recipes) == 1:
        words = [row[recipes[0]][0].says if row[recipes[0]] else "" for row in found.values()]
        rows = [[*verdict, word] for verdict, word in zip(verdicts, words, strict=True)]
        table = markdown_table(["engine", recipes[0].name, "says"], rows)
    legend = "runs: whole models do. refused: `recipes check ENGINE` says in which words. -: neither is known."
    return f"{table}\n\n{legend}\n{labelled('next', 'softfloat-llm recipes check candle-cpu')}"
