"""matmul under a Precision, tile by tile: which fast form serves, the tiles, the stack machine.

Start reading at `matmul`. A tile is some rows of a and some columns of b; its accumulators live in a few buffers that
the program of the order (see `orders`) moves in place, so the extra memory is a few tiles, never M x N x K. No bit
depends on the tiling or the workers: each element has its own accumulator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from softfloat_llm.errors import PrecisionError, nearest
from softfloat_llm.numerics import exact_products
from softfloat_llm.numerics.accumulate import arithmetic_of, follow, terms_of
from softfloat_llm.numerics.carriers import carry
from softfloat_llm.numerics.extents import Operands, Stored, extremes
from softfloat_llm.numerics.formats import Array, Float64Array, f32, f64
from softfloat_llm.numerics.masked_steps import Masked
from softfloat_llm.numerics.narrow_in_float32 import steps_in_float32
from softfloat_llm.numerics.narrow_steps import Narrow
from softfloat_llm.numerics.operands import carried, rounded_product, widened
from softfloat_llm.numerics.orders import Order
from softfloat_llm.numerics.paths import path_of
from softfloat_llm.numerics.precision import EXACT, PerStage, Precision
from softfloat_llm.numerics.rounding import round_wide
from softfloat_llm.numerics.side_by_side import SideBySide, joined, side_by_side
from softfloat_llm.numerics.small_products import small_product
from softfloat_llm.numerics.steps import (
    Fused,
    Kit,
    Native,
    Path,
    Steps,
    all_exact_in_float32,
    exact_in_float32,
    flushes,
    never_tiny,
    wide_enough,
)
from softfloat_llm.numerics.stochastic import Part
from softfloat_llm.numerics.stored_rows import StoredRows, stay_stored
from softfloat_llm.numerics.threads import share
from softfloat_llm.numerics.tiles import Piece, Products

_TILE = 16384  # accumulators: a ufunc call of 0.3 us is then a tenth of a pass (benchmarks/bench_matmul.py)
_LONG_TILE = 1 << 20  # accumulators where the loops are compiled: 8 MiB
_ROWS = 16  # of a in a tile, so that widening b, at most 1 ns an element, is a sixteenth of the sums
_WIDENED = 1 << 23  # bytes of b in the kernel's dtype, kept for all rows of a: a part of the third-level cache
_BLOCK = 1 << 19  # bytes of products formed at once: half of a 1 MiB second-level cache (benchmarks/bench_matmul.py)
# elements. With its usual buffer of 8192, NumPy (2.0 to 2.4) copies a broadcast operand whose rows are shorter than
# about a third of that before it multiplies: narrow sums of a layer then take 1.1 to 1.4 times as long
_SMALLEST_BUFFER = 16
_BY_ROWS = ("narrow", "masked", "fused")  # paths whose steps ask `Products` for rows, not for a whole tile
_FEW_ROWS = 6  # of a, for which widening b whole takes longer than row by row (benchmarks/bench_forward.py, decode)
_REDONE = 1 << 18  # terms at once of sums that are made again one by one


def matmul(
    a: Array,
    b: Array | SideBySide,
    at: Precision,
    *,
    init: Float64Array | None = None,
    workers: int = 1,
    backend: str = "numpy",
) -> Array:
    """The accumulators of the product (M, N), float32 or float64, before the output rounding (after it, for exact).

    a (M, K), b (K, N): values of `at.storage` in any dtype, b often a transposed view of weights in the dtype that they
    are stored in, or several side by side. init (M, N): values of the accumulator's format, where the accumulators
    start. `workers`: threads. `backend`: `numpy`, or `numba`, which gives the same bits.
    **Rounds:** as `reduce.dot`. **Raises** FormatError where a or b has a value that `at.storage` cannot hold.
    """
    b = side_by_side(b)
    if at.is_stochastic or at.acc == EXACT:
        others = [(None if init is None else init[:, columns], part) for columns, part in b.places()]
        alone = _stochastic if at.is_stochastic else exact_products.matmul
        return np.concatenate([alone(a, part, at, init=start) for start, part in others], axis=1)
    path, kit = path_of(at), kit_of(backend)
    if path == "native" and b.whole is not None and (small := small_product(a, b.whole, at, init)) is not None:
        return small
    out = np.empty((a.shape[0], b.shape[1]), np.float32 if at.acc.format is f32 else np.float64)
    shares_loops = is_compiled(path, backend)
    job = _Job(a, b, at, init, out, path, kit, shares_loops, workers if shares_loops else 1, Stored(b.filled()))
    tiled_for = 1 if shares_loops else workers
    share(lambda part: _run_columns(job, part), list(_tiles(b, _columns(job, tiled_for))), tiled_for)
    return out


def is_compiled(path: Path, backend: str) -> bool:
    """Whether a path's loops are compiled: they let go of the interpreter's lock, and cut a tile into strips."""
    return kit_of(backend).is_compiled and path not in ("evident", "masked")


class _Job(NamedTuple):
    a: Array
    b: SideBySide
    at: Precision
    init: Float64Array | None
    out: Array
    path: Path
    kit: Kit
    is_compiled: bool
    threads: int
    """Of a compiled loop over a tile."""
    stored_b: Stored


# --- random words -----------------------------------------------------------------------------------------------------


def _stochastic(a: Array, b: Array, at: Precision, *, init: Float64Array | None) -> Array:
    """`matmul` where a stage rounds by random words: each element has its own, whatever the tiles. The evident form."""
    if at.acc == EXACT:  # rounded to odd first, so that the words are those of the whole
        odd = Precision(at.storage, product=at.product, acc="exact", output=f64, rounding=_to_odd_output(at))
        return round_wide(exact_products.matmul(a, b, odd, init=init), at.output, **at.rules("output"))
    out = np.empty((a.shape[0], b.shape[1]))
    for columns in _ranges(b.shape[1], max(64, _WIDENED // (8 * max(1, a.shape[1])))):
        right = carried(b[:, columns], "b", at, np.dtype(np.float64))
        for rows in _ranges(a.shape[0], _ROWS):
            part = Part(rows.start, columns.start, b.shape[1])
            left = carried(a[rows], "a", at, np.dtype(np.float64))
            start = None if init is None else init[rows, columns]
            out[rows, columns] = _stochastic_tile(left, right, at, part, start)
    return carry(out, at.acc.format) if at.acc.format is f32 else out


def _stochastic_tile(left: Array, right: Array, at: Precision, part: Part, start: Float64Array | None) -> Float64Array:
    """left (M, K), right (K, n) float64; the result (M, n)."""
    k, shape = left.shape[1], (left.shape[0], right.shape[1])

    def term(k: int) -> Float64Array:
        return rounded_product(left[:, k, None], right[k], at, part=part, step=k)

    return follow(at.order.tree(k).program(), term, arithmetic_of(at.acc, at, part=part), shape, start)


def _to_odd_output(at: Precision) -> PerStage:
    return at.rounding._replace(output="to_odd")


def _carrier(at: Precision) -> np.dtype[Any]:
    """The dtype that the operands of a tile are widened to: float32 holds every storage format but f64."""
    return np.dtype(np.float64 if at.storage is f64 else np.float32)


def _term_dtype(at: Precision, path: Path) -> np.dtype[Any]:
    """The dtype in which the products of a tile are formed."""
    is_float32 = path == "native" and at.acc.format is f32 and at.product in (None, f32)
    return np.dtype(np.float32 if is_float32 else np.float64)


# --- tiles -----------------------------------------------------------------------------------------------------------


def _columns(job: _Job, workers: int) -> int:
    """How many columns of b a tile takes, in equal parts of b, at least one a worker: about _TILE accumulators, or as
    many as fit where all terms enter in one loop (`native`, and compiled ones)."""
    (rows, k), n = job.a.shape, job.b.shape[1]
    wanted = _most_columns(k, _carrier(job.at))
    if job.path != "native" and not job.is_compiled:
        wanted = max(64, min(wanted, _TILE // max(1, min(rows, _ROWS))))
    return _in_equal_parts(n, wanted, at_least=min(workers, n // 64))


def _tiles(b: SideBySide, size: int) -> Iterator[slice]:
    """Columns of b, about so many at a time: those of a part by themselves where it has as many."""
    size, widths = max(1, size), [part.shape[1] for part in b.parts]
    if b.whole is not None or 2 * min(widths) < size:
        yield from _ranges(b.shape[1], size)
        return
    for (columns, _), width in zip(b.places(), widths, strict=True):
        for part in _ranges(width, _in_equal_parts(width, size)):
            yield slice(columns.start + part.start, columns.start + part.stop)


def strips_of(k: int, n: int) -> Iterator[slice]:
    """The columns of the tiles of a matrix (K, N) whose terms enter in one loop: one that comes again can lie so."""
    return _ranges(n, _in_equal_parts(n, _most_columns(k, np.dtype(np.float32))))


def _most_columns(k: int, dtype: np.dtype[Any]) -> int:
    return max(256, _WIDENED // (max(1, k) * dtype.itemsize))


def _in_equal_parts(n: int, wanted: int, at_least: int = 1) -> int:
    """How many of n to a part, about `wanted` or less, so that no part is much smaller than the others."""
    parts = max(1, -(-n // wanted), at_least)
    return -(-n // parts)


def _ranges(n: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, n)) for start in range(0, n, max(1, size)))


def _run_columns(job: _Job, columns: slice) -> None:
    """All rows of a by some columns of b, into their place in the result."""
    with np.errstate(all="ignore"):
        right = _right_side(job.b.columns(columns).filled(), job)
        most = _LONG_TILE if job.is_compiled else _TILE
        size = _in_equal_parts(job.a.shape[0], max(_ROWS, most // max(1, right.shape[1])))
        for rows in _ranges(job.a.shape[0], size):
            block = (job.a[rows].T,)
            left = _side(block, "a", job, Stored(block))
            start = None if job.init is None else job.init[rows, columns]
            job.out[rows, columns] = _run_tile(left, right, job, start)


def _right_side(blocks: tuple[Array, ...], job: _Job) -> Operands | StoredRows:
    """Blocks of b side by side: as they are stored where steps ask for rows of it, else widened.

    Few rows of a do, and compiled loops that take codes.
    """
    by_rows = job.path in _BY_ROWS and not job.is_compiled and job.a.shape[0] <= _FEW_ROWS
    takes_codes = len(blocks) == 1 and job.kit.takes_codes(job.at, job.path)
    can_stay = (by_rows or takes_codes) and stay_stored(blocks, job.at)
    if can_stay and (takes_codes or job.stored_b.extent.ends[1] < np.inf):  # `StoredRows.widen` takes finite ones
        return StoredRows(blocks, job.stored_b)
    return _side(blocks, "b", job, job.stored_b)


def _side(blocks: tuple[Array, ...], name: str, job: _Job, stored: Stored) -> Operands:
    """Blocks of operands side by side, widened."""
    block = blocks[0] if len(blocks) == 1 else joined(blocks)
    wide = carried(block, name, job.at, _carrier(job.at), job.kit.widen)
    return Operands(wide, Stored((wide,)) if "daz" in job.at.subnormals.storage else stored)


def _run_tile(left: Operands, right: Operands | StoredRows, job: _Job, start: Float64Array | None) -> Array:
    """left (K, M) and right (K, n); the result (M, n) holds values of the accumulator."""
    at, path, k, shape = job.at, job.path, left.shape[0], (left.shape[1], right.shape[1])
    dtype = _term_dtype(at, path)
    depth = max(1, min(k, 256, _BLOCK // max(1, shape[0] * shape[1] * dtype.itemsize)))
    products = Products(left, right, at, depth, dtype, job.threads)
    steps = None if path == "evident" else _steps(products, job, start)
    if steps is None:
        terms = terms_of(left.wide[:, :, None], right.wide[:, None, :], at) if at.order.adder else products.wide
        return follow(at.order.tree(k).program(), terms, arithmetic_of(at.acc, at), shape, start)
    usual = np.setbufsize(_SMALLEST_BUFFER)
    try:
        out = run(plan(at.order, k), steps, start)
    finally:
        np.setbufsize(usual)
    return out if steps.keeps_zero_signs else _with_zero_signs(out, products, start)


def _steps(products: Products, job: _Job, start: Float64Array | None) -> Steps | None:
    """The steps of a fast path on this tile, by NumPy where no backend has others; None where its values allow none."""
    if job.path != "masked":
        return job.kit.steps(products, job.at, job.path, start)
    return Masked(products, job.at, products.spread)


def _with_zero_signs(out: Array, products: Products, start: Float64Array | None) -> Array:
    """The sums (M, n) with those that are zero made again by the evident form: the quick one knows +0 only."""
    at, (rows, columns) = products.at, np.nonzero(out == 0)
    left, right, k = products.left, products.right, products.left.shape[0]
    at_once = max(1, _REDONE // max(1, k))
    for first in range(0, len(rows), at_once):
        i, j = rows[first : first + at_once], columns[first : first + at_once]
        terms = rounded_product(left[:, i].astype(np.float64), right[:, j].astype(np.float64), at)
        here = None if start is None else start[i, j]
        out[i, j] = follow(at.order.tree(k).program(), terms.__getitem__, arithmetic_of(at.acc, at), i.shape, here)
    return out


def _numpy_steps(products: Products, at: Precision, path: Path, start: Float64Array | None) -> Steps | None:
    """NumPy's steps of the paths for which a backend has some of its own."""
    is_always_exact = path == "native" and not flushes(at) and (at.product is not None or _fits_float32(at))
    if is_always_exact:
        return Native(products, at, None)
    is_float32 = products.dtype == np.float32 and at.product is None and not flushes(at)
    if path == "native" and is_float32 and all_exact_in_float32(at, *extremes(*products.sides)):
        return Native(products, at, None)
    bounds = products.spread
    match path:
        case "native":
            if flushes(at) and (start is not None or not never_tiny(at, bounds)):
                return None
            return Native(products, at, exact_in_float32(at, bounds) if at.product is None else None)
        case "fused":
            return Fused(products, at, wide_enough(at, bounds))
    return steps_in_float32(products, at, start) or Narrow(products, at, start)


