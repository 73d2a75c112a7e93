"""The same numbers in another dtype: as they are given, float64, the carrier of a format, words. Nothing is rounded."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from softfloat_llm.errors import FormatError
from softfloat_llm.numerics.exact import Real
from softfloat_llm.numerics.formats import Array, Float64Array, Format

EXPONENT_MASK = np.int64(0x7FF0_0000_0000_0000)  # of float64


def as_given(x: Any) -> Array:
    """x as an array. A list whose integers NumPy would round on the way to float64 becomes one of objects."""
    values = np.asarray(x)
    if isinstance(x, np.ndarray) or values.dtype != np.float64 or values.ndim == 0:
        return values
    objects = np.array(x, dtype=object)
    has_large = any(isinstance(v, int) and abs(v) > 1 << 53 for v in objects.ravel())
    return objects if has_large else values


def real_of(value: Any) -> Real:
    """A number of any type as one that `exact` takes. Raises FormatError for what is no real number."""
    if isinstance(value, (int, float, Fraction)):
        return value
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.floating):
        return Fraction(*value.as_integer_ratio()) if np.isfinite(value) and value != 0 else float(value)
    raise FormatError(f"Only real numbers can be rounded, not {value!r}.")


def as_float64(values: Array) -> Float64Array | None:
    """The same numbers as float64, or None where float64 cannot hold them all exactly.

    Raises FormatError for what is not real numbers (complex, text, dates).
    """
    kind = values.dtype.kind
    if kind == "O":
        return None
    if kind in "cSUmM" or (kind == "V" and values.dtype.names is not None):
        raise FormatError(f"Only real numbers can be rounded, not an array of {values.dtype}.")
    if kind in "iu" and values.dtype.itemsize == 8 and values.size:
        return values.astype(np.float64) if _fits_53_bits(values) else None
    with np.errstate(invalid="ignore"):  # a signalling NaN
        wide = values.astype(np.float64)
    if values.dtype.itemsize > 8 and not np.array_equal(wide.astype(values.dtype), values, equal_nan=True):
        return None
    return wide


def _fits_53_bits(values: Array) -> bool:
    return int(values.max()) <= 1 << 53 and int(values.min()) >= -(1 << 53)


def carry(wide: Array, fmt: Format) -> Array:
    """Values of the format, moved to its carrier dtype: a copy. Nothing is rounded."""
    if wide.dtype == fmt.dtype:
        return wide.astype(wide.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        return wide.astype(fmt.dtype)


def widen(x: Array) -> Float64Array:
    """The same values as float64. Nothing is rounded."""
    return np.asarray(x).astype(np.float64)


def bits_of(x: Float64Array) -> npt.NDArray[np.int64]:
    """The words of a float64 array, of the same shape (0-dimensional ones too)."""
    return np.asarray(x, order="C").view(np.int64)
