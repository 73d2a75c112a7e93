"""What a floating-point format is: a row of parameters, a table of the named ones, and the parsing of names.

A format is a set of values and their encoding. Everything that can be derived from the row is derived, under the
names of NumPy's `finfo` where it has one. Start reading at `Format`; `format_of` turns any accepted spelling into one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from softfloat_llm.errors import FormatError, nearest

NanCoding = Literal["ieee", "all_ones", "negative_zero", "none"]
Array = npt.NDArray[Any]
Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class Format:
    """A binary floating-point format.

    `precision` counts significand bits **with** the leading one. `bias` is the exponent bias. `nan` says which codes
    are NaN: `ieee` (exponent all ones, trailing significand not zero), `all_ones` (only the code of all ones),
    `negative_zero` (only the code of -0, so that there is no -0), `none`.

    >>> format_of("bf16").max
    3.3895313892515355e+38
    """

    name: str
    exponent_bits: int
    precision: int
    bias: int
    has_infinity: bool = True
    nan: NanCoding = "ieee"
    is_signed: bool = True
    has_zero: bool = True
    source: str = "IEEE 754-2019, section 3.4"

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Format({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or a pickle of a known format is that format itself: `fmt is f32` holds in another process too."""
        return _unpickled, tuple(getattr(self, field.name) for field in fields(self))

    @property
    def trailing_bits(self) -> int:
        """Stored bits of the significand."""
        return self.precision - 1

    @property
    def bits(self) -> int:
        """Bits of a code: sign, exponent and trailing significand."""
        return int(self.is_signed) + self.exponent_bits + self.trailing_bits

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal value, significand in [1, 2)."""
        return (1 if self.has_zero else 0) - self.bias

    @property
    def emax(self) -> int:
        """Exponent of the largest finite value, significand in [1, 2)."""
        top = (1 << self.exponent_bits) - 1
        field_is_reserved = self.has_infinity or self.nan == "ieee" or (self.nan == "all_ones" and self.precision == 1)
        return top - int(field_is_reserved) - self.bias

    @cached_property
    def max(self) -> float:
        """The largest finite value."""
        is_top_code_nan = self.nan == "all_ones" and self.precision > 1
        return float(2 ** (self.precision) - 1 - int(is_top_code_nan)) * 2.0 ** (self.emax - self.trailing_bits)

    @cached_property
    def smallest_normal(self) -> float:
        return 2.0**self.emin

    @cached_property
    def smallest_subnormal(self) -> float:
        """The smallest positive value (a normal one where the format has no zero, and so no subnormals)."""
        return 2.0 ** (self.emin - self.trailing_bits)

    @property
    def eps(self) -> float:
        """Distance from 1 to the next larger value."""
        return 2.0**-self.trailing_bits

    @property
    def has_nan(self) -> bool:
        return self.nan != "none"

    @property
    def has_negative_zero(self) -> bool:
        return self.is_signed and self.nan != "negative_zero"

    def is_subset_of(self, other: Format) -> bool:
        """True where every value of this format, infinities and zeros included, is a value of the other."""
        return (
            self.precision <= other.precision
            and self.smallest_subnormal >= other.smallest_subnormal
            and self.max <= other.max
            and (other.has_infinity or not self.has_infinity)
            and (other.has_nan or not self.has_nan)
            and (other.is_signed or not self.is_signed)
            and (other.has_zero or not self.has_zero)
        )

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype that carries values of this format: its own where there is one, else float32.

        Every format of at most 8 exponent bits and 24 significand bits fits float32 exactly, subnormals included.
        """
        return _DTYPES.get(self.name, np.dtype(np.float32))

    @cached_property
    def has_own_dtype(self) -> bool:
        """True where `dtype` encodes this format itself, so that its bytes are the codes."""
        return self.name in _DTYPES

    @property
    def code_dtype(self) -> np.dtype[Any]:
        """The unsigned integer dtype that holds a code."""
        return np.dtype(f"u{max(1, 1 << (self.bits - 1).bit_length() >> 3)}")


