"""The files of recipes: those that the package brings, and how a recipe's TOML form is read, table by table."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from softfloat_llm.errors import RecipeError, nearest

_TEXTS = ("name", "about", "source", "status", "evidence")
_KEYS = (*_TEXTS, "base", "precision", "site")


@cache
def files_in(folder: str) -> dict[str, Any]:
    """The TOML files in a folder of the package, by their names."""
    place = resources.files("softfloat_llm").joinpath(*folder.split("/"))
    return {p.name.removesuffix(".toml"): p for p in place.iterdir() if p.name.endswith(".toml")}


@cache
def shipped_table(name: str) -> dict[str, Any]:
    """The table of a recipe of the package."""
    file = (files_in("recipes") | files_in("recipes/units"))[name]
    return toml_table(file.read_text(encoding="utf-8"), name)


def toml_table(body: str, where: str) -> dict[str, Any]:
    """The table of a TOML text. Raises RecipeError."""
    try:
        return tomllib.loads(body)
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"Recipe {where}: not TOML: {error}.") from None


def check_keys(table: dict[str, Any], where: str) -> None:
    """Raises RecipeError for a key that a recipe does not have, or one whose word is no text."""
    for key in table:
        if key not in _KEYS:
            raise RecipeError(f"Recipe {where}: unknown key {key!r}.{nearest(key, _KEYS)}")
    for key in _TEXTS:
        if not isinstance(table.get(key, ""), str):
            raise RecipeError(f"Recipe {where}: {key} is {table[key]!r}, expected a text.")


def site_tables(value: Any, where: str) -> dict[str, dict[str, str]]:
    """What [site] holds: selector -> key -> word. Raises RecipeError."""
    if not isinstance(value, dict):
        raise RecipeError(f"Recipe {where}: [site] holds tables such as [site.norm], not {value!r}.")
    for selector, keys in value.items():
        inner = [key for key, word in keys.items() if isinstance(word, dict)] if isinstance(keys, dict) else []
        if inner:
            raise RecipeError(
                f"Recipe {where}: TOML reads [site.{selector}.{inner[0]}] as a table in [site.{selector}]."
                f' Put the site in quotes: [site."{selector}.{inner[0]}"].'
            )
    return {selector: words_in(keys, f'{where}: [site."{selector}"]') for selector, keys in value.items()}


def words_in(value: Any, where: str) -> dict[str, str]:
    """A table of words. Raises RecipeError."""
    if not isinstance(value, dict) or not all(isinstance(word, str) for word in value.values()):
        raise RecipeError(f'Recipe {where}: expected KEY = "WORD" lines, found {value!r}.')
    return value
