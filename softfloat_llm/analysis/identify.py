"""identify(operation, arrays): which formats, accumulators, orders and forms give the output of one operation.

A search over a declared grid (`grids`), each candidate evaluated by this package's own functions (`operations`). A
candidate fits where every element that was checked has the same bits. Start reading at `identify`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from softfloat_llm.analysis import identify_text as told
from softfloat_llm.analysis.answers import Answer, Table
from softfloat_llm.analysis.distances import differs
from softfloat_llm.analysis.grids import Candidate, candidates
from softfloat_llm.analysis.identify_facts import SUMS, facts_of, notes_on, real
from softfloat_llm.analysis.numbers import jsonable
from softfloat_llm.errors import ArrayError, FormatError, WordError, nearest
from softfloat_llm.io.progress import Progress
from softfloat_llm.numerics.carriers import widen
from softfloat_llm.numerics.formats import Array, format_of
from softfloat_llm.numerics.orders import Order
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.operations import OUT, TABLE, Operation, Shape, check_arrays, evaluate, operation_of
from softfloat_llm.recipe import recipe_names, recipe_of

SCHEMA = "softfloat-llm/identify/1"
SAMPLE, MOST = 1 << 15, 1 << 22  # products (or steps) of a candidate: at first, and at last
ALL_FITS = 1 << 26  # products of all candidates that are left, together
NEAREST = 5


@dataclass(frozen=True)
class Miss:
    """The first element at which a candidate gives another value than the output that was given."""

    index: tuple[int, ...]
    given: float
    candidate: float

    def to_dict(self) -> dict[str, Any]:
        return {"index": list(self.index), "given": jsonable(self.given), "candidate": jsonable(self.candidate)}


@dataclass(frozen=True)
class Fit:
    """How well a candidate fits: `equal` of `checked` elements have the same bits. `recipes` say just these words."""

    candidate: Candidate
    equal: int
    checked: int
    miss: Miss | None
    recipes: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        return self.equal == self.checked

    def to_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {"words": self.candidate.to_dict(), "equal": self.equal, "checked": self.checked}
        return body | {"miss": self.miss and self.miss.to_dict(), "recipes": list(self.recipes)}


@dataclass(frozen=True)
class Identification(Answer):
    """What reproduces an output: the candidates that fit everywhere, the plainest first; else the nearest.

    `shapes`: of the arrays by name. `tried`: how many candidates there were. `checked` of `elements` of the output were
    compared for those that fit.
    """

    operation: str
    shapes: Mapping[str, tuple[int, ...]]
    elements: int
    checked: int
    tried: int
    fits: tuple[Fit, ...]
    nearest: tuple[Fit, ...]
    words: Mapping[str, tuple[str, ...]]
    """key -> the words that were tried for it."""
    notes: tuple[str, ...] = ()

    @cached_property
    def settled(self) -> dict[str, str]:
        """key -> the one word that all candidates that fit have, of several that were tried."""
        left = {key: self._left(key) for key in self.words} if self.fits else {}
        return {key: words[0] for key, words in left.items() if len(words) == 1 < len(self.words[key])}

    @cached_property
    def open(self) -> dict[str, tuple[str, ...]]:
        """key -> the words that the data do not tell apart."""
        left = {key: self._left(key) for key in self.words}
        return {key: tuple(words) for key, words in left.items() if len(words) > 1}

    def _left(self, key: str) -> list[str]:
        return list(dict.fromkeys(fit.candidate.word(key) for fit in self.fits))

    def heading(self) -> list[tuple[str, str]]:
        return told.heading(self)

    def sentences(self) -> list[str]:
        return told.sentences(self)

    def tables(self, *, verbose: bool = False) -> list[Table]:
        return told.tables(self, verbose=verbose)

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON has it."""
        return {
            "schema": SCHEMA,
            "what": "operation",
            "operation": self.operation,
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "elements": self.elements,
            "checked": self.checked,
            "tried": self.tried,
            "fits": [fit.to_dict() for fit in self.fits],
            "nearest": [fit.to_dict() for fit in self.nearest],
            "settled": self.settled,
            "open": {key: list(words) for key, words in self.open.items()},
            "notes": list(self.notes),
        }


