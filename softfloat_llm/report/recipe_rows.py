"""Two recipes beside each other as tables: each site in short, and every key in full."""

from __future__ import annotations

from softfloat_llm.analysis.answers import Table
from softfloat_llm.recipe import Recipe
from softfloat_llm.report.recipe_tables import cell, group_names
from softfloat_llm.sites import SITES

DIFFERS = "differs"


def sites_table(run: Recipe, reference: Recipe) -> Table:
    """The formats and what is unusual at each site, sites that say the same taken together."""
    said = [{site: cell(site, words) for site, words in recipe.words().items()} for recipe in (run, reference)]
    alike: dict[tuple[str, str], list[str]] = {}
    for site in SITES:
        alike.setdefault((said[0][site], said[1][site]), []).append(site)
    rows = [
        (group_names(sites), *pair, DIFFERS if pair[0] != pair[1] else "")
        for pair, sites in alike.items()
        if set(pair) != {"-"}
    ]
    note = (
        "A cell: the format taken, the accumulator, the format given (one word where all are alike); then the unusual."
    )
    return Table(("site", "run", "reference", ""), tuple(rows), note=note)


def expanded_table(run: Recipe, reference: Recipe) -> Table:
    """Every key of every site, as both recipes say it."""
    ours, theirs = run.words(), reference.words()
    rows = [
        (site, key, ours[site].get(key, ""), theirs[site].get(key, ""), _differs(ours[site], theirs[site], key))
        for site in SITES
        for key in dict.fromkeys((*ours[site], *theirs[site]))
    ]
    return Table(("site", "key", "run", "reference", ""), tuple(rows))


def _differs(one: dict[str, str], other: dict[str, str], key: str) -> str:
    return DIFFERS if one.get(key) != other.get(key) else ""
