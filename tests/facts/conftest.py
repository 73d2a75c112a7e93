"""The models on which the claims are checked; their runs are made once for all tests."""

from __future__ import annotations

import pytest

from softfloat_llm.claims.bench import Bench
from softfloat_llm.io.checkpoint import open_model
from tests.smollm2 import bench


@pytest.fixture(scope="session")
def tiny_bench() -> Bench:
    return Bench(open_model("tiny"))


@pytest.fixture(scope="session")
def smollm2_bench() -> Bench:
    """For tests with the mark `smollm2`."""
    return bench()
