"""Threads share work, and what one raises is raised when all have ended."""

from __future__ import annotations

import os
import threading
import time
import weakref

import pytest

from softfloat_llm.numerics import threads as module
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


def _look_out(words, watched, old):
    for _ in range(100):
        if words[watched] != old:
            return


@pytest.fixture
def many_cores(monkeypatch):
    monkeypatch.setattr(module, "cores", lambda: 64)


@pytest.mark.usefixtures("many_cores")
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_that_look_out_do_each_part_once_again_and_again(threads):
    for n in range(300):
        done: list[int] = []
        share(done.append, list(range(n % 7)), threads, _look_out)
        assert sorted(done) == list(range(n % 7))
        time.sleep(0.001 * (n % 50 == 0))  # they sleep, too


@pytest.mark.usefixtures("many_cores")
def test_several_callers_share_the_threads_and_each_has_its_own_parts():
    results: list[bool] = []

    def caller(first: int) -> None:
        for n in range(200):
            done: list[int] = []
            share(done.append, [first, n, -1], 2, _look_out)
            results.append(sorted(done) == sorted([first, n, -1]))

    callers = [threading.Thread(target=caller, args=(1000 * i,)) for i in range(4)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert results == [True] * 800


def _long_look(words, watched, old):
    end = time.monotonic() + 5
    while words[watched] == old and time.monotonic() < end:
        time.sleep(0.001)


@pytest.mark.usefixtures("many_cores")
def test_a_thread_that_has_more_to_do_does_not_look_out_for_it():
    others_have_given, has_given = threading.Event(), threading.Semaphore(0)

    def work(part: str) -> None:
        if part == "theirs, first":
            others_have_given.wait(5)
        elif part == "mine":
            has_given.release()

    def call(theirs: str) -> None:
        share(work, ["mine", theirs], 2, _long_look)

    callers = [threading.Thread(target=call, args=(theirs,)) for theirs in ("theirs, first", "theirs", "theirs")]
    began = time.monotonic()
    for each in callers:
        each.start()
        assert has_given.acquire(timeout=5)
    others_have_given.set()
    for each in callers:
        each.join()
    assert time.monotonic() - began < 4


@pytest.mark.usefixtures("many_cores")
def test_a_look_that_fails_is_told_once_all_have_ended_and_nothing_hangs():
    def broken_look(words, watched, old):
        raise ZeroDivisionError

    for _ in range(3):
        done: list[int] = []
        with pytest.raises(ZeroDivisionError):
            share(done.append, [0, 1], 2, broken_look)
        assert sorted(done) == [0, 1]
    share(done.append, [2, 3], 2)
    assert sorted(done) == [0, 1, 2, 3]


@pytest.mark.usefixtures("many_cores")
def test_a_thread_that_looks_out_has_let_go_of_what_it_was_given():
    class Work:
        def __call__(self, part: int) -> None:
            pass

    looks = threading.Event()

    def long_look(words, watched, old):
        if threading.current_thread() is not threading.main_thread():
            looks.wait(5)

    work = Work()
    gone = weakref.ref(work)
    share(work, [0, 1], 2, long_look)
    del work
    for _ in range(1000):
        if gone() is None:
            break
        time.sleep(0.005)
    assert gone() is None
    looks.set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.usefixtures("many_cores")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    share(lambda part: None, [0, 1], 2, _look_out)
    child = os.fork()
    if child == 0:
        done: list[int] = []
        share(done.append, [0, 1], 2, _look_out)
        os._exit(0 if sorted(done) == [0, 1] else 1)
    assert os.waitpid(child, 0)[1] == 0
