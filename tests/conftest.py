"""Fixtures that several folders of tests share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The checkpoint folder of SmolLM2. Nothing is fetched: where it is not in the cache, the test is skipped."""
    from softfloat_llm.io.fetch import cached_smollm2

    folder = cached_smollm2()
    if folder is None:
        pytest.skip("SmolLM2 is not in the cache; get it with: softfloat-llm fetch smollm2")
    return folder