NUMPY = Kit(_numpy_steps, widened)
BACKENDS = ("numpy", "numba")


def kit_of(backend: str) -> Kit:
    """The steps of a backend. Raises PrecisionError where it is unknown, or numba is not installed."""
    if backend == "numpy":
        return NUMPY
    if backend != "numba":
        raise PrecisionError(f"Unknown backend {backend!r}.{nearest(backend, BACKENDS)} Known: {', '.join(BACKENDS)}.")
    try:
        from softfloat_llm.numerics.compiled import KIT
    except ModuleNotFoundError as error:
        raise PrecisionError(
            f"The backend 'numba' needs {error.name}: pip install '.[fast]'. Or leave it out: the default,"
            " 'numpy', gives the same bits."
        ) from None
    return KIT


def _fits_float32(at: Precision) -> bool:
    """True where every product of two values of the storage is exact in the accumulator (f16 and narrower, in f32)."""
    smallest, largest = at.storage.smallest_subnormal**2, at.storage.max**2
    return at.acc.format is f64 or (smallest >= f32.smallest_subnormal and largest <= f32.max)


# --- the stack machine -----------------------------------------------------------------------------------------------

Step = tuple[str, Any]


@lru_cache(maxsize=256)
def plan(order: Order, n: int) -> tuple[Step, ...]:
    """The order's program with pieces for its terms, and `zero` and the `enter` after it as one step, `begin`."""
    steps: list[Step] = []
    for name, argument in order.tree(n).program():
        if name == "enter" and steps[-1][0] == "zero":
            steps[-1] = ("begin", _piece(argument))
        elif name in ("enter", "term"):
            steps.append((name, _piece(argument if name == "enter" else (argument,))))
        else:
            steps.append((name, argument))
    return tuple(steps)


