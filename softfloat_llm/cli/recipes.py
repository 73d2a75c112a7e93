"""`softfloat-llm recipes`: the precision policies that have a name, and what each says at every site."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from softfloat_llm.analysis.wording import joint_name, labelled, markdown_table
from softfloat_llm.cli.options import OutputFlags, grouped, quoted
from softfloat_llm.cli.screen import show, show_json
from softfloat_llm.recipe import STATUSES, Recipe, recipe_names, recipe_of, to_toml

_COLUMNS = ("storage", "product", "acc", "output", "order")


@grouped
def recipes(
    name: Annotated[str | None, typer.Argument(metavar="NAME|FILE|TEXT", help="f16, my.toml, bf16,acc=f16")] = None,
    *,
    as_toml: Annotated[bool, typer.Option("--toml", help="The full expansion as a recipe file.")] = False,
    output: OutputFlags,
) -> int:
    """softfloat-llm recipes candle-cpu-f16

    Show what a recipe says at every site of the model; without a name, list the recipes.
    """
    if name is None:
        if as_toml:
            raise typer.BadParameter("--toml writes one recipe: say which, as in `recipes bf16 --toml`.")
        every = [recipe_of(known) for known in recipe_names()]
        if output.as_json:
            show_json("recipes", {"recipes": {recipe.name: _facts(recipe) for recipe in every}})
        else:
            show(_list_text(every))
        return 0
    recipe = recipe_of(name)
    if as_toml:
        show(to_toml(recipe).removesuffix("\n"))
    elif output.as_json:
        show_json("recipes", _facts(recipe) | {"site": recipe.words()})
    else:
        show(_detail_text(recipe))
    return 0


def _facts(recipe: Recipe) -> dict[str, Any]:
    return {key: getattr(recipe, key) for key in ("name", "about", "source", "status", "evidence")}


def _list_text(every: list[Recipe]) -> str:
    rows = [[recipe.name, recipe.status, recipe.about] for recipe in every]
    meanings = "\n".join(f"{status}: {meaning}." for status, meaning in STATUSES.items())
    again = labelled("next", f"softfloat-llm recipes {every[0].name}")
    return f"{markdown_table(['recipe', 'status', 'what it is'], rows)}\n\n{meanings}\n{again}"


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
