"""Recipes side by side, site by site, and the matrix units that they may be made of, as Markdown.

Start at `recipes_text`; `units_text` is the other table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from softfloat_llm.analysis.wording import markdown_table
from softfloat_llm.numerics.adders import Adder, units
from softfloat_llm.recipe import Recipe
from softfloat_llm.sites import GROUPS, SITES, select

MOST_COLUMNS = 6  # beside the one of the sites
_LEGEND = (
    "A cell: the format taken, the accumulator, the format given (one word where all are alike); then what is unusual."
    "\nUsual: exact products (in norms and softmax: rounded to f32), order seq, of each option the first word of"
    " `softfloat-llm recipes --sites`."
)


def recipes_text(recipes: Sequence[Recipe], *, by_engine: bool = True) -> str:
    """Tables of at most six recipes each, those of one engine by themselves; under each, status and evidence."""
    families = _families(recipes) if by_engine else [list(recipes)]
    tables = [_table(part) for family in families for part in _parts(family)]
    return "\n\n".join([*tables, _LEGEND])


def _families(recipes: Sequence[Recipe]) -> list[list[Recipe]]:
    """Recipes by engine: the first word of their name. Those of one format alone are a family too."""
    families: dict[str, list[Recipe]] = {}
    for recipe in recipes:
        engine, dash, _ = recipe.name.partition("-")
        families.setdefault(engine if dash else "", []).append(recipe)
    return list(families.values())


def _parts(family: list[Recipe]) -> list[list[Recipe]]:
    """As few tables as need be, of about the same width."""
    tables = -(-len(family) // MOST_COLUMNS)
    each = -(-len(family) // tables)
    return [family[start : start + each] for start in range(0, len(family), each)]


def _table(recipes: Sequence[Recipe]) -> str:
    cells = [{site: cell(site, words) for site, words in recipe.words().items()} for recipe in recipes]
    alike: dict[tuple[str, ...], list[str]] = {}
    for site in SITES:
        alike.setdefault(tuple(of_recipe[site] for of_recipe in cells), []).append(site)
    rows = [[group_names(sites), *row] for row, sites in alike.items() if set(row) != {"-"}]
    facts = [[recipe.name, recipe.status, recipe.evidence or "-"] for recipe in recipes]
    head = markdown_table(["site", *(recipe.name for recipe in recipes)], rows)
    return f"{head}\n\n{markdown_table(['recipe', 'status', 'evidence'], facts)}"


def group_names(sites: Sequence[str]) -> str:
    """The sites in as few words as the selectors have for them.

    >>> group_names(["embed", "kv.k", "kv.v", *select("norm")])
    'norm, kv, embed'
    """
    left, words = list(sites), []
    beginnings = dict.fromkeys(name.split(".")[0] for name in SITES)
    for word in sorted([*GROUPS, *beginnings], key=lambda word: -len(select(word))):
        group = select(word)
        if len(group) > 1 and set(group) <= set(left):
            words.append(word)
            left = [name for name in left if name not in group]
    return ", ".join(words + left)


def cell(site: str, words: Mapping[str, str]) -> str:
    """What a recipe says at a site, in short: its formats, then what is not the usual.

    >>> cell("lm_head", Recipe(storage="bf16", order="lanes:8").at("lm_head").words())
    'bf16,f32,bf16 lanes:8'
    """
    formats = [words[key] for key in ("storage", "acc", "output") if key in words]
    parts = [formats[0] if len(set(formats)) == 1 else ",".join(formats)] if formats else []
    usual = _usual(site, words)
    parts += [_said(key, word) for key, word in words.items() if usual.get(key) not in ("", word) and " if " not in key]
    rules = sum(" if " in key for key in words)
    return " ".join(parts + ([f"+{rules} by shape"] if rules else [])) or "-"


def _usual(site: str, words: Mapping[str, str]) -> dict[str, str]:
    """The word of each key that need not be said; nothing for those that the formats say."""
    product = words.get("compute", "exact")
    usual = {"storage": "", "acc": "", "output": "", "order": "seq", "compute": "f32", "product": product}
    return usual | {key: option.default for key, option in SITES[site].options.items()}


def _said(key: str, word: str) -> str:
    return word if key in ("order", "form", "subnormals", "rounding") else f"{key}={word}"


# --- units ----------------------------------------------------------------------------------------------------------

_UNIT_HEADER = ("unit", "gives", "L", "F", "rounding", "zeros", "evidence")


def units_text(units: Sequence[Mapping[str, Any]]) -> str:
    """The table of matrix units, of the rows that `unit_rows` gives: what `fused:UNIT` takes."""
    rows = [[str(value) for value in row.values()] for row in units]
    legend = (
        "L: products added at once. F: fraction bits kept below the largest exponent. zeros: the exponent as which they"
        " count.\nexact: all is added without error; pairwise: f32 additions of pairs."
    )
    return f"{markdown_table(_UNIT_HEADER, rows, right=(2, 3, 5))}\n\n{legend}"


def unit_rows(word: str = "") -> list[dict[str, Any]]:
    """The matrix units whose name has the word in it, each as `_UNIT_HEADER` names it."""
    return [_unit_row(unit) for unit in units().values() if word in unit.name]


def _unit_row(unit: Adder) -> dict[str, Any]:
    bits = unit.fraction_bits if unit.model in ("aligned", "two-step") else unit.model
    zeros = unit.zero_exponent if unit.model == "aligned" else "-"
    values = (unit.name, str(unit.output), unit.terms, bits, unit.rounding, zeros, unit.evidence)
    return dict(zip(_UNIT_HEADER, values, strict=True))
