"""What an engine would refuse of a recipe, in its own words, and what people do instead: `refusals.toml`, evaluated.

A recipe says in which format each site takes its operands and gives its result; an engine that converts nothing by
itself needs what one site gives to be what the next one takes. Start at `check`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from softfloat_llm.errors import RecipeError, nearest
from softfloat_llm.promotion import spelling
from softfloat_llm.recipe import Recipe, recipe_of
from softfloat_llm.sites import SITES, select


@dataclass(frozen=True)
class Instead:
    """What people do, and a command that shows how it changes the numbers."""

    what: str
    command: str


@dataclass(frozen=True)
class Refusal:
    """`engine` refuses at `sites`, the first of which stops it, because `why` (formats of the recipe): `says`."""

    engine: str
    sites: tuple[str, ...]
    why: str
    says: str
    source: str
    instead: tuple[Instead, ...] = ()


@dataclass(frozen=True)
class Remark:
    """What runs, and what is to be known of it."""

    what: str
    command: str


def engines() -> dict[str, str]:
    """The engines whose refusals are known, and what each is."""
    return {name: row["about"] for name, row in _data()["engines"].items()}


def check(recipe: str | Recipe, engine: str) -> list[Refusal]:
    """What the engine would refuse of the recipe, in the order in which it would come to it; the first one stops it.

    **Raises** RecipeError for an engine that is not known here, with the nearest one.

    >>> [refusal.says for refusal in check("bf16", "candle-cpu")], check("bf16", "candle-metal")
    (['unsupported dtype BF16 for op matmul'], [])
    """
    _rows("refuses", engine)
    recipe, found = recipe_of(recipe), dict[str, Refusal]()
    for refusal in _typeless(recipe, engine) or [_refusal(*one) for one in _holding("refuses", recipe, engine)]:
        earlier = found.get(refusal.says)
        found[refusal.says] = replace(earlier, sites=earlier.sites + refusal.sites) if earlier else refusal
    order = list(SITES)
    merged = [replace(one, sites=tuple(sorted(set(one.sites), key=order.index))) for one in found.values()]
    return sorted(merged, key=lambda one: order.index(one.sites[0]))


def is_known_to_run(recipe: str | Recipe, engine: str) -> bool:
    """True where nothing is refused, and whole models are known to run in every format that the recipe has.

    >>> [is_known_to_run(recipe, "candle-metal") for recipe in ("bf16", "bf16,acc=f16", "bf16,kv=e4m3fn")]
    [True, True, False]
    """
    recipe = recipe_of(recipe)
    formats = {word for _, _, word in _formats(recipe, engine)}
    return not check(recipe, engine) and formats <= set(_data()["engines"][engine]["runs"].split())


def _formats(recipe: Recipe, engine: str) -> list[tuple[str, str, str]]:
    """(site, storage or output, format) of every tensor."""
    places = [_Place(recipe, engine, site) for site in SITES]
    return [(p.site, key, p.word(key)) for p in places for key in ("storage", "output") if key in SITES[p.site].keys]


def _typeless(recipe: Recipe, engine: str) -> list[Refusal]:
    """The sites whose formats the engine has no type for: nothing else can be said of them."""
    known = _spellings(engine)
    return [
        Refusal(engine, (site,), f"{site}.{key} {word}", f"(it has no type {word})", "the types that it has")
        for site, key, word in _formats(recipe, engine)
        if word not in known
    ]


def remarks(recipe: str | Recipe, engine: str) -> list[Remark]:
    """What the engine runs of the recipe in a way that is worth knowing. Raises RecipeError as `check`."""
    rows = {row["what"]: row for row, _ in _holding("runs", recipe_of(recipe), engine)}
    return [Remark(row["what"], row["command"]) for row in rows.values()]


def elsewhere(engine: str) -> list[Refusal]:
    """What the engine refuses for other reasons than formats. Raises RecipeError as `check`."""
    return [Refusal(engine, (), row["when"], row["says"], row["source"]) for row in _rows("elsewhere", engine)]


def _rows(kind: str, engine: str) -> list[dict[str, Any]]:
    if engine not in engines():
        raise RecipeError(f"Unknown engine {engine!r}.{nearest(engine, engines())} Known: {', '.join(engines())}.")
    return [row for row in _data()[kind] if engine in row["engines"]]


@dataclass(frozen=True)
class _Place:
    """A site of a recipe, as a row looks at it."""

    recipe: Recipe
    engine: str
    site: str

    def word(self, name: str) -> str:
        """The format, or the option's word, that a name of `when` or `says` means here. tf32 is no type: f32."""
        if name == "input":
            return self._of(_data()["feeds"][self.site], "output")
        if name == "next":
            return self._of(_data()["next"][self.site], "storage")
        site, _, key = name.rpartition(".")
        return self._of(site or self.site, key)

    def _of(self, site: str, key: str) -> str:
        word = self.recipe.at(site).words()[key]
        return "f32" if word == "tf32" else word


