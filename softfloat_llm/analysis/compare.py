"""compare(run, reference): NaN first, then tokens, distributions, distances, then where the two first part.

Start reading at `compare`. What it gives is a `comparison.Comparison`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from softfloat_llm.analysis.comparison import Comparison
from softfloat_llm.analysis.distances import Difference, difference
from softfloat_llm.analysis.divergences import kl
from softfloat_llm.analysis.nonfinite import first_nonfinite
from softfloat_llm.analysis.partings import first_divergence
from softfloat_llm.analysis.sides import Side, side_of
from softfloat_llm.analysis.taps import Tap, chosen
from softfloat_llm.analysis.verdicts import Choice, Verdict, verdict
from softfloat_llm.errors import RunError
from softfloat_llm.numerics.formats import Array
from softfloat_llm.numerics.mapped import give_back
from softfloat_llm.site_meanings import other_meanings
from softfloat_llm.sites import LOGITS

if TYPE_CHECKING:
    from softfloat_llm.runs import Run

__all__ = ["Comparison", "Extent", "compare", "compare_sides"]


@dataclass(frozen=True)
class Extent:
    """What of two sides is compared: the first `positions`, and at which of them a token was chosen.

    `places`: (step, position) of each choice (`are_positions`: of each position). `is_whole`: nothing is left out.
    """

    positions: int
    places: tuple[tuple[int, int], ...]
    notes: tuple[str, ...] = ()
    is_whole: bool = True
    are_positions: bool = False
    model: str | None = None
    model_digest: str | None = None


def compare(
    run: Run | str | Path,
    reference: Run | str | Path,
    *,
    names: Sequence[str] | None = None,
    local: Run | None = None,
) -> Comparison:
    """What the precision of `run` did, against `reference`: two runs, or the folders that they were saved in.

    `names`: shell-style patterns of the taps to compare (all that both runs keep). Positions count up to the first at
    which the runs were fed different tokens, as free running ones are after a flip. `local`: the pass of
    `site_runs.local_run`, in which each site of the run was fed the reference's values.
    **Raises** RunError for another model, another prompt, or a pattern that fits no tap.
    """
    run, reference = opened(run), opened(reference)
    check_model(run, reference)
    extent = _extent(run, reference)
    own = None if local is None else side_of(local)
    return compare_sides(side_of(run), side_of(reference), extent, names=names, local=own)


def compare_sides(
    run: Side, reference: Side, extent: Extent, *, names: Sequence[str] | None = None, local: Side | None = None
) -> Comparison:
    """The comparison of two sides of which it is known what is to be compared.

    Raises RunError where they have no tap in common.
    """
    taps, notes = _comparable(run, reference, names)
    positions = extent.positions
    found = (first_nonfinite(w, r.arrays, r.events) for w, r in (("run", run), ("reference", reference)))
    differences = tuple(tap_difference(tap, run, reference, positions) for tap in taps)
    logits, last, divergences = _of_logits(run, reference, positions)
    return Comparison(
        model=extent.model,
        model_digest=extent.model_digest,
        name=run.name,
        reference_name=reference.name,
        recipe=run.recipe,
        reference_recipe=reference.recipe,
        digest=run.digest,
        reference_digest=reference.digest,
        positions=positions,
        is_whole=extent.is_whole and not notes.shapes,
        notes=(*extent.notes, *notes.shapes, *notes.meanings),
        nonfinite=tuple(one for one in found if one is not None),
        steps=_verdicts(run, reference, extent) if logits else (),
        are_positions=extent.are_positions,
        kl=divergences,
        logits=logits,
        last=last,
        taps=differences,
        local=None if local is None else _local(taps, local, reference, positions),
        first_divergence=first_divergence(differences),
    )


# --- what can be compared ---------------------------------------------------------------------------------------------


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


def _extent(run: Run, reference: Run) -> Extent:
    """The positions that both were fed alike, and those of them that chose: the reference's steps, if it has any."""
    positions = common_positions(run, reference)
    stepped = reference if reference.steps else run
    start = len(stepped.prompt_tokens) - 1
    places = tuple((step, start + step) for step in range(stepped.steps) if start + step < positions)
    notes = _left_out(run, reference, positions)
    return Extent(positions, places, notes, not notes, model=run.model, model_digest=run.model_digest)


def _left_out(run: Run, reference: Run, positions: int) -> tuple[str, ...]:
    """A note on the positions of either run that are not compared."""
    shortest, longest = sorted((len(run.fed), len(reference.fed)))
    if positions < shortest:
        return (
            f"The runs are fed different tokens from position {positions} on (free running), so {positions} of"
            f" {longest} positions are compared; with the reference as teacher, all would be.",
        )
    if positions < longest:
        return (f"The run has {len(run.fed)} positions, the reference {len(reference.fed)}: {positions} are compared.",)
    return ()


@dataclass(frozen=True)
class _Notes:
    """Why taps that both sides keep are not compared: their shapes, or what they mean."""

    shapes: tuple[str, ...]
    meanings: tuple[str, ...]


