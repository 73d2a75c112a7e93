"""sum, dot and matmul under a Precision.

Start reading at `matmul`: check the operands, form the terms, follow the order, round to the output. The `*_stages`
forms also give the accumulator as it stood before the output rounding, which is what a tap shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from softfloat_llm.errors import PrecisionError
from softfloat_llm.numerics.accumulate import arithmetic_of, exact_sum, follow, terms_of
from softfloat_llm.numerics.carriers import carry, widen
from softfloat_llm.numerics.crew import ALONE, Crew
from softfloat_llm.numerics.formats import Array, Float64Array, bf16, f16
from softfloat_llm.numerics.native_sums import native_squares, native_sum
from softfloat_llm.numerics.operands import check_held, operand, reals, rounded_product
from softfloat_llm.numerics.paths import path_of
from softfloat_llm.numerics.precision import EXACT, Precision, precision_of
from softfloat_llm.numerics.rounding import is_one_cast, round_wide, unsigned_nan
from softfloat_llm.numerics.side_by_side import SideBySide
from softfloat_llm.numerics.small_products import grouped_product

PrecisionLike = str | Precision | Mapping[str, Any]


class Stages(NamedTuple):
    """A result before and after its last rounding, each in the carrier dtype of its format."""

    acc: Array
    out: Array


def sum(x: npt.ArrayLike, at: PrecisionLike, axis: int = -1, *, init: npt.ArrayLike | None = None) -> Any:
    """The sum of x over an axis, in the order and accumulator of `at`.

    x (..., K) holds values of `at.storage`; the result (...) holds values of `at.output`.
    **Rounds:** once per term as it enters its accumulator; partial sums join with one rounding each; once more to
    `at.output`. There are no products. **Raises** FormatError where x has a value that `at.storage` cannot hold.

    >>> sum([256, 1, 1], "storage=bf16,acc=bf16"), sum([256, 1, 1], "storage=bf16,acc=f32")
    (256.0, 258.0)
    """
    return _public(sum_stages(x, at, axis, init=init).out)


def dot(a: npt.ArrayLike, b: npt.ArrayLike, at: PrecisionLike, *, init: npt.ArrayLike | None = None) -> Any:
    """The sum of a*b over the last axis, in the order and accumulator of `at`.

    a (..., K), b (..., K) hold values of `at.storage` and broadcast; the result (...) holds values of `at.output`.
    **Rounds:** with `at.product` exact, once per term as it enters its accumulator (fma); otherwise once per product
    and once per addition. Partial sums join with one rounding each. Once more to `at.output`.
    **Raises** FormatError where a or b has a value that `at.storage` cannot hold.

    >>> dot([256, 1, 1], [1, 1, 1], Precision(storage="bf16", acc="bf16"))   # each 257 ties back to 256
    256.0

    **Source:** Higham, Accuracy and Stability of Numerical Algorithms, section 4.2 (summation trees).
    """
    return _public(dot_stages(a, b, at, init=init).out)


def matmul(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    at: PrecisionLike,
    *,
    init: npt.ArrayLike | None = None,
    workers: int = 1,
    backend: str = "numpy",
) -> Any:
    """The matrix product, each element a `dot` in the order and accumulator of `at`.

    a (M, K), b (K, N) hold values of `at.storage`; the result (M, N) holds values of `at.output`. `init` (M, N) is
    where the accumulators start. The extra memory is a few tiles. The bits depend neither on `workers` nor on the
    `backend` (see `crew.Crew`).
    **Rounds:** as `dot`. **Raises** FormatError where a or b has a value that `at.storage` cannot hold.
    """
    with Crew(workers, backend) as crew:
        return _public(matmul_stages(a, b, at, init=init, crew=crew).out)


def argmax(row: Array, ties: str = "lowest") -> int:
    """The place of the largest value of a row (V,), the lowest (or the last) of those that share it. NaN: undefined.

    >>> argmax(np.array([1, 2, 2])), argmax(np.array([1, 2, 2]), "last")
    (1, 2)
    """
    return len(row) - 1 - int(np.argmax(row[::-1])) if ties == "last" else int(np.argmax(row))


def sum_stages(x: npt.ArrayLike, at: PrecisionLike, axis: int = -1, *, init: npt.ArrayLike | None = None) -> Stages:
    """`sum`, with the accumulator before the output rounding."""
    at = precision_of(at)
    wide = operand(x, "x", at)
    if not -wide.ndim <= axis < wide.ndim:
        raise PrecisionError(f"sum over axis {axis}: x has the shape {wide.shape}.")
    wide = np.moveaxis(wide, axis, -1)
    return _reduced(wide, at, init) if at.order.adder is None else _fused(wide, np.ones_like(wide), at, init)


def term_stages(x: Array, at: Precision) -> Stages:
    """`sum_stages` of x (..., K) over the last axis."""
    acc = native_sum(x, at)
    return sum_stages(x, at) if acc is None else rounded_output(acc, at)


def dot_stages(a: npt.ArrayLike, b: npt.ArrayLike, at: PrecisionLike, *, init: npt.ArrayLike | None = None) -> Stages:
    """`dot`, with the accumulator before the output rounding."""
    at = precision_of(at)
    left, right = operand(a, "a", at), operand(b, "b", at)
    if not left.ndim or left.shape[-1:] != right.shape[-1:] or not _can_broadcast(left, right):
        raise PrecisionError(f"dot sums over the last axis: a has {left.shape}, b has {right.shape}.")
    left, right = np.broadcast_arrays(left, right)
    if at.order.adder is not None:
        return _fused(left, right, at, init)
    return _reduced(_products(left, right, at), at, init)


def square_stages(x: Array, at: Precision) -> Stages:
    """`dot_stages` of x (..., K) with itself."""
    acc = native_squares(x, at)
    return dot_stages(x, x, at) if acc is None else rounded_output(acc, at)


def matmul_stages(
    a: npt.ArrayLike,
    b: npt.ArrayLike | SideBySide,
    at: PrecisionLike,
    *,
    init: npt.ArrayLike | None = None,
    crew: Crew = ALONE,
) -> Stages:
    """`matmul`, with the accumulator before the output rounding."""
    at = precision_of(at)
    a, b = np.asarray(a), b if isinstance(b, SideBySide) else np.asarray(b)
    if a.ndim != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        raise PrecisionError(f"matmul takes a (M, K) and b (K, N): a has {a.shape}, b has {b.shape}.")
    start = _start(init, (a.shape[0], b.shape[1]), at)
    acc = crew.matmul(a, b, at, init=start)
    return rounded_output(acc, at)


def grouped_stages(a: Array, b: Array, at: Precision) -> Stages | None:
    """a (T, H, K) times b (G, K, N), H/G rows by each group: (T, H, N), where all can be made at once."""
    acc = grouped_product(a, b, at)
    return None if acc is None else rounded_output(acc, at)


def stages_of_each(a: Array, bs: SideBySide, ats: Sequence[Precision], *, crew: Crew = ALONE) -> list[Stages]:
    """`matmul_stages` of a (M, K) with each part (K, N) of bs and its precision.

    Those that are all summed alike are made as one where that spares time: where they lie side by side in memory; or,
    as the passes of a narrow accumulator are so short that calling them counts, where they must be joined first.
    """
    if not _are_summed_alike(tuple(ats)) or (bs.whole is None and path_of(ats[0]) == "native"):
        return [matmul_stages(a, b, at, crew=crew) for b, at in zip(bs.parts, ats, strict=True)]
    acc = crew.matmul(a, bs, ats[0])
    if any(at != ats[0] for at in ats):
        return [rounded_output(part, at) for part, at in zip(bs.split(acc), ats, strict=True)]
    whole = rounded_output(acc, ats[0])
    return [Stages(*pair) for pair in zip(bs.split(whole.acc), bs.split(whole.out), strict=True)]


@lru_cache(maxsize=64)
def _are_summed_alike(ats: tuple[Precision, ...]) -> bool:
    """True where sums differ in nothing but how they are rounded last."""
    first = ats[0]
    if first.acc == EXACT or any(at.is_stochastic for at in ats):
        return False
    return all(_summed(at) == _summed(first) for at in ats)


def _summed(at: Precision) -> tuple[object, ...]:
    """What a sum hangs on, but for its output."""
    return at.storage, at.product, at.acc, at.order, *(at.rules(stage) for stage in ("storage", "product", "acc"))


def _products(left: Float64Array, right: Float64Array, at: Precision) -> Float64Array:
    """The terms (..., K) of sums; term k takes the random words of step k."""
    if not at.is_stochastic:
        return rounded_product(left, right, at)
    terms = [rounded_product(left[..., k], right[..., k], at, step=k) for k in range(left.shape[-1])]
    return np.stack(terms, axis=-1) if terms else rounded_product(left, right, at)


def _reduced(terms: Float64Array, at: Precision, init: npt.ArrayLike | None) -> Stages:
    """The sum of terms (..., K) over the last axis."""
    shape, n = terms.shape[:-1], terms.shape[-1]
    start = _start(init, shape, at)
    if at.acc == EXACT:
        rows = terms if start is None else np.concatenate([terms, start[..., None]], axis=-1)
        out = carry(exact_sum(rows, at), at.output)
        return Stages(out, out)
    program = at.order.tree(n).program()
    steps = arithmetic_of(at.acc, at, terms)
    columns = np.ascontiguousarray(np.moveaxis(terms, -1, 0))
    return rounded_output(follow(program, columns.__getitem__, steps, shape, start), at)


def _fused(left: Float64Array, right: Float64Array, at: Precision, init: npt.ArrayLike | None) -> Stages:
    """The sum of left * right (..., K) over the last axis by a multi-operand adder, which looks at both operands."""
    shape, n = left.shape[:-1], left.shape[-1]
    terms = terms_of(np.moveaxis(left, -1, 0), np.moveaxis(right, -1, 0), at)
    total = follow(at.order.tree(n).program(), terms, arithmetic_of(at.acc, at), shape, _start(init, shape, at))
    return rounded_output(total.reshape(shape), at)


def _can_broadcast(left: Array, right: Array) -> bool:
    pairs = zip(left.shape[::-1], right.shape[::-1], strict=False)
    return all(m == n or 1 in (m, n) for m, n in pairs)


def _start(init: npt.ArrayLike | None, shape: tuple[int, ...], at: Precision) -> Float64Array | None:
    """Where the accumulators start, as float64 of this shape. Raises FormatError where they cannot hold it."""
    if init is None:
        return None
    wide = reals(init, "init")
    if at.acc.format is not None:
        check_held(wide, "init", at.acc.format, "acc")
    if not _can_broadcast(wide, np.empty(shape)) or wide.ndim > len(shape):
        raise PrecisionError(f"init has the shape {wide.shape}, the result {shape}.")
    return np.broadcast_to(wide, shape)


def rounded_output(acc: Array, at: Precision) -> Stages:
    """The last rounding. acc (...) holds values of the accumulator's format (of the output already, where exact).

    A NaN goes to an output without NaN as +NaN, whichever sign the CPU gave it: -0.
    """
    if at.acc.format is None:
        out = carry(acc, at.output)
        return Stages(out, out)
    kept = acc if acc.dtype == at.acc.format.dtype else carry(acc, at.acc.format)
    if _is_last_one_cast(at):
        with np.errstate(all="ignore"):
            return Stages(kept, kept.astype(np.float32, copy=False).astype(at.output.dtype))
    wide = widen(acc) if at.output.has_nan else unsigned_nan(widen(acc))
    return Stages(kept, carry(round_wide(wide, at.output, **at.rules("output")), at.output))


@lru_cache(maxsize=512)
def _is_last_one_cast(at: Precision) -> bool:
    """True where the cast from what is kept, by way of float32, is the last rounding.

    From f16 only to f16 and bf16: there a NaN has the same bits by way of float64.
    """
    acc = at.acc.format
    is_kept_so = acc is not None and (acc.dtype == np.float32 or (acc is f16 and at.output in (f16, bf16)))
    return is_kept_so and is_one_cast(at.output, **at.rules("output"))


def _public(out: Array) -> Any:
    return float(out) if out.ndim == 0 else out
