"""The words of a grid, checked before anything runs.

The line: a word is wrong where it means nothing **by itself**, whatever it would meet: a recipe, format, order,
rounding or site that nobody knows, a recipe's file that cannot be read, a model's bare name that is neither known nor a
folder here. Such a word stops the sweep at once. What goes wrong in a cell is a row with its error, and the others go
on: a model that cannot be opened (a path, or `owner/name`), a prompt that gives no tokens, a recipe that cannot take an
order, sites that do not fit together, a token that would be taken from NaN, memory that does not suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softfloat_llm.errors import GridError, SoftfloatError, WordError, nearest
from softfloat_llm.io.checkpoint import NAMES
from softfloat_llm.numerics.orders import Order
from softfloat_llm.recipe import Recipe, recipe_of

SEED = "{seed}"
"""In the text of a recipe, a rounding or an order: each seed of the grid stands here in turn."""
_FILE = ".toml"


def check_words(models: Sequence[str], recipes: Sequence[str], orders: Sequence[str], seeds: Sequence[int]) -> None:
    """Raises GridError for the first word that means nothing by itself, with what it is part of and a hint."""
    for name in models:
        _check_model(name)
    for text in dict.fromkeys(recipes):
        _check_each(recipe_of_text, "recipe", text, seeds)
    for text in dict.fromkeys(orders):
        _check_each(Order, "order", text, seeds)


def _check_each(parse: Any, what: str, text: str, seeds: Sequence[int]) -> None:
    """With the least and the largest seed: a text that takes both takes those between."""
    for seed in sorted({min(seeds), max(seeds)}) if SEED in text else (0,):
        try:
            parse(text.replace(SEED, str(seed)))
        except WordError as error:
            where = f" with the seed {seed}" if SEED in text else ""
            raise GridError(f"The {what} {text!r}{where}: {error}") from None


def _check_model(name: str) -> None:
    """A path, a file or `owner/name` may be there later, or may not be right: that is for its cells to tell."""
    is_place = any(letter in name for letter in "/\\.~")
    if name not in NAMES and not is_place and not Path(name).is_dir():
        raise GridError(
            f"The model {name!r} is neither a model's name nor a folder.{nearest(name, NAMES)} Accepted:"
            f" {', '.join(NAMES)}, the folder of a checkpoint, a .gguf file, or owner/name that lies in the local"
            " Hugging Face cache."
        )


# --- recipes as one text --------------------------------------------------------------------------------------------


def recipe_text(recipe: str, storage: str | None = None, acc: str | None = None, rounding: str | None = None) -> str:
    """The recipe with flags put upon it, as one text: `bf16` and the accumulator f16 are `bf16,acc=f16`."""
    flags = {"storage": storage, "acc": acc, "rounding": rounding}
    pairs = [f"{key}={word}" for key, word in flags.items() if word is not None]
    return ",".join([recipe, *pairs] if recipe else pairs)


def recipe_of_text(text: str) -> Recipe:
    """The recipe of such a text. Beside what `recipe_of` takes: a file with flags put upon it, `mine.toml,acc=f16`."""
    file, comma, flags = text.partition(f"{_FILE},")
    if not comma:
        return recipe_of(text)
    given: dict[str, Any] = dict(pair.split("=", 1) for pair in flags.split(","))
    return Recipe(Path(file + _FILE), **given)


def is_of_file(text: str) -> bool:
    """True for a recipe that lies in a file."""
    return text.endswith(_FILE) or f"{_FILE}," in text


def words_of_file(text: str) -> str | None:
    """What the recipe's file says, with what it is based on; None for one that lies in no file."""
    if not is_of_file(text):
        return None
    try:
        return repr(recipe_of_text(text).words())
    except SoftfloatError:
        return None
