"""The exponentials that engines use in place of a correctly rounded one, in float32 arithmetic, bit for bit.

Each is a polynomial in float32 steps with fused multiply-adds, as the engine's source has it; `EXPONENTIALS` names
them. The inputs are float32 values in float64 arrays, the results too. Nothing here is more exact than what it
imitates. MLX has its own cosine and sine too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from softfloat_llm.numerics import glibc
from softfloat_llm.numerics.formats import Float64Array, f32
from softfloat_llm.numerics.functions import exp_wide
from softfloat_llm.numerics.rounding import round_sum, round_wide

_LOG2E = float(np.float32(1.4426950408889634))
_LN2 = float(np.float32(0.6931471805599453))
_FAR = 128.0  # beyond what each function overflows and underflows at, which is put right at its end


def _f32(x: Float64Array) -> Float64Array:
    return round_wide(x, f32)


def _fma(x: Float64Array | float, y: Float64Array | float, z: Float64Array | float) -> Float64Array:
    """x*y + z rounded once to float32; the product of two float32 is exact in float64."""
    product, addend = np.broadcast_arrays(np.multiply(x, y, dtype=np.float64), np.asarray(z, np.float64))
    return round_sum(product, addend, f32, "ties_to_even")


def _horner(x: Float64Array, coefficients: tuple[float, ...]) -> Float64Array:
    """The polynomial with these float32 coefficients, highest power first, one fma a step."""
    total: Float64Array = np.full(x.shape, float(np.float32(coefficients[0])))
    for coefficient in coefficients[1:]:
        total = _fma(total, x, float(np.float32(coefficient)))
    return total


def sleef_exp_u10(x: Float64Array) -> Float64Array:
    """Sleef's expf within 1 ulp, as PyTorch's CPU softmax, sigmoid and silu use it.

    q = rint(x log2 e), s = x - q ln 2 in two fma, a polynomial of degree 5 in s, r = 1 + fma(s^2, u, s), times 2^q.
    **Source:** Sleef 3, sleefsimdsp.c, xexpf; equal to PyTorch 2.13 on the CPU where it was tried.
    """
    inner = np.clip(x, -_FAR, _FAR)
    q = np.rint(_f32(inner * _LOG2E))
    s = _fma(q, -0.693145751953125, inner)
    s = _fma(q, float(np.float32(-1.428606765330187045e-06)), s)
    u = _horner(
        s,
        (0.000198527617612853646, 0.00139304355252534151, 0.00833336077630519867, 0.0416664853692054749,
         0.166666671633720398, 0.5),
    )  # fmt: skip
    r = _f32(1.0 + _fma(_f32(s * s), u, s))
    half = np.floor(q / 2)  # the scaling is done in two steps, so that it rounds once, at the second
    scaled = _f32(_scaled(_f32(_scaled(r, half)), q - half))
    return np.where(np.isnan(x), np.nan, np.where(x < -104.0, 0.0, np.where(x > 104.0, np.inf, scaled)))


def _scaled(r: Float64Array, power: Float64Array) -> Float64Array:
    """r times 2^power for whole powers: `ldexp`, exact in float64."""
    finite = np.where(np.isfinite(power), power, 0.0)
    return np.ldexp(r, np.clip(finite, -400, 400).astype(np.int64))


def flash_exp_u20(x: Float64Array) -> Float64Array:
    """PyTorch's `fexp_u20`: a cubic for the fraction of x log2 e, written into the exponent bits.

    Relative error 1.1e-4. Used by the CPU flash attention for half formats on whole vectors of 16.
    **Source:** PyTorch 2.13, vec512_float.h; equal to it on the CPU where it was tried.
    """
    y = _f32(np.clip(x, -_FAR, _FAR) * _LOG2E)
    fraction = _f32(y - np.floor(y))
    c = _horner(fraction, (-0.0792042402, -0.2243383648, 0.3035426050, 0.000107034349))
    bits = _fma(2.0**23, _f32(y - c), 127.0 * 2.0**23)
    words = np.where(np.isfinite(bits), np.clip(bits, 0.0, 2.0**31 - 1), 0.0).astype(np.int32)
    wide = words.view(np.float32).astype(np.float64)
    return np.where(np.isnan(x), np.nan, np.where(x < -87.3365, 0.0, np.where(x > 88.7228, np.inf, wide)))


def vector_exp_u20(x: Float64Array) -> Float64Array:
    """PyTorch's `exp_u20`: degree 5, relative error 2.3e-7, as the CPU flash attention uses it for f32.

    n = floor(fma(x, log2 e, 1/2)), r = x - n ln 2, Horner, times 2^(n - 1), times 2.
    **Source:** PyTorch 2.13, vec512_float.h; equal to it on the CPU where it was tried.
    """
    inner = np.clip(x, -_FAR, _FAR)
    n = np.floor(_fma(inner, _LOG2E, 0.5))
    r = _fma(-n, _LN2, inner)
    u = _horner(r, (0.00828929059, 0.0418978221, 0.166676521, 0.499991506, 0.999999701, 1.0))
    scaled = _f32(_f32(_scaled(u, n - 1)) * 2.0)
    return np.where(np.isnan(x), np.nan, np.where(x < -87.3365, 0.0, np.where(x > 88.7228, np.inf, scaled)))


def ggml_vector_exp(x: Float64Array) -> Float64Array:
    """ggml's expf of vectors: n = rint(x log2 e), b = x - n ln 2 in two fma, a polynomial of degree 5, times 2^n.

    Within 1.95 ulp; the AVX-512 form, which scales once at the end.
    **Source:** ggml 0.25.3, src/ggml-cpu/vec.h, ggml_v_expf (after Arm's optimized routines); equal to it in tests.
    """
    inner = np.clip(x, -2 * _FAR, 2 * _FAR)
    shift = 1.5 * 2.0**23
    n = _fma(inner, float.fromhex("0x1.715476p+0"), shift) - shift
    b = _fma(-n, float.fromhex("0x1.7f7d1cp-20"), _fma(-n, float.fromhex("0x1.62e4p-1"), inner))
    u = _f32(b * b)
    top = _fma(float.fromhex("0x1.0e4020p-7"), b, float.fromhex("0x1.573e2ep-5"))
    middle = _fma(float.fromhex("0x1.555e66p-3"), b, float.fromhex("0x1.fffdb6p-2"))
    j = _fma(_fma(top, u, middle), u, _fma(float.fromhex("0x1.ffffecp-1"), b, 1.0))
    scaled = _f32(_scaled(j, n))
    return np.where(np.isnan(x), np.nan, np.where(n < -192, 0.0, np.where(n > 192, np.inf, scaled)))


def mlx_exp(x: Float64Array) -> Float64Array:
    """MLX's exp on a CPU: n = floor(x log2 e + 1/2), a polynomial of degree 6 of the rest, times 2^n. Within 4 ulp.

    **Source:** MLX 0.32.4, mlx/backend/cpu/simd/math.h, in the form without vectors (x86-64), where the sum with 1/2 is
    of float64; equal to it in tests/test_engine_records.py.
    """
    y = _f32(np.clip(x, -_FAR, _FAR) * float(np.float32(1.442695)))
    n = np.floor(y + 0.5)
    value = _horner(_f32(y - n), (1.535336188319500e-4, 1.339887440266574e-3, 9.618437357674640e-3,
                                  5.550332471162809e-2, 2.402264791363012e-1, 6.931472028550421e-1, 1.0))  # fmt: skip
    scaled = np.where(n < -126, 0.0, _f32(_scaled(value, n)))  # the exponent bits of 2^-127 are those of 0
    return np.where(np.isnan(x), np.nan, np.where(x < -88.0, 0.0, np.where(x > 88.0, np.inf, scaled)))


def mlx_cos(x: Float64Array) -> Float64Array:
    """MLX's cosine on a CPU, for |x| up to 2^23: pi/4 in three parts, a polynomial by the octant."""
    octant, sine, cosine = _mlx_octants(x)
    value = np.where(octant & 2, sine, cosine)
    return np.where((octant - 2) & 4, value, -value)


def mlx_sin(x: Float64Array) -> Float64Array:
    """The same for the sine."""
    octant, sine, cosine = _mlx_octants(x)
    value = np.where(octant & 2, cosine, sine)
    return np.where((octant & 4 != 0) ^ (x < 0), -value, value)


def _mlx_octants(x: Float64Array) -> tuple[npt.NDArray[np.int64], Float64Array, Float64Array]:
    """The octant of |x|, made even, and the two polynomials of what is left."""
    rest = np.abs(x)
    octant = (_f32(rest * float(np.float32(1.27323954473516))).astype(np.int64) + 1) & ~1
    for part in (-0.78515625, -2.4187564849853515625e-4, -3.77489497744594108e-8):
        rest = _fma(octant.astype(np.float64), float(np.float32(part)), rest)
    z = _f32(rest * rest)
    cosine = _horner(z, (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2))
    cosine = _f32(_fma(z, -0.5, _f32(_f32(cosine * z) * z)) + 1.0)
    sine = _horner(z, (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1))
    return octant, _fma(rest, _f32(sine * z), rest), cosine


def _on_whole_vectors(
    vector: Callable[[Float64Array], Float64Array], rest: Callable[[Float64Array], Float64Array]
) -> Callable[[Float64Array], Float64Array]:
    """One function on whole vectors of 16 along the last axis, the other on what is left."""

    def mixed(x: Float64Array) -> Float64Array:
        whole = x.shape[-1] // 16 * 16
        return np.concatenate([vector(x[..., :whole]), rest(x[..., whole:])], axis=-1)

    return mixed


def _double_exp(x: Float64Array) -> Float64Array:
    """The C library's exp of a double, then one rounding: the rest of PyTorch's flash attention (not its expf).

    Told apart from expf by float32 attention: 18 of 8,064 values of 14 positions differ with expf, none with this.
    """
    return exp_wide(x, f32)


EXPONENTIALS: dict[str, Callable[[Float64Array], Float64Array]] = {
    "sleef-u10": sleef_exp_u10,
    "flash-u20": _on_whole_vectors(flash_exp_u20, _double_exp),
    "vector-u20": _on_whole_vectors(vector_exp_u20, _double_exp),
    "glibc": glibc.exp,
    "ggml": _on_whole_vectors(ggml_vector_exp, glibc.exp),
    "ggml-padded": ggml_vector_exp,
    "mlx": mlx_exp,
}
"""Name -> function on float32 values; "correct" is `functions.exp_wide`, in any format."""

OF_ONE = EXPONENTIALS | {"ggml-padded": glibc.exp}
"""The same for a single value, which is no part of a vector."""