_OCP8 = "OCP 8-bit Floating Point Specification 1.0"
_OCPMX = "OCP Microscaling Formats 1.0"
_FNUZ = "Noune et al., 8-bit Numerical Formats for Deep Neural Networks (2022)"

f64 = Format("f64", 11, 53, 1023)
f32 = Format("f32", 8, 24, 127)
tf32 = Format("tf32", 8, 11, 127, source="NVIDIA A100 Tensor Core GPU Architecture (2020)")
f16 = Format("f16", 5, 11, 15)
bf16 = Format("bf16", 8, 8, 127, source="Intel, BFLOAT16 Hardware Numerics Definition (2018)")
e5m2 = Format("e5m2", 5, 3, 15, source=_OCP8)
e4m3 = Format("e4m3", 4, 4, 7, source="ml_dtypes float8_e4m3")
e3m4 = Format("e3m4", 3, 5, 3, source="ml_dtypes float8_e3m4")
e4m3fn = Format("e4m3fn", 4, 4, 7, has_infinity=False, nan="all_ones", source=_OCP8)
e4m3fnuz = Format("e4m3fnuz", 4, 4, 8, has_infinity=False, nan="negative_zero", source=_FNUZ)
e5m2fnuz = Format("e5m2fnuz", 5, 3, 16, has_infinity=False, nan="negative_zero", source=_FNUZ)
e4m3b11fnuz = Format(
    "e4m3b11fnuz", 4, 4, 11, has_infinity=False, nan="negative_zero", source="ml_dtypes float8_e4m3b11fnuz"
)
e8m0fnu = Format(
    "e8m0fnu", 8, 1, 127, has_infinity=False, nan="all_ones", is_signed=False, has_zero=False, source=_OCPMX
)
e3m2fn = Format("e3m2fn", 3, 3, 3, has_infinity=False, nan="none", source=_OCPMX)
e2m3fn = Format("e2m3fn", 2, 4, 1, has_infinity=False, nan="none", source=_OCPMX)
e2m1fn = Format("e2m1fn", 2, 2, 1, has_infinity=False, nan="none", source=_OCPMX)

FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        f64, f32, tf32, f16, bf16, e5m2, e4m3, e3m4, e4m3fn, e4m3fnuz, e5m2fnuz, e4m3b11fnuz, e8m0fnu, e3m2fn, e2m3fn,
        e2m1fn,
    )
}  # fmt: skip

_DTYPES: dict[str, np.dtype[Any]] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
} | {
    name: np.dtype(getattr(ml_dtypes, prefix + name))
    for prefix, names in {
        "float8_": ("e5m2", "e4m3", "e3m4", "e4m3fn", "e4m3fnuz", "e5m2fnuz", "e4m3b11fnuz", "e8m0fnu"),
        "float6_": ("e3m2fn", "e2m3fn"),
        "float4_": ("e2m1fn",),
    }.items()
    for name in names
    if hasattr(ml_dtypes, prefix + name)
}

CARRIERS: dict[np.dtype[Any], Format] = {dtype: FORMATS[name] for name, dtype in _DTYPES.items()}
"""NumPy dtype -> the format that it encodes."""

_ALIASES = {
    "double": "f64", "fp64": "f64", "float64": "f64", "single": "f32", "float": "f32", "fp32": "f32", "float32": "f32",
    "tensorfloat32": "tf32", "half": "f16", "fp16": "f16", "float16": "f16", "bfloat16": "bf16", "brain": "bf16",
    "fp8": "e4m3fn", "fp8_e4m3": "e4m3fn", "fp8_e5m2": "e5m2", "fp4": "e2m1fn",
    # an eXmY that is one of the named formats
    "e11m52": "f64", "e8m23": "f32", "e8m10": "tf32", "e5m10": "f16", "e8m7": "bf16",
}  # fmt: skip

_EXMY = re.compile(r"e0*([0-9]{1,2})m0*([0-9]{1,2})")


