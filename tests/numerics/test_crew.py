"""A crew: the bits of one process from several, weights mapped where they lie, and what is left behind: nothing."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from unittest.mock import Mock

import numpy as np
import pytest

from softfloat_llm.errors import FormatError, PrecisionError, SoftfloatError
from softfloat_llm.numerics import kernels
from softfloat_llm.numerics.crew import ALONE, Crew
from softfloat_llm.numerics.mapped import Storage
from softfloat_llm.numerics.precision import precision_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.numerics.side_by_side import SideBySide, side_by_side
from softfloat_llm.numerics.workers import Worker, _array_from, _sendable


def operands(storage, m=3, k=70, n=130):
    rng = np.random.default_rng(7)
    return round_to(rng.standard_normal((m, k)), storage), round_to(rng.standard_normal((n, k)), storage).T


@pytest.fixture(scope="module")
def three():
    with Crew(3, least=0) as crew:
        yield crew


TEXTS = (
    "storage=f16,acc=f16", "storage=bf16,acc=f32,order=lanes:8", "storage=f32,acc=exact", "storage=bf16,order=fused:8",
    "storage=f16,acc=f16,order=split-k:4,rounding=toward_zero", "storage=e4m3fn,acc=e5m7", "storage=bf16,acc=f32+kahan",
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_three_processes_give_the_bits_of_one(text, three):
    at = precision_of(text)
    a, b = operands(at.storage)
    assert three.matmul(a, b, at).tobytes() == kernels.matmul(a, b, at).tobytes()
    init = np.ones((3, 130))
    assert three.matmul(a, b, at, init=init).tobytes() == kernels.matmul(a, b, at, init=init).tobytes()


def test_fewer_columns_than_workers_are_no_trouble(three):
    at = precision_of("storage=f16,acc=f32")
    for n in (1, 2):
        a, b = operands("f16", n=n)
        assert three.matmul(a, b, at).tobytes() == kernels.matmul(a, b, at).tobytes()
        narrow = precision_of("storage=f16,acc=f16")  # which goes to processes, of which one gets no columns
        assert three.matmul(a, b, narrow).tobytes() == kernels.matmul(a, b, narrow).tobytes()
    none = SideBySide((b[:, :0], b[:, :0]))
    assert kernels.matmul(a, none, at).shape == kernels.matmul(a, none, narrow).shape == (3, 0)


def places(crew):
    """Where the columns of the only other process lie."""
    ((_, shares),) = crew._staff.shared.values()
    return shares.others[0]


@pytest.fixture(params=[False, True], ids=["nameless", "named"])
def storage(request, monkeypatch):
    """Both ways to lay weights out: in a file without a name, and where a system has none."""
    if request.param:
        monkeypatch.delattr(os, "memfd_create", raising=False)


@pytest.mark.usefixtures("storage")
def test_what_is_laid_out_for_others_is_removed_and_they_end():
    crew = Crew(2, least=0)
    a, b = operands("f16")
    crew.matmul(a, b, precision_of("storage=f16,acc=f16"))
    (place,), (other,) = places(crew), crew._staff.others
    held = b[:, 65:]
    assert place.still_holds(held)
    crew.close()
    assert not place.still_holds(held)
    assert other._process.returncode == 0


def test_threads_take_turns_so_that_each_has_its_own_answer(three):
    at = precision_of("storage=f16,acc=f16")
    a, b = operands("f16")
    bs = [b[:, : 40 + 10 * i] for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda part: three.matmul(a, part, at), bs * 3))
    for part, result in zip(bs * 3, found, strict=True):
        assert result.tobytes() == kernels.matmul(a, part, at).tobytes()


def test_an_error_there_is_an_error_here_and_the_crew_goes_on(three):
    at = precision_of("storage=f16,acc=f16")
    a, b = operands("f16")
    wrong = b.astype(np.float64)
    wrong[0, -1] = 1e9  # in the last worker's columns
    with pytest.raises(FormatError, match="1000000000"):
        three.matmul(a, wrong, at)
    assert three.matmul(a, b, at).tobytes() == kernels.matmul(a, b, at).tobytes()


def test_a_worker_that_dies_is_told_of():
    with Crew(2, least=0) as crew:
        a, b = operands("f16")
        crew.matmul(a, b, precision_of("storage=f16,acc=f16"))
        os.kill(crew._staff.others[0]._process.pid, signal.SIGKILL)
        with pytest.raises(SoftfloatError, match="A worker process ended"):
            crew.matmul(a, b, precision_of("storage=f16,acc=f16"))


def test_small_products_start_no_process():
    crew = Crew(4)
    a, b = operands("f16")
    crew.matmul(a, b, precision_of("storage=f16,acc=f16"))
    assert crew._staff.others == []
    assert ALONE.workers == 1


def test_an_unknown_backend_is_refused():
    with pytest.raises(PrecisionError, match="Did you mean 'numba'"):
        Crew(1, "numbda")


def test_no_workers_are_refused():
    with pytest.raises(PrecisionError, match="workers is 0"):
        Crew(0)


def test_after_a_worker_died_the_next_product_has_new_ones():
    at = precision_of("storage=f16,acc=f16")
    with Crew(3, least=0) as crew:
        a, b = operands("f16")
        crew.matmul(a, b, at)
        os.kill(crew._staff.others[1]._process.pid, signal.SIGKILL)
        with pytest.raises(SoftfloatError, match="A worker process ended"):
            crew.matmul(a, b, at)
        assert crew.matmul(a, b, at).tobytes() == kernels.matmul(a, b, at).tobytes()


def test_after_an_interruption_the_next_answer_is_the_next_questions(monkeypatch):
    at = precision_of("storage=f16,acc=f16")
    (a, b), (_, other) = operands("f16"), operands("f16", n=90)
    with Crew(2, least=0) as crew:
        crew.matmul(a, b, at)

        def interrupted(self, out):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Worker, "answer", interrupted)
            with pytest.raises(KeyboardInterrupt):
                crew.matmul(a, b, at)
        assert crew.matmul(a, other, at).tobytes() == kernels.matmul(a, other, at).tobytes()


@pytest.mark.usefixtures("storage")
def test_a_crew_that_nobody_closed_leaves_nothing():
    crew = Crew(2, least=0)
    a, b = operands("f16")
    crew.matmul(a, b, precision_of("storage=f16,acc=f16"))
    (place,), (other,) = places(crew), crew._staff.others
    del crew
    gc.collect()
    assert not place.still_holds(b[:, 65:])
    assert other._process.returncode == 0


@pytest.mark.parametrize("is_replaced", [False, True], ids=["removed", "replaced"])
def test_weights_whose_file_has_gone_are_those_that_were_mapped(is_replaced, tmp_path):
    at, path = precision_of("storage=f16,acc=f32"), tmp_path / "weights"
    a, b = operands("f16")
    b.T.tofile(path)
    mapped = np.memmap(path, np.float16, "r", shape=b.T.shape).T
    path.rename(tmp_path / "old")
    if is_replaced:
        (-b.T).tofile(path)
    with Crew(2, least=0) as crew:
        assert crew.matmul(a, mapped, at).tobytes() == kernels.matmul(a, b, at).tobytes()


def test_without_room_to_lay_weights_out_one_process_does_the_work(monkeypatch):
    def full(self, array):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Storage, "lay_out", full)
    at = precision_of("storage=f16,acc=f16")
    a, b = operands("f16")
    with Crew(2, least=0) as crew:
        assert crew.matmul(a, b, at).tobytes() == kernels.matmul(a, b, at).tobytes()
        assert crew._staff.others == []


def test_without_room_for_weights_one_process_does_the_work(monkeypatch):
    monkeypatch.setattr("softfloat_llm.numerics.crew.MOST", 9000)  # of 9100 bytes for the other
    at = precision_of("storage=f16,acc=f16")
    a, b = operands("f16")
    with Crew(2, least=0) as crew:
        assert crew.matmul(a, b, at).tobytes() == kernels.matmul(a, b, at).tobytes()
        assert crew._staff.others == []


@pytest.mark.usefixtures("storage")
def test_columns_of_rows_lie_in_one_piece_of_memory_here_and_there(three):
    at = precision_of("storage=f16,acc=f16")
    a, b = operands("f16")
    rows = np.ascontiguousarray(b)
    with Crew(2, least=0) as crew:
        for whole in (side_by_side(rows), SideBySide((rows[:, :50], rows[:, 50:], rows[:, :20]))):
            expected = kernels.matmul(a, whole, at).tobytes()
            assert crew.matmul(a, whole, at).tobytes() == crew.matmul(a, whole, at).tobytes() == expected
        for _, shares in crew._staff.shared.values():
            assert all(block.flags.c_contiguous for block in shares.mine.parts)
            assert all(place.open().flags.c_contiguous for place in shares.others[0])
        assert crew._staff.storage.size == 2 * 70 * (130 + 150)


@pytest.mark.parametrize(
    "a", [np.ones((3, 70), "f4", order="F"), np.ones((9, 140), ">f4")[::3, ::2], np.ones((3, 70), int)]
)
def test_activations_that_lie_in_any_way_are_sent_as_they_are(a, three):
    at = precision_of("storage=f16,acc=f16")
    b = operands("f16")[1]
    assert three.matmul(a, b, at).tobytes() == kernels.matmul(a, b, at).tobytes()


def test_objects_are_refused_as_one_process_does(three):
    a, b = operands("f16")
    with pytest.raises(FormatError, match="more bits than float64"):
        three.matmul(a.astype(object), b, precision_of("storage=f16,acc=f16"))


def test_what_is_longer_than_a_pipe_comes_as_it_is(three):
    at = precision_of("storage=f16,acc=f16")
    a, b = operands("f16", m=4, k=2, n=150_000)  # 1.6 MB from each
    assert three.matmul(a, b, at).tobytes() == kernels.matmul(a, b, at).tobytes()
    a, b = operands("f16", m=300_000, k=2, n=3)
    assert three.matmul(a, b, at).tobytes() == kernels.matmul(a, b, at).tobytes()


def test_an_answer_that_breaks_off_is_none():
    with pytest.raises(EOFError):
        _array_from(BytesIO(bytes(39)), (5,), np.dtype(np.float64))


class _TwoWordsError(Exception):
    """It can be sent, but not made again from what is sent."""

    def __init__(self, one, two):
        super().__init__(f"{one} {two}")

    def __reduce__(self):  # said here, as libraries change how exceptions are pickled
        return type(self), self.args


def test_an_error_that_cannot_be_sent_is_told_in_words():
    told = _sendable(_TwoWordsError("out", "of range"))
    assert type(told) is SoftfloatError
    assert str(told) == "A worker process failed: _TwoWordsError: out of range"
    assert type(_sendable(FormatError("x"))) is FormatError


@pytest.mark.parametrize("backend", kernels.BACKENDS)
@pytest.mark.parametrize("text", [*TEXTS, "storage=bf16,acc=f32"])
def test_matrices_that_are_not_kept_are_sent_and_give_the_same_bits(text, backend):
    if backend == "numba":
        pytest.importorskip("numba")
    at = precision_of(text)
    a, b = operands(at.storage, m=20)
    init = np.ones((20, 130))
    with Crew(3, backend, least=0) as crew:
        assert crew.sending.matmul(a, b, at).tobytes() == kernels.matmul(a, b, at).tobytes()
        two, whole = SideBySide((b[:, :7], b[:, 7:])), kernels.matmul(a, b, at, init=init)
        assert crew.sending.matmul(a, two, at, init=init).tobytes() == whole.tobytes()
        assert not crew._staff.shared
        assert crew.sending._staff.others is crew._staff.others


def test_few_rows_are_not_worth_a_matrix_that_is_sent():
    at = precision_of("storage=f16,acc=f16")
    a, b = operands("f16")
    with Crew(2, least=0) as crew:
        assert crew.sending.matmul(a, b, at).tobytes() == kernels.matmul(a, b, at).tobytes()
        assert not crew._staff.others


def test_a_file_that_has_gone_since_it_was_found_is_an_error_and_the_crew_goes_on(tmp_path):
    at, path = precision_of("storage=f16,acc=f32+kahan"), tmp_path / "weights"
    a, b = operands("f16")
    b.T.tofile(path)
    mapped = np.memmap(path, np.float16, "r", shape=b.T.shape).T
    with Crew(2, least=0) as crew:
        assert crew._staff.shares(side_by_side(mapped), [slice(0, 65), slice(65, 130)])
        path.unlink()
        with pytest.raises(FileNotFoundError):
            crew.matmul(a, mapped, at)
        assert crew.matmul(a, b, at).tobytes() == kernels.matmul(a, b, at).tobytes()


def test_too_few_files_for_another_process_or_its_matrices_is_told_with_what_to_do(monkeypatch):
    a, b = operands("f16")
    too_many = OSError(errno.EMFILE, "Too many open files")
    with Crew(2, least=0) as crew, monkeypatch.context() as patch:
        patch.setattr("softfloat_llm.numerics.workers.pickle.load", lambda _: (too_many, (), ""))
        with pytest.raises(SoftfloatError, match=r"maps each matrix: Too many open files. .*ulimit -n"):
            crew.matmul(a, b, precision_of("storage=f16,acc=f16"))
        patch.setattr(subprocess, "Popen", Mock(side_effect=too_many))
        with pytest.raises(SoftfloatError, match=r"Starting a worker process: Too many open files. .*--workers 1"):
            crew.matmul(a, b, precision_of("storage=f16,acc=f16"))


def test_workers_that_have_no_core_to_wait_on_sleep(monkeypatch):
    monkeypatch.setattr("softfloat_llm.numerics.crew.cores", lambda: 1)
    at = precision_of("storage=f16,acc=f16")
    a, b = operands("f16")
    with Crew(2, least=0) as crew:
        assert crew.matmul(a, b, at).tobytes() == kernels.matmul(a, b, at).tobytes()
        assert not crew._staff.others[0]._awake


@pytest.mark.usefixtures("storage")
def test_matrices_that_are_laid_out_behind_each_other_keep_their_bits():
    storage = Storage()
    arrays = [operands("f16", n=n)[1] for n in (1, 33, 130)] + [np.arange(7.0).reshape(1, 7), np.zeros((3, 0))]
    places = [storage.lay_out(array) for array in arrays]
    for array, place in zip(arrays, places, strict=True):
        assert place.open().tobytes() == array.tobytes()
        assert place.open().T.flags.c_contiguous == array.T.flags.c_contiguous
    storage.remove()
    assert not any(place.still_holds(array) for array, place in zip(arrays[:4], places, strict=False))


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files without a name are Linux's")
def test_a_process_that_is_killed_leaves_neither_files_nor_workers():
    words = """
