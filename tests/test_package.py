"""The package as a whole: what importing it costs, and its public names."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import softfloat_llm

HEAVY = ("tokenizers", "safetensors", "typer", "rich", "matplotlib", "gguf", "torch", "platformdirs")


def in_a_fresh_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_takes_less_than_a_fifth_of_a_second() -> None:
    code = "import time; start = time.perf_counter(); import softfloat_llm; print(time.perf_counter() - start)"
    assert min(float(in_a_fresh_process(code)) for _ in range(3)) < 0.2


@pytest.mark.parametrize("names", ["()", "softfloat_llm.__all__"])
def test_neither_importing_nor_the_public_names_load_anything_heavy(names: str) -> None:
    code = f"import sys, softfloat_llm; [getattr(softfloat_llm, n) for n in {names}]; print(*sys.modules)"
    loaded = set(in_a_fresh_process(code).split())
    assert sorted(loaded & set(HEAVY)) == []


def test_make_test_says_first_how_long_it_takes() -> None:
    recipe = (Path(__file__).parent.parent / "Makefile").read_text().partition("\ntest: ")[2].splitlines()[1]
    assert recipe.startswith('\t@echo "')
    assert "minutes" in recipe


def test_the_public_names_are_few_and_there() -> None:
    assert len(softfloat_llm.__all__) <= 25
    for name in softfloat_llm.__all__:
        assert getattr(softfloat_llm, name).__doc__, name
        assert name in dir(softfloat_llm)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="simulat"):
        _ = softfloat_llm.simulat


def test_every_data_file_is_installed() -> None:
    package = Path(softfloat_llm.__file__).parent
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["softfloat_llm"]
    files = (
        p.relative_to(package).as_posix() for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts
    )
    data = [name for name in files if not name.endswith((".py", ".md"))]
    assert [name for name in data if not any(fnmatchcase(name, pattern) for pattern in patterns)] == []