def format_of(name: str | Format | npt.DTypeLike) -> Format:
    """The format that a name, a NumPy dtype or a Format means. Case does not matter; `float8_e4m3fn` = `e4m3fn`.

    Raises FormatError for an unknown name (with the nearest known one) and for an `eXmY` out of range.

    >>> format_of("half"), format_of("e5m10").name, format_of("e4m7").max
    (Format('f16'), 'f16', 255.0)
    """
    if isinstance(name, Format):
        return name
    if isinstance(name, np.dtype) or (isinstance(name, type) and issubclass(name, np.generic)):
        return _format_of_dtype(np.dtype(name))
    if not isinstance(name, str):
        raise FormatError(f"A format is named by a string such as 'bf16', not by {name!r}.")
    return _parse(name)


def _unpickled(*values: Any) -> Format:
    made = Format(*values)
    known = FORMATS.get(made.name)
    return known if known is not None and known == made else made


def aliases_of(fmt: Format) -> list[str]:
    """The other names under which `format_of` knows a format.

    >>> aliases_of(bf16)
    ['bfloat16', 'brain', 'e8m7']
    """
    return [alias for alias, name in _ALIASES.items() if name == fmt.name]


@lru_cache(maxsize=512)
def _parse(name: str) -> Format:
    word = name.strip().lower()
    word = _ALIASES.get(word, word)
    if word.startswith(("float8_", "float6_", "float4_")):
        word = word[7:]
    if word in FORMATS:
        return FORMATS[word]
    match = _EXMY.fullmatch(word)
    if match is not None and (plain := f"e{int(match[1])}m{int(match[2])}") != word:
        return _parse(plain)
    if match is None:
        raise FormatError(
            f"Unknown format {name!r}.{nearest(word, [*FORMATS, *_ALIASES])}"
            f" Known: {' '.join(FORMATS)}, and any eXmY with X from 2 to 8 and Y from 0 to 23."
        )
    return _exmy(name, int(match[1]), int(match[2]))


def _exmy(name: str, exponent_bits: int, trailing_bits: int) -> Format:
    if not (2 <= exponent_bits <= 8 and 0 <= trailing_bits <= 23):
        raise FormatError(f"Format {name!r} is out of range: an eXmY has X from 2 to 8 and Y from 0 to 23.")
    nan: NanCoding = "ieee" if trailing_bits else "none"  # without trailing bits there is no code left for a NaN
    return Format(
        f"e{exponent_bits}m{trailing_bits}",
        exponent_bits,
        trailing_bits + 1,
        (1 << (exponent_bits - 1)) - 1,
        nan=nan,
        source="IEEE 754-2019, section 3.4, with other widths",
    )


def _format_of_dtype(dtype: np.dtype[Any]) -> Format:
    if dtype in CARRIERS:
        return CARRIERS[dtype]
    raise FormatError(f"The NumPy dtype {dtype} is not a floating-point format that is known here.")


def decode(codes: npt.ArrayLike, fmt: str | Format) -> Float64Array:
    """The values of codes, exactly, as float64. codes (...) unsigned integers; the result (...).

    Raises FormatError for a code that has more bits than the format, and for f64 (its codes are the words themselves).
    """
    fmt = format_of(fmt)
    words = np.asarray(codes)
    if words.dtype.kind not in "ui":
        raise FormatError(f"Codes are integers, not {words.dtype}.")
    if fmt is f64:
        return words.astype(np.uint64).view(np.float64)
    if words.size and (int(words.min()) < 0 or int(words.max()) >> fmt.bits):
        raise FormatError(f"A code of {fmt} has {fmt.bits} bits; found {hex(int(words.max()))}.")
    words = words.astype(np.int64)
    trailing = words & ((1 << fmt.trailing_bits) - 1)
    field = (words >> fmt.trailing_bits) & ((1 << fmt.exponent_bits) - 1)
    is_normal = (field > 0) | (not fmt.has_zero)
    significand = np.where(is_normal, trailing + (1 << fmt.trailing_bits), trailing).astype(np.float64)
    exponent = np.where(is_normal, field - fmt.bias, fmt.emin) - fmt.trailing_bits
    value = np.ldexp(significand, exponent)
    value = np.where(_is_infinity_code(field, trailing, fmt), np.inf, value)
    if fmt.is_signed:
        value = np.where(words >> (fmt.bits - 1) == 1, -value, value)
    return np.where(_is_nan_code(words, field, trailing, fmt), np.nan, value)


