"""How far a sum can lie from its exact value: Higham's a-priori bound for any order, and the running bound for one.

With u the unit roundoff of the accumulator (2^-p to nearest), K terms, and S the sum of |a_i b_i|:

* any order: |computed - exact| <= gamma_K S with gamma_n = n u / (1 - n u), since a term passes at most K roundings;
* one order: |computed - exact| <= u (|s_1| + |s_2| + ...), the computed results of all its roundings.

Rounded products add their own u_p, a result below the normal range at most half of the smallest subnormal, and the
last rounding u_out of the result. Both bounds hold, they are not estimates; neither speaks of errors in a and b.

**Source:** Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, lemma 3.1 (gamma_n), section 3.1 (dot
products), equation 4.3 (the running bound). Start reading at `sum_bounds`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from softfloat_llm.errors import PrecisionError
from softfloat_llm.numerics.formats import Float64Array, Format, f64
from softfloat_llm.numerics.partials import partial_sums
from softfloat_llm.numerics.precision import Precision, precision_of
from softfloat_llm.numerics.reduce import matmul_stages

_NEAREST = ("ties_to_even", "ties_to_away")


def unit_roundoff(fmt: Format, mode: str = "ties_to_even") -> float:
    """The largest relative error of one rounding: 2^-p to nearest, 2^(1-p) in a directed mode.

    >>> from softfloat_llm.numerics.formats import bf16, f32
    >>> unit_roundoff(bf16) == 2.0**-8, unit_roundoff(f32, "toward_zero") == 2.0**-23
    (True, True)
    """
    return 2.0**-fmt.precision if mode in _NEAREST else 2.0 ** (1 - fmt.precision)


def gamma(n: int, u: float) -> float:
    """n u / (1 - n u): the relative error of n roundings. Inf where n u >= 1, and nothing can be said.

    >>> gamma(576, 2.0**-8), gamma(100, 2.0**-8) == 100 / 156
    (inf, True)
    """
    return n * u / (1 - n * u) if n * u < 1 else math.inf


@dataclass(frozen=True)
class SumBounds:
    """Bounds on |computed - exact| of each sum (M, N); `running` is None where the accumulator is exact."""

    value: Float64Array
    """What the sums come to in the order of `at`, output rounding included."""
    magnitude: Float64Array
    """S, the sum of |a_i b_i|, from above."""
    a_priori: Float64Array
    running: Float64Array | None
    terms: int
    gamma: float


def sum_bounds(a: npt.ArrayLike, b: npt.ArrayLike, at: str | Precision) -> SumBounds:
    """Bounds on the error of each element of the matrix product a b under a precision.

    a (M, K), b (K, N) hold values of `at.storage`. `a_priori` holds for every order of the terms, `running` for that of
    `at`. Inf where a sum could leave the range, or K u reaches 1.
    **Rounds:** the bounds in float64, each enlarged by what that can lose.
    **Raises** PrecisionError for compensated sums, matrix units, partial sums stored in another format, and f64
    accumulators: the formulas are not about them.
    """
    at = precision_of(at)
    left, right = (np.asarray(x).astype(np.float64) for x in (a, b))
    k = left.shape[-1]
    _check_plain(at, k)
    value = matmul_stages(a, b, at).out.astype(np.float64)
    size = partial_sums(np.abs(left), np.abs(right), _wide(at)).total * (1 + gamma(k + 1, 2.0**-53))
    u, u_p, tiny = _units(at)
    growth = gamma(k, u)
    inner = ((1 + u_p) * (1 + growth) - 1) * size + 2 * k * tiny * (1 + growth)
    a_priori = _with_output(inner, size, value, at)
    if at.acc.format is None:
        return SumBounds(value, size, a_priori, None, k, growth)
    found = partial_sums(a, b, at)
    added = u * found.magnitudes * (1 + gamma(found.roundings + 1, 2.0**-53))
    running = _with_output(u_p * size + added + 2 * max(k, found.roundings) * tiny, size, value, at)
    return SumBounds(value, size, a_priori, running, k, growth)


def _check_plain(at: Precision, terms: int) -> None:
    """Raises PrecisionError where the formulas are not about such a sum."""
    steps = {name for name, _ in at.order.tree(terms).program()}
    if at.acc.method in ("plain", "exact") and at.acc.format != f64 and not steps & {"fuse", "round"}:
        return
    raise PrecisionError(
        f"No bound of this kind for {at}: it is about plain or exact accumulators of at most 24 bits whose partial sums"
        " stay in them. Choose such as acc=f32,order=seq."
    )


def _wide(at: Precision) -> Precision:
    return Precision(storage=at.storage, acc="f64", output="f64")


def _units(at: Precision) -> tuple[float, float, float]:
    """u of the accumulator, u of the products, and the most that one rounding loses below the normal range."""
    u = 0.0 if at.acc.format is None else unit_roundoff(at.acc.format, at.rounding.acc)
    u_p = 0.0 if at.product is None else unit_roundoff(at.product, at.rounding.product)
    formats = [fmt for fmt in (at.acc.format, at.product) if fmt is not None]
    flushed = [word for word in (at.subnormals.acc, at.subnormals.product) if word != "keep"]
    return u, u_p, max((_tiny(fmt, bool(flushed)) for fmt in formats), default=0.0)


def _tiny(fmt: Format, is_flushed: bool) -> float:
    """At most the smallest subnormal (half of it to nearest); where results are flushed, the smallest normal value."""
    return fmt.smallest_normal if is_flushed else fmt.smallest_subnormal


def _with_output(inner: Float64Array, size: Float64Array, value: Float64Array, at: Precision) -> Float64Array:
    """The bound after the last rounding, of a result whose exact value lies within the range; inf elsewhere."""
    u = unit_roundoff(at.output, at.rounding.output)
    tiny = _tiny(at.output, at.subnormals.output != "keep")
    with np.errstate(invalid="ignore", over="ignore"):
        exact = np.minimum(size, (np.abs(value) + inner + tiny) / (1 - u))
        bound: Float64Array = (inner + u * (exact + inner) + tiny) * (1 + 2.0**-50)
        reach = size + inner
        limit = at.output.max if at.acc.format is None else min(at.acc.format.max, at.output.max)
        bound = np.where((reach < limit) & np.isfinite(value), bound, np.inf)
    return bound
