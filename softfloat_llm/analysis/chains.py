"""From a reference's recipe to a run's, one change after another: what the two say differently, and recipes between.

A **change** is one setting in which they differ; a **move** is the changes that are made together: all of one stage, of
one site, or of one stage of one site. What must lie in one format moves together: the residual stream (embed and both
residual sites), and the rope table with the rotation that uses it. Start reading at `chain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from softfloat_llm.errors import RecipeError, WordError, nearest
from softfloat_llm.recipe import Recipe, recipe_of
from softfloat_llm.sites import MODE_KEYS, SITES

STAGES = ("storage", "product", "accumulation", "output", "steps")
"""In the order of a sum; `steps` is what is no stage of a sum: the format of other steps (`compute`), and options."""
BY = ("stage", "group", "site", "each")
"""How finely changes are made: by stage, by group of sites, by site, or each stage of each site."""

_STAGE_OF = {
    "storage": "storage",
    "product": "product",
    "acc": "accumulation",
    "order": "accumulation",
    "output": "output",
}
_SUM_STAGES = ("storage", "product", "acc", "output")
_UNITS = {
    "residual stream": ("embed", "attn.residual", "mlp.residual"),
    "rope": ("rope.table", "attn.rope"),
}
_GROUPS = {
    "norms": ("norm.",),
    "attention projections": ("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.o_proj"),
    "kv cache": ("kv.",),
    "attention": ("attn.scores", "attn.scale", "attn.mask", "attn.softmax", "attn.pv"),
    "mlp projections": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    "mlp activation": ("mlp.act",),
}
_STORED_OUTPUTS = ("embed", "attn.residual", "mlp.residual", "rope.table")
"""Sites whose output is the storage of what takes it: a recipe is refused where the two differ."""


@dataclass(frozen=True)
class Change:
    """At a site, a key is one word in the reference and another in the run; None where only one of them says it."""

    site: str
    key: str
    reference: str | None
    run: str | None

    def __str__(self) -> str:
        return f"{self.site}.{self.key}: {self.reference or 'as usual'} -> {self.run or 'as usual'}"

    @property
    def unit(self) -> str:
        """The site, or the name of the sites that move with it."""
        return next((name for name, sites in _UNITS.items() if self.site in sites), self.site)

    @property
    def group(self) -> str:
        """The group of sites that the site belongs to."""
        beginnings = ((name, sites) for name, sites in _GROUPS.items())
        return next((name for name, sites in beginnings if self.site.startswith(sites)), self.unit)

    @property
    def stage(self) -> str:
        """The stage that the key belongs to."""
        key = self.key.partition(" if ")[0]
        if self.site.startswith("kv.") or (key.startswith("output") and self.site in _STORED_OUTPUTS):
            return "storage"
        if (self.site, key) == ("attn.rope", "form"):  # form=once takes q and a table of two formats, each does not
            return "storage"
        if key in MODE_KEYS:  # for some shapes only: what can depend on the shape is how a sum is made
            return "accumulation"
        return _STAGE_OF.get(key.partition(".")[0], "steps")


@dataclass(frozen=True)
class Move:
    """Changes that are made together, under a name."""

    name: str
    changes: tuple[Change, ...]

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that it touches, in the order of the forward pass."""
        touched = {change.site for change in self.changes}
        return tuple(site for site in SITES if site in touched)


@dataclass(frozen=True)
class Link:
    """A move, and the recipe after it and all moves before it."""

    move: Move
    recipe: Recipe


def differences(reference: Recipe, run: Recipe) -> tuple[Change, ...]:
    """Every setting in which two recipes differ, in the order of the forward pass."""
    theirs, ours = _words(reference), _words(run)
    return tuple(
        Change(site, key, theirs[site].get(key), ours[site].get(key))
        for site in SITES
        for key in dict.fromkeys((*theirs[site], *ours[site]))
        if theirs[site].get(key) != ours[site].get(key)
    )


def _words(recipe: Recipe) -> dict[str, dict[str, str]]:
    """The full expansion, with a mode of all stages said for each of them: they may change at different moves."""
    return {site: dict(_by_stage(site, words)) for site, words in recipe.words().items()}


def _by_stage(site: str, words: dict[str, str]) -> Iterator[tuple[str, str]]:
    for key, word in words.items():
        if key in MODE_KEYS:
            yield from ((f"{stage}.{key}", word) for stage in _SUM_STAGES if SITES[site].takes(f"{stage}.{key}"))
        else:
            yield key, word


def moves(reference: Recipe, run: Recipe, by: str = "stage") -> tuple[Move, ...]:
    """The changes from one recipe to the other, put together `by` stage, group, site, or each stage of each site.

    Raises RecipeError for another word.
    """
    if by not in BY:
        raise RecipeError(f"by={by!r} is unknown.{nearest(by, BY)} Known: {', '.join(BY)}.")
    named: dict[str, list[Change]] = {}
    for change in sorted(differences(reference, run), key=lambda change: _place(change, by)):
        named.setdefault(_name(change, by), []).append(change)
    return tuple(Move(name, tuple(changes)) for name, changes in named.items())


def _name(change: Change, by: str) -> str:
    names = {"stage": change.stage, "group": change.group, "site": change.unit}
    return names.get(by, f"{change.unit} {change.stage}")


def _place(change: Change, by: str) -> tuple[int, int, int]:
    """Where a change stands: units in the order of the forward pass, their stages in the order of a sum."""
    site, stage = list(SITES).index(change.site), STAGES.index(change.stage)
    first = next((list(SITES).index(sites[0]) for sites in _UNITS.values() if change.site in sites), site)
    return (stage, first, site) if by == "stage" else (first, stage, site)


def between(reference: Recipe, run: Recipe, changes: Iterable[Change], name: str = "between") -> Recipe:
    """The reference's recipe with some of its settings as the run has them.

    Raises RecipeError, or another WordError, where such a recipe has no meaning: sites whose formats do not fit.
    """
    site = _words(reference)
    for change in changes:
        if change.run is None:
            site[change.site].pop(change.key)
        else:
            site[change.site][change.key] = change.run
    recipe = recipe_of({"name": name, "site": site})
    recipe.check_fit()
    return recipe


def chain(reference: Recipe, run: Recipe, by: str = "stage", *, is_reversed: bool = False) -> tuple[Link, ...]:
    """The recipes from the reference to the run, each with one more move made; the last is the run's.

    `is_reversed`: the last move of the forward pass is made first. A move after which the recipe would have no meaning
    is made together with the next one. Raises RecipeError for an unknown `by`, or where one of the two has no meaning
    itself.
    """
    for end in (reference, run):
        end.check_fit()
    found = moves(reference, run, by)
    links: list[Link] = []
    made: list[Change] = []
    waiting: list[Move] = []
    for move in reversed(found) if is_reversed else found:
        waiting.append(move)
        made += move.changes
        recipe = _if_it_fits(reference, run, made, move.name)
        if recipe is not None:
            links.append(Link(joint(waiting), recipe))
            waiting = []
    assert not waiting, waiting  # the last recipe says what the run's says, which has a meaning
    return tuple(links)


def _if_it_fits(reference: Recipe, run: Recipe, made: Sequence[Change], name: str) -> Recipe | None:
    try:
        return between(reference, run, made, f"up to {name}")
    except WordError:
        return None


def joint(together: Sequence[Move]) -> Move:
    """Several moves as one."""
    return Move(" + ".join(move.name for move in together), tuple(c for move in together for c in move.changes))
