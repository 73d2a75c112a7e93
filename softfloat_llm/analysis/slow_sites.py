"""Which sites of a recipe make their sums slowly, and why: what a long run says before it begins."""

from __future__ import annotations

from softfloat_llm.analysis.wording import joint_name
from softfloat_llm.numerics.paths import slow_reason
from softfloat_llm.recipe import Recipe
from softfloat_llm.sites import MATMUL


def slow_notes(recipe: Recipe) -> list[str]:
    """A sentence for each reason, with the matrix products that have it. (Rules by shape are not asked.)

    >>> from softfloat_llm.recipe import recipe_of
    >>> slow_notes(recipe_of("bf16,acc=f32+kahan"))
    ['matmul: acc=f32+kahan takes four roundings a term: some 20 to 30 times the time of plain f16 sums']
    """
    sites: dict[str, list[str]] = {}
    for site in MATMUL:
        if (reason := slow_reason(recipe.at(site).precision)) is not None:
            sites.setdefault(reason, []).append(site)
    return [f"{joint_name(names)}: {reason} times the time of plain f16 sums" for reason, names in sites.items()]
