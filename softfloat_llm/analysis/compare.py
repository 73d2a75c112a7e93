"""compare(run, reference): NaN first, then tokens, then distances, then where the two first part.

Start reading at `compare`. A Comparison is plain data: `str` is the terminal's answer, `to_dict` the JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softfloat_llm.analysis.distances import Difference, Pair, difference
from softfloat_llm.analysis.nonfinite import NonFinite, first_nonfinite
from softfloat_llm.analysis.numbers import jsonable
from softfloat_llm.analysis.taps import Tap, chosen, tap_of, visible
from softfloat_llm.analysis.verdicts import Choice, Verdict, verdict
from softfloat_llm.errors import RunError, WordError
from softfloat_llm.numerics.formats import Array, Format
from softfloat_llm.recipe import Recipe
from softfloat_llm.sites import LOGITS

if TYPE_CHECKING:
    from softfloat_llm.runs import Run

SCHEMA = "softfloat-llm/compare/1"


@dataclass(frozen=True)
class Divergence:
    """The first element, in the order of the forward pass, at which the two runs hold different values."""

    tap: Tap
    at: Pair
    format: Format
    reference_format: Format

    def to_dict(self) -> dict[str, Any]:
        formats = {"format": str(self.format), "reference_format": str(self.reference_format)}
        return self.tap.to_dict() | self.at.to_dict() | formats


@dataclass(frozen=True)
class Comparison:
    """What a run's precision did, against a reference.

    `logits` compares all compared positions, `last` the last of them, `taps` every tap that both runs keep. Ulps are of
    the run's format, in the binade of the reference's value. `notes` says what could not be compared, and why.
    """

    model: str
    model_digest: str
    recipe: Recipe
    reference_recipe: Recipe
    digest: str
    reference_digest: str
    positions: int
    notes: tuple[str, ...]
    nonfinite: tuple[NonFinite, ...]
    steps: tuple[Verdict, ...]
    logits: Difference
    last: Difference
    taps: tuple[Difference, ...]
    first_divergence: Divergence | None

    @property
    def format(self) -> Format:
        """The format of the run's logits, whose ulps count."""
        return self.logits.format

    @property
    def max_abs(self) -> float:
        """The largest |run - reference| of a logit, over the compared positions."""
        return self.logits.max_abs

    @property
    def max_ulp(self) -> float:
        """The largest difference of a logit in ulps of `format`, each in the binade of its reference value."""
        return self.logits.max_ulp

    @property
    def flips(self) -> int:
        """Steps at which the run does not choose the reference's token."""
        return len(self.flipped)

    @property
    def flipped(self) -> tuple[Verdict, ...]:
        return tuple(step for step in self.steps if step.is_flip)

    @property
    def is_identical(self) -> bool:
        """The same logits in the same format, and the same positions in both runs."""
        return self.logits.is_identical and not self.notes

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

    def text(self, *, verbose: bool = False, then: str | None = None) -> str:
        """The answer as plain text: recipe, sentence, table, what to run next (`then`), digest."""
        from softfloat_llm.analysis.comparison_text import as_text

        return as_text(self, verbose=verbose, then=then)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from softfloat_llm.analysis.comparison_text import as_html

        return as_html(self)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON has it: plain numbers, strings and lists; non-finite numbers as strings."""
        return {
            "schema": SCHEMA,
            "model": {"name": self.model, "sha256": self.model_digest},
            "recipe": {"name": self.recipe.name, "site": self.recipe.words()},
            "reference_recipe": {"name": self.reference_recipe.name, "site": self.reference_recipe.words()},
            "digest": self.digest,
            "reference_digest": self.reference_digest,
            "positions": self.positions,
            "notes": list(self.notes),
            "verdict": self.verdict(),
            "nonfinite": [one.to_dict() for one in self.nonfinite],
            "flips": self.flips,
            "steps": [step.to_dict() for step in self.steps],
            "max_abs": jsonable(self.max_abs),
            "max_ulp": jsonable(self.max_ulp),
            "ulp_format": str(self.format),
            "logits": self.logits.to_dict(),
            "last": self.last.to_dict(),
            "taps": [tap.to_dict() for tap in self.taps],
            "first_divergence": self.first_divergence and self.first_divergence.to_dict(),
        }


def bound_of(within: str | float) -> float:
    """A bound in ulps. Raises WordError for a word that is none."""
    try:
        bound = float(within)
    except ValueError:
        bound = -1.0
    if not bound >= 0:
        raise WordError(f"within={within!r}: expected identical, tokens, or a number of ulps of 0 or more.")
    return bound


def compare(run: Run | str | Path, reference: Run | str | Path, *, names: Sequence[str] | None = None) -> Comparison:
    """What the precision of `run` did, against `reference`: two runs, or the folders that they were saved in.

    `names`: shell-style patterns of the taps to compare (all that both runs keep). Positions count up to the first at
    which the runs were fed different tokens, as free running ones are after a flip.
    **Raises** RunError for another model, another prompt, or a pattern that fits no tap.
    """
    run, reference = opened(run), opened(reference)
    check_model(run, reference)
    positions = common_positions(run, reference)
    wanted = chosen([name for name in run.arrays if name in reference.arrays], names)
    comparable = [tap for tap in wanted if _shape_of(run, tap) == _shape_of(reference, tap)]
    taps = tuple(tap_difference(tap, run, reference, positions) for tap in comparable)
    row = slice(positions - 1, positions)
    formats = run.logits_format, reference.logits_format
    last = difference(LOGITS, run["logits"][row], reference["logits"][row], *formats)
    found = (first_nonfinite(w, r.arrays, r.events) for w, r in (("run", run), ("reference", reference)))
    return Comparison(
        model=run.model,
        model_digest=run.model_digest,
        recipe=run.recipe,
        reference_recipe=reference.recipe,
        digest=run.digest,
        reference_digest=reference.digest,
        positions=positions,
        notes=_notes(run, reference, positions, [tap for tap in wanted if tap not in comparable]),
        nonfinite=tuple(one for one in found if one is not None),
        steps=_verdicts(run, reference, positions),
        logits=tap_difference(tap_of(LOGITS), run, reference, positions),
        last=last,
        taps=taps,
        first_divergence=first_divergence(taps),
    )


def opened(run: Run | str | Path) -> Run:
    """The run itself, or the one that a folder holds."""
    if isinstance(run, (str, Path)):
        from softfloat_llm.runs import Run as SavedRun

        return SavedRun.load(run)
    return run


def check_model(run: Run, reference: Run) -> None:
    """Raises RunError where the runs are of two models."""
    if run.model_digest != reference.model_digest:
        raise RunError(
            "Comparing runs of two models: nothing can be said.\n"
            f"  the run has        {run.model!r}, sha256 {run.model_digest}\n"
            f"  the reference has  {reference.model!r}, sha256 {reference.model_digest}\n"
            "  Run both on the same weights."
        )


def common_positions(run: Run, reference: Run) -> int:
    """How many positions were fed the same tokens in both runs, from the first on.

    Raises RunError where a token of a prompt differs: the two were asked different questions.
    """
    shared = min(len(run.fed), len(reference.fed))
    parted = next((i for i in range(shared) if run.fed[i] != reference.fed[i]), shared)
    given = max(len(run.prompt_tokens), len(reference.prompt_tokens))
    if parted < min(given, shared):
        raise RunError(
            f"The runs were given different prompts: at position {parted} the run was fed token {run.fed[parted]}"
            f" {run.piece(run.fed[parted])!r}, the reference {reference.fed[parted]}"
            f" {reference.piece(reference.fed[parted])!r}. Run both on the same tokens."
        )
    return parted


def _notes(run: Run, reference: Run, positions: int, skipped: Sequence[Tap]) -> tuple[str, ...]:
    notes = []
    longest = max(len(run.fed), len(reference.fed))
    if positions < min(len(run.fed), len(reference.fed)):
        notes.append(
            f"The runs are fed different tokens from position {positions} on (free running), so {positions} of"
            f" {longest} positions are compared; with the reference as teacher, all would be."
        )
    elif positions < longest:
        notes.append(
            f"The run has {len(run.fed)} positions, the reference {len(reference.fed)}: {positions} are compared."
        )
    for tap in skipped:
        shapes = f"{run.arrays[tap.name].shape} and {reference.arrays[tap.name].shape}"
        notes.append(f"{tap.name} is not compared: its shapes are {shapes}.")
    return tuple(notes)


def _shape_of(run: Run, tap: Tap) -> tuple[int, ...]:
    """A tap's shape without the axes that grow with the positions."""
    shape = tuple(run.arrays[tap.name].shape[1:])
    return shape[:-1] if tap.is_over_keys else shape


