"""The tables of sites, keys and options: everything that a recipe can say is in them, with what it means."""

from __future__ import annotations

import json
import re

from softfloat_llm.recipe import recipe_of
from softfloat_llm.report.site_tables import sites_facts, sites_text
from softfloat_llm.site_options import Words
from softfloat_llm.sites import MEANINGS, MODE_KEYS, SITES
from tests.console import output


def cells(text):
    rows = (re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|"))
    return [[cell.strip().replace("\\|", "|") for cell in row] for row in rows]


def test_every_site_key_option_and_word_stands_in_the_tables_with_what_it_means():
    rows = cells(sites_text())
    assert [row[0] for row in rows if row[0] in SITES and row[3] == SITES[row[0]].what] == list(SITES)
    assert [row[0] for row in rows if len(row) == 2][2:] == list(MEANINGS)
    assert {key for site in SITES.values() for key in (*site.keys, *MODE_KEYS)} == set(MEANINGS)
    options = {key for site in SITES.values() for key in site.options}
    assert {row[1] for row in rows if len(row) == 4 and row[2] == "" and row[1]} >= options
    told = {(row[2].removesuffix(" *"), row[3]) for row in rows if len(row) == 4}
    for site in SITES.values():
        for option in site.options.values():
            if isinstance(option, Words):
                assert set(option.words.items()) <= told


def test_each_word_that_the_facts_name_can_be_said():
    for name, facts in sites_facts().items():
        for key, option in facts["options"].items():
            for word in (option["default"], *option["words"]):
                said = {"FORMAT": "f16", "NUMBER": "0.5", "N": "64"}.get(word, word)
                needed = {"online": ",attn.softmax.normalise=after"}.get(key, "")
                spelled = recipe_of(f"f32,{name}.{key}={said}{needed}").at(name).options[key]
                assert spelled == said


def test_the_command_shows_the_tables_and_their_facts():
    assert output("recipes", "--sites").strip() == sites_text()
    assert "| round-then-weight * " in output("recipes", "--sites")
    found = json.loads(output("recipes", "--sites", "--json"))
    assert found["schema"] == "softfloat-llm/recipes-sites/1"
    assert found["site"] == sites_facts()
    assert found["site"]["choice"]["options"]["ties"]["default"] == "lowest"
