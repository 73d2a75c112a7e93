"""Work that threads share: for loops that let go of the interpreter's lock. Start reading at `share`.

To be woken takes 50 us, a fifth of a small product. So one that waits may look out for a while before it sleeps, by a
loop that does so without the lock; nothing hangs on what it sees but time.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

P = TypeVar("P")
LookOut = Callable[[npt.NDArray[np.int64], int, int], None]
"""look_out(words, watched, old): returns when words[watched] is not `old`, or after a while."""

_GIVEN, _DONE, _WORDS = 0, 16, 32  # each in a cache line that no other one is in


def share(work: Callable[[P], None], parts: Sequence[P], threads: int, look_out: LookOut | None = None) -> None:
    """work(part) for each part, every so many of them in a thread, the first ones in this.

    `look_out`: what one who waits does before it sleeps, where there is a core for each thread. `work` shares nothing.
    Raises what one raised, when all have ended: none goes on behind the caller's back, but where a wait is interrupted.
    """
    if threads <= 1 or len(parts) <= 1:
        _do(work, parts)
        return
    mine, *theirs = (parts[first::threads] for first in range(max(1, min(threads, len(parts)))))
    others, look = _others(threads - 1, os.getpid()), look_out if threads <= cores() else None
    given: list[tuple[_Other, _Given]] = []
    try:
        for other, some in zip(others, theirs, strict=False):
            given.append((other, other.give(_Given(work, some, look))))
        _do(work, mine)
    finally:
        errors = [other.wait(each) for other, each in given]
    for error in errors:
        if error is not None:
            raise error


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _do(work: Callable[[P], None], parts: Sequence[P]) -> None:
    for part in parts:
        work(part)


class _Given:
    """Parts that another thread is given to do."""

    def __init__(self, work: Callable[[Any], None], parts: Sequence[Any], look_out: LookOut | None) -> None:
        self._work, self._parts, self.look_out = work, parts, look_out
        self.done_before = 0
        self._error: BaseException | None = None
        self._ended = Lock()
        self._ended.acquire()

    def do(self) -> None:
        try:
            _do(self._work, self._parts)
        except BaseException as error:
            self._error = error
        self._ended.release()

    def wait(self) -> BaseException | None:
        """When they are done; what was raised."""
        self._ended.acquire()
        return self._error


class _Other:
    """Another thread, which does what it is given, and looks out for more before the executor has it sleep.

    `_words`: how much it was given and how much it has done, for those who look out.
    """

    def __init__(self) -> None:
        self._submit = ThreadPoolExecutor(1, thread_name_prefix="softfloat-llm").submit
        self._words = np.zeros(_WORDS, np.int64)
        self._given: deque[_Given] = deque()
        self._taken = 0  # from them
        self._is_awake, self._turn = False, Lock()

    def give(self, given: _Given) -> _Given:
        given.done_before = int(self._words[_DONE])
        with self._turn:
            if not self._is_awake:
                self._submit(self._serve)
                self._is_awake = True
            self._given.append(given)
            self._words[_GIVEN] += 1
        return given

    def wait(self, given: _Given) -> BaseException | None:
        """When it is done; what was raised."""
        try:
            if given.look_out is not None:
                given.look_out(self._words, _DONE, given.done_before)
        finally:
            error = given.wait()
        return error

    def _serve(self) -> None:
        while (given := self._next()) is not None:
            look_out = given.look_out
            given.do()
            del given  # so that the memory of its arrays is free for those of the next
            self._words[_DONE] += 1
            if look_out is not None:
                with suppress(Exception):  # who waits looks out too, and tells
                    look_out(self._words, _GIVEN, self._taken)

    def _next(self) -> _Given | None:
        """None where nothing is left to do: who gives more from now on has to wake this thread."""
        with self._turn:
            self._is_awake = bool(self._given)
            self._taken += self._is_awake
            return self._given.popleft() if self._given else None


@lru_cache(maxsize=4)
def _others(threads: int, process: int) -> list[_Other]:
    """The threads of a process: a forked one has none of its parent's."""
    return [_Other() for _ in range(threads)]
