"""What a pass leaves in a trace: the taps of each site under its name, and where a value first left the finite range.

A site may be made in parts, some rows after the others: `Recorder.in_parts`. What is kept and noted is that of the
whole. Start reading at `Recorder`. Shape letters as in `forward`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from softfloat_llm.llama.cache import KVCache
from softfloat_llm.llama.hidden import is_hidden
from softfloat_llm.llama.query_blocks import Queries
from softfloat_llm.llama.taps import Taps
from softfloat_llm.numerics.extents import is_all_finite
from softfloat_llm.numerics.formats import Array, Format
from softfloat_llm.numerics.precision import Accumulator
from softfloat_llm.recipe import Recipe
from softfloat_llm.site_specs import SiteSpec
from softfloat_llm.trace import Event, Trace

Instead = Callable[[str, int, Array, Format], Array]
"""Called with a tap's name (SITE.sum for a residual sum before it is stored), how many rows earlier passes put into it,
what the site gave, and the format of that; gives what is passed on in its place: values of the same shape, which the
next site rounds to its storage. What is passed to the cache must have its format."""


class Recorder:
    """Keeps the taps of each site under its name, and notes where a value first left the finite range.

    `trace`: one for all, or one of each sequence of the batch, which then gets what it would get of a pass of its own.
    `length` counts the positions of this pass.
    """

    layer: int | None = None

    def __init__(
        self,
        recipe: Recipe,
        trace: Trace | Sequence[Trace],
        cache: KVCache,
        length: int,
        instead: Instead | None = None,
    ) -> None:
        self.recipe, self.batch, self.instead = recipe, cache.batch, instead
        self._is_shared = isinstance(trace, Trace)
        self._traces = (trace,) if isinstance(trace, Trace) else tuple(trace)
        assert self._is_shared or len(self._traces) == cache.batch
        self._keeps = any(each.patterns for each in self._traces)
        self._length, self._before = length, cache.length * cache.batch
        self._first_of_row = np.maximum(cache.length - cache.padding, 0).tolist()
        self._skipped = np.clip(cache.padding - cache.length, 0, length).tolist()  # rows of padding in this pass

    def __call__(self, site: str, taps: Taps, row: int | None = None) -> Array:
        """Keep and note what a site made, of all rows, or of a sequence; gives what the sites after it take."""
        if self.instead is None and self.is_silent(site, taps):
            return taps.out
        parts = self.in_parts(row)
        parts.at_row(0, is_whole=True)
        given = parts(site, taps)
        parts.settle()
        return given

    def in_parts(self, row: int | None = None) -> Parts:
        """The same for what is made some rows after the others. `row`: those of one sequence, without its padding."""
        return Parts(self, row)

    def is_silent(self, site: str, taps: Taps) -> bool:
        """True where there is nothing to keep, count or note: no tap is asked for, and all that a site made is finite.

        `taps` are of all rows of the site: of a part, what it took has to be seen too, as it may unsay what another
        part made.
        """
        if self._keeps or taps.lost is not None or site == "embed":
            return False
        return taps.is_finite or (is_all_finite(taps.out) and (taps.acc is None or is_all_finite(taps.acc)))

    def passed_on(self, site: str, given: Array, fmt: Format, row: int | None = None, *, stage: str = "out") -> Array:
        """What the sites after this one take: what it gave, or what stands in its place."""
        if self.instead is None:
            return given
        first = self._before if row is None else self._first_of_row[row]
        return self.instead(f"{self.name(site, row)}.{stage}", first, given, fmt)

    def dtype_of(self, fmt: Format) -> np.dtype[Any]:
        """What holds the values of a format, and those that may stand in their place."""
        return fmt.dtype if self.instead is None else np.dtype(np.float64)

    def name(self, site: str, row: int | None) -> str:
        """What a site's taps are called: all rows', or those of one sequence."""
        prefix = site if self.layer is None else f"layers.{self.layer}.{site}"
        return prefix if row is None or self.batch == 1 or not self._is_shared else f"rows.{row}.{prefix}"

    def count(self, site: str, taps: Taps) -> None:
        """Add to what the scaled storage of a site lost, in all rows together: of several traces none can say it."""
        if len(self._traces) == 1:
            self._traces[0].count(site, taps.lost)

    def shares(self, first: int, count: int, row: int | None) -> Iterator[_Share]:
        """Which trace gets which of these rows, that are `count` from the row `first` of this pass on."""
        if self._is_shared or row is not None:
            trace = self._traces[0 if self._is_shared or row is None else row]
            yield _Share(trace, slice(0, count), first + (self._before if row is None else self._first_of_row[row]))
        else:
            for b, trace in enumerate(self._traces):
                start = b * self._length + self._skipped[b]
                low, high = max(start, first), min((b + 1) * self._length, first + count)
                if low < high:
                    yield _Share(trace, slice(low - first, high - first), self._first_of_row[b] + low - start)


class _Share(NamedTuple):
    """Some of the rows at hand, the trace that they are for, and which row of the tap there the first of them is."""

    trace: Trace
    rows: slice
    first: int


class _Part(NamedTuple):
    """Rows that are made at once, from `first` on; `is_whole`: all there are."""

    first: int
    queries: Queries | None = None
    is_whole: bool = False


class Parts:
    """A recorder of sites that are made in parts. Say `at_row` before each part, and `settle` after the last."""

    def __init__(self, recorder: Recorder, row: int | None) -> None:
        self._recorder, self._row = recorder, row
        self._part = _Part(0)
        self._watches: dict[tuple[int, str], _Watch] = {}

    def at_row(self, first: int, queries: Queries | None = None, *, is_whole: bool = False) -> None:
        """The next taps are of the rows from this one on; `queries`: which ones, where the last axis may be keys.

        `is_whole`: these are all rows.
        """
        self._part = _Part(first, queries, is_whole)

    def __call__(self, site: str, taps: Taps) -> Array:
        """Keep and note what a site made of these rows; gives what the sites after it take."""
        self.keep(site, taps)
        return self.passed_on(site, taps)

    def passed_on(self, site: str, taps: Taps) -> Array:
        """What the sites after this one take of these rows."""
        recorder = self._recorder
        if recorder.instead is None:
            return taps.out
        return recorder.passed_on(site, taps.out, _given_format(recorder.recipe.at(site)), self._row)

    def keep(self, site: str, taps: Taps) -> None:
        """Keep and note what a site made of these rows."""
        if self._part.is_whole and self._recorder.is_silent(site, taps):
            return
        recorder, row = self._recorder, self._row
        name, spec = recorder.name(site, row), recorder.recipe.at(site)
        recorder.count(site, taps)
        stages = _stages(taps, spec)
        for share in recorder.shares(self._part.first, len(taps.out), row):
            for stage in stages:
                share.trace.keep(f"{name}.{stage.name}", stage.values[share.rows], stage.format, fill=stage.fill)
            key = id(share.trace), name
            if key not in self._watches:
                self._watches[key] = _Watch(share.trace, name, site)
            self._watches[key].look(stages, share, taps, self._part)

    def settle(self) -> None:
        """Note the events, now that every part has been seen."""
        for watch in self._watches.values():
            watch.note()


class _Watch:
    """One event a site, where its sum or its output is not finite although what it took is.

    What an embedding takes is a weight, so it is looked at too.
    """

    def __init__(self, trace: Trace, name: str, site: str) -> None:
        self._trace, self._name, self._site = trace, name, site
        self._is_entered_finite = True
        self._found: dict[str, Event] = {}

    def look(self, stages: Sequence[_Stage], share: _Share, taps: Taps, part: _Part) -> None:
        """Some further rows. What they took is looked at where something was found, or others may follow."""
        entered, *made = stages
        if not self._is_entered_finite:
            return
        if self._site == "embed":
            made = [entered, *made]
        unseen = [stage for stage in made if stage.name not in self._found]
        places = [(stage, _first_nonfinite(stage, share.rows, part.queries)) for stage in unseen]
        found = [(stage, place) for stage, place in places if place is not None]
        if self._site != "embed" and (found or not part.is_whole):
            self._is_entered_finite = _first_nonfinite(entered, share.rows, part.queries) is None
        if self._is_entered_finite:
            self._found |= {stage.name: self._event(stage, place, share, taps) for stage, place in found}

    def _event(self, stage: _Stage, place: tuple[int, ...], share: _Share, taps: Taps) -> Event:
        terms = taps.terms(place) if stage.name == "acc" and taps.terms is not None else (None, None)
        index = (share.first + place[0] - share.rows.start, *place[1:])
        return Event(f"{self._name}.{stage.name}", index, float(stage.values[place]), str(stage.spelled), *terms)

    def note(self) -> None:
        """The first stage that has something, if what the site took has nothing."""
        first = next((self._found[name] for name in ("in", "acc", "out") if name in self._found), None)
        if first is not None and self._is_entered_finite:
            self._trace.note(first)


class _Stage(NamedTuple):
    """One tap of a site, and how the site's recipe spells its format."""

    name: str
    values: Array
    format: Format
    fill: float | None
    spelled: Format | Accumulator


