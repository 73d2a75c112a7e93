"""Who does the work of large matrix products: one process or several, NumPy's steps or compiled ones; not a bit moves.

Most of NumPy's calls are too short for threads to win (the interpreter's lock), so more workers are further processes:
each maps the weights from the file that they lie in, is sent the activations (and matrices that are not kept, as those
of attention: `Crew.sending`), and sends back its columns. Compiled steps and the long loops of `einsum_loops` let go of
the lock, so there they are threads; compiled loops share one tile.
Start reading at `Crew.matmul`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from copy import copy
from threading import Lock
from typing import Any, NamedTuple, Self

import numpy as np

from softfloat_llm.errors import PrecisionError
from softfloat_llm.numerics import kernels
from softfloat_llm.numerics.formats import Array, Float64Array
from softfloat_llm.numerics.mapped import Mapped, Storage, place_in_file
from softfloat_llm.numerics.paths import path_of
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.side_by_side import SideBySide, as_one, side_by_side
from softfloat_llm.numerics.threads import cores
from softfloat_llm.numerics.workers import Places, Question, Worker, opened

LEAST = 1 << 18
"""Multiplications below which a matrix product is made alone: half of NumPy's steps of a narrow accumulator then take a
tenth of a millisecond less than all, and to ask a process and to hear its answer takes that. Worth it are from so many
times as many on: processes to which the matrix is sent, `_OF_SENT`; threads that share a compiled loop, `_OF_LOOPS`;
threads that have tiles of their own, of whom only one at a time runs Python, `_OF_THREADS`."""
_OF_SENT = 2
_OF_LOOPS = 4
_OF_THREADS = 32  # benchmarks/bench_growth.py, workers
_ROWS = 16
"""Rows of a from which on it pays to send a matrix: to pickle an element and to read it again takes about as long as
three products of it."""
MOST = 1 << 30
"""Bytes of weights that lie in no file (rounded ones) which a crew lays out for its processes."""


class Crew:
    """So many workers with a backend. Close it, or use it as a context: its processes end with it.

    `least`: a product of fewer multiplications is made alone. One that is interrupted, or fails, ends the processes;
    the next one starts new ones. **Raises** PrecisionError for an unknown backend, or fewer than one worker.
    """

    def __init__(self, workers: int = 1, backend: str = "numpy", *, least: int = LEAST) -> None:
        kernels.kit_of(backend)
        if workers < 1:
            raise PrecisionError(f"workers is {workers}: at least 1 does the work.")
        self.workers, self.backend, self._least = workers, backend, least
        self._staff = _Staff()
        self._lender: Crew | None = None  # which lives as long as its processes are used
        weakref.finalize(self, self._staff.end)  # where nobody closes it

    @property
    def sending(self) -> Crew:
        """The same for matrices that are not kept: they are sent, as laying them out would not pay.

        It has this one's processes: whoever closes either of them ends those.
        """
        other = copy(self)  # whose processes are this one's
        other._lender = self
        return other

    def matmul(self, a: Array, b: Array | SideBySide, at: Precision, *, init: Float64Array | None = None) -> Array:
        """As `kernels.matmul`. a (M, K), b (K, N): transposed weights, which must not change while the crew lives."""
        b = side_by_side(b)
        products = a.shape[0] * a.shape[1] * b.shape[1]
        if self.workers == 1 or products < self._least or at.is_stochastic or a.dtype.hasobject:  # bytes are sent
            return kernels.matmul(a, b, at, init=init, backend=self.backend)
        path = path_of(at)
        is_compiled = kernels.is_compiled(path, self.backend)
        if is_compiled or path == "native":
            enough = (_OF_LOOPS if is_compiled else _OF_THREADS) * self._least
            workers = self.workers if products >= enough else 1
            return kernels.matmul(a, b, at, init=init, workers=workers, backend=self.backend)
        if self._lender is not None and (len(a) < _ROWS or products < _OF_SENT * self._least):
            return kernels.matmul(a, b, at, init=init, backend=self.backend)
        with self._staff.turn:
            return self._by_processes(a, b, at, init)

    def _by_processes(self, a: Array, b: SideBySide, at: Precision, init: Float64Array | None) -> Array:
        n, ways = b.shape[1], self.workers
        mine, *others = columns = [slice(n * i // ways, n * (i + 1) // ways) for i in range(ways)]
        if self._lender is None:
            shares = self._staff.shares(b, columns)
        else:
            shares = _Shares(b.columns(mine), [b.columns(theirs) for theirs in others])
        if shares is None:
            return kernels.matmul(a, b, at, init=init, backend=self.backend)
        try:
            hands = self._staff.hands(self.workers - 1, is_awake=self.workers <= cores())
            for hand, part, theirs in zip(hands, shares.others, others, strict=True):
                hand.ask(Question(a, part, at, None if init is None else init[:, theirs]))
            first = kernels.matmul(a, shares.mine, at, init=None if init is None else init[:, mine])
            out = np.empty((len(a), n), first.dtype)
            out[:, mine] = first
            for hand, theirs in zip(hands, others, strict=True):
                hand.answer(out[:, theirs])
        except BaseException:  # an interruption too: an answer that is not taken would be the next question's
            self._staff.stop()
            raise
        return out

    def close(self) -> None:
        """End the processes, and remove what was laid out for them. A product that is being made is waited for."""
        with self._staff.turn:
            self._staff.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Shares(NamedTuple):
    """Columns of a matrix: those that are made here, and those of each other, or where it finds them."""

    mine: SideBySide
    others: Sequence[Places | SideBySide]


class _Staff:
    """The further processes of a crew, and where they find what is kept. A forked process has none of its parent's."""

    def __init__(self) -> None:
        self.others: list[Worker] = []
        self.shared: dict[tuple[Any, ...], tuple[SideBySide, _Shares | None]] = {}  # a kept array's place is its own
        self.storage = Storage()
        self.turn = Lock()  # of one thread: an answer has no name on it
        _STAFFS.add(self)

    def hands(self, count: int, *, is_awake: bool) -> list[Worker]:
        """The processes, started when first needed."""
        while len(self.others) < count:
            self.others.append(Worker(is_awake=is_awake))
        return self.others

    def shares(self, b: SideBySide, columns: Sequence[slice]) -> _Shares | None:
        """Columns for all; None where some of them lie in no file and there was no more room to lay them out."""
        if b.place not in self.shared:
            self.shared[b.place] = b, self._laid_out([b.columns(each) for each in columns])
        return self.shared[b.place][1]

    def _laid_out(self, parts: Sequence[SideBySide]) -> _Shares | None:
        blocks = [block for part in parts for block in part.filled()]
        if self.storage.size + sum(block.nbytes for block in blocks if place_in_file(block) is None) > MOST:
            return None
        try:
            return _Shares(self._own(parts[0]), [self._places(part) for part in parts[1:]])
        except OSError:  # a full disk
            return None

    def _own(self, part: SideBySide) -> SideBySide:
        """Columns, each block of them in one piece of memory: in rows of all columns, it takes a twentieth longer.

        What lies in a file stays as it lies there.
        """
        blocks = part.filled()
        is_as_it_is = all(block.flags.forc or place_in_file(block) is not None for block in blocks)
        return as_one(blocks if is_as_it_is else opened(self._places(part)))

    def _places(self, part: SideBySide) -> Places:
        """Where others find columns, which are laid out if they lie in no file. Raises OSError without room."""
        return tuple(map(self._place, part.filled()))

    def _place(self, array: Array) -> Mapped:
        place = place_in_file(array)
        return place if place is not None and place.still_holds(array) else self.storage.lay_out(array)

    def stop(self) -> None:
        """End the processes in the middle of their work."""
        while self.others:
            self.others.pop().kill()

    def end(self) -> None:
        """End the processes, and remove what was laid out for them."""
        while self.others:
            self.others.pop().end()
        self.shared.clear()
        self.storage.remove()

    def begin_anew(self) -> None:
        """In a forked process: the processes and files are the parent's, which goes on with them."""
        for other in self.others:
            other.let_go()
        self.others.clear()
        self.shared.clear()
        self.storage.let_go()
        self.turn = Lock()  # a thread that held it is not here


_STAFFS: weakref.WeakSet[_Staff] = weakref.WeakSet()


def _begin_anew() -> None:
    for staff in list(_STAFFS):
        staff.begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


ALONE = Crew()
"""One process, NumPy's steps."""
