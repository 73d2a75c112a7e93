"""Forward passes against PyTorch's own: transformers, bf16, eager; one thread and one worker, then all of both."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.passes import RECIPES, has_torch, model_of, passes, products_of, torch_pass
from benchmarks.rows import Goal, Row
from benchmarks.settings import Settings
from benchmarks.timing import paired, perf_counter

TOKENS = 5
GOALS = {  # accumulator -> backend -> at most so many times PyTorch's time
    "f32 accumulator": {"numpy": Goal(6.0), "numba": Goal(2.5)},
    "f16 accumulator": {"numpy": Goal(15.0), "numba": Goal(6.0)},
}


def rows(settings: Settings) -> Iterator[Row]:
    """Each recipe and backend, by the wall clock."""
    if not has_torch():
        note = "PyTorch or transformers is not installed: pip install '.[torch]'"
        for name in RECIPES:
            yield Row("torch", _what(settings.model, name), note=note, goal=_goal(name, "numpy"))
        return
    for workers in (1, settings.cores):
        for name in RECIPES:
            for backend in settings.backends:
                yield _row(name, backend, workers, settings)


def _what(model: str, name: str) -> str:
    return f"{model}, {TOKENS} tokens, {name}, against PyTorch's bf16"


def _goal(name: str, backend: str) -> Goal | None:
    return GOALS[name.partition(", ")[2]].get(backend)


def _row(name: str, backend: str, workers: int, settings: Settings) -> Row:
    from softfloat_llm.live.torch_host import configured

    theirs = torch_pass(settings.model, TOKENS)
    with configured(threads=workers), passes(settings.model, RECIPES[name], backend, workers) as ours:
        spent, against, ratio = paired(ours.prefill(TOKENS), theirs, settings.rounds, perf_counter)
    return Row(
        part="torch",
        what=_what(settings.model, name),
        value=ratio,
        unit="times PyTorch's time",
        backend=backend,
        workers=workers,
        seconds=spent,
        terms=products_of(model_of(settings.model).config, TOKENS),
        goal=_goal(name, backend),
        note=f"PyTorch {against * 1e3:.1f} ms, {workers} thread(s)",
    )
