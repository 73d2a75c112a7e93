"""A Comparison: what a precision did, as plain data; `str` is the terminal's answer, `to_dict` the JSON.

It is made by `compare.compare` (two runs) and `compare.compare_sides` (tensors of other tools).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softfloat_llm.analysis import comparison_text as told
from softfloat_llm.analysis.answers import Answer, Table
from softfloat_llm.analysis.distances import Difference
from softfloat_llm.analysis.nonfinite import NonFinite
from softfloat_llm.analysis.numbers import jsonable
from softfloat_llm.analysis.partings import Divergence, first_beyond
from softfloat_llm.analysis.site_errors import SiteError, site_errors
from softfloat_llm.analysis.verdicts import Verdict
from softfloat_llm.analysis.wording import recipe_line
from softfloat_llm.errors import WordError, nearest
from softfloat_llm.numerics.formats import Format
from softfloat_llm.recipe import Recipe

SCHEMA = "softfloat-llm/compare/1"
THEN = "print(comparison.text(verbose=True))   every step, site and tap"


@dataclass(frozen=True)
class Comparison(Answer):
    """What a run's precision did, against a reference.

    `logits` compares all compared positions, `last` the last of them, `kl` has the divergence of each in nats (all None
    where one side has no logits); `taps` compares every tap that both keep, `local` what each site gives where it is
    fed the reference's values. Ulps are of the run's format. `notes` say what could not be compared, and why.
    A side that is no run of ours has no recipe, and no digest where it has no logits.
    """

    model: str | None
    model_digest: str | None
    name: str
    reference_name: str
    recipe: Recipe | None
    reference_recipe: Recipe | None
    digest: str | None
    reference_digest: str | None
    positions: int
    is_whole: bool
    """True where all positions and all taps of both are compared."""
    notes: tuple[str, ...]
    nonfinite: tuple[NonFinite, ...]
    steps: tuple[Verdict, ...]
    are_positions: bool
    """True where each of `steps` is a position, not a token that was chosen and fed."""
    kl: tuple[float, ...] | None
    logits: Difference | None
    last: Difference | None
    taps: tuple[Difference, ...]
    local: tuple[Difference, ...] | None
    first_divergence: Divergence | None

    @property
    def format(self) -> Format:
        """The format whose ulps count: that of the run's logits (of its last tap, where it has none)."""
        return (self.logits or self.taps[-1]).format

    @property
    def grid(self) -> Format:
        """The coarser of `format` and that in which the run stores what products take: errors of sites are in it."""
        stored = self.format if self.recipe is None else self.recipe.at("lm_head").storage
        return min(self.format, stored, key=lambda fmt: fmt.precision)

    @property
    def max_abs(self) -> float:
        """The largest |run - reference| of a logit (of any value, without logits), over the compared positions."""
        return self.logits.max_abs if self.logits else max(tap.max_abs for tap in self.taps)

    @property
    def max_ulp(self) -> float:
        """The same in ulps of `format`, each in the binade of its reference value."""
        return self.logits.max_ulp if self.logits else max(tap.max_ulp for tap in self.taps)

    @property
    def flips(self) -> int:
        """Steps at which the run does not choose the reference's token."""
        return len(self.flipped)

    @property
    def flipped(self) -> tuple[Verdict, ...]:
        return tuple(step for step in self.steps if step.is_flip)

    @property
    def first_beyond(self) -> Difference | None:
        """The first tap that is off by over one ulp of `grid` at the largest value of a position."""
        return first_beyond(self.taps, self.grid)

    @property
    def sites(self) -> tuple[SiteError, ...]:
        """The errors of each site over all layers, inherited and local."""
        return site_errors(self.taps, self.local, self.grid)

    @property
    def is_identical(self) -> bool:
        """The same logits (without logits: the same values) in the same format, and all of both compared."""
        same = self.logits.is_identical if self.logits else all(tap.is_identical for tap in self.taps)
        return same and self.is_whole

    def holds(self, within: str | float = "identical") -> bool:
        """Is the claim true: `identical`, `tokens` (no flip), or a largest difference in ulps of `format`."""
        if within == "tokens":
            return self.flips == 0
        if within == "identical":
            return self.is_identical
        return self.max_ulp <= bound_of(within)

    def verdict(self, within: str | float = "identical") -> str:
        """`identical`, `same tokens`, `within N F ulp` or `differs`: the claim's own words where it holds."""
        if not self.holds(within):
            return "differs"
        if within in ("identical", "tokens"):
            return "identical" if within == "identical" else "same tokens"
        return f"within {within} {self.format} ulp"

    # --- in words -----------------------------------------------------------------------------------------------------

    def heading(self) -> list[tuple[str, str]]:
        first = ("run", self.name) if self.recipe is None else ("recipe", recipe_line(self.recipe))
        return [first, ("against", self.reference_name)]

    def sentences(self) -> list[str]:
        """NaN and infinities, tokens, distributions, distances (local beside inherited), and where the two part."""
        lines = [f"{one}." for one in self.nonfinite]
        if self.logits is not None and self.is_identical:
            lines.append(f"The logits of all {self.positions} positions are identical.")
        if not self.is_identical or self.flips:
            lines += told.about_tokens(self.steps, self._what)
        if self.logits is not None and self.last is not None and not self.is_identical:
            lines += [told.about_distributions(self.kl)] if self.kl and self.logits.count else []
            lines.append(told.about_logits(self.logits, self.last, has_steps=bool(self.steps)))
        lines += [told.about_sites(self.sites)] if self.local is not None else []
        return [*lines, *told.about_parting(self.first_divergence, self.first_beyond, self.grid, len(self.taps))]

    def remarks(self) -> list[tuple[str, str]]:
        return [("note", note) for note in self.notes]

    def tables(self, *, verbose: bool = False) -> list[Table]:
        """The steps; the sites where local errors are known, or no step is; `verbose`: all of both, and each tap."""
        if verbose:
            return [*self._step_tables(self.steps), told.sites_table(self.sites, verbose=True), *self._tap_tables()]
        if self.local is not None or not self.steps:
            return [told.sites_table(self.sites)] if self.first_divergence or not self.steps else []
        return self._step_tables(told.shown_steps(self.steps))[:1]

    def _step_tables(self, shown: Sequence[Verdict]) -> list[Table]:
        if self.logits is None:
            return []
        formats = self.logits.format, self.logits.reference_format
        return [
            told.steps_table(self.steps, shown, *formats, self._what),
            told.codes_table(shown, *formats, self._what),
        ]

    def _tap_tables(self) -> list[Table]:
        return [told.taps_table(self.taps, self.local)]

    @property
    def _what(self) -> str:
        return "position" if self.are_positions else "step"

    def ending(self) -> list[tuple[str, str]]:
        if self.logits is None or self.digest is None:
            return []
        return [("digest", f"{self.digest}  logits {self.format}, compared {self.logits.shape}")]

    def text(self, *, verbose: bool = False, then: str | None = None) -> str:
        """The answer as plain text: recipe, sentences, table, what to run next (`then`), digest."""
        return super().text(verbose=verbose, then=THEN if then is None else then)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON has it: plain numbers, strings and lists; non-finite numbers as strings."""
        beyond, first = self.first_beyond, self.first_divergence
        return {
            "schema": SCHEMA,
            "model": {"name": self.model, "sha256": self.model_digest},
            "name": self.name,
            "reference_name": self.reference_name,
            "recipe": _recipe_facts(self.recipe),
            "reference_recipe": _recipe_facts(self.reference_recipe),
            "digest": self.digest,
            "reference_digest": self.reference_digest,
            "positions": self.positions,
            "is_whole": self.is_whole,
            "notes": list(self.notes),
            "verdict": self.verdict(),
            "nonfinite": [one.to_dict() for one in self.nonfinite],
            "flips": self.flips,
            "steps": [step.to_dict() for step in self.steps],
            "are_positions": self.are_positions,
            "kl": None if self.kl is None else [jsonable(x) for x in self.kl],
            "max_abs": jsonable(self.max_abs),
            "max_ulp": jsonable(self.max_ulp),
            "ulp_format": str(self.format),
            "logits": self.logits and self.logits.to_dict(),
            "last": self.last and self.last.to_dict(),
            "sites": [site.to_dict() for site in self.sites],
            "taps": [tap.to_dict() for tap in self.taps],
            "local": None if self.local is None else [tap.to_dict() for tap in self.local],
            "first_divergence": first and first.to_dict(),
            "first_beyond": beyond and beyond.to_dict(),
        }


def _recipe_facts(recipe: Recipe | None) -> dict[str, Any] | None:
    return None if recipe is None else {"name": recipe.name, "site": recipe.words()}


def bound_of(within: str | float) -> float:
    """A bound in ulps. Raises WordError for a word that is none."""
    try:
        bound = float(within)
    except ValueError:
        bound = -1.0
    if not bound >= 0:
        hint = nearest(
            str(within), ("identical", "tokens"), {"token": "tokens", "same": "identical", "bits": "identical"}
        )
        raise WordError(f"within={within!r}: expected identical, tokens, or a number of ulps of 0 or more.{hint}")
    return bound