def _stages(taps: Taps, spec: SiteSpec) -> list[_Stage]:
    at, (enter_fill, acc_fill, out_fill) = spec.precision, taps.fills
    entered, given = taps.enter_format or spec.storage, _given_format(spec)
    stages = [_Stage("in", taps.enter, entered, enter_fill, entered)]
    if taps.acc is not None:
        fmt = taps.acc_format or at.acc.format or spec.output
        stages.append(_Stage("acc", taps.acc, fmt, acc_fill, at.acc))
    return [*stages, _Stage("out", taps.out, given, out_fill, given)]


def _given_format(spec: SiteSpec) -> Format:
    return spec.storage if spec.site.startswith("kv.") else spec.output


def _first_nonfinite(stage: _Stage, rows: slice, queries: Queries | None) -> tuple[int, ...] | None:
    """Where in the stage a row of these first holds what is not finite; the keys that a query does not see apart."""
    values = stage.values[rows]
    if is_all_finite(values):
        return None
    bad = ~np.isfinite(values)
    if stage.fill is not None:  # a last axis of keys
        bad &= ~is_hidden(len(values), values.shape[-1], queries)
    if not bad.any():
        return None
    first, *rest = np.argwhere(bad)[0]
    return int(first) + rows.start, *(int(i) for i in rest)
