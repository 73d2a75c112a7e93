"""Where a forward pass spends its time: a prefill and a decode step, by both backends, one worker (see regions.py)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median

from benchmarks.passes import RECIPES, passes
from benchmarks.regions import REGIONS, Profile
from benchmarks.rows import Row
from benchmarks.settings import Settings
from benchmarks.timing import seconds

TOKENS = 5


def rows(settings: Settings) -> Iterator[Row]:
    """Two recipes; the medians of each region's share."""
    for name in list(RECIPES)[:2]:
        for backend in settings.backends:
            for is_step in (False, True):
                yield _row(name, backend, settings, is_step=is_step)


def _row(name: str, backend: str, settings: Settings, *, is_step: bool) -> Row:
    with passes(settings.model, RECIPES[name], backend) as ours:
        held, profiles, plain = ours.prefill(TOKENS)(), [], []
        work = partial(ours.step, held) if is_step else ours.prefill(TOKENS)
        for _ in range(settings.rounds):
            plain.append(seconds(work))
            profiles.append(Profile().of(work).seconds)
    totals = [sum(profile.values()) for profile in profiles]
    shares = {
        region: median(p[region] / total for p, total in zip(profiles, totals, strict=True)) for region in REGIONS
    }
    what = f"{settings.model}, {'decode step' if is_step else f'{TOKENS} tokens'}, {name}"
    slower = median(total / spent for total, spent in zip(totals, plain, strict=True))
    unit = "of the time in products"
    note = f"watched, it takes {slower:.2f} times as long"
    return Row("profile", what, shares["products"], unit, backend, seconds=median(plain), shares=shares, note=note)
