"""Processes that matrix products are shared with: how one is started, asked, waited for and ended.

A question and its answer go through pipes, one at a time. What comes again and again, a precision or the places of
weights, is told once and then goes by its number; activations and results go as their bytes, as pickling an array takes
several times as long as they are on the way. Both ends look out for what is to come for a while before they sleep, as
being woken takes as long as a small product. Start reading at `Worker`.
"""

from __future__ import annotations

import errno
import os
import pickle
import select
import subprocess
import sys
from collections.abc import Hashable
from contextlib import suppress
from io import BufferedReader, BufferedWriter, FileIO
from time import perf_counter
from typing import IO, Any, NamedTuple

import numpy as np

from softfloat_llm.errors import SoftfloatError, why
from softfloat_llm.numerics import kernels
from softfloat_llm.numerics.formats import Array, Float64Array
from softfloat_llm.numerics.mapped import Mapped
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.side_by_side import SideBySide, as_one

_AWAKE = 0.005
"""Seconds that one who waits looks out for what is to come before it sleeps: longer than what lies between two products
of a layer (SmolLM2, 5 tokens: 0.8 ms, and 3 where attention does), and soon at an end where nothing comes."""
_PATIENCE = 5.0  # seconds that a process has to end by itself
_LARGE = (1 << 25) - (1 << 13)  # bytes: what glibc keeps at most, with room for what it adds
_ROOM = 1 << 20  # bytes of a pipe: an unprivileged process's most under Linux
_AT_ONCE = 1 << 16  # bytes of it that are read or written in one call, so that few calls carry a small product
Places = tuple[Mapped, ...]
"""Of matrices side by side."""


def opened(places: Places) -> tuple[Array, ...]:
    """What lies there."""
    return tuple(place.open() for place in places)


_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
_INSTEAD = "Try --workers 1, or let a process open more files (ulimit -n)."


class Question(NamedTuple):
    """A product: a (M, K) times b (K, N), which is found in files or is sent, from init (M, N) on."""

    a: Array
    b: Places | SideBySide
    at: Precision
    init: Float64Array | None