import time, numpy as np
from softfloat_llm.numerics.crew import Crew
crew = Crew(2, least=0)
crew.matmul(np.ones((3, 70)), np.ones((70, 9)), __import__("softfloat_llm").Precision("f16", acc="f16"))
print(crew._staff.others[0]._process.pid, crew._staff.storage.paths, flush=True)
time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    worker, paths = child.stdout.readline().split()
    child.kill()
    child.wait()
    child.stdout.close()
    assert paths == "[]"
    end = time.monotonic() + 20
    while os.path.exists(f"/proc/{worker}/fd/0") and time.monotonic() < end:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{worker}/fd/0")


def test_another_file_that_has_got_the_path_of_weights_is_read_and_not_the_old_one(tmp_path):
    at, path = precision_of("storage=f16,acc=f16"), tmp_path / "weights"
    a, old = operands("f16")
    new = round_to(-old, "f16")

    def mapped(b):
        b.T.astype(np.float16).tofile(tmp_path / "next")
        os.replace(tmp_path / "next", path)
        return np.memmap(path, np.float16, "r", shape=b.T.shape).T

    with Crew(2, least=0) as crew:
        for b in (old, new):
            assert crew.matmul(a, mapped(b), at).tobytes() == kernels.matmul(a, b, at).tobytes()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.usefixtures("storage")
