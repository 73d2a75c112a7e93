"""Running the program: `Console` in this process, `program` in one of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from softfloat_llm.cli.main import run


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Console:
    """The program in this process."""

    capture: pytest.CaptureFixture[str]

    def __call__(self, *words: str | Path) -> Answer:
        self.capture.readouterr()
        code = run([str(word) for word in words])
        said = self.capture.readouterr()
        return Answer(code, said.out, said.err)


@cache
def output(*words: str) -> str:
    """What the program prints in this process, run once for the same words."""
    with redirect_stdout(io.StringIO()) as told:
        assert run(list(words)) == 0
    return told.getvalue()


def command(*words: str | Path) -> list[str]:
    """The command line of the program in a process of its own."""
    return [sys.executable, "-m", "softfloat_llm", *(str(word) for word in words)]


def program(*words: str | Path, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The program in a process of its own, with these variables beside the usual ones."""
    return subprocess.run(command(*words), cwd=cwd, env=os.environ | environment, capture_output=True, check=False)
