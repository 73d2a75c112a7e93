"""The arithmetic of multi-operand adders on arrays: `Pairs` are the operands of sums, `Pairs.fuse` one instruction.

Aligned terms are integers of at most 53 bits (`Adder.most_bits`), so float64 adds them exactly, in any order. Start
reading at `Pairs.fuse`; what the models mean is said at `adders.Adder`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from softfloat_llm.numerics.adders import Adder
from softfloat_llm.numerics.carriers import EXPONENT_MASK, bits_of
from softfloat_llm.numerics.formats import Float64Array, Format, f32
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.rounding import flush, round_pair, round_sum, round_wide, to_odd_pair, two_sum

Exponents = npt.NDArray[np.int16]

_OF_ZERO = -4096  # below every exponent of a product, and so is the sum of two of them
_OF_INFINITY = 512  # above every exponent of a product; 2^-512 scales an infinity to itself
_LOWEST_PRODUCT = -512  # below the exponents of products, which are not below 2 * -149


class Pairs:
    """The operands a and b of sums over their first axis, as an adder reads them.

    left and right (K, ...) float64, broadcast against each other, of at least two dimensions: a tile of a matrix
    product is (K, M, 1) and (K, 1, n).
    """

    def __init__(self, left: Float64Array, right: Float64Array, adder: Adder, at: Precision) -> None:
        assert at.acc.format is not None
        self.adder = replace(adder, input=adder.input or at.storage, output=adder.output or at.acc.format)
        self.left, self.right = _read(left, self.adder), _read(right, self.adder)
        self.shape = np.broadcast_shapes(self.left.shape[1:], self.right.shape[1:])
        self._exponents = tuple(_exponents(x, self.adder) for x in (self.left, self.right))

    def __call__(self, k: int, out: Float64Array | None = None) -> Float64Array:
        """The exact product k."""
        product: Float64Array = np.multiply(self.left[k], self.right[k], out=out)
        return product

    def exponent(self, k: int, out: Exponents) -> Exponents:
        """The exponent of product k: that of a plus that of b, which is that of the product or one less."""
        of_left, of_right = self._exponents
        exponent: Exponents = np.add(of_left[k], of_right[k], out=out)
        return exponent

    def fuse(self, c: Float64Array, ks: tuple[int, ...]) -> Float64Array:
        """The result of one instruction: the accumulator c (...) and the products ks, at most `adder.terms` of them.

        Products that are missing are zeros. The result (...) holds values of the adder's output.
        """
        assert len(ks) <= self.adder.terms
        with np.errstate(all="ignore"):
            return _MODELS[self.adder.model](self, c, ks)


def _read(x: Float64Array, adder: Adder) -> Float64Array:
    """The operands as the unit takes them from its registers."""
    assert adder.input is not None
    if adder.truncates_input:
        return round_wide(x, adder.input, "toward_zero")
    return flush(x, adder.input) + 0.0 if adder.model == "pairwise" else x


def _exponents(x: Float64Array, adder: Adder) -> Exponents:
    """floor(log2 |x|), not below the input format's emin."""
    assert adder.input is not None
    exponents = np.maximum(_exponent_of(x), adder.input.emin)
    return np.where(x == 0, _OF_ZERO, exponents).astype(np.int16)


def _exponent_of(x: Float64Array) -> npt.NDArray[np.int64]:
    """floor(log2 |x|) of normal float64; `_OF_INFINITY` at most, which is also that of a NaN."""
    exponent: npt.NDArray[np.int64] = np.minimum(((bits_of(x) & EXPONENT_MASK) >> 52) - 1023, _OF_INFINITY)
    return exponent


def _power_of_two(exponent: npt.NDArray[np.int64]) -> Float64Array:
    """2^exponent, for exponents of normal float64."""
    return ((exponent + 1023) << 52).view(np.float64)


# --- aligned --------------------------------------------------------------------------------------------------------


def _aligned(pairs: Pairs, c: Float64Array, ks: tuple[int, ...]) -> Float64Array:
    """Steps 1 to 5 of a tensor core, for each group of terms in turn."""
    adder = pairs.adder
    total = c if adder.accumulator == "aligned" else np.zeros_like(c)
    for part in adder.parts(ks):
        total = _converted(*_cut_sum(pairs, part, adder.zero_exponent, total), adder)
    if adder.accumulator == "aligned":
        return total
    assert adder.output is not None
    return round_sum(total, c, adder.output, "ties_to_even")


def _cut_sum(
    pairs: Pairs, ks: tuple[int, ...], floor: int, c: Float64Array | None = None
) -> tuple[Float64Array, npt.NDArray[np.int64]]:
    """The products, and c, cut toward zero to multiples of 2^(E - F) and added: how many of those, and E.

    E: the largest exponent, and at least `floor`.
    """
    bits, output = pairs.adder.fraction_bits, pairs.adder.output
    assert output is not None
    exponent, of_product = np.full(pairs.shape, floor, np.int16), np.empty(pairs.shape, np.int16)
    for k in ks:
        np.maximum(exponent, pairs.exponent(k, out=of_product), out=exponent)
    largest = np.minimum(exponent.astype(np.int64), _OF_INFINITY)
    if c is not None:  # the emin of the narrowest register: a c that is zero must not raise E
        largest = np.maximum(largest, np.where(c == 0, floor, np.maximum(_exponent_of(c), _register(output).emin)))
    scale = _power_of_two(bits - largest)
    total = np.zeros(pairs.shape) if c is None else np.trunc(c * scale)
    term = np.empty(pairs.shape)
    for k in ks:
        np.multiply(pairs(k, out=term), scale, out=term)
        np.add(total, np.trunc(term, out=term), out=total)
    return total, largest