def _comparable(run: Side, reference: Side, names: Sequence[str] | None) -> tuple[list[Tap], _Notes]:
    """The taps that hold the same quantity in the same shape, in the order of the forward pass."""
    wanted = chosen([name for name in run.arrays if name in reference.arrays], names)
    if not wanted:
        raise RunError(
            f"{run.name} and {reference.name} have no tap in common. The first keeps {_few(run.arrays)}; the second"
            f" {_few(reference.arrays)}."
        )
    others = meanings_of(run, reference)
    same = [tap for tap in wanted if tap.place not in others]
    fitting = [tap for tap in same if _shape_of(run, tap) == _shape_of(reference, tap)]
    shapes = [tap for tap in same if _shape_of(run, tap) != _shape_of(reference, tap)]
    moved = {tap.place: others[tap.place] for tap in wanted if tap.place in others}
    return fitting, _Notes(tuple(_about_shapes(tap, run, reference) for tap in shapes), _about_meanings(moved))


def meanings_of(run: Side, reference: Side) -> dict[str, str]:
    """`SITE.STAGE` of the taps that are another quantity in the other recipe -> the option that makes them so."""
    if run.recipe is None or reference.recipe is None:
        return {}
    return other_meanings(run.recipe, reference.recipe)


def _few(arrays: Iterable[str]) -> str:
    names = list(arrays)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _about_shapes(tap: Tap, run: Side, reference: Side) -> str:
    shapes = f"{run.arrays[tap.name].shape} and {reference.arrays[tap.name].shape}"
    return f"{tap.name} is not compared: its shapes are {shapes}."


def _about_meanings(moved: dict[str, str]) -> tuple[str, ...]:
    if not moved:
        return ()
    options = ", ".join(dict.fromkeys(moved.values()))
    return (f"Not compared, as they are other quantities in the two recipes ({options}): {', '.join(moved)}.",)


def _shape_of(side: Side, tap: Tap) -> tuple[int, ...]:
    """A tap's shape without the axes that grow with the positions."""
    shape = tuple(side.arrays[tap.name].shape[1:])
    return shape[:-1] if side.is_over_keys(tap) else shape


# --- how they differ --------------------------------------------------------------------------------------------------


def tap_difference(tap: Tap, run: Side, reference: Side, positions: int) -> Difference:
    """How a tap of the two sides differs at the first positions; what lies after a query counts as the same.

    The memory of taps that lie in files is given back: of all of them together it is as much as the files are large.
    """
    one, other = run.values(tap, positions), reference.values(tap, positions)
    found = difference(tap.name, one, other, run.format_of_tap(tap.name), reference.format_of_tap(tap.name))
    _let_go(tap.name, run, reference)
    return found


def _let_go(name: str, *sides: Side) -> None:
    for side in sides:
        give_back(side.arrays[name])


def _of_logits(
    run: Side, reference: Side, positions: int
) -> tuple[Difference | None, Difference | None, tuple[float, ...] | None]:
    """The differences over all positions and at the last, and the divergence of each; None without logits."""
    if not (run.has_logits and reference.has_logits):
        return None, None, None
    rows = [side.arrays[LOGITS][:positions] for side in (run, reference)]
    if rows[0].shape != rows[1].shape:
        return None, None, None
    formats = run.format_of_tap(LOGITS), reference.format_of_tap(LOGITS)
    last = difference(LOGITS, rows[0][-1:], rows[1][-1:], *formats)
    divergences = tuple(float(x) for x in kl(*rows))
    whole = difference(LOGITS, rows[0], rows[1], *formats)
    _let_go(LOGITS, run, reference)
    return whole, last, divergences


def _local(taps: Sequence[Tap], local: Side, reference: Side, positions: int) -> tuple[Difference, ...]:
    """What each site gave of the reference's values, against what the reference's own site gave."""
    given = [tap for tap in taps if tap.stage == "out" and tap.name in local.arrays]
    return tuple(tap_difference(tap, local, reference, positions) for tap in given)


def _verdicts(run: Side, reference: Side, extent: Extent) -> tuple[Verdict, ...]:
    return tuple(verdict_at(step, position, run, reference) for step, position in extent.places)


def verdict_at(step: int, position: int, run: Side, reference: Side) -> Verdict:
    """The verdict on the row of one position of both sides, with the texts of its tokens."""
    rows: tuple[Array, Array] = (run.arrays[LOGITS][position], reference.arrays[LOGITS][position])
    found = verdict(step, position, *rows, run.format_of_tap(LOGITS), (run.ties, reference.ties))
    return _with_pieces(found, run, reference)


def _with_pieces(found: Verdict, run: Side, reference: Side) -> Verdict:
    def told(choice: Choice) -> Choice:
        if choice.token is None:
            return choice
        known = (r.pieces[choice.token] for r in (run, reference) if choice.token in r.pieces)
        return replace(choice, piece=next(known, f"<{choice.token}>"))

    return replace(
        found,
        reference=told(found.reference),
        run=told(found.run),
        tied=tuple(told(one) for one in found.tied),
        reference_tied=tuple(told(one) for one in found.reference_tied),
    )
