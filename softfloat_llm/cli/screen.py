"""The edge of the program: what is printed, where, and what is shown while it works.

Answers go to stdout, the same bytes for the same arguments. Talk and progress go to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from softfloat_llm.io.progress import Progress

PATIENCE_SECONDS = 1.0  # work that is over sooner shows no progress
_IDLE = "working"  # what the bar says of work that counts nothing


def show(text: str) -> None:
    """Print an answer. A reader that has gone away, as in `| head`, is no error."""
    try:
        print(_coloured(text), flush=True)
    except BrokenPipeError:
        silence_stdout()


def answer_of(text: str) -> str:
    """The answer's lines alone, without their label."""
    lines = text.split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith("answer"))
    end = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith(" ")), len(lines))
    return "\n".join(line[9:] for line in lines[start:end])


def show_json(verb: str, body: Mapping[str, Any]) -> None:
    """Print one JSON object of the verb's schema, keys sorted."""
    whole = {**body, "schema": f"softfloat-llm/{verb}/1"}
    show(json.dumps(whole, sort_keys=True, ensure_ascii=False, allow_nan=False))


def say(text: str) -> None:
    """Talk, on stderr."""
    print(text, file=sys.stderr, flush=True)


def sized(count: int) -> str:
    """A number of bytes for people, rounded up: 1000 bytes are 1 kB.

    >>> sized(999), sized(1_200_001), sized(133_867_320)
    ('1 kB', '1.3 MB', '134 MB')
    """
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if count >= size:
            tenths = -(-count * 10 // size)
            return f"{tenths / 10:g} {unit}" if tenths < 100 else f"{-(-count // size)} {unit}"
    return f"{-(-count // 1000)} kB"


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


def announce(progress: Progress | None, text: str) -> None:
    """Say what a long piece of work will take, above its bar; nothing where no terminal watches."""
    if isinstance(progress, _Bar):
        progress.announce(text)


class _Bar:
    """A rich progress bar that appears once the work has taken a while: by itself too, where nothing is counted."""

    def __init__(self) -> None:
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}
        self._lock = threading.RLock()
        self._is_closed = False
        self._timer = threading.Timer(PATIENCE_SECONDS, self._open)
        self._timer.daemon = True
        self._timer.start()
        self._started = time.monotonic()

    def __call__(self, description: str, done: int, total: int) -> None:
        with self._lock:
            if self._progress is None and time.monotonic() - self._started >= PATIENCE_SECONDS:
                self._open()
            if self._progress is None:
                return
            if (idle := self._tasks.pop(_IDLE, None)) is not None:
                self._progress.remove_task(idle)
            if description not in self._tasks:
                self._tasks[description] = self._progress.add_task(description, total=total)
            self._progress.update(self._tasks[description], completed=done, total=total)

    def announce(self, text: str) -> None:
        with self._lock:
            if self._progress is None:
                say(text)
            else:
                self._progress.console.print(text, highlight=False)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        with self._lock:
            if self._is_closed or self._progress is not None:
                return
            columns = (
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                TimeRemainingColumn(),
            )  # fmt: skip
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._tasks[_IDLE] = self._progress.add_task(_IDLE, total=None)
            self._progress.start()

    def close(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_closed = True
            if self._progress is not None:
                self._progress.stop()