def _register(output: Format) -> Format:
    """The format of the accumulator operand: what has float32's exponents is read as float32."""
    return f32 if output.emin == f32.emin else output


def _converted(total: Float64Array, exponent: npt.NDArray[np.int64], adder: Adder) -> Float64Array:
    """total * 2^(exponent - F) in the output's format; a zero is +0."""
    assert adder.output is not None
    exact = total * _power_of_two(exponent - adder.fraction_bits) + 0.0
    rounded = round_wide(exact, adder.output, adder.rounding)
    is_beyond = np.abs(exact) >= 2.0 ** (adder.output.emax + 1)
    return np.where(is_beyond, np.copysign(np.inf, exact), rounded) if is_beyond.any() else rounded


# --- the others -----------------------------------------------------------------------------------------------------


def _exact(pairs: Pairs, c: Float64Array, ks: tuple[int, ...]) -> Float64Array:
    """Everything added without error, rounded once."""
    adder = pairs.adder
    assert adder.output is not None
    components = [c + np.zeros_like(pairs(ks[0]))]
    for k in ks:
        components = grown(components, pairs(k))
    s, e = _pair(components)
    plain = np.add.reduce([c + np.zeros_like(s), *(pairs(k) for k in ks)])  # right where not all are finite
    rounded = round_pair(s + 0.0, e, adder.output, adder.rounding)
    return np.where(np.isfinite(plain), rounded, plain)


def grown(components: list[Float64Array], part: Float64Array) -> list[Float64Array]:
    """Components, the smallest first, that do not overlap and add up to the others and the part.

    Source: Shewchuk, Adaptive Precision Floating-Point Arithmetic (1997), theorem 10 (grow-expansion).
    """
    lows = []
    for component in components:
        part, low = two_sum(part, component)
        lows.append(low)
    return [*lows, part]


def _pair(components: list[Float64Array]) -> tuple[Float64Array, Float64Array]:
    """(s, e) with s + e the sum of components that do not overlap, e rounded to odd: round_pair needs no more of it.

    From the smallest up, each component swallows what lies below it: that is less than its ulp, and only its presence
    and side count.
    """
    e = np.zeros_like(components[0])
    for component in components[:-1]:
        e = np.where(component == 0, e, to_odd_pair(*two_sum(component, e)))
    return two_sum(components[-1], e)


def _pairwise(pairs: Pairs, c: Float64Array, ks: tuple[int, ...]) -> Float64Array:
    """Products, then pairs of sums until one is left, then c: all in float32, subnormal results are zeros."""

    def add(x: Float64Array, y: Float64Array) -> Float64Array:
        return round_sum(x, y, f32, "ties_to_even", subnormals="ftz")

    values = [round_wide(pairs(k), f32, "ties_to_even", subnormals="ftz") for k in ks]
    values += [np.zeros_like(values[0])] * (pairs.adder.terms - len(ks))
    while len(values) > 1:
        values = [add(values[i], values[i + 1]) for i in range(0, len(values), 2)]
    return add(flush(c, f32) + 0.0, values[0])


def _two_step(pairs: Pairs, c: Float64Array, ks: tuple[int, ...]) -> Float64Array:
    """CDNA3: the products at their own exponent, then their sum and c at the larger of theirs, rounded down."""
    adder = pairs.adder
    bits, sum_bits = adder.fraction_bits, adder.sum_bits
    sums = [_cut_sum(pairs, part, _LOWEST_PRODUCT) for part in adder.parts(ks)]
    total, exponent = sums[0] if len(sums) == 1 else _joined(sums[0], sums[1])
    if adder.groups == "one":
        total = _with_overflow(total, pairs, ks)
    of_c = np.maximum(_exponent_of(c), f32.emin)
    largest = np.maximum(exponent, of_c)
    total = np.floor(total * _power_of_two(exponent - largest + (sum_bits - bits)))
    cut = np.floor(c * _power_of_two(bits - largest)) * 2.0 ** (sum_bits - bits)
    if adder.groups == "parities":
        cut = np.where(of_c < largest - bits - 1, 0.0, cut)
    exact = (total + cut) * _power_of_two(largest - sum_bits) + 0.0
    unit = _power_of_two(np.maximum(_exponent_of(exact), f32.emin) - adder.total_bits)
    assert adder.output is not None
    return round_wide(np.floor(exact / unit) * unit, adder.output, adder.rounding)


def _joined(
    even: tuple[Float64Array, npt.NDArray[np.int64]], odd: tuple[Float64Array, npt.NDArray[np.int64]]
) -> tuple[Float64Array, npt.NDArray[np.int64]]:
    """Two sums of multiples of 2^(E - F), rounded down at the larger E."""
    largest = np.maximum(even[1], odd[1])
    parts = [np.floor(total * _power_of_two(exponent - largest)) for total, exponent in (even, odd)]
    return parts[0] + parts[1], largest


def _with_overflow(total: Float64Array, pairs: Pairs, ks: tuple[int, ...]) -> Float64Array:
    """The sum of the products, infinite where one of them has no place in float32's range."""
    for k in ks:
        product = pairs(k)
        is_beyond = np.abs(product) >= 2.0 ** (f32.emax + 1)
        if is_beyond.any():
            total = np.where(is_beyond, total + np.copysign(np.inf, product), total)
    return total


_MODELS: dict[str, Callable[[Pairs, Float64Array, tuple[int, ...]], Float64Array]] = {
    "aligned": _aligned, "exact": _exact, "pairwise": _pairwise, "two-step": _two_step
}  # fmt: skip