def identify(
    operation: str,
    arrays: Mapping[str, Array],
    *,
    known: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    grid: Iterable[Candidate] | None = None,
) -> Identification:
    """Which candidates of the operation's grid give its output bit for bit.

    arrays: the operation's inputs by name (`operations.OPERATIONS` says which) and `out`. All candidates are tried on a
    sample of rows and columns, those that are left on ever more of them. `known`: keys whose word is known
    (`{"storage": "e4m3fn"}`); only candidates that say so are tried. `grid`: other candidates than the declared.
    **Raises** ArrayError where arrays are missing or do not fit each other, WordError for what `known` cannot mean.
    """
    op = operation_of(operation)
    given = {name: real(name, array) for name, array in arrays.items()}
    if OUT not in given:
        raise ArrayError(f"{operation} is identified by its output: give an array 'out', beside {', '.join(op.takes)}.")
    if given[OUT].size == 1 and (shape := check_arrays(op, {n: a for n, a in given.items() if n != OUT})).out == ():
        given[OUT] = given[OUT].reshape(())
    shape = check_arrays(op, given)
    if given[OUT].size == 0:
        raise ArrayError("The output is empty: there is nothing to hold a candidate against.")
    facts = facts_of(op, given, shape, known)
    tried = list(candidates(op, facts) if grid is None else grid)
    tried = _of_known(tried, known or {})
    search = Search(op, given, shape, progress)
    return search.result(tried, notes_on(op, given, facts))


def _of_known(tried: Sequence[Candidate], known: Mapping[str, str]) -> list[Candidate]:
    """The candidates that say what is known. Raises WordError for a key or word that no candidate has."""
    left = list(tried)
    for key, word in known.items():
        words = list(dict.fromkeys(candidate.word(key) for candidate in left))
        spelled = str(format_of(word)) if key in ("storage", "output") else word
        left = [candidate for candidate in left if candidate.word(key) == spelled]
        if not left:
            raise WordError(f"No candidate has {key}={word}.{nearest(word, words)} There are: {', '.join(words[:12])}.")
    return left


# --- the search -------------------------------------------------------------------------------------------------------


class Search:
    """Candidates against one output, on ever more of its elements."""

    def __init__(
        self, operation: Operation, arrays: Mapping[str, Array], shape: Shape, progress: Progress | None
    ) -> None:
        self.operation, self.arrays, self.shape, self.progress = operation, arrays, shape, progress

    def result(self, tried: Sequence[Candidate], notes: tuple[str, ...]) -> Identification:
        work = SAMPLE
        found = self.fits(tried, work)
        left = [fit.candidate for fit in found if fit.is_whole]
        while left and work < min(MOST, self.shape.work) and 8 * work * len(left) <= ALL_FITS:
            work *= 8
            again = self.fits(left, work)
            left = [fit.candidate for fit in again if fit.is_whole]
            found = again if left else found
        fitting = sorted((fit for fit in found if fit.is_whole), key=lambda fit: fit.candidate.oddness) if left else ()
        whole = tuple(with_recipes(fit, self.operation) for fit in fitting)
        ranked = sorted((fit for fit in found if not fit.is_whole), key=lambda fit: -fit.equal)
        nearest = () if whole else self.fits([fit.candidate for fit in ranked[:NEAREST]], 8 * SAMPLE)
        return Identification(
            operation=self.operation.name,
            shapes={name: tuple(array.shape) for name, array in self.arrays.items()},
            elements=int(self.arrays[OUT].size),
            checked=whole[0].checked if whole else (nearest[0].checked if nearest else 0),
            tried=len(tried),
            fits=whole,
            nearest=tuple(sorted((with_recipes(f, self.operation) for f in nearest), key=lambda fit: -fit.equal)),
            words=_tried_words(tried),
            notes=notes,
        )

    def fits(self, tried: Sequence[Candidate], work: int) -> tuple[Fit, ...]:
        """Each candidate on a sample of about so many products."""
        rows, columns = _chosen(self.shape, work)
        sample = self.operation.cut(self.arrays, rows, columns)
        out = self.arrays[OUT]
        numbered = {**self.arrays, OUT: np.arange(out.size).reshape(out.shape)}
        places = self.operation.cut(numbered, rows, columns)[OUT]
        values = Values(self.operation, sample, self.shape.terms)
        found = []
        for done, candidate in enumerate(tried):
            if self.progress is not None:
                self.progress(f"identify {self.operation.name}", done, len(tried))
            found.append(_fit(candidate, values(candidate), sample[OUT], places, out.shape))
        return tuple(found)


