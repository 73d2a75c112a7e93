"""Block-scaled storage: elements of few bits that share a scale. Quantise, decode, then compute with what was decoded.

Microscaling (MXFP8, MXFP6, MXFP4), NVFP4, three of GGUF's formats, fp8 and int8 under a float32 scale. A scaled
format is a row of `SCALED`; start reading at `quantise`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from softfloat_llm.errors import FormatError, nearest
from softfloat_llm.numerics.carriers import as_float64, carry, widen
from softfloat_llm.numerics.formats import Array, Float64Array, Format, f16, f32, format_of
from softfloat_llm.numerics.rounding import round_wide
from softfloat_llm.numerics.ulps import ulp

MX_BLOCK, NV_BLOCK, GGUF_BLOCK = 32, 16, 32
MX_EXPONENTS = (-127, 127)  # of an e8m0 scale
_E4M3 = format_of("e4m3fn")


class Parts(NamedTuple):
    """What is stored of blocks (..., n): elements (..., n), a scale each (..., 1), and an offset where there is one."""

    elements: Float64Array
    scales: Float64Array
    offsets: Float64Array | None = None


@dataclass(frozen=True)
class Scaled:
    """A scaled format. `block`: elements that share a scale; `row`: those of the last axis; `tensor`: all.

    `quantise_blocks` takes blocks (..., n) of float64 values and gives what is stored of them. The elements lie between
    `least` and `largest`, the outermost of them `step` apart.
    """

    name: str
    what: str
    block: int | str
    least: float
    largest: float
    step: float
    source: str
    quantise_blocks: Callable[[Float64Array], Parts]

    def __str__(self) -> str:
        return self.name


class Counts(NamedTuple):
    """How many finite values lost more than a rounding."""

    clipped: int
    """Beyond the largest element (or the least) by more than half a step, or decoded to an infinity."""
    flushed: int
    """Not zero, but decoded to zero."""
    nan: int
    """Decoded to NaN, as their block holds a value that is not finite."""
    of: int

    def plus(self, other: Counts) -> Counts:
        """Both together."""
        return Counts(*(mine + yours for mine, yours in zip(self, other, strict=True)))

    def __str__(self) -> str:
        words = (f"{self.clipped:,} clipped", f"{self.flushed:,} flushed to zero", f"{self.nan:,} made NaN")
        return f"{', '.join(words)}, of {self.of:,}"


@dataclass(frozen=True, eq=False)
class Quantised:
    """What is stored of an array: its parts, the values that they decode to, and what was lost."""

    format: Scaled
    parts: Parts
    decoded: npt.NDArray[np.float32]
    """elements * scale + offset, in the array's shape: exact where float32 holds it, else rounded to it (once each for
    the product and the sum)."""
    counts: Counts


def quantise(x: npt.ArrayLike, fmt: str | Scaled) -> Quantised:
    """x (..., n) as a scaled format stores it, blocks along the last axis. x: values of at most float32's 24 bits.

    **Rounds:** as the format's source says, in the functions below. **Raises** FormatError for an unknown format, or an
    n that is no multiple of the block.

    >>> quantise([[448.0, 3.3, 0.001] + [0.0] * 29], "mxfp8-e4m3").decoded[0, :3].tolist()
    [448.0, 3.25, 0.001953125]

    **Source:** OCP Microscaling Formats (MX) Specification 1.0, section 6.3; see `SCALED` for the others.
    """
    scaled = scaled_of(fmt)
    wide = _operand(np.asarray(x))
    blocks = wide.reshape(_block_shape(wide.shape, scaled))
    with np.errstate(all="ignore"):
        parts = scaled.quantise_blocks(blocks)
        product = round_wide(parts.elements * parts.scales, f32)
        decoded = product if parts.offsets is None else round_wide(product + parts.offsets, f32)
        counts = _counted(blocks, parts, decoded, scaled)
    return Quantised(scaled, parts, carry(decoded.reshape(wide.shape), f32), counts)


def _operand(x: Array) -> Float64Array:
    wide = as_float64(x)
    if wide is None:
        raise FormatError("Scaled storage: an element has more bits than float64 holds. Round it first, with round_to.")
    return wide


def narrowing_counts(x: Array, held: Array, fmt: Format) -> Counts:
    """What it cost to store x (...) as `held` (...): values beyond the format's range count as clipped, or as NaN."""
    wide, kept = widen(x), widen(held)
    is_beyond = np.abs(round_wide(wide, fmt, overflow="saturate")) < np.abs(wide) - 0.5 * ulp(fmt.max, fmt)
    is_beyond &= (np.abs(wide) > fmt.max) & ~np.isnan(kept)
    flags = (is_beyond, (kept == 0) & (wide != 0), np.isnan(kept))
    clipped, flushed, nan = (int(np.count_nonzero(flag & np.isfinite(wide))) for flag in flags)
    return Counts(clipped, flushed, nan, wide.size)


