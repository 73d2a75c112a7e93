"""What two machines compare in place of whole arrays."""

from __future__ import annotations

import hashlib
import sys

import numpy as np

from softfloat_llm.numerics.formats import Array, Format, encode

_ROWS_AT_ONCE = 64  # of a digest: the logits of a long prompt are large


def array_digest(array: Array, fmt: Format) -> str:
    """sha256 over an array's codes: little-endian C-order bytes, then shape and format. NaN counts as one code."""
    total = hashlib.sha256()
    for start in range(0, len(array) if array.ndim else 1, _ROWS_AT_ONCE):
        rows = array[start : start + _ROWS_AT_ONCE] if array.ndim else array
        codes = np.ascontiguousarray(encode(np.where(np.isnan(rows), np.array(np.nan, rows.dtype), rows), fmt))
        total.update((codes if sys.byteorder == "little" else codes.byteswap()).tobytes())
    total.update(f"|{','.join(map(str, array.shape))}|{fmt}".encode())
    return f"sha256:{total.hexdigest()}"
