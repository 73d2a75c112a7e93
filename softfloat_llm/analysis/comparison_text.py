"""What a comparison says, in words and tables, from its parts: verdicts, divergences, differences of taps.

It knows the parts, not the comparison that they make up. The order in which they are told is that of
`comparison.Comparison.sentences`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from softfloat_llm.analysis.answers import Table, counted
from softfloat_llm.analysis.distances import Difference
from softfloat_llm.analysis.numbers import about, binade, code, decimal, distance
from softfloat_llm.analysis.partings import Divergence
from softfloat_llm.analysis.site_errors import SiteError, most_local
from softfloat_llm.analysis.verdicts import Choice, Verdict
from softfloat_llm.analysis.wording import token_words
from softfloat_llm.numerics.formats import Format

SHOWN_STEPS, SHOWN_SITES, SHOWN_TIED, LISTED = 6, 6, 4, 6

# --- tokens -----------------------------------------------------------------------------------------------------------


def about_tokens(steps: Sequence[Verdict], what: str = "step") -> list[str]:
    """Which tokens changed, the margin and the error of the step that tells most, and every tie there."""
    if not steps:
        return []
    flips = [step for step in steps if step.is_flip]
    told = flips[0] if flips else min(steps, key=_margin)
    return [_head(steps, flips, told, what), _margin_and_error(told), *_ties(told)]


def _margin(step: Verdict) -> float:
    return math.inf if math.isnan(step.margin) else step.margin_ulp


def _head(steps: Sequence[Verdict], flips: Sequence[Verdict], told: Verdict, what: str) -> str:
    names = [token_words(choice.piece, choice.token) for choice in (told.reference, told.run)]
    both = f"{names[0]} in the reference, {names[1]} in the run"
    if len(steps) == 1:
        return f"The token flips: {both}." if flips else f"The token stays {names[1]}."
    if not flips:
        return f"0 of {len(steps)} {what}s flip; the smallest margin is at {what} {told.step}, {names[1]}."
    if len(flips) == 1:
        return f"1 of {len(steps)} {what}s flips: {what} {told.step}, {both}."
    places = ", ".join(str(flip.step) for flip in flips[:LISTED]) + (", ..." if len(flips) > LISTED else "")
    return f"{len(flips)} of {len(steps)} {what}s flip: {places}. The first: {both}."


def _margin_and_error(step: Verdict) -> str:
    """Both on the grid of the run's format at the reference's largest logit, and what they mean for each other."""
    if not math.isfinite(step.margin):
        return f"The reference's lead there is {about(step.margin)}."
    grid = f"{step.format} ulp in {binade(step.reference.logit, step.format)}"
    ulps = f"{about(step.margin_ulp)} and {about(step.error_ulp)} {grid}"
    return f"The reference leads by {about(step.margin)}; errors reach {about(step.error)} ({ulps}): {_enough(step)}."


def _enough(step: Verdict) -> str:
    """Two logits that are each off by at most e change places only where they lie less than 2e apart."""
    if step.is_flip:
        return "enough to turn it" if step.error else "the two take another one of equals"
    return "they could have turned it" if 2 * step.error >= step.margin else "too little to turn it"


def _ties(step: Verdict) -> list[str]:
    """One sentence for each side in which several ids share the largest logit."""
    sides = [("run", step.run, step.tied), ("reference", step.reference, step.reference_tied)]
    return [_tie(side, taken, tied) for side, taken, tied in sides if tied]


def _tie(side: str, taken: Choice, tied: Sequence[Choice]) -> str:
    names = ", ".join(f"{one.token} {token_words(one.piece, one.token)}" for one in tied[:SHOWN_TIED])
    more = f" and {taken.ties - SHOWN_TIED} more" if taken.ties > SHOWN_TIED else ""
    return (
        f"In the {side} the ids {names}{more} share the logit {about(taken.logit, 17)}: the {taken.rule} id is taken."
    )


def about_distributions(kl: Sequence[float]) -> str:
    """The divergences (T,) of the rows: the last, and the largest with its position."""
    known = [x for x in kl if not math.isnan(x)]
    if not known:
        return "KL divergence from the reference: none, as no row of logits is finite." if kl else ""
    last = "" if math.isnan(kl[-1]) else f"{about(kl[-1])} nats at the last position"
    if len(kl) == 1:
        return f"KL divergence from the reference: {last}."
    top = max(known)
    most = f"at most {about(top)}{'' if last else ' nats'} (position {list(kl).index(top)})"
    return f"KL divergence from the reference: {', '.join(part for part in (last, most) if part)}."


# --- distances --------------------------------------------------------------------------------------------------------


def about_logits(logits: Difference, last: Difference, *, has_steps: bool) -> str:
    """How far the logits lie apart, over all positions; and at the last, where no step has told that."""
    positions = counted(logits.shape[0], "position")
    if has_steps:
        return f"Over {positions}, {_error(logits)}."
    return f"At the last position, {_error(last)}; over {positions}, {_error(logits)}."


def _error(logits: Difference) -> str:
    if logits.count == 0 or logits.max_abs_at is None:
        return f"the logits are {logits}" if logits.is_identical else f"the logits have the {logits}"
    return f"the largest error of a logit is {distance(logits.max_abs, logits.max_abs_at.reference, logits.format)}"


def about_sites(sites: Sequence[SiteError]) -> str:
    """The site that adds the largest error itself, beside what the run has there."""
    found = most_local(sites)
    if found is None or found.local is None:
        return "Fed the reference's values, no site differs."
    own = f"by {about(found.local_ulp)} {found.format} ulp of its row's largest value"
    inherited = f"in the run {found.inherited.tap} is off by {about(found.inherited_ulp)}"
    return f"Fed the reference's values, {found.local.tap} errs most, {own}; {inherited}."


def about_parting(part: Divergence | None, beyond: Difference | None, grid: Format, taps: int) -> list[str]:
    """Where the two first hold different values, and where one is first off by over an ulp of `grid` in its row."""
    if part is None:
        return [f"All {taps} taps are identical."]
    values = f"{decimal(part.at.run, part.format)} against {decimal(part.at.reference, part.reference_format)}"
    why = f", rounded to {part.format}" if part.is_rounding else ""
    lines = [f"First different value: {part.tap.name}, {_place(part.at.index)}: {values}{why}."]
    if beyond is not None and beyond.tap != part.tap.name and beyond.max_row_ulp_at is not None:
        apart = distance(beyond.row_apart, beyond.row_top, grid)
        where = f"{beyond.tap}, {_place(beyond.max_row_ulp_at.index[:1])}"
        lines.append(f"First off by over an ulp of its row's largest value: {where}, by {apart}.")
    return lines


def _place(index: tuple[int, ...]) -> str:
    if not index:
        return "its only element"
    return f"position {index[0]}" + (f", element {list(index[1:])}" if index[1:] else "")


# --- tables -----------------------------------------------------------------------------------------------------------


def shown_steps(steps: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """All steps where they are few; else the flips, filled up with the smallest margins, in order."""
    ranked = sorted(steps, key=lambda step: (not step.is_flip, _margin(step)))
    return tuple(sorted(ranked[:SHOWN_STEPS], key=lambda step: step.step))


def steps_table(
    steps: Sequence[Verdict], shown: Sequence[Verdict], fmt: Format, reference_fmt: Format, what: str = "step"
) -> Table:
    """The verdicts on some of the steps, and in the note how many others there are."""
    unit = f"{fmt} ulp"
    header = (what, "reference", "run", "margin", f"in {unit}", f"error in {unit}", "verdict")
    rows = tuple(
        (
            str(step.step),
            _choice(step.reference, reference_fmt),
            _choice(step.run, fmt),
            about(step.margin),
            about(step.margin_ulp),
            about(step.error_ulp),
            ("x " if step.is_flip else "") + step.words,
        )
        for step in shown
    )
    hidden, flips = len(steps) - len(shown), sum(s.is_flip for s in steps) - sum(s.is_flip for s in shown)
    return Table(header, rows, right=(0, 3, 4, 5), note=_hidden(hidden, flips, what))


def _choice(choice: Choice, fmt: Format) -> str:
    return f"{token_words(choice.piece, choice.token)} {decimal(choice.logit, fmt)}"


def _hidden(steps: int, flips: int, what: str) -> str:
    """What a shortened table leaves out."""
    if steps == 0:
        return ""
    told = f"{flips} of them flip{'s' if flips == 1 else ''}" if flips else "none of them flips"
    return f"({steps} further {what}s are not shown: {told})"


def codes_table(steps: Sequence[Verdict], fmt: Format, reference_fmt: Format, what: str = "step") -> Table:
    """Each step's two chosen logits in hex and code."""
    rows = tuple((str(s.step), code(s.reference.logit, reference_fmt), code(s.run.logit, fmt)) for s in steps)
    return Table((what, "reference's logit", "run's logit"), rows, right=(0,))


