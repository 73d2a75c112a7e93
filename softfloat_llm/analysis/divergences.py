"""How far the distribution that a run's logits mean lies from the reference's: the Kullback-Leibler divergence of rows.

Nothing here is emulated: the logits are taken as the real numbers that they are, and the divergence is computed in
float64 with the operations that every machine has alike. Start reading at `kl`.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from softfloat_llm.analysis.exact_totals import total
from softfloat_llm.errors import RunError
from softfloat_llm.numerics import approximations
from softfloat_llm.numerics.formats import Float64Array

_SERIES_BELOW = 0.25
_COEFFICIENTS = tuple(1.0 / math.factorial(k) for k in range(2, 16))  # the tail x^16/16! is below 2^-74 x^2/2 there
_MOST = 690.0  # e^690 is 5e299: float64 holds a sum of so many of them; e^-690 is lost in any sum of probabilities
_LEAST_LOG = 2.0**-40  # below this log(1 + G) is G (1 - G/2) to 2^-80


def kl(run: npt.ArrayLike, reference: npt.ArrayLike) -> Float64Array:
    """KL(reference || run) of each row in nats: the sum over tokens of p log(p / q), p and q the softmax of the rows.

    run, reference (..., V): logits in any dtypes, V alike; the result (...) is float64, never below 0. With
    d = (run - reference) less its mean under p, it is log(1 + G), G the sum of p (e^d - 1 - d): no term is negative, so
    nothing cancels, however small the divergence is.
    **Rounds:** everything here in float64, the sums exactly and then once; the relative error is below 2^-40 where |d|
    stays below 690. A row with NaN or +inf gives NaN; a token that the run rules out (-inf) but the reference does not
    gives inf; one that the reference rules out adds nothing.
    **Raises** RunError where the shapes differ: two vocabularies have no common distribution.

    >>> float(kl([0.0, 1.0], [0.0, 0.0]))   # log((1 + e) / 2) - 1/2
    0.12011450695827755

    **Source:** Kullback and Leibler, On information and sufficiency, Annals of Mathematical Statistics 22 (1951).
    """
    x, y = np.asarray(run), np.asarray(reference)
    if x.shape != y.shape or x.ndim == 0 or x.shape[-1] == 0:
        raise RunError(
            f"A divergence compares rows over one vocabulary: the run's logits have the shape {x.shape}, the"
            f" reference's {y.shape}. Take the same positions of two runs of one model."
        )
    pairs = zip(x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]), strict=True)
    found = [_of_row(*(row.astype(np.float64) for row in pair)) for pair in pairs]
    return np.array(found, np.float64).reshape(x.shape[:-1])


def _of_row(run: Float64Array, reference: Float64Array) -> float:
    if not (_is_distribution(run) and _is_distribution(reference)):
        return math.nan
    p = softmax(reference)
    is_held = p > 0
    if np.isneginf(run[is_held]).any():
        return math.inf
    p, d = p[is_held], run[is_held] - reference[is_held]
    d = d - d[np.argmax(p)]  # a row that lies higher by a constant means the same
    d = d - total(p * d)
    top = float(d.max())
    if top > _MOST:  # too large for float64's range: the log of the sum of p e^d by its largest term
        return top + float(approximations.log(np.array([total(p * _exp(d - top))]))[0])
    return log_one_plus(total(p * exp_minus_line(d)))


def _is_distribution(row: Float64Array) -> bool:
    return not (np.isnan(row).any() or np.isposinf(row).any() or np.isneginf(row).all())


def softmax(row: Float64Array) -> Float64Array:
    """e^(x - max) over the sum of it, of one row (V,) in float64. **Rounds:** float64; the sum exactly, then once."""
    terms = _exp(row - row.max())
    return terms / total(terms)


def _exp(x: Float64Array) -> Float64Array:
    """e^x for x up to 690 with a relative error below 2^-50; 0 below -690."""
    return np.where(x < -_MOST, 0.0, approximations.exp(np.maximum(x, -_MOST)))


def exp_minus_line(x: Float64Array) -> Float64Array:
    """e^x - 1 - x for x (...) up to 690, never below 0: by its series near 0, where the three cancel."""
    near = np.where(np.abs(x) < _SERIES_BELOW, x, 0.0)
    series = np.full_like(near, _COEFFICIENTS[-1])
    for coefficient in reversed(_COEFFICIENTS[:-1]):
        series = series * near + coefficient
    return np.where(np.abs(x) < _SERIES_BELOW, series * near * near, _exp(x) - 1.0 - x)


def log_one_plus(x: float) -> float:
    """log(1 + x) for x >= 0: x log(u) / (u - 1) with u = 1 + x rounded, which undoes the rounding of u.

    **Source:** Kahan, in Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 1.14.1.
    """
    if x < _LEAST_LOG or not math.isfinite(x):
        return x * (1.0 - x / 2) if math.isfinite(x) else x
    u = 1.0 + x
    return x * float(approximations.log(np.array([u]))[0]) / (u - 1.0)