def scaled_of(name: str | Scaled) -> Scaled:
    """The scaled format of a name. Raises FormatError for an unknown one."""
    if isinstance(name, Scaled):
        return name
    word = str(name).strip().lower()
    if word not in SCALED:
        raise FormatError(f"Unknown scaled format {name!r}.{nearest(word, SCALED)} Known: {', '.join(SCALED)}.")
    return SCALED[word]


def _block_shape(shape: tuple[int, ...], scaled: Scaled) -> tuple[int, ...]:
    if scaled.block == "tensor":
        return (int(np.prod(shape)),)
    length = shape[-1] if shape else 1
    if scaled.block == "row":
        return shape
    size = int(scaled.block)
    if not shape or length % size:
        raise FormatError(f"{scaled} has blocks of {size} along the last axis, which has {length} elements here.")
    return (*shape[:-1], length // size, size)


def _counted(blocks: Float64Array, parts: Parts, decoded: Float64Array, scaled: Scaled) -> Counts:
    is_finite = np.isfinite(blocks)
    offsets = 0.0 if parts.offsets is None else parts.offsets
    elements = (blocks - offsets) / parts.scales  # before their rounding
    is_beyond = (elements > scaled.largest + scaled.step / 2) | (elements < scaled.least - scaled.step / 2)
    is_clipped = (is_beyond & (parts.scales != 0)) | np.isinf(decoded)
    return Counts(
        clipped=int(np.count_nonzero(is_clipped & is_finite)),
        flushed=int(np.count_nonzero((decoded == 0) & (blocks != 0))),
        nan=int(np.count_nonzero(np.isnan(decoded) & is_finite)),
        of=blocks.size,
    )


# --- microscaling -----------------------------------------------------------------------------------------------------


def _largest(blocks: Float64Array) -> Float64Array:
    magnitude: Float64Array = np.abs(blocks).max(axis=-1, keepdims=True, initial=0.0)
    return magnitude


def _microscaling(element: Format) -> Callable[[Float64Array], Parts]:
    """Scale 2^(floor(log2 largest) - emax), NaN for a block that is not finite; elements saturate, ties to even."""

    def quantise_blocks(blocks: Float64Array) -> Parts:
        largest = _largest(blocks)
        exponent = np.frexp(largest)[1] - 1 - element.emax
        exponent = np.where(largest == 0, MX_EXPONENTS[0], np.clip(exponent, *MX_EXPONENTS))
        scales = np.where(np.isfinite(largest), np.ldexp(1.0, exponent), np.nan)
        return Parts(round_wide(blocks / scales, element, overflow="saturate"), scales)

    return quantise_blocks


def _nvfp4(blocks: Float64Array) -> Parts:
    """Blocks of 16, their scales in e4m3 relative to one float32 for the tensor, amax / (448 * 6).

    **Rounds:** the tensor's scale to f32; each block's largest / 6 / that, to e4m3, saturating; each element / both
    scales, to e2m1, saturating. The scale that decodes is the product of both, exact (28 bits).
    """
    element = format_of("e2m1fn")
    tensor = round_wide(np.abs(blocks).max(initial=0.0) / np.array(_E4M3.max * element.max), f32)
    tensor = np.where(tensor == 0, 1.0, tensor)
    scales = round_wide(_largest(blocks) / element.max / tensor, _E4M3, overflow="saturate") * tensor
    quotient = np.where(scales == 0, 0.0, blocks / scales)
    return Parts(round_wide(quotient, element, overflow="saturate"), scales)


# --- integers ---------------------------------------------------------------------------------------------------------


def _reciprocal(d: Float64Array) -> Float64Array:
    return np.where(d == 0, 0.0, round_wide(1.0 / d, f32))


def _integers(x: Float64Array, lowest: float, highest: float) -> Float64Array:
    """x within the bounds. 1/d of a subnormal d may be infinite: 0 of that is no number, and d itself 0 as an f16."""
    return np.clip(np.nan_to_num(x, nan=0.0, posinf=highest, neginf=lowest), lowest, highest)


def _half_away(x: Float64Array) -> Float64Array:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def _int8(blocks: Float64Array) -> Parts:
    """Symmetric: scale R32(amax / 127), elements rint(R32(x / scale)) in [-127, 127]."""
    scales = round_wide(_largest(blocks) / 127.0, f32)
    quotient = round_wide(np.where(scales == 0, 0.0, blocks / scales), f32)
    return Parts(np.clip(np.rint(quotient), -127, 127), scales)


def _fp8(blocks: Float64Array) -> Parts:
    """e4m3fn under the scale R32(amax / 448): elements R(R32(x / scale)), saturating, ties to even."""
    scales = round_wide(_largest(blocks) / _E4M3.max, f32)
    quotient = round_wide(np.where(scales == 0, 0.0, blocks / scales), f32)
    return Parts(round_wide(quotient, _E4M3, overflow="saturate"), scales)


def _q8_0(blocks: Float64Array) -> Parts:
    """d = R32(amax / 127) is stored as f16; elements by the unrounded one: R32(x R32(1/d)), halves away from zero."""
    d = round_wide(_largest(blocks) / 127.0, f32)
    elements = _integers(_half_away(round_wide(blocks * _reciprocal(d), f32)), -127, 127)
    return Parts(elements, round_wide(d, f16))


def _q4_0(blocks: Float64Array) -> Parts:
    """d = (the value of the largest magnitude) / -8, stored as f16.

    Elements min(15, trunc(R32(R32(x R32(1/d)) + 8.5))) - 8.
    """
    place = np.abs(blocks).argmax(axis=-1, keepdims=True)
    d = np.take_along_axis(blocks, place, axis=-1) / -8.0
    shifted = round_wide(round_wide(blocks * _reciprocal(d), f32) + 8.5, f32)
    return Parts(_integers(np.trunc(shifted), 0, 15) - 8.0, round_wide(d, f16))


def _q4_1(blocks: Float64Array) -> Parts:
    """d = R32(R32(max - min) / 15) and min are stored as f16.

    Elements min(15, trunc(R32(R32(R32(x - min) R32(1/d)) + 0.5))).
    """
    lowest, highest = blocks.min(axis=-1, keepdims=True), blocks.max(axis=-1, keepdims=True)
    d = round_wide(round_wide(highest - lowest, f32) / 15.0, f32)
    steps = round_wide(round_wide(blocks - lowest, f32) * _reciprocal(d), f32)
    elements = _integers(np.trunc(round_wide(steps + 0.5, f32)), 0, 15)
    return Parts(elements, round_wide(d, f16), round_wide(lowest, f16))


_OCP = "OCP Microscaling Formats (MX) Specification 1.0, sections 5 and 6.3"
_FP8 = "Micikevicius et al., FP8 Formats for Deep Learning (2022), section 3: scaling by the largest magnitude"
_INT8 = "the symmetric scheme of Jacob et al., Quantization and Training of Neural Networks (CVPR 2018), zero point 0"
_GGML = "ggml, quantize_row_*_ref in ggml-quants.c; held against the gguf package"
_MX_ELEMENTS = {
    "mxfp8-e4m3": _E4M3,
    "mxfp8-e5m2": format_of("e5m2"),
    "mxfp6-e3m2": format_of("e3m2fn"),
    "mxfp6-e2m3": format_of("e2m3fn"),
    "mxfp4": format_of("e2m1fn"),
}


_NVFP4 = "blocks of 16 in e2m1fn, a scale in e4m3fn each and one in f32"
_OF_32 = "blocks of 32 integers of"


def _rows() -> list[Scaled]:
    made = [
        Scaled(
            name,
            f"blocks of 32 in {e}, a power of two each",
            MX_BLOCK,
            -e.max,
            e.max,
            ulp(e.max, e),
            _OCP,
            _microscaling(e),
        )
        for name, e in _MX_ELEMENTS.items()
    ]
    nvidia = "NVIDIA, Pretraining Large Language Models with NVFP4 (2025), appendix: two-level scaling"
    return [
        *made,
        Scaled("nvfp4", _NVFP4, NV_BLOCK, -6.0, 6.0, 2.0, nvidia, _nvfp4),
        Scaled("q8_0", f"{_OF_32} 8 bits, an f16 scale each", GGUF_BLOCK, -127.0, 127.0, 1.0, _GGML, _q8_0),
        Scaled("q4_0", f"{_OF_32} 4 bits, an f16 scale each", GGUF_BLOCK, -8.0, 7.0, 1.0, _GGML, _q4_0),
        Scaled("q4_1", f"{_OF_32} 4 bits, f16 scale and lowest value", GGUF_BLOCK, 0.0, 15.0, 1.0, _GGML, _q4_1),
        Scaled("fp8", "e4m3fn, one f32 scale, amax / 448", "tensor", -448.0, 448.0, 32.0, _FP8, _fp8),
        Scaled("fp8-channel", "e4m3fn, an f32 scale for each row, amax / 448", "row", -448.0, 448.0, 32.0, _FP8, _fp8),
        Scaled("int8", "integers of 8 bits, one f32 scale", "tensor", -127.0, 127.0, 1.0, _INT8, _int8),
        Scaled(
            "int8-channel", "integers of 8 bits, an f32 scale for each row", "row", -127.0, 127.0, 1.0, _INT8, _int8
        ),
    ]


SCALED: dict[str, Scaled] = {row.name: row for row in _rows()}
