"""The sequential 16-bit accumulator against other packages that can do it at all, and whether the bits are the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import numpy as np

from benchmarks.peers import PEERS, Peer, with_threads
from benchmarks.rows import Goal, Row
from benchmarks.settings import Settings, operands, spelled
from benchmarks.timing import paired, perf_counter, process_time
from softfloat_llm.numerics import kernels
from softfloat_llm.numerics.crew import Crew
from softfloat_llm.numerics.formats import Array
from softfloat_llm.numerics.precision import Precision, precision_of

SHAPE = (8, 1536, 576)  # down_proj of SmolLM2-135M over 8 positions
FORMS = {"fma": "", "rounded": ",product={0}"}
GOALS = {  # (peer, backend) -> how many times as fast
    ("apytypes", "numpy"): 3.5, ("apytypes", "numba"): 10.0, ("gfloat", "numpy"): 30.0, ("pychop", "numpy"): 500.0,
    ("PyTorch, half steps", "numpy"): 1.0,
}  # fmt: skip
ON_ALL_CORES = ("PyTorch, half steps",)  # the goal is for both sides on all of them


def rows(settings: Settings) -> Iterator[Row]:
    """How the two forms differ; then each peer, against one core and against all, of which some peers use one."""
    yield _two_forms(settings)
    for peer in PEERS:
        if not peer.is_installed:
            yield Row("peers", f"{peer.name}, {peer.form}", note=_missing(peer))
            continue
        for backend in settings.backends:
            for workers in (1, settings.cores):
                yield _row(peer, backend, workers, settings)


def _missing(peer: Peer) -> str:
    extra = "torch" if peer.module == "torch" else "bench"
    return f"{peer.module} is not installed: pip install '.[{extra}]'"


def _precision(storage: str, form: str) -> Precision:
    return precision_of(f"storage={storage},acc={storage}" + FORMS[form].format(storage))


def _two_forms(settings: Settings) -> Row:
    """In how many outputs they differ, as a reminder that they are two things."""
    shape = settings.shape(*SHAPE)
    a, b = operands(shape, "f16")
    fma, rounded = (kernels.matmul(a, b, _precision("f16", form)) for form in FORMS)
    note = f"{np.count_nonzero(fma != rounded)} of {fma.size} outputs differ"
    return Row("peers", f"fma and rounded products of f16, {spelled(shape)}", note=note)


def _row(peer: Peer, backend: str, workers: int, settings: Settings) -> Row:
    """Both sides have the same number of cores to use. The peer may see a part of K; its time is scaled."""
    m, k, n = settings.shape(*SHAPE)
    part = max(1, k // peer.k_part)
    at, (a, b) = _precision(peer.storage, peer.form), operands((m, k, n), peer.storage)
    clock = process_time if workers == 1 else perf_counter
    theirs = peer.make(a[:, :part], b[:part])
    with ExitStack() as stack:
        crew = stack.enter_context(Crew(workers, backend))
        stack.enter_context(with_threads(peer, workers))
        spent, against, ratio = paired(partial(crew.matmul, a, b, at), theirs, settings.rounds, clock)
        found = theirs()
    note = _bits(found, kernels.matmul(a[:, :part], b[:part], at), against / (m * part * n) * 1e9)
    if workers > 1 and peer.threads is None:
        note += "; the peer uses one core"
    if part < k:
        note += f"; K = {part} of {k}"
    is_asked = peer.name not in ON_ALL_CORES or workers == settings.cores
    bound = GOALS.get((peer.name, backend)) if is_asked else None
    return Row(
        part="peers",
        what=f"{peer.name}, {peer.form} {spelled((m, k, n))}",
        value=k / part / ratio,
        unit="times as fast as the peer",
        backend=backend,
        workers=workers,
        seconds=spent,
        terms=m * k * n,
        goal=None if bound is None else Goal(bound, "at least"),
        note=note,
    )


def _bits(theirs: Array, ours: Array, ns_a_term: float) -> str:
    differ = np.count_nonzero(theirs != ours)
    bits = "equal bits" if not differ else f"{differ} of {ours.size} outputs differ"
    return f"peer {ns_a_term:.3g} ns a term, {bits}"