def _holding(kind: str, recipe: Recipe, engine: str) -> Iterator[tuple[dict[str, Any], _Place]]:
    """Each row that is about the engine, with each site at which its condition holds."""
    for row in _rows(kind, engine):
        at = [row["at"]] if isinstance(row["at"], str) else row["at"]
        for site in (site for word in at for site in select(word)):
            place = _Place(recipe, engine, site)
            if _has_names(row["when"], site) and all(_holds(part, place) for part in row["when"].split(" and ")):
                yield row, place


def _has_names(when: str, site: str) -> bool:
    """Some sites have no storage: the choice of a token."""
    return bool(SITES[site].keys) or "storage" not in when


_COMPARISON = re.compile(r"(?P<name>[\w.]+) (?P<how>==|!=|in|not in) (?P<rest>[\w.\- ]+)")


def _holds(part: str, place: _Place) -> bool:
    """One comparison: of a name with another or with a word, or with a list of words."""
    match = _COMPARISON.fullmatch(part.strip())
    assert match is not None, part
    word, rest = place.word(match["name"]), match["rest"].split()
    if match["how"] in ("in", "not in"):
        return (word in rest) == (match["how"] == "in")
    other = place.word(rest[0]) if _is_name(rest[0]) else rest[0]
    return (word == other) == (match["how"] == "==")


def _is_name(word: str) -> bool:
    return word in ("storage", "output", "input", "next") or word.rpartition(".")[0] in SITES


def _refusal(row: Mapping[str, Any], place: _Place) -> Refusal:
    names = dict.fromkeys(name for name in re.findall(r"[\w.]+", row["when"]) if _is_name(name))
    why = ", ".join(f"{_spoken(name, place.site)} {place.word(name)}" for name in names)
    instead = [Instead(one["what"], one["command"]) for one in row["instead"]]
    return Refusal(place.engine, (place.site,), why, _filled(row["says"], place), row["source"], tuple(instead))


def _spoken(name: str, site: str) -> str:
    """A name as a person reads it: where it stands in the recipe."""
    if name == "input":
        return f"{_data()['feeds'][site]}.output"
    if name == "next":
        return f"{_data()['next'][site]}.storage"
    return name if "." in name else f"{site}.{name}"


def _filled(text: str, place: _Place) -> str:
    """The text with its braces filled: formats in the engine's spelling, or, where `:c` asks, in that of its C++."""

    def fill(match: re.Match[str]) -> str:
        name, _, how = match[1].partition(":")
        word = place.word(name)
        return _spellings(place.engine, is_c=how == "c").get(word, word)

    return re.sub(r"\{([\w.:]+)\}", fill, text)


def _spellings(engine: str, *, is_c: bool = False) -> Mapping[str, str]:
    name = _data()["engines"][engine]["spelling"]
    own: Mapping[str, str] | None = _data()["spelling"].get(name)
    return own if own is not None else spelling(name, is_c=is_c)


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads((resources.files("softfloat_llm") / "refusals.toml").read_text("utf-8"))
