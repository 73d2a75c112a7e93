"""Which taps hold the same quantity under two recipes.

Most options of a recipe say how a value is rounded. A few say which value it is: probabilities that are not divided by
their sum yet, scores of queries that were scaled before. Such taps are not compared. Start reading at `other_meanings`.
"""

from __future__ import annotations

from softfloat_llm.recipe import Recipe

_ROTATED = ("attn.rope.in", "attn.rope.out", "kv.k.in", "kv.k.out", "attn.scores.in")
_SCORES = ("attn.scores.in", "attn.scores.acc", "attn.scores.out")
_SCALED = ("attn.scale.out", "attn.mask.in", "attn.mask.out", "attn.softmax.in")
_WEIGHTS = ("attn.softmax.out", "attn.pv.in", "attn.pv.acc")

# (site, option) -> the taps whose quantity it chooses. Read off llama/attention.py and llama/softmax.py.
_CHOOSES: dict[tuple[str, str], tuple[str, ...]] = {
    ("attn.rope", "pairs"): _ROTATED,  # another order of the elements of queries and keys
    ("attn.scale", "on"): (*_SCORES, "attn.scale.in", "attn.scale.out"),
    ("attn.softmax", "base"): _SCALED,  # the scale is times log2(e)
    ("attn.softmax", "normalise"): _WEIGHTS,
    ("attn.softmax", "online"): (*_WEIGHTS, "attn.softmax.acc"),  # against the largest score so far
    ("kv.k", "scale"): ("kv.k.out",),
    ("kv.v", "scale"): ("kv.v.out",),
}


def other_meanings(recipe: Recipe, reference: Recipe) -> dict[str, str]:
    """`SITE.STAGE` of each tap that is another quantity in the two recipes -> the option that makes it so.

    >>> from softfloat_llm.recipe import recipe_of
    >>> other_meanings(recipe_of("bf16,attn.softmax.normalise=after"), recipe_of("bf16"))
    {'attn.softmax.out': 'attn.softmax.normalise', 'attn.pv.in': 'attn.softmax.normalise', 'attn.pv.acc': 'attn.softmax.normalise'}
    """  # noqa: E501
    found: dict[str, str] = {}
    for (site, option), taps in _CHOOSES.items():
        if _words(recipe, site, option) != _words(reference, site, option):
            scaled_first = option == "base" and recipe.at("attn.scale").options["on"] != "scores"
            for tap in (*taps, *(_SCORES if scaled_first else ())):
                found.setdefault(tap, f"{site}.{option}")
    return found


def _words(recipe: Recipe, site: str, option: str) -> list[str]:
    """The word of an option, and those of its rules."""
    spec = recipe.at(site)
    return [spec.options[option], *(str(rule) for rule in spec.rules if rule.key == option)]
