"""Every block of the README does what it shows. After a change: `python -m tests.test_readme` writes the outputs anew.

`console` blocks are run by a shell, with the outputs (stdout) compared byte by byte; `python` blocks are one doctest
session; the lines of `sh` blocks are Make targets, scripts of the repository, or an install that .ci/run does.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(r"^```(?P<words>[^\n]+)\n(?P<body>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    language: str
    marks: tuple[str, ...]
    body: str
    line: int

    def __str__(self) -> str:
        return f"line {self.line}"


def blocks(*languages: str) -> Iterator[Block]:
    text = README.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        language, *marks = match["words"].split()
        if not languages or language in languages:
            yield Block(language, tuple(marks), match["body"], text.count("\n", 0, match.start()) + 2)


def shown(block: Block, cwd: Path) -> str:
    """The block with what its commands really print. They share a folder, which is empty at first."""
    parts = []
    for line in block.body.splitlines():
        if line.startswith("$ "):
            told = subprocess.run(
                ["bash", "-c", line[2:]], cwd=cwd, env=environment(), capture_output=True, check=False
            )
            parts += [line, *told.stdout.decode().splitlines()]
    return "".join(f"{part}\n" for part in parts)


def environment() -> dict[str, str]:
    """The console scripts are those of this environment; no colour whatever the one around asks for."""
    scripts = str(Path(sys.executable).parent)
    kept = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "PYTHONPATH")}
    return kept | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}


def parameters() -> list[object]:
    return [
        pytest.param(block, id=str(block), marks=[getattr(pytest.mark, mark) for mark in block.marks])
        for block in blocks("console")
    ]


@pytest.mark.parametrize("block", parameters())
def test_a_console_block_shows_what_is_printed(block: Block, tmp_path: Path) -> None:
    assert shown(block, tmp_path) == block.body


def test_the_python_blocks_are_one_session_that_does_what_it_shows() -> None:
    session = "".join("\n" * (block.line > 0) + block.body for block in blocks("python"))
    test = doctest.DocTestParser().get_doctest(session, {}, "README.md", str(README), 0)
    said: list[str] = []
    assert doctest.DocTestRunner(verbose=False).run(test, out=said.append).failed == 0, "".join(said)


@pytest.mark.parametrize("line", [line for block in blocks("sh") for line in block.body.splitlines()])
def test_a_shell_line_can_be_done_from_a_clone(line: str) -> None:
    command = line.split("#", maxsplit=1)[0].split()
    if command[0] == "make":
        subprocess.run([*command, "--dry-run"], cwd=ROOT, check=True, capture_output=True)
    elif command[0] == "pip":
        assert f"{' '.join(command)}" in (ROOT / ".ci" / "run").read_text().replace(" --quiet", "").replace(
            "'.[dev]'", "."
        )
    else:
        assert os.access(ROOT / command[0], os.X_OK)


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    assert {block.language for block in blocks()} <= {"console", "python", "sh"}


def test_the_first_screen_shows_an_offline_command_with_its_output_and_the_smollm2_run() -> None:
    first, second = list(blocks("console"))[:2]
    assert first.body.startswith("$ simulate --storage bf16 --acc f16\nrecipe")
    assert (second.marks, first.line < 15) == (("smollm2",), True)


def write_anew() -> None:
    """Replace what the console blocks show by what their commands print."""
    text = README.read_text(encoding="utf-8")
    for block in blocks("console"):
        with tempfile.TemporaryDirectory() as folder:
            text = text.replace(f"\n{block.body}```", f"\n{shown(block, Path(folder))}```")
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_anew()
