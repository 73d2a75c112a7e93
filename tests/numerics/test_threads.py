"""Threads share work, and what one raises is raised when all have ended."""

from __future__ import annotations

import threading
import time

import pytest

from softfloat_llm.numerics.threads import share


@pytest.mark.parametrize(("parts", "threads"), [(0, 2), (1, 1), (1, 4), (3, 7), (7, 3), (20, 2)])
def test_each_part_is_done_once_however_many_threads_there_are(parts, threads):
    done: list[int] = []
    share(done.append, list(range(parts)), threads)
    assert sorted(done) == list(range(parts))


def test_one_thread_does_the_parts_in_their_order_itself():
    seen: list[tuple[int, int]] = []
    share(lambda part: seen.append((part, threading.get_ident())), [3, 1, 2], 1)
    assert seen == [(part, threading.get_ident()) for part in (3, 1, 2)]


@pytest.mark.parametrize("failing", [0, 1])
def test_what_one_raises_is_raised_and_no_other_goes_on_after_that(failing):
    ended = threading.Event()

    def work(part: int) -> None:
        if part == failing:
            raise ValueError(part)
        time.sleep(0.1)
        ended.set()

    with pytest.raises(ValueError, match=str(failing)):
        share(work, [0, 1], 2)
    assert ended.is_set()
