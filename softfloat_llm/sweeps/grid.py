"""The grid of a sweep: models, prompts, recipes, orders, seeds ..., and the cells that they make.

A cell is named by the digest of what it asks for, the model's weights included, so that it is the same cell in every
sweep and on every worker. Start reading at `Grid.places`.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from softfloat_llm.errors import GridError, WordError, nearest, why
from softfloat_llm.io.number_lists import numbers_in
from softfloat_llm.sweeps.models import Opened, facts_of, opened
from softfloat_llm.sweeps.words import SEED, check_words, recipe_text, words_of_file
from softfloat_llm.tiny import DEFAULT_PROMPT

AXES = ("model", "prompt", "recipe", "storage", "acc", "rounding", "order", "seed")
"""What a grid goes through, the slowest first."""
NOTHING = "-"
"""The label of an axis on which a cell has no place: no order but its recipe's own, no seed."""


@dataclass(frozen=True)
class Cell:
    """One run of the grid against its reference. `order` None: that of the recipe; `seed` None: no seed is used.

    `model_digest`: of the weights; None where the model cannot be opened. `files`: the digest of what else lies in
    files and decides the cell: the model's config, the prompt's token ids, the words of recipes that are files.
    """

    model: str
    prompt: str
    recipe: str
    order: str | None
    seed: int | None
    steps: int
    reference: str
    model_digest: str | None = None
    files: str | None = None

    @property
    def name(self) -> str:
        """The digest of what the cell asks for."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Place:
    """Where a cell stands in the grid: its label on each of `AXES`, `{seed}` as it was written. A cell that two lists
    of words make the same has two places."""

    cell: str
    labels: tuple[str, ...]

    def __getitem__(self, axis: str) -> str:
        return self.labels[AXES.index(axis)]


@dataclass(frozen=True)
class Grid:
    """What a sweep goes through, each list in its order; doubles count once.

    Each of `storages`, `accs` and `roundings` is put upon each recipe, as the flags of `simulate` are; an empty recipe
    is what they alone say. `{seed}` in a recipe, rounding or order stands for each of `seeds`.
    **Raises** GridError for an empty list, a wrong type, or seeds that no text uses; `check` for words without meaning.
    """

    models: tuple[str, ...] = ("tiny",)
    prompts: tuple[str, ...] = (DEFAULT_PROMPT,)
    recipes: tuple[str, ...] = ("bf16",)
    storages: tuple[str, ...] = ()
    accs: tuple[str, ...] = ()
    roundings: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    steps: int = 1
    reference: str = "f32"

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, getattr(self, field.name), "grid")
        for name in ("models", "prompts", "recipes"):
            if not getattr(self, name):
                raise GridError(f"A sweep needs {name}: the list is empty.")
        uses_seeds = any(SEED in text for text in (*self.recipes, *self.roundings, *self.orders))
        if self.seeds and not uses_seeds:
            raise GridError(
                f"No recipe, rounding or order uses the seeds {list(self.seeds)}. Write {SEED} in one: perm:{SEED},"
                f" stochastic:16:{SEED}."
            )
        if uses_seeds and not self.seeds:
            raise GridError(f"A recipe, rounding or order holds {SEED}, but there are no seeds. Give some: 0..9.")
        if self.steps < 1:
            raise GridError(f"steps is {self.steps}: a sweep chooses at least one token.")

    def check(self) -> None:
        """Raises GridError for the first word that means nothing by itself (see `words`)."""
        check_words(self.models, self.texts(), self.orders, self.seeds)
        check_words((), (self.reference,), (), ())

    def axis(self, name: str) -> tuple[Any, ...]:
        """The list of one of `AXES`."""
        found: tuple[Any, ...] = getattr(self, f"{name}s")
        return found

    def texts(self) -> list[str]:
        """Every recipe with every flag put upon it, `{seed}` as it stands."""
        flags = product(self.recipes, *(self.axis(name) or (None,) for name in ("storage", "acc", "rounding")))
        return [recipe_text(*words) for words in flags]

    def cells(self) -> tuple[Cell, ...]:
        """Every cell once: models, then prompts, recipes, storages, accumulators, roundings, orders, seeds."""
        return tuple(dict.fromkeys(cell for cell, _ in self.places(opened(self.models))))

    def places(self, models: Mapping[str, Opened]) -> Iterator[tuple[Cell, Place]]:
        """Every cell with each of its places. `models`: what `opened` gives for the grid's."""
        facts = {(m, p): facts_of(models[m], p) for m, p in product(self.models, self.prompts)}
        said = cache(words_of_file)
        for at in dict.fromkeys(product(*(self.axis(name) or (None,) for name in AXES))):
            model, prompt, recipe, storage, acc, rounding, order, seed = at
            text = recipe_text(recipe, storage, acc, rounding)
            if SEED not in f"{text} {order}":  # the same cell for every seed
                seed = None
            weights, read = facts[model, prompt]
            text, order = text.replace(SEED, str(seed)), order and order.replace(SEED, str(seed))
            files = _digest([read, said(text), said(self.reference)])
            cell = Cell(model, prompt, text, order, seed, self.steps, self.reference, weights, files)
            yield cell, Place(cell.name, tuple(NOTHING if x is None else str(x) for x in (*at[:-1], seed)))


