"""A crew: the bits of one process from several, weights mapped where they lie, and what is left behind: nothing."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from softfloat_llm.errors import FormatError, PrecisionError, SoftfloatError
from softfloat_llm.numerics import kernels
from softfloat_llm.numerics.crew import ALONE, Crew
from softfloat_llm.numerics.precision import precision_of
from softfloat_llm.numerics.rounding import round_to


def operands(storage, m=3, k=70, n=130):
    rng = np.random.default_rng(7)
    return round_to(rng.standard_normal((m, k)), storage), round_to(rng.standard_normal((n, k)), storage).T


@pytest.fixture(scope="module")
def three():
    with Crew(3, least=0) as crew:
        yield crew


TEXTS = (
    "storage=f16,acc=f16", "storage=bf16,acc=f32,order=lanes:8", "storage=f32,acc=exact", "storage=bf16,order=fused:8",
    "storage=f16,acc=f16,order=split-k:4,rounding=toward_zero", "storage=e4m3fn,acc=e5m7", "storage=bf16,acc=f32+kahan",
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_three_processes_give_the_bits_of_one(text, three):
    at = precision_of(text)
    a, b = operands(at.storage)
    assert three.matmul(a, b, at).tobytes() == kernels.matmul(a, b, at).tobytes()
    init = np.ones((3, 130))
    assert three.matmul(a, b, at, init=init).tobytes() == kernels.matmul(a, b, at, init=init).tobytes()


def test_fewer_columns_than_workers_are_no_trouble(three):
    at = precision_of("storage=f16,acc=f32")
    for n in (1, 2):
        a, b = operands("f16", n=n)
        assert three.matmul(a, b, at).tobytes() == kernels.matmul(a, b, at).tobytes()


def test_what_is_laid_out_for_others_is_removed_and_they_end():
    crew = Crew(2, least=0)
    a, b = operands("f16")
    crew.matmul(a, b, precision_of("storage=f16"))
    (path,), (other,) = crew._files, crew._others
    assert os.path.exists(path)
    crew.close()
    assert not os.path.exists(path)
    assert other._process.returncode == 0


def test_an_error_there_is_an_error_here_and_the_crew_goes_on(three):
    at = precision_of("storage=f16")
    a, b = operands("f16")
    wrong = b.astype(np.float64)
    wrong[0, -1] = 1e9  # in the last worker's columns
    with pytest.raises(FormatError, match="1000000000"):
        three.matmul(a, wrong, at)
    assert three.matmul(a, b, at).tobytes() == kernels.matmul(a, b, at).tobytes()


def test_a_worker_that_dies_is_told_of():
    with Crew(2, least=0) as crew:
        a, b = operands("f16")
        crew.matmul(a, b, precision_of("storage=f16"))
        os.kill(crew._others[0]._process.pid, signal.SIGKILL)
        with pytest.raises(SoftfloatError, match="A worker process ended"):
            crew.matmul(a, b, precision_of("storage=f16"))


def test_small_products_start_no_process():
    crew = Crew(4)
    a, b = operands("f16")
    crew.matmul(a, b, precision_of("storage=f16"))
    assert crew._others == []
    assert ALONE.workers == 1


def test_an_unknown_backend_is_refused():
    with pytest.raises(PrecisionError, match="Did you mean 'numba'"):
        Crew(1, "numbda")