def _piece(ks: Sequence[int]) -> Piece:
    """A slice where the ks are evenly spaced, else their numbers."""
    step = ks[1] - ks[0] if len(ks) > 1 else 1
    if list(ks) != list(range(ks[0], ks[0] + step * len(ks), step)):
        return Piece(np.array(ks, np.intp), len(ks))
    stop = ks[0] + step * len(ks)
    return Piece(slice(ks[0], stop if stop >= 0 else None, step), len(ks))


def run(steps_to_do: Sequence[Step], steps: Steps, start: Float64Array | None) -> Array:
    """`accumulate.follow` in place: the same program, on buffers that are used again."""
    stack: list[Array] = []
    free: list[Array] = []
    starts_at_init = steps_to_do[0][0] == "init"
    if starts_at_init and start is None and len(steps_to_do) > 1 and steps_to_do[1][0] == "enter":
        steps_to_do = [("begin", steps_to_do[1][1]), *steps_to_do[2:]]
    for name, argument in steps_to_do:
        match name:
            case "init" | "zero" | "begin" | "term":
                stack.append(free.pop() if free else steps.buffer())
                if name == "term":
                    steps.term(stack[-1], argument)
                elif name == "begin":
                    steps.begin(stack[-1], argument)
                else:
                    stack[-1][...] = start if name == "init" and start is not None else 0.0
            case "enter":
                steps.enter(stack[-1], argument)
            case "add":
                free.append(stack.pop())
                steps.join(stack[-1], free[-1])
            case "round":
                steps.round(stack[-1], argument)
    if starts_at_init or start is None:
        return stack[-1]
    total = steps.buffer()
    total[...] = start
    steps.join(total, stack[-1])
    return total