class Worker:
    """Another Python process that runs `work`, and the two pipes to it. `is_awake`: there is a core for it to wait.

    Raises SoftfloatError where the system starts none.
    """

    def __init__(self, *, is_awake: bool = True) -> None:
        self._awake = _AWAKE if is_awake else 0.0
        words = [sys.executable, "-P", "-c", f"from {__name__} import work; work({self._awake})"]  # nothing from here
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=_AT_ONCE,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(_paths())},
                start_new_session=True,
            )
        except OSError as error:
            raise SoftfloatError(f"Starting a worker process: {why(error)}. {_INSTEAD}") from None
        self._numbers: dict[Hashable, int] = {}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for pipe in (self._process.stdin, self._process.stdout):
            _make_room(pipe)

    def ask(self, question: Question) -> None:
        a, b, at, init = question
        news: list[Hashable] = []
        sent = b if isinstance(b, SideBySide) else self._number(b, news)
        numbers = self._number(a.dtype, news), self._number(at, news)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `answer` tells that it has ended
            _put(self._process.stdin, (news, a.shape, *numbers, sent, init), a)

    def _number(self, thing: Hashable, news: list[Hashable]) -> int:
        """The number that it goes by; one that has none yet is among the news."""
        number = self._numbers.get(thing)
        if number is None:
            number = self._numbers[thing] = len(self._numbers)
            news.append(thing)
        return number

    def answer(self, out: Array) -> None:
        """The product, into out (M, N). Raises what it raised, or SoftfloatError where it has ended."""
        assert self._process.stdout is not None
        try:
            _look_out(self._process.stdout, self._awake)
            error, shape, dtype = pickle.load(self._process.stdout)
            if error is None:
                out[...] = _array_from(self._process.stdout, shape, np.dtype(dtype))
        except Exception:  # what it wrote is no answer, or it has ended
            self._process.kill()  # of one that has ended, it changes nothing
            raise SoftfloatError(
                f"A worker process ended with exit code {self._process.wait()} in the middle of a product."
                " Try --workers 1."
            ) from None
        if isinstance(error, OSError) and error.errno in _TOO_MANY_FILES:
            raise SoftfloatError(f"A worker process that maps each matrix: {why(error)}. {_INSTEAD}")
        if error is not None:
            raise error

    def kill(self) -> None:
        self._process.kill()
        self.end()

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:  # another process has its input open too
            self._process.kill()
            self._process.wait()

    def let_go(self) -> None:
        """In a forked process, to which it does not belong: without the pipes' other ends, and without a word to it."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.dup2(nowhere, pipe.fileno())
        os.close(nowhere)


def _paths() -> list[str]:
    """Where a process finds the modules of this one: not where this one happens to be, but this package in any case."""
    paths = [path for path in sys.path if os.path.isabs(path)]  # an editable install has a name there that is no path
    root = os.path.abspath(os.path.join(os.path.dirname(kernels.__file__), "..", ".."))
    return paths if root in paths else [root, *paths]


def _make_room(pipe: IO[bytes]) -> None:
    """So that one who writes need not wait for one who reads."""
    with suppress(ImportError, AttributeError, OSError):  # Linux only, and a user may have all that is allowed
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _ROOM)


def _look_out(pipe: IO[bytes], seconds: float) -> None:
    """Returns when something lies in the pipe, or it has ended; at the latest after so many seconds."""
    if not seconds or not hasattr(select, "poll"):  # Windows
        return
    end, found = perf_counter() + seconds, select.poll()
    found.register(pipe, select.POLLIN)
    while not found.poll(0) and perf_counter() < end:
        pass


def _put(pipe: IO[bytes], word: Any, array: Array | None = None) -> None:
    """A word, which tells the shape of an array if one follows, and its bytes."""
    pickle.dump(word, pipe, protocol=pickle.HIGHEST_PROTOCOL)
    if array is not None:
        pipe.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    pipe.flush()


def _array_from(pipe: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """The array whose bytes come next. Raises EOFError where the pipe ends before they do."""
    array = np.empty(shape, dtype)
    if pipe.readinto(array.reshape(-1).view(np.uint8).data) < array.nbytes:  # type: ignore[attr-defined]
        raise EOFError
    return array


def _sendable(error: Exception) -> Exception:
    """The error, or where it cannot be sent (or not be made again from what is sent) one that says what it said."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return SoftfloatError(f"A worker process failed: {type(error).__name__}: {error}")
    return error


def work(awake: float) -> None:
    """A worker's life: products of the columns that it is asked for, until its input ends."""
    source, target = BufferedReader(FileIO(0), _AT_ONCE), BufferedWriter(FileIO(1, "w"), _AT_ONCE)
    told: list[Any] = []
    _keep_freed_memory()
    while True:
        _look_out(source, awake)
        try:
            news, shape, dtype, *question = pickle.load(source)
            told += news
            a = _array_from(source, shape, told[dtype])
        except EOFError:
            return
        answer: tuple[Any, Array | None]
        try:
            product = _product(told, a, *question)
            answer = (None, product.shape, product.dtype.str), product
        except Exception as error:
            answer = (_sendable(error), (), ""), None
        try:
            _put(target, *answer)
        except BrokenPipeError:  # nobody waits for it any more
            os._exit(0)


def _keep_freed_memory() -> None:
    """So that the tiles of a product take the memory of those of the one before.

    glibc gives memory back to the system, which takes longer to hand it out again than a small product takes, until
    something as large has been freed: an array, nothing of which is touched.
    """
    np.empty(_LARGE, np.uint8)


def _product(told: list[Any], a: Array, at: int, b: int | SideBySide, init: Float64Array | None) -> Array:
    """The answer to a question. Files that have been `told` are opened when they are first asked for."""
    if isinstance(b, SideBySide):
        return kernels.matmul(a, b, told[at], init=init)
    if isinstance(told[b], tuple):
        told[b] = as_one(opened(told[b]))
    return kernels.matmul(a, told[b], told[at], init=init)
