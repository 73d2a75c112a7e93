"""The sites of a Llama as tables: which keys and options each takes, and what each word of an option means.

Start at `sites_text`; `sites_facts` is the JSON.
"""

from __future__ import annotations

from typing import Any

from softfloat_llm.analysis.wording import joint_name, labelled, markdown_table
from softfloat_llm.site_options import Option
from softfloat_llm.sites import MEANINGS, MODE_KEYS, SITES


def sites_facts() -> dict[str, Any]:
    """Every site with its keys, and its options with their words."""
    return {
        name: {
            "what": site.what,
            "keys": list(site.keys),
            "options": {key: _facts(option) for key, option in site.options.items()},
        }
        for name, site in SITES.items()
    }


def _facts(option: Option) -> dict[str, Any]:
    return {"what": option.what, "default": option.default, "words": dict(option.meanings)}


def sites_text() -> str:
    """Three tables: the sites, the keys that stages have, and the options word by word."""
    sites = [[name, ", ".join(site.keys), ", ".join(site.options), site.what] for name, site in SITES.items()]
    keys = [[key, meaning] for key, meaning in MEANINGS.items()]
    tables = [
        markdown_table(["site", "keys", "options", "what it is"], sites),
        markdown_table(["key", "what it says"], keys) + f"\nEvery site with keys takes {', '.join(MODE_KEYS)}.",
        markdown_table(["sites", "option", "word", "what it means"], _option_rows()),
    ]
    again = labelled("next", "softfloat-llm simulate --at norm.form=weight-then-round")
    return "\n\n".join([*tables, f"* is what holds where nothing is said.\n{again}"])


def _option_rows() -> list[list[str]]:
    """For each option one row that says what it is, then one for each word, the default with a star."""
    sites: dict[tuple[str, int], list[str]] = {}
    for name, site in SITES.items():
        for key, option in site.options.items():
            sites.setdefault((key, id(option)), []).append(name)
    rows = []
    for (key, _), names in sites.items():
        option = SITES[names[0]].options[key]
        rows.append([joint_name(names), key, "", option.what])
        is_value = option.default not in option.meanings
        for word, meaning in option.meanings.items():
            star = " *" if word == option.default else f" ({option.default} *)" if is_value else ""
            rows.append(["", "", word + star, meaning])
    return rows