_ROW = "at the largest value of the same position: near a 0 an error of any size is many ulps"


def sites_table(sites: Sequence[SiteError], *, verbose: bool = False) -> Table:
    """A row for each site, its worst layer and position; those that add most (or differ most) where they are many."""
    is_local = any(site.local is not None for site in sites)
    chosen = list(sites) if verbose else _leading(sites, is_local=is_local)
    unit = f"in {sites[0].format} ulp" if sites else ""
    header: tuple[str, ...] = ("site", "differing", "error", unit, "at")
    rows: list[tuple[str, ...]]
    if is_local:
        header = ("site", "error in the run", unit, "at", "made at the site", unit, "at")
        rows = [(s.site, *_worst(s.inherited, s.inherited_ulp), *_local(s)) for s in chosen]
    else:
        rows = [(s.site, f"{s.differing:,} of {s.values:,}", *_worst(s.inherited, s.inherited_ulp)) for s in chosen]
    hidden = len(sites) - len(chosen)
    left = f" ({hidden} further site{' errs' if hidden == 1 else 's err'} less: -v)" if hidden else ""
    right = (1, 2, 4, 5) if is_local else (1, 2, 3)
    return Table(header, tuple(rows), right=right, note=f"Ulps are {_ROW}.{left}")


def _leading(sites: Sequence[SiteError], *, is_local: bool) -> list[SiteError]:
    """The sites with the largest errors, in the order of the forward pass."""
    chosen = sorted(sites, key=lambda site: -(site.local_ulp if is_local else site.inherited_ulp))[:SHOWN_SITES]
    return [site for site in sites if site in chosen]


