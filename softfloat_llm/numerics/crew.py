"""Who does the work of large matrix products: one process or several, NumPy's steps or compiled ones; not a bit moves.

Most of NumPy's calls are too short for threads to win (the interpreter's lock), so more workers are further processes:
each maps the weights from the file that they lie in, is sent the activations, and sends back its columns. Compiled
steps and the long loops of `einsum_loops` let go of the lock, so there they are threads; compiled loops share one tile.
Start reading at `Crew.matmul`.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import weakref
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import IO, Any, Self

import numpy as np

from softfloat_llm.errors import PrecisionError, SoftfloatError
from softfloat_llm.numerics import kernels
from softfloat_llm.numerics.formats import Array, Float64Array
from softfloat_llm.numerics.mapped import Mapped, place_in_file
from softfloat_llm.numerics.paths import path_of
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.side_by_side import SideBySide, side_by_side

LEAST = 1 << 20
"""Multiplications below which a matrix product is made alone: sending one away takes 0.1 to 0.2 ms. Threads that have
tiles of their own, of whom only one at a time runs Python, are worth it from `_OF_THREADS` times as many on; those that
share a compiled loop from here on."""
_OF_THREADS = 8  # benchmarks/bench_growth.py, workers
MOST = 1 << 30
"""Bytes of weights that lie in no file (rounded ones) which a crew lays out for its processes."""
_SHARED_MEMORY = Path("/dev/shm")


class Crew:
    """So many workers with a backend. Close it, or use it as a context: its processes end with it.

    `least`: a product of fewer multiplications is made alone. One that is interrupted, or fails, ends the processes;
    the next one starts new ones. **Raises** PrecisionError for an unknown backend, or fewer than one worker.
    """

    def __init__(
        self, workers: int = 1, backend: str = "numpy", *, least: int = LEAST, _has_processes: bool = True
    ) -> None:
        kernels.kit_of(backend)
        if workers < 1:
            raise PrecisionError(f"workers is {workers}: at least 1 does the work.")
        self.workers, self.backend, self._least, self._has_processes = workers, backend, least, _has_processes
        self._others: list[_Worker] = []
        self._mapped: dict[tuple[Any, ...], tuple[Array, Mapped]] = {}  # a kept array's place is its own
        self._files: list[str] = []
        self._bytes = 0  # laid out
        self._turn = Lock()  # of one thread: an answer has no name on it
        weakref.finalize(self, _end, self._others, self._files)  # where nobody closes it

    @cached_property
    def here(self) -> Crew:
        """The same without further processes, for matrices that are not kept: laying them out would not pay."""
        return (
            Crew(self.workers, self.backend, least=self._least, _has_processes=False) if self._has_processes else self
        )

    def matmul(self, a: Array, b: Array | SideBySide, at: Precision, *, init: Float64Array | None = None) -> Array:
        """As `kernels.matmul`. a (M, K), b (K, N): transposed weights, which must not change while the crew lives."""
        b = side_by_side(b)
        products = a.shape[0] * a.shape[1] * b.shape[1]
        if self.workers == 1 or products < self._least or at.is_stochastic:
            return kernels.matmul(a, b, at, init=init, backend=self.backend)
        path = path_of(at)
        is_compiled = kernels.is_compiled(path, self.backend)
        if is_compiled or path == "native":
            workers = self.workers if is_compiled or products >= _OF_THREADS * self._least else 1
            return kernels.matmul(a, b, at, init=init, workers=workers, backend=self.backend)
        if not self._has_processes:
            return kernels.matmul(a, b, at, init=init, backend=self.backend)
        with self._turn:
            return self._by_processes(a, b, at, init)

    def _by_processes(self, a: Array, b: SideBySide, at: Precision, init: Float64Array | None) -> Array:
        bounds = np.linspace(0, b.shape[1], self.workers + 1).astype(int).tolist()
        mine, *others = (slice(start, stop) for start, stop in pairwise(bounds))
        weights = [self._map(block) for block in b.filled()]
        if not all(weights):
            return kernels.matmul(a, b, at, init=init)
        try:
            hands = self._hands()
            for hand, part in zip(hands, others, strict=True):
                hand.send((a, weights, part, at, None if init is None else init[:, part]))
            first = kernels.matmul(a, b.columns(mine), at, init=None if init is None else init[:, mine])
            rest = [hand.receive() for hand in hands]
        except BaseException:  # an interruption too: an answer that is not taken would be the next question's
            self._stop()
            raise
        return np.concatenate([first, *rest], axis=1)

    def close(self) -> None:
        """End the processes, and remove what was laid out for them."""
        _end(self._others, self._files)
        self._mapped, self._bytes = {}, 0

    def _stop(self) -> None:
        """End the processes in the middle of their work."""
        while self._others:
            self._others.pop().kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hands(self) -> list[_Worker]:
        """The other processes, started when first needed."""
        while len(self._others) < self.workers - 1:
            self._others.append(_Worker())
        return self._others

    def _map(self, array: Array) -> Mapped | None:
        """Where others find the array; None where it lies in no file and there is no more room to lay it out."""
        key = (array.ctypes.data, array.shape, array.strides, array.dtype)
        if key not in self._mapped:
            place = place_in_file(array)
            if place is None or not place.still_holds(array):
                if self._bytes + array.nbytes > MOST:
                    return None
                try:
                    place = self._laid_out(array)
                except OSError:  # a full disk: the /dev/shm of a container is often small
                    return None
                self._bytes += array.nbytes
            self._mapped[key] = (array, place)
        return self._mapped[key][1]

    def _laid_out(self, array: Array) -> Mapped:
        """A copy of an array in a file in memory, laid out as the array is where it is a transposed one."""
        is_turned = array.T.flags.c_contiguous
        flat = array.T if is_turned else np.ascontiguousarray(array)
        folder = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
        with tempfile.NamedTemporaryFile(dir=folder, prefix="softfloat-llm-", delete=False) as file:
            self._files.append(file.name)
            file.write(flat.view(np.uint8).data if flat.size else b"\0")
        strides = flat.strides[::-1] if is_turned else flat.strides
        return Mapped(file.name, 0, array.shape, strides, array.dtype)


def _end(others: list[_Worker], files: list[str]) -> None:
    """End the processes and remove the files. Empties both lists."""
    while others:
        others.pop().end()
    while files:
        with suppress(OSError):
            os.unlink(files.pop())


ALONE = Crew()
"""One process, NumPy's steps."""


