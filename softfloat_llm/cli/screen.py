"""The edge of the program: what is printed, where, and what is shown while it works.

Answers go to stdout, the same bytes for the same arguments. Talk and progress go to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from softfloat_llm.io.progress import Progress

PATIENCE_SECONDS = 1.0  # work that is over sooner shows no progress


def show(text: str) -> None:
    """Print an answer. A reader that has gone away, as in `| head`, is no error."""
    try:
        print(_coloured(text), flush=True)
    except BrokenPipeError:
        silence_stdout()


def show_json(verb: str, body: Mapping[str, Any]) -> None:
    """Print one JSON object of the verb's schema, keys sorted."""
    whole = {**body, "schema": f"softfloat-llm/{verb}/1"}
    show(json.dumps(whole, sort_keys=True, ensure_ascii=False, allow_nan=False))


def say(text: str) -> None:
    """Talk, on stderr."""
    print(text, file=sys.stderr, flush=True)


def silence_stdout() -> None:
    """Whatever is still to be printed goes nowhere: Python would complain of the broken pipe when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


_LABELS = ("recipe", "answer", "next", "digest")


def _coloured(text: str) -> str:
    """The text with its labels in bold, where a terminal shows it. Nothing is said by colour alone."""
    if not _shows_colour():
        return text
    return "\n".join(
        f"\x1b[1m{line[:9]}\x1b[0m{line[9:]}" if line.startswith(_LABELS) and line[8:9] == " " else line
        for line in text.split("\n")
    )


def _shows_colour() -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


@contextmanager
def watched(*, is_quiet: bool) -> Iterator[Progress | None]:
    """A progress callback (description, done, total) that draws a bar on stderr; None where no terminal watches."""
    if is_quiet or not sys.stderr.isatty():
        yield None
        return
    bar = _Bar()
    try:
        yield bar
    finally:
        bar.close()


class _Bar:
    """A rich progress bar that appears once the work has taken a while."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}

    def __call__(self, description: str, done: int, total: int) -> None:
        if self._progress is None:
            if time.monotonic() - self._started < PATIENCE_SECONDS:
                return
            self._open()
        if description not in self._tasks:
            self._tasks[description] = self._progress.add_task(description, total=total)
        self._progress.update(self._tasks[description], completed=done, total=total)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._progress.start()

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