def _worst(found: Difference, row_ulp: float) -> tuple[str, str, str]:
    at = found.max_row_ulp_at
    if at is None:
        return "0", "0", ""
    layer = found.tap.split(".")[1] if found.tap.startswith("layers.") else ""
    place = [*([f"layer {layer}"] if layer else []), *([f"position {at.index[0]}"] if at.index else [])]
    return about(found.row_apart), about(row_ulp), ", ".join(place)


def _local(site: SiteError) -> tuple[str, str, str]:
    return ("", "", "not fed") if site.local is None else _worst(site.local, site.local_ulp)


TAP_HEADER = ("tap", "format", "differing", "max abs", "max ulp", "row ulp", "steps")
LOCAL_HEADER = ("tap", "format", "differing", "max abs", "row ulp", "local max abs", "local row ulp")
TAP_NOTE = f"""differing: elements whose bits are not the reference's. max abs: the largest |run - reference|.
max ulp: the same in ulps of the format, each at the reference's own value. row ulp: {_ROW}.
steps: values of the format from the run's value to the reference's (rounded to it); 0 where that rounding is all."""
LOCAL_NOTE = f"""differing, max abs: as the run has it. local: what the site makes of the reference's values.
row ulp: {_ROW}."""


def taps_table(taps: Sequence[Difference], local: Sequence[Difference] | None = None) -> Table:
    """Every tap's difference, in forward order. Ulps are of the format in the second column."""
    if local is None:
        return Table(
            TAP_HEADER, tuple(_tap_row(tap) for tap in taps), right=(2, 3, 4, 5, 6), note=TAP_NOTE, folded="taps"
        )
    own = {tap.tap: tap for tap in local}
    rows = tuple((*_tap_row(tap)[:4], about(tap.max_row_ulp), *_own(own.get(tap.tap))) for tap in taps)
    return Table(LOCAL_HEADER, rows, right=(2, 3, 4, 5, 6), note=LOCAL_NOTE, folded="taps")


def _tap_row(tap: Difference) -> tuple[str, ...]:
    formats = str(tap.format) if tap.format == tap.reference_format else f"{tap.format} ({tap.reference_format})"
    steps = "" if tap.max_steps is None else str(tap.max_steps)
    count = f"{tap.count} of {tap.size}"
    return (tap.tap, formats, count, about(tap.max_abs), about(tap.max_ulp), about(tap.max_row_ulp), steps)


def _own(found: Difference | None) -> tuple[str, str]:
    return ("", "") if found is None else (about(found.max_abs), about(found.max_row_ulp))
