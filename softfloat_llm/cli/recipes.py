"""`softfloat-llm recipes`: the precision policies that have a name, and what each says at every site."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from softfloat_llm.analysis.wording import joint_name, labelled, markdown_table
from softfloat_llm.cli.options import OutputFlags, grouped, quoted
from softfloat_llm.cli.screen import show, show_json
from softfloat_llm.recipe import STATUSES, Recipe, recipe_names, recipe_of, to_toml, unit_recipe_names
from softfloat_llm.report.recipe_tables import recipes_text, unit_rows, units_text
from softfloat_llm.report.site_tables import sites_facts, sites_text

_COLUMNS = ("storage", "product", "acc", "output", "order")


@grouped
def recipes(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME|FILE|TEXT", help="f16, my.toml, bf16,acc=f16")
    ] = None,
    *,
    as_toml: Annotated[bool, typer.Option("--toml", help="The full expansion as a recipe file.")] = False,
    as_table: Annotated[bool, typer.Option("--table", help="Recipes side by side: these, or all engines'.")] = False,
    of_units: Annotated[bool, typer.Option("--units", help="Matrix units, and the recipes made of them.")] = False,
    of_sites: Annotated[bool, typer.Option("--sites", help="What each site can be told, word by word.")] = False,
    output: OutputFlags,
) -> int:
    """softfloat-llm recipes candle-f16-cpu-neon

    Show what a recipe says at every site of the model; without a name, list the recipes. Whether an engine would run
    one: `recipes check ENGINE`.
    """
    chosen = names or []
    if as_table:
        return _answer_table(chosen, output)
    if of_sites:
        return _answer_sites(output)
    if of_units:
        return _answer_units(chosen, output)
    if not chosen:
        if as_toml:
            raise typer.BadParameter("--toml writes one recipe: say which, as in `recipes bf16 --toml`.")
        if output.as_json:
            show_json("recipes", {"recipes": {known: _facts(recipe_of(known)) for known in recipe_names()}})
        else:
            show(_list_text([recipe_of(known) for known in _engine_recipes()]))
        return 0
    if len(chosen) > 1:
        raise typer.BadParameter(f"one recipe at a time; several side by side: `recipes --table {' '.join(chosen)}`.")
    recipe = recipe_of(chosen[0])
    if as_toml:
        show(to_toml(recipe).removesuffix("\n"))
    elif output.as_json:
        show_json("recipes", _facts(recipe) | {"site": recipe.words()})
    else:
        show(_detail_text(recipe))
    return 0


def _engine_recipes() -> list[str]:
    """The recipes that are not of a matrix unit alone."""
    return [name for name in recipe_names() if name not in unit_recipe_names()]


def _answer_table(names: list[str], output: OutputFlags) -> int:
    """Recipes side by side; without names, those of engines."""
    recipes = [recipe_of(name) for name in names or _engine_recipes()]
    if output.as_json:
        show_json("recipes", {"recipes": {r.name: _facts(r) | {"site": r.words()} for r in recipes}})
    else:
        show(recipes_text(recipes, by_engine=not names))
    return 0


def _answer_units(words: list[str], output: OutputFlags) -> int:
    """The matrix units whose names have the word in them, and the recipes made of such units and of instructions."""
    word = words[0] if words else ""
    units, made = unit_rows(word), {name: _facts(recipe_of(name)) for name in unit_recipe_names() if word in name}
    if output.as_json:
        show_json("recipes-units", {"units": {row["unit"]: row for row in units}, "recipes": made})
        return 0
    if not (made or units):
        raise typer.BadParameter(f"no unit has {word!r} in its name; `recipes --units` lists them.")
    rows = [[name, facts["about"]] for name, facts in made.items()]
    tables = [units_text(units)] * bool(units) + [markdown_table(["recipe", "what it is"], rows)] * bool(made)
    show("\n\n".join([*tables, labelled("next", f"softfloat-llm recipes {next(iter(made), 'bf16')}")]))
    return 0


def _answer_sites(output: OutputFlags) -> int:
    """Every site, its keys and options, and what each word means."""
    if output.as_json:
        show_json("recipes-sites", {"site": sites_facts()})
    else:
        show(sites_text())
    return 0


def _facts(recipe: Recipe) -> dict[str, Any]:
    return {key: getattr(recipe, key) for key in ("name", "about", "source", "status", "evidence")}


def _list_text(every: list[Recipe]) -> str:
    rows = [[recipe.name, recipe.status, recipe.about] for recipe in every]
    meanings = "\n".join(f"{status}: {meaning}." for status, meaning in STATUSES.items())
    units = f"{len(unit_recipe_names())} more are of matrix units and instructions: softfloat-llm recipes --units."
    again = labelled("next", f"softfloat-llm recipes {every[0].name}")
    return f"{markdown_table(['recipe', 'status', 'what it is'], rows)}\n\n{meanings}\n{units}\n{again}"


def _detail_text(recipe: Recipe) -> str:
    head = [labelled("recipe", recipe.name)]
    facts = _facts(recipe) | {"status": f"{recipe.status}: {STATUSES[recipe.status]}"}
    head += [labelled(key, facts[key]) for key in ("about", "source", "status", "evidence") if facts[key]]
    rows = []
    for site, words in recipe.words().items():
        rest = ", ".join(f"{key}={word}" for key, word in words.items() if key not in _COLUMNS and " if " not in key)
        rows.append([site, *(words.get(key, "") for key in _COLUMNS), rest])
    again = labelled("next", f"softfloat-llm recipes {quoted(recipe.name)} --toml")
    tables = [markdown_table(["site", *_COLUMNS, "other"], rows), *_rules_table(recipe)]
    return "\n\n".join(["\n".join(head), *tables, again])


def _rules_table(recipe: Recipe) -> list[str]:
    """What holds for some shapes only, where the first rule that fits wins; nothing where there are no rules."""
    sites: dict[tuple[str, str, str], list[str]] = {}
    for site, words in recipe.words().items():
        for path, word in words.items():
            key, is_rule, condition = path.partition(" if ")
            if is_rule:
                sites.setdefault((key, condition, word), []).append(site)
    rows = [[joint_name(names), condition, key, word] for (key, condition, word), names in sites.items()]
    return [markdown_table(["sites", "for shapes with", "key", "word"], rows)] if rows else []