class _Worker:
    """Another Python process that runs `work`, and the two pipes to it."""

    def __init__(self) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        words = [sys.executable, "-c", f"from {__name__} import work; work()"]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )

    def send(self, request: Any) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `receive` tells that it has ended
            _put(self._process.stdin, request)

    def receive(self) -> Array:
        """What it found. Raises what it raised, or SoftfloatError where it has ended."""
        assert self._process.stdout is not None
        try:
            answer = pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError):
            self._process.kill()  # of one that has ended, it changes nothing
            raise SoftfloatError(
                f"A worker process ended with exit code {self._process.wait()} in the middle of a product."
                " Try --workers 1."
            ) from None
        if isinstance(answer, Exception):
            raise answer
        result: Array = answer
        return result

    def kill(self) -> None:
        self._process.kill()
        self.end()

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def _put(pipe: IO[bytes], value: Any) -> None:
    pickle.dump(value, pipe, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.flush()


def _sendable(error: Exception) -> Exception:
    """The error, or where it cannot be sent (or not be made again from what is sent) one that says what it said."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return SoftfloatError(f"A worker process failed: {type(error).__name__}: {error}")
    return error


def work() -> None:
    """A worker's life: products of the columns that it is sent, until its input ends."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    weights: dict[Mapped, Array] = {}
    while True:
        try:
            a, places, columns, at, init = pickle.load(source)
        except EOFError:
            return
        try:
            for place in places:
                if place not in weights:
                    weights[place] = place.open()
            b = SideBySide(tuple(weights[place] for place in places)).columns(columns)
            answer: Any = kernels.matmul(a, b, at, init=init)
        except Exception as error:
            answer = _sendable(error)
        _put(target, answer)