def _is_infinity_code(field: Array, trailing: Array, fmt: Format) -> Array:
    top = (1 << fmt.exponent_bits) - 1
    is_infinity: Array = (field == top) & (trailing == 0) & fmt.has_infinity
    return is_infinity


def _is_nan_code(words: Array, field: Array, trailing: Array, fmt: Format) -> Array:
    top = (1 << fmt.exponent_bits) - 1
    all_ones = (1 << fmt.trailing_bits) - 1
    is_nan: Array = np.zeros(words.shape, bool)
    match fmt.nan:
        case "ieee":
            is_nan = (field == top) & (trailing != 0)
        case "all_ones":
            is_nan = (field == top) & (trailing == all_ones)
        case "negative_zero":
            is_nan = words == 1 << (fmt.bits - 1)
    return is_nan


def encode(values: npt.ArrayLike, fmt: str | Format) -> Array:
    """The codes of values that the format holds. values (...) floats; the result (...) unsigned integers.

    NaN becomes the format's quiet NaN of that sign. Raises FormatError where a value is not one of the format.
    """
    fmt = format_of(fmt)
    x = np.asarray(values)
    if x.dtype == fmt.dtype and fmt.has_own_dtype:
        return np.ascontiguousarray(x).view(fmt.code_dtype).reshape(x.shape)
    wide = x.astype(np.float64)
    if fmt is f64:
        return wide.view(np.uint64)
    codes = _encode_finite(wide, fmt)
    codes = np.where(np.isinf(wide), ((1 << fmt.exponent_bits) - 1) << fmt.trailing_bits, codes)
    if fmt.is_signed:
        codes = codes | (np.signbit(wide) & fmt.has_negative_zero | (wide < 0)).astype(np.int64) << (fmt.bits - 1)
    codes = np.where(np.isnan(wide), _nan_code(wide, fmt), codes)
    _check_held(wide, codes, fmt)
    return codes.astype(fmt.code_dtype)


def _encode_finite(wide: Float64Array, fmt: Format) -> Array:
    magnitude = np.where(np.isfinite(wide), np.abs(wide), 0.0)
    _, exponent = np.frexp(magnitude)
    exponent = np.maximum(exponent - 1, fmt.emin)
    significand = np.ldexp(magnitude, fmt.trailing_bits - exponent).astype(np.int64)
    hidden = 1 << fmt.trailing_bits
    field = np.where((significand >= hidden), exponent + fmt.bias, 0)
    codes: Array = (field << fmt.trailing_bits) + np.where(field > 0, significand - hidden, significand)
    return codes if fmt.has_zero else np.maximum(field, 0)


def _nan_code(wide: Float64Array, fmt: Format) -> Array:
    if not fmt.has_nan and np.isnan(wide).any():
        raise FormatError(f"{fmt} has no code for NaN.")
    if fmt.nan == "negative_zero":
        return np.full(wide.shape, 1 << (fmt.bits - 1))
    top = ((1 << fmt.exponent_bits) - 1) << fmt.trailing_bits
    quiet = top | ((1 << fmt.trailing_bits) - 1 if fmt.nan == "all_ones" else 1 << fmt.trailing_bits >> 1)
    return quiet | (np.signbit(wide) & fmt.is_signed).astype(np.int64) << (fmt.bits - 1)


def _check_held(wide: Float64Array, codes: Array, fmt: Format) -> None:
    in_range = (codes >= 0) & (codes >> fmt.bits == 0)
    back = decode(np.where(in_range, codes, 0), fmt)
    is_held = in_range & ((back == wide) | np.isnan(wide))
    if not is_held.all():
        raise FormatError(f"{fmt} does not hold {wide[~is_held].flat[0]!r}: round it first, with round_to.")
