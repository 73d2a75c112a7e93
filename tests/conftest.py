"""Fixtures that several folders of tests share, and what is skipped where SmolLM2, PyTorch or a browser is not at hand.

SOFTFLOAT_LLM_REQUIRE=smollm2,torch,browser makes their absence an error, as .ci/run does.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from softfloat_llm.io.fetch import cached_smollm2
from tests.browser import chromium

MISSING = {
    "smollm2": "SmolLM2 is not in the cache; get it with: softfloat-llm fetch smollm2",
    "torch": "PyTorch and transformers are not installed; get them with: pip install '.[torch]'",
    "browser": "Chromium is not on the PATH; get it with: apt-get install chromium",
}


def is_at_hand(marker: str) -> bool:
    if marker == "smollm2":
        return cached_smollm2() is not None
    if marker == "browser":
        return chromium() is not None
    return find_spec("torch") is not None and find_spec("transformers") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    absent = [marker for marker in MISSING if not is_at_hand(marker)]
    required = [word for word in os.environ.get("SOFTFLOAT_LLM_REQUIRE", "").split(",") if word]
    for marker in required:
        if marker not in MISSING:
            raise pytest.UsageError(f"SOFTFLOAT_LLM_REQUIRE names {marker!r}; known: {', '.join(MISSING)}.")
        if marker in absent:
            raise pytest.UsageError(MISSING[marker])
    for item in items:
        for marker in absent:
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=MISSING[marker]))


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The checkpoint folder of SmolLM2, for tests with the mark `smollm2`. Nothing is fetched."""
    folder = cached_smollm2()
    if folder is None:
        pytest.skip(MISSING["smollm2"])
    return folder