def tap_difference(tap: Tap, run: Run, reference: Run, positions: int) -> Difference:
    """How a tap of the two runs differs at the first positions; what lies after a query counts as the same."""
    one, other = (visible(tap, each.arrays[tap.name], positions) for each in (run, reference))
    return difference(tap.name, one, other, run.format_of_tap(tap.name), reference.format_of_tap(tap.name))


def first_divergence(taps: Sequence[Difference]) -> Divergence | None:
    """The first different element of taps that stand in the order of the forward pass."""
    for tap in taps:
        if tap.first is not None:
            return Divergence(tap_of(tap.tap), tap.first, tap.format, tap.reference_format)
    return None


def _verdicts(run: Run, reference: Run, positions: int) -> tuple[Verdict, ...]:
    """A verdict for each step that a compared position decides: the reference's steps (the run's where it has none)."""
    stepped = reference if reference.steps else run
    start = len(stepped.prompt_tokens) - 1
    return tuple(
        with_pieces(verdict_at(step, start + step, run, reference), run, reference)
        for step in range(stepped.steps)
        if start + step < positions
    )


def verdict_at(step: int, position: int, run: Run, reference: Run) -> Verdict:
    """The verdict on the row of one position of both runs."""
    rows: tuple[Array, Array] = (run["logits"][position], reference["logits"][position])
    return verdict(step, position, *rows, run.logits_format, (run.recipe.ties, reference.recipe.ties))


def with_pieces(found: Verdict, run: Run, reference: Run) -> Verdict:
    """The verdict with the texts of its tokens."""

    def told(choice: Choice) -> Choice:
        known = next((r for r in (run, reference) if choice.token in r.pieces), reference)
        return choice if choice.token is None else replace(choice, piece=known.piece(choice.token))

    return replace(found, reference=told(found.reference), run=told(found.run))
