"""Each site by itself: a pass in which every site gets what the reference had there, not what the run has made so far.

What a site then gives differs from what the reference's site gave by the error of this site alone (its local error);
the errors of all sites before it are not in it. Start reading at `local_run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from softfloat_llm.errors import RunError
from softfloat_llm.io.checkpoint import Model
from softfloat_llm.io.progress import Progress
from softfloat_llm.llama.cache import KVCache
from softfloat_llm.llama.forward import forward
from softfloat_llm.llama.hidden import is_hidden
from softfloat_llm.llama.stored_weights import StoredWeights
from softfloat_llm.numerics.carriers import carry, widen
from softfloat_llm.numerics.crew import Crew
from softfloat_llm.numerics.formats import Array, Format, format_of
from softfloat_llm.numerics.rounding import round_wide
from softfloat_llm.recipe import Recipe
from softfloat_llm.runs import Run, model_of
from softfloat_llm.site_meanings import other_meanings
from softfloat_llm.sites import LOGITS
from softfloat_llm.trace import Trace

_PATTERNS = ("*.out",)


def local_run(
    run: Run,
    reference: Run | Mapping[str, Array],
    *,
    model: str | Path | Model | None = None,
    workers: int = 1,
    backend: str = "numpy",
    progress: Progress | None = None,
) -> Run:
    """The passes of `run` again, in which each site is fed the values of `reference`.

    `reference`: a run of the same tokens, or its taps by name (T, ...). Its `*.out` taps are put in the place of what
    the sites give, in the reference's format (the next site rounds them as it stores them; the cache holds them in its
    own); where one is missing, or is another quantity there (`site_meanings`), the next sites get what was
    made of the values before it: they are one step together. The result keeps what each site gave.
    **Raises** RunError where the reference keeps no such tap but the logits, or the model's weights are others now.
    """
    opened = model_of(run, model, progress)
    fed = _fed(run, reference)
    fill = _Fill(*_taps_of(run, reference), _over_keys(run.recipe))
    trace = Trace(_PATTERNS)
    prompt = run.prompt_tokens[: len(fed)]
    passes = [prompt, *([token] for token in fed[len(prompt) :])]
    cache = KVCache(opened.config, run.recipe)
    with Crew(workers, backend) as crew:
        weights = StoredWeights(opened.weights, run.recipe)
        for done, tokens in enumerate(passes):
            forward(weights, tokens, run.recipe, cache, trace, crew=crew, instead=fill)
            if progress is not None:
                progress(f"{run.recipe.name}, site by site", done + 1, len(passes))
    return replace(
        run, arrays=trace.arrays, formats=trace.formats, events=tuple(trace.events), generated=(), fed=tuple(fed)
    )


def _fed(run: Run, reference: Run | Mapping[str, Array]) -> tuple[int, ...]:
    """The tokens from the first on that both were fed."""
    if not isinstance(reference, Run):
        return run.fed[: min(len(array) for array in reference.values())]
    shared = min(len(run.fed), len(reference.fed))
    return run.fed[: next((i for i in range(shared) if run.fed[i] != reference.fed[i]), shared)]


def _taps_of(run: Run, reference: Run | Mapping[str, Array]) -> tuple[Mapping[str, Array], frozenset[str]]:
    """The reference's taps, and the ends of the names of those that are other quantities in the run."""
    recipe: Recipe | None = reference.recipe if isinstance(reference, Run) else None
    arrays = reference.arrays if isinstance(reference, Run) else reference
    if not any(name.endswith(".out") and name != LOGITS for name in arrays):
        raise RunError(
            "Feeding each site the reference's values: the reference keeps no tap but its logits. Make it with"
            " simulate(taps=['*.out']) or --taps '*.out'."
        )
    return arrays, frozenset() if recipe is None else frozenset(other_meanings(run.recipe, recipe))


def _over_keys(recipe: Recipe) -> frozenset[str]:
    """The taps whose last axis is the key: of those that a query does not see there is nothing to feed."""
    is_of_scores = recipe.at("attn.scale").options["on"] == "scores"
    sites = ("attn.scores", "attn.mask", "attn.softmax", *(["attn.scale"] if is_of_scores else []))
    return frozenset(f"{site}.out" for site in sites)


@dataclass(frozen=True)
class _Fill:
    """What is passed on after each site: the reference's values there, where it has them in the same meaning."""

    arrays: Mapping[str, Array]
    others: frozenset[str]
    over_keys: frozenset[str]

    def __call__(self, name: str, first: int, given: Array, fmt: Format) -> Array:
        name, is_sum = (f"{name.removesuffix('.sum')}.out", True) if name.endswith(".sum") else (name, False)
        place = name.split(".", 2)[2] if name.startswith("layers.") else name
        if name not in self.arrays or place in self.others:
            return given
        known = self.arrays[name]
        if is_sum and format_of(known.dtype).precision < fmt.precision:
            return given  # the reference's sum was rounded too: it is made again of the reference's terms
        wanted = known[first : first + len(given)]
        if place in self.over_keys:  # its last axis was filled up as later keys came
            wanted = wanted[..., : given.shape[-1]]
        if wanted.shape != given.shape:
            return given
        if place in self.over_keys:
            return np.where(is_hidden(len(given), given.shape[-1]), widen(given), widen(wanted))
        return carry(round_wide(widen(wanted), fmt), fmt) if place.startswith("kv.") else wanted
