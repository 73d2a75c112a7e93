"""The grid of a sweep: models, prompts, recipes, orders and seeds, and the cells that they make.

A cell is named by the digest of what it asks for, so that it is the same cell in every sweep and on every worker.
Start reading at `Grid.cells`.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from softfloat_llm.errors import SoftfloatError, SweepError, nearest
from softfloat_llm.recipe import recipe_of
from softfloat_llm.tiny import DEFAULT_PROMPT

SEED = "{seed}"
"""In the text of a recipe or an order: each seed of the grid stands here in turn."""


@dataclass(frozen=True)
class Cell:
    """One run of the grid against its reference. `order` None: that of the recipe; `seed` None: no seed is used.

    `files`: the digest of what recipes say that lie in files, so that a changed file makes another cell; None: none do.
    """

    model: str
    prompt: str
    recipe: str
    order: str | None
    seed: int | None
    steps: int
    reference: str
    files: str | None = None

    @property
    def name(self) -> str:
        """The digest of what the cell asks for."""
        asked = asdict(self)
        if self.files is None:
            del asked["files"]
        text = json.dumps(asked, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Grid:
    """What a sweep goes through, each list in its order; doubles count once.

    `recipes` and `orders` are texts in which `{seed}` stands for each of `seeds`. **Raises** SweepError for an empty
    list, a wrong type, or seeds that no text uses.
    """

    models: tuple[str, ...] = ("tiny",)
    prompts: tuple[str, ...] = (DEFAULT_PROMPT,)
    recipes: tuple[str, ...] = ("bf16",)
    orders: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    steps: int = 1
    reference: str = "f32"

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, getattr(self, field.name), "grid")
        for name in ("models", "prompts", "recipes"):
            if not getattr(self, name):
                raise SweepError(f"A sweep needs {name}: the list is empty.")
        uses_seeds = any(SEED in text for text in (*self.recipes, *self.orders))
        if self.seeds and not uses_seeds:
            raise SweepError(f"No recipe or order uses the seeds {list(self.seeds)}. Write {SEED} in one: perm:{SEED}.")
        if uses_seeds and not self.seeds:
            raise SweepError(f"A recipe or order holds {SEED}, but there are no seeds. Give some: --seeds 0..9.")
        if self.steps < 1:
            raise SweepError(f"steps is {self.steps}: a sweep chooses at least one token.")

    def cells(self) -> tuple[Cell, ...]:
        """Every cell once: models, then prompts, recipes, orders, seeds."""
        orders: tuple[str | None, ...] = self.orders or (None,)
        seeds: tuple[int | None, ...] = self.seeds or (None,)
        made = (self._cell(*chosen) for chosen in product(self.models, self.prompts, self.recipes, orders, seeds))
        return tuple(dict.fromkeys(made))

    def _cell(self, model: str, prompt: str, recipe: str, order: str | None, seed: int | None) -> Cell:
        """A text that holds no `{seed}` is the same cell for every seed."""
        texts = (recipe, order or "")
        if not any(SEED in text for text in texts):
            seed = None
        recipe = recipe.replace(SEED, str(seed))
        order = order and order.replace(SEED, str(seed))
        files = _said_by_files(recipe, self.reference)
        return Cell(model, prompt, recipe, order, seed, self.steps, self.reference, files)


def _said_by_files(*recipes: str) -> str | None:
    """The digest of the recipes that lie in files, with what they are based on. One that cannot be read says nothing:
    its cell ends in the error, which is tried again."""
    said = [_words(recipe) for recipe in recipes if recipe.endswith(".toml")]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:24] if any(said) else None


def _words(recipe: str) -> str:
    try:
        return repr(recipe_of(recipe).words())
    except SoftfloatError:
        return ""


_TYPES: dict[str, type] = {"steps": int, "reference": str}
_ITEMS: dict[str, type] = {"models": str, "prompts": str, "recipes": str, "orders": str, "seeds": int}


def grid_of(table: Mapping[str, Any], where: str) -> Grid:
    """The grid of a table with the keys of `Grid`. Raises SweepError for an unknown key or a wrong value."""
    known = [field.name for field in fields(Grid)]
    for key, value in table.items():
        if key not in known:
            raise SweepError(f"Sweep {where}: unknown key {key!r}.{nearest(key, known)} Known: {', '.join(known)}.")
        _check(key, value, where)
    given: dict[str, Any] = {key: tuple(value) if key in _ITEMS else value for key, value in table.items()}
    return Grid(**given)


def _check(key: str, value: Any, where: str) -> None:
    """Raises SweepError for a value of a wrong type, or one that a table cannot hold."""
    if not _fits(key, value):
        kind = f"a list of {_ITEMS[key].__name__}" if key in _ITEMS else _TYPES[key].__name__
        raise SweepError(f"Sweep {where}: {key} is {value!r}, expected {kind}.")
    for item in value if key in _ITEMS else ():
        if isinstance(item, int) and not -(1 << 63) <= item < 1 << 63:
            raise SweepError(f"Sweep {where}: {item} of {key} has more than 64 bits.")
        if isinstance(item, str) and any("\ud800" <= letter <= "\udfff" for letter in item):
            raise SweepError(f"Sweep {where}: {item!r} of {key} holds half a character (a lone surrogate).")


def _fits(key: str, value: Any) -> bool:
    if key in _ITEMS:
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        return is_list and all(type(item) is _ITEMS[key] for item in value)
    return type(value) is _TYPES[key]


def grid_of_file(path: str | Path) -> Grid:
    """The grid of a TOML file: the keys of `Grid` at its top. Raises SweepError where it cannot be read."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SweepError(f"Reading the sweep {path}: {error}.") from None
    return grid_of(table, str(path))