def test_a_forked_process_has_workers_of_its_own_and_leaves_its_parents_alone():
    at = precision_of("storage=f16,acc=f16")
    a, b = operands("f16")
    expected = kernels.matmul(a, b, at).tobytes()
    with Crew(2, least=0) as crew:
        assert crew.matmul(a, b, at).tobytes() == expected
        others, paths = list(crew._staff.others), list(crew._staff.storage.paths)
        child = os.fork()
        if child == 0:
            status = 1
            with suppress(BaseException):
                is_alone = not crew._staff.others and not crew._staff.shared
                is_right = crew.matmul(a, b * 2, at).tobytes() == kernels.matmul(a, b * 2, at).tobytes()
                crew.close()
                status = 0 if is_alone and is_right else 2
            os._exit(status)
        assert crew.matmul(a, b * 4, at).tobytes() == kernels.matmul(a, b * 4, at).tobytes()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert crew.matmul(a, b, at).tobytes() == expected
        assert crew._staff.others == others
        assert all(os.path.exists(path) for path in paths)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_crew_closes_while_a_forked_process_goes_on():
    at = precision_of("storage=f16,acc=f16")
    a, b = operands("f16")
    with Crew(2, least=0) as crew:
        crew.matmul(a, b, at)
        process = crew._staff.others[0]._process
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        crew.close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert process.returncode == 0  # by itself: its input ended


def test_nothing_is_imported_from_where_a_crew_is_used(tmp_path, monkeypatch):
    for module in ("pickle", "select", "numpy"):
        (tmp_path / f"{module}.py").write_text("print('mine')\nraise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    at = precision_of("storage=f16,acc=f16")
    a, b = operands("f16")
    with Crew(2, least=0) as crew:
        assert crew.matmul(a, b, at).tobytes() == kernels.matmul(a, b, at).tobytes()


def test_what_is_no_answer_is_told_as_the_end_of_a_worker(monkeypatch):
    at = precision_of("storage=f16,acc=f16")
    a, b = operands("f16")
    with Crew(2, least=0) as crew:
        crew.matmul(a, b, at)
        monkeypatch.setattr("softfloat_llm.numerics.workers.pickle.load", lambda _: float("not a pickle"))
        with pytest.raises(SoftfloatError, match="A worker process ended"):
            crew.matmul(a, b, at)