def _chosen(shape: Shape, work: int) -> tuple[Array, Array]:
    """Rows and columns, evenly over all: about as many of each as the work allows, at least one."""
    elements = max(1, work // max(1, shape.terms))
    columns = min(shape.columns, max(1, int(elements**0.5))) if shape.columns > 1 else 1
    rows = min(shape.rows, max(1, elements // columns))
    columns = min(shape.columns, max(1, elements // rows))
    return _evenly(shape.rows, rows), _evenly(shape.columns, columns)


def _evenly(count: int, wanted: int) -> Array:
    return np.unique(np.linspace(0, count - 1, wanted).round().astype(np.int64))


class Values:
    """What candidates give on one sample. What differs in the last rounding only, or in the name of an order, is made
    once."""

    def __init__(self, operation: Operation, sample: Mapping[str, Array], terms: int) -> None:
        self.operation, self.terms = operation, terms
        self.inputs = {name: array for name, array in sample.items() if name != OUT}
        self._made: dict[Any, Array | None] = {}

    def __call__(self, candidate: Candidate) -> Array | None:
        """The output; None where the candidate cannot start where the sums start."""
        words = dict(candidate.words)
        ending = self._ending(words)
        key = (tuple((k, w) for k, w in words.items() if k != "order"), self._tree(words.get("order")))
        if key not in self._made:
            self._made[key] = self._evaluated(words)
        made = self._made[key]
        return made if made is None or ending is None else np.asarray(round_to(made, ending[0], ending[1]))

    def _evaluated(self, words: dict[str, str]) -> Array | None:
        try:
            return evaluate(self.operation.name, self.inputs, words)
        except FormatError:
            return None

    def _ending(self, words: dict[str, str]) -> tuple[str, str] | None:
        """Takes the last rounding out of the words of a sum in a format, so that it gives its accumulator."""
        acc = words.get("acc", "f32").partition("+")[0]
        is_kept = words.get("subnormals", "keep") == "keep" and acc not in ("exact", "f64")
        if self.operation.name not in SUMS or not is_kept:
            return None
        output, mode = words["output"], words.pop("output.rounding", words.get("rounding", "ties_to_even"))
        words["output"] = acc
        return output, mode

    def _tree(self, order: str | None) -> Any:
        """What tells orders apart: the additions that they mean for so many terms."""
        if order is None or Order(order).adder is not None:
            return order
        return Order(order).tree(self.terms)


def _fit(candidate: Candidate, got: Array | None, given: Array, places: Array, shape: tuple[int, ...]) -> Fit:
    """How many elements are the same. `places`: where each of them lies in the whole output, of this shape."""
    other = widen(given).ravel()
    if got is None:
        return Fit(candidate, 0, len(other), None)
    one = widen(got).ravel()
    missed = np.flatnonzero(differs(one, other))
    miss = None
    if len(missed):
        first = int(missed[0])
        index = tuple(int(i) for i in np.unravel_index(places.ravel()[first], shape))
        miss = Miss(index, float(other[first]), float(one[first]))
    return Fit(candidate, len(one) - len(missed), len(one), miss)


def _tried_words(tried: Sequence[Candidate]) -> dict[str, tuple[str, ...]]:
    keys = dict.fromkeys(key for candidate in tried for key, _ in candidate.words)
    return {key: tuple(dict.fromkeys(candidate.word(key) for candidate in tried)) for key in keys}


def with_recipes(fit: Fit, operation: Operation) -> Fit:
    """The fit with the names of the shipped recipes that say just these words at the operation's site."""
    if operation.site is None:
        return fit
    words = dict(fit.candidate.words)
    own = {key: word for key, word in words.items() if key != "eps" and not key.startswith(TABLE)}
    names = [name for name, site in _recipes_at(operation.site).items() if own.items() <= site.items()]
    if table := {key.removeprefix(TABLE): word for key, word in words.items() if key.startswith(TABLE)}:
        names = [name for name in names if table.items() <= _recipes_at("rope.table")[name].items()]
    return replace(fit, recipes=tuple(names))


@cache
def _recipes_at(site: str) -> dict[str, dict[str, str]]:
    """What every shipped recipe says at a site."""
    return {name: recipe_of(name).at(site).words() for name in recipe_names()}
