"""How the time grows: with T (rows), K, N of one product, with workers, with the tokens of a prompt, and with both."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.bench_matmul import BY_NAME, SHAPES, Form
from benchmarks.passes import RECIPES, model_of, passes, products_of
from benchmarks.rows import Row
from benchmarks.settings import Settings, Shape, operands
from benchmarks.timing import in_passes, paired, perf_counter
from softfloat_llm.numerics import kernels
from softfloat_llm.numerics.crew import Crew
from softfloat_llm.numerics.precision import precision_of

FORMS = ("bf16 to f32, exact products", "f16 fma")
AXES = {  # letter -> (its values, where the others stay)
    "T": ((1, 2, 4, 8, 16, 32, 64, 128), (5, 576, 1536)),
    "K": ((64, 128, 256, 576, 1536, 3072), (5, 576, 1536)),
    "N": ((64, 192, 576, 1536, 4608, 12288, 49152), (5, 576, 1536)),
}
PLACES = {"T": 0, "K": 1, "N": 2}
PROMPTS = {"smollm2": (1, 5, 10), "tiny": (1, 2, 5, 10, 20, 40, 80)}
SHARED = {"smollm2": (1, 5, 32, 128), "tiny": (1, 5, 32)}
SHARED_TOKENS = 64  # of all rounds together, at least one: 128 tokens of SmolLM2 take a worker of NumPy's 20 s


def rows(settings: Settings) -> Iterator[Row]:
    """A point a row; `x` is the value of the letter."""
    for letter in AXES:
        for name in FORMS:
            for backend in settings.backends:
                yield from _curve(letter, BY_NAME[name], backend, settings)
    for name in FORMS:
        for backend in settings.backends:
            yield from _workers(BY_NAME[name], backend, settings)
    for model in dict.fromkeys(("tiny", settings.model)):
        for name in list(RECIPES)[:2]:
            for backend in settings.backends:
                yield from _prompts(model, name, backend, settings)
    for name in list(RECIPES)[:2]:
        for backend in settings.backends:
            yield from _shared(name, backend, settings)


def _curve(letter: str, form: Form, backend: str, settings: Settings) -> Iterator[Row]:
    values, others = AXES[letter]
    for value in values[:2] if settings.is_quick else values:
        shape: Shape = tuple(value if PLACES[letter] == i else n for i, n in enumerate(others))  # type: ignore[assignment]
        shape = settings.shape(*shape)
        at = precision_of(form.text)
        a, b = operands(shape, str(at.storage))
        spent, _, ratio = in_passes(partial(kernels.matmul, a, b, at, backend=backend), form.dtype, settings.rounds)
        terms = int(np.prod(shape))
        unit = f"{np.dtype(form.dtype).name} passes a product"
        yield Row("growth", f"{letter}: {form.name}", ratio / terms, unit, backend, seconds=spent, terms=terms, x=value)


def _workers(form: Form, backend: str, settings: Settings) -> Iterator[Row]:
    """The vocabulary's product by 1, 2, 4, ... workers up to the cores."""
    shape = settings.shape(*SHAPES["head"])
    at, terms = precision_of(form.text), int(np.prod(shape))
    a, b = operands(shape, str(at.storage))
    with Crew(1, backend) as one:
        for workers in (n for n in (1, 2, 4, 8, 16, 32, 64) if n <= settings.cores):
            with Crew(workers, backend) as several:
                many, alone = (partial(crew.matmul, a, b, at) for crew in (several, one))
                spent, _, ratio = paired(many, alone, settings.rounds, perf_counter)
            unit = "times as fast as 1 worker"
            yield Row(
                "growth", f"workers: {form.name}", 1 / ratio, unit, backend, workers,
                seconds=spent, terms=terms, x=workers,
            )  # fmt: skip


def _prompts(model: str, name: str, backend: str, settings: Settings) -> Iterator[Row]:
    """A prefill of so many tokens. Products of attention are not counted, so that a curve which rises shows them."""
    counts = PROMPTS[model]
    with passes(model, RECIPES[name], backend) as ours:
        for count in counts[:2] if settings.is_quick else counts:
            products = products_of(model_of(model).config, count)
            spent, _, ratio = in_passes(ours.prefill(count), np.float32, settings.rounds)
            what, unit = f"tokens of a prompt: {model}, {name}", "float32 passes a product"
            yield Row("growth", what, ratio / products, unit, backend, seconds=spent, terms=products, x=count)


def _shared(name: str, backend: str, settings: Settings) -> Iterator[Row]:
    """A prefill of so many tokens by one worker, over the time of as many as there are cores."""
    model, many, unit = settings.model, settings.cores, "times as fast as 1 worker"
    counts = SHARED[model]
    with passes(model, RECIPES[name], backend) as one, passes(model, RECIPES[name], backend, many) as several:
        for count in counts[:2] if settings.is_quick else counts:
            rounds = max(1, min(settings.rounds, SHARED_TOKENS // count))
            spent, _, ratio = paired(several.prefill(count), one.prefill(count), rounds, perf_counter)
            what, terms = f"workers by tokens: {model}, {name}", products_of(model_of(model).config, count)
            yield Row("growth", what, 1 / ratio, unit, backend, many, seconds=spent, terms=terms, x=count)
