"""Work that threads share: for loops that let go of the interpreter's lock. Start reading at `share`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from typing import TypeVar

P = TypeVar("P")


def share(work: Callable[[P], None], parts: Sequence[P], threads: int) -> None:
    """work(part) for each part, every so many of them in a thread, the first ones in this.

    Raises what one raised, when all have ended: none goes on behind the caller's back.
    """
    if threads <= 1 or len(parts) <= 1:
        _do(work, parts)
        return
    mine, *theirs = (parts[first::threads] for first in range(max(1, min(threads, len(parts)))))
    futures = [_pool(threads - 1, os.getpid()).submit(_do, work, some) for some in theirs]
    try:
        _do(work, mine)
    finally:
        wait(futures)
    for future in futures:
        future.result()


def _do(work: Callable[[P], None], parts: Sequence[P]) -> None:
    for part in parts:
        work(part)


@lru_cache(maxsize=4)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """The threads of a process: a forked one has none of its parent's."""
    return ThreadPoolExecutor(threads, thread_name_prefix="softfloat-llm")
