"""What reproduces an output, in words: what is settled, what the data leave open, the nearest where nothing fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from softfloat_llm.analysis.answers import Table, counted
from softfloat_llm.analysis.grids import USUAL
from softfloat_llm.analysis.numbers import about

if TYPE_CHECKING:
    from softfloat_llm.analysis.identify import Fit, Identification

SHOWN_FITS, SHOWN_WORDS, SHOWN_KEYS = 8, 4, 3


_SILENT = {key: word for key, word in USUAL.items() if key not in ("product", "order")}


def heading(found: Identification) -> list[tuple[str, str]]:
    shapes = ", ".join(f"{name} {_shape(shape)}" for name, shape in found.shapes.items())
    return [("given", f"{found.operation}: {shapes}")]


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def sentences(found: Identification) -> list[str]:
    """How many candidates fit, on how much; what all of them say; what stays open."""
    lines = list(found.notes)
    if not found.tried:
        return [*lines, "No candidate is left to try: these formats have none in the grid."]
    checked = f"{found.checked} of {counted(found.elements, 'element')}"
    if not found.fits:
        lines.append(f"None of {counted(found.tried, 'candidate')} gives all of these elements bit for bit.")
        best = found.nearest[0]
        share = f"{about(100 * best.equal / best.checked)} % ({best.equal} of {best.checked})"
        return [*lines, f"The nearest gives {share}: {best.candidate}.", *_about_miss(best)]
    every = "the one element" if found.elements == 1 else f"all {found.elements} elements"
    all_of = every if found.checked == found.elements else checked
    gives = "gives" if len(found.fits) == 1 else "give"
    lines.append(f"{len(found.fits)} of {counted(found.tried, 'candidate')} {gives} {all_of} bit for bit.")
    settled = {key: word for key, word in found.settled.items() if word != _SILENT.get(key)}
    lines += [f"Settled: {_pairs(settled)}."] if settled else []
    lines += [f"Not told apart by these data: {_choices(found.open)}."] if found.open else []
    return lines


def _about_miss(fit: Fit) -> list[str]:
    if fit.miss is None:
        return []
    where = f"element {list(fit.miss.index)}"
    return [f"First difference: {where} is {fit.miss.given!r}, the candidate gives {fit.miss.candidate!r}."]


def _pairs(words: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {word}" for key, word in words.items())


def _choices(words: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{key} {_some(choices)}" for key, choices in words.items())


def _some(words: Sequence[str], most: int = SHOWN_WORDS) -> str:
    if len(words) <= most:
        return " or ".join(words)
    return f"{' or '.join(words[: most - 1])} or {len(words) - most + 1} more"


def tables(found: Identification, *, verbose: bool = False) -> list[Table]:
    """The candidates that fit, or the nearest; those that differ in one key only (mostly the order) in one row.

    `verbose`: all of them.
    """
    rows = found.fits or tuple(fit for fit in found.nearest if fit.equal)
    if len(rows) == 1:
        return [_one_table(rows[0], found)]
    keys = [key for key in found.words if len({fit.candidate.word(key) for fit in rows}) > 1]
    listed = max(keys, key=lambda key: len({fit.candidate.word(key) for fit in rows}), default=None)
    keys = [key for key in (keys or found.words) if key != listed]
    groups: dict[tuple[str, ...], list[Fit]] = {}
    for fit in rows:
        groups.setdefault((*(fit.candidate.word(key) for key in keys), str(fit.equal)), []).append(fit)
    most = SHOWN_WORDS if not verbose else len(rows)
    cells = tuple(_row(fits, keys, listed, most) for fits in groups.values())
    has_recipes = any(row[-1] for row in cells)
    header = (
        *keys[:SHOWN_KEYS],
        *(("and",) if len(keys) > SHOWN_KEYS else ()),
        *((listed,) if listed else ()),
        "equal",
    )
    header = (*header, "recipes") if has_recipes else header
    table = Table(header, tuple(row if has_recipes else row[:-1] for row in cells), (header.index("equal"),))
    return [table if verbose else table.cut(SHOWN_FITS)]


def _one_table(fit: Fit, found: Identification) -> Table:
    """A candidate by itself: its words, and what else was tried in their place."""
    rows = [
        (key, fit.candidate.word(key), _some([w for w in words if w != fit.candidate.word(key)]) or "-")
        for key, words in found.words.items()
        if fit.candidate.word(key) != _SILENT.get(key)
    ]
    rows += [("recipes", ", ".join(fit.recipes), "-")] if fit.recipes else []
    return Table(("key", "word", "tried in its place"), tuple(rows))


def _row(fits: Sequence[Fit], keys: Sequence[str], listed: str | None, most: int) -> tuple[str, ...]:
    first = fits[0]
    words = tuple(first.candidate.word(key) for key in keys[:SHOWN_KEYS])
    rest = [f"{key} {first.candidate.word(key)}" for key in keys[SHOWN_KEYS:]]
    choices = list(dict.fromkeys(fit.candidate.word(listed) for fit in fits)) if listed else []
    names = list(dict.fromkeys(name for fit in fits for name in fit.recipes))
    recipes = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
    return (
        *words, *((", ".join(rest),) if rest else ()), *((_some(choices, most),) if listed else ()),
        f"{first.equal} of {first.checked}", recipes,
    )  # fmt: skip
