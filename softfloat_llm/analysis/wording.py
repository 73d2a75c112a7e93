"""The lines and tables that several answers share: a recipe in one line, Markdown tables."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence

from softfloat_llm.recipe import Recipe, recipe_names
from softfloat_llm.sites import GROUPS, SITES, select

LABEL_WIDTH = 9
WIDTH, SHOWN_LINES = 108, 4
SHOWN_PIECE = 48  # characters of a token: only rows of one sign or of blanks are longer in the vocabulary of SmolLM2


def labelled(label: str, text: str) -> str:
    """`label    text`, further lines of the text below its first."""
    return f"{label:<{LABEL_WIDTH}}" + text.replace("\n", "\n" + " " * LABEL_WIDTH)


def recipe_line(recipe: Recipe) -> str:
    """The stages of most matrix products, JAX's name for them; then, in a few lines, the sites that say something else.

    >>> print(recipe_line(Recipe(storage="bf16")))
    storage bf16 · product exact · acc f32 · output bf16 · order seq   (BF16_BF16_F32)
    """
    head = recipe.usual
    name = f"{recipe.name}: " if recipe.name in recipe_names() else ""
    line = name + " · ".join(f"{key} {word}" for key, word in head.items())
    line += f"   ({head.jax_name})" if head.jax_name else ""
    return "\n".join([line, *_exceptions(recipe)])


def _exceptions(recipe: Recipe) -> list[str]:
    """The sites that say something of their own, those that say the same taken together: a few lines at most."""
    sites: dict[str, list[str]] = {}
    differences = recipe.difference()
    rules = [setting for setting in differences if " if " in setting]
    for setting in (setting for setting in differences if setting not in rules):
        site = max((name for name in SITES if setting.startswith(f"{name}.")), key=len)
        sites.setdefault(site, []).append(setting.removeprefix(f"{site}."))
    alike: dict[str, list[str]] = {}
    for site, words in sites.items():
        alike.setdefault(", ".join(words), []).append(site)
    parts = [f"{joint_name(names)} {words}" for words, names in alike.items()]
    if rules:
        parts.append(f"other orders for some shapes: softfloat-llm recipes {shlex.quote(recipe.name)}")
    told = "; ".join(parts)
    lines = textwrap.wrap(told, WIDTH, initial_indent="but ", subsequent_indent="    ", break_on_hyphens=False)
    if len(lines) <= SHOWN_LINES:
        return lines
    return [*lines[: SHOWN_LINES - 1], f"    ... in full: softfloat-llm recipes {shlex.quote(recipe.name)}"]


def joint_name(sites: Sequence[str]) -> str:
    """The one word that means exactly these sites, or their names."""
    beginnings = {name.split(".")[0] for name in SITES if "." in name}
    words = [*GROUPS, *sorted(beginnings)]
    return next((word for word in words if select(word) == tuple(sites)), ", ".join(sites))


def token_words(piece: str, token: int | None) -> str:
    """A token as people read it: its text in quotes, a long one cut, or its id where there is none."""
    if token is None:
        return "none"
    if not piece or piece == f"<{token}>":
        return f"<{token}>"
    return repr(piece) if len(piece) <= SHOWN_PIECE else f"{piece[:SHOWN_PIECE]!r}..."


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A Markdown table whose columns line up in plain text too. `right`: the columns that are aligned to the right."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(header))]
    lines = [
        [cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        for row in cells
    ]
    bar = "|" + "|".join(_rule(w, i in right) for i, w in enumerate(widths)) + "|"
    body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([body[0], bar, *body[1:]])


def _rule(width: int, is_right: bool) -> str:
    return "-" * (width + 1) + (":" if is_right else "-")