def _digest(said: list[Any]) -> str | None:
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:24] if any(said) else None


_TYPES: dict[str, type] = {"steps": int, "reference": str}
_ITEMS: dict[str, type] = {f"{axis}s": int if axis == "seed" else str for axis in AXES}

_LISTS = {int: 'a list of integers: [0, 1, 2], or a text: "0..2"', str: 'a list of texts: ["...", "..."]'}


def grid_of(table: Mapping[str, Any], where: str) -> Grid:
    """The grid of a table with the keys of `Grid`. Raises GridError for an unknown key or a wrong value."""
    known = [field.name for field in fields(Grid)]
    for key in table:
        if key not in known:
            raise GridError(f"Sweep {where}: unknown key {key!r}.{nearest(key, known)} Known: {', '.join(known)}.")
    said = {key: _spelled_out(key, value, where) for key, value in table.items()}
    for key, value in said.items():
        _check(key, value, where)
    given: dict[str, Any] = {key: tuple(value) if key in _ITEMS else value for key, value in said.items()}
    if given.get("storages") and "recipes" not in given:
        given["recipes"] = ("",)
    try:
        return Grid(**given)
    except GridError as error:
        raise GridError(f"Sweep {where}: {error}") from None


def _spelled_out(key: str, value: Any, where: str) -> Any:
    """The numbers of a text such as "0..9", as the flags have them."""
    if _ITEMS.get(key) is not int or not isinstance(value, str):
        return value
    try:
        return numbers_in(value, key.removesuffix("s"))
    except WordError as error:
        raise GridError(f"Sweep {where}: {error}") from None


def _check(key: str, value: Any, where: str) -> None:
    """Raises GridError for a value of a wrong type, or one that a table cannot hold."""
    if not _fits(key, value):
        kind = _LISTS[_ITEMS[key]] if key in _ITEMS else _TYPES[key].__name__
        raise GridError(f"Sweep {where}: {key} is {value!r}, expected {kind}.")
    for item in value if key in _ITEMS else ():
        if isinstance(item, int) and not -(1 << 63) <= item < 1 << 63:
            raise GridError(f"Sweep {where}: {item} of {key} has more than 64 bits.")
        if isinstance(item, str) and any("\ud800" <= letter <= "\udfff" for letter in item):
            raise GridError(f"Sweep {where}: {item!r} of {key} holds half a character (a lone surrogate).")


def _fits(key: str, value: Any) -> bool:
    if key in _ITEMS:
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        return is_list and all(type(item) is _ITEMS[key] for item in value)
    return type(value) is _TYPES[key]


def grid_of_file(path: str | Path) -> Grid:
    """The grid of a TOML file: the keys of `Grid` at its top. Raises GridError where it cannot be read."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise GridError(f"Reading the sweep {path}: {why(error)}. Expected a TOML file.") from None
    return grid_of(table, str(path))
