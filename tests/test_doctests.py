"""Every example in a docstring of the package."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOT_IMPORTABLE = {"softfloat_llm.__main__", "softfloat_llm.tiny.train"}  # a program; a script that needs PyTorch
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "softfloat_llm").rglob("*.py")
)


@pytest.mark.parametrize("name", [name for name in MODULES if name not in NOT_IMPORTABLE])
def test_the_examples_of_a_module_hold(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0
