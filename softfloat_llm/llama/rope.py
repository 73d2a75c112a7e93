"""Rotary positions: the inverse frequencies of a config, and the table of cos and sin.

Powers are taken correctly rounded, so the table is the same on every machine; the format of each step is `compute`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np

from softfloat_llm.errors import ConfigError
from softfloat_llm.llama.config import Config, RopeScaling
from softfloat_llm.llama.taps import Taps
from softfloat_llm.numerics import functions, glibc, ops, torch_functions
from softfloat_llm.numerics.engine_functions import mlx_cos, mlx_exp, mlx_sin
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.formats import Array, Float64Array, Format, f32
from softfloat_llm.numerics.rounding import carry, round_wide, widen
from softfloat_llm.site_specs import SiteSpec


def rope_table(positions: Array, config: Config, spec: SiteSpec) -> Taps:
    """cos and sin of position times inverse frequency. positions (T,) integers; the result (T, C), cos then sin.

    **Rounds:** to `compute`: the position, the angle, its cosine and sine (correctly rounded, or as the option
    `functions` names them); then once to the output.
    """
    c = spec.compute
    place = round_wide(np.asarray(positions).astype(np.float64), c)[:, None]
    angle = _angles(place, config, spec)  # (T, C/2)
    wide = np.concatenate([_function("cos", angle, spec), _function("sin", angle, spec)], axis=-1)
    out = carry(round_wide(wide, spec.output, **spec.precision.rules("output")), spec.output)
    return Taps(carry(angle, c), None, out, enter_format=c)


def _function(name: str, x: Float64Array, spec: SiteSpec) -> Float64Array:
    """cos, sin or exp of x, in `compute`: correctly rounded, or those that the option `functions` names."""
    own = _LIBRARIES.get(spec.options["functions"], {}).get(name)
    return own(x) if own is not None else functions.function_wide(name, (x,), spec.compute)


_LIBRARIES: dict[str, dict[str, Callable[[Float64Array], Float64Array]]] = {
    "glibc": {"cos": glibc.cos, "sin": glibc.sin, "exp": glibc.exp},
    "torch-x86": {"cos": torch_functions.cos, "sin": torch_functions.sin},
    "mlx": {"cos": mlx_cos, "sin": mlx_sin, "exp": mlx_exp},
}


def _angles(place: Float64Array, config: Config, spec: SiteSpec) -> Float64Array:
    """The angle of each position, place (T, 1), and pair: (T, C/2)."""
    c, kept = spec.compute, spec.format_of("frequency_format")
    if spec.options["frequencies"] == "iterated":
        return _iterated_angles(place, config, c, kept)
    if spec.options["frequencies"] == "exp":
        frequencies = _scaled(_function("exp", _exponents(config, c), spec), config, c)
    else:
        frequencies = inverse_frequencies(config, c, form=spec.options["frequencies"])
    return round_wide(place * round_wide(frequencies, kept), c)


def _iterated_angles(place: Float64Array, config: Config, compute: Format, kept: Format) -> Float64Array:
    """p, then each angle the last times theta^(-2/C). Rounds: the ratio (as kept too), each angle, its scaling.

    **Source:** ggml 0.25.3, src/ggml-cpu/ops.cpp, ggml_rope_cache_init; the scalings: its rope_yarn (linear), and
    conversion/llama.py (llama3: a divisor for each pair).
    """
    exponent = widen(ops.div(-2.0, float(config.head_dim), compute))
    ratio = round_wide(widen(functions.pow(config.rope_theta, exponent, compute)), kept)
    angles = [place]
    for _ in range(config.head_dim // 2 - 1):
        angles.append(round_wide(angles[-1] * ratio, compute))
    plain = np.concatenate(angles, axis=-1)
    scaling = config.rope_scaling
    match scaling.rope_type if scaling else "default":
        case "default" | "dynamic":
            return plain
        case "linear":
            assert scaling is not None
            return round_wide(plain * widen(ops.div(1.0, scaling.factor, compute)), compute)
        case "llama3":
            assert scaling is not None
            return widen(ops.div(plain, round_wide(_llama3_divisors(config, scaling), compute), compute))
    raise _not_computed(scaling)


def _not_computed(scaling: RopeScaling | None) -> ConfigError:
    assert scaling is not None
    return ConfigError(
        f"config: rope type {scaling.rope_type!r} is read, but its frequencies are not computed by this version."
    )


def inverse_frequencies(config: Config, compute: Format, *, form: str = "pow") -> Float64Array:
    """1 / theta^(2i/C), scaled as the config asks. The result (C/2,) holds values of `compute`.

    **Rounds:** form=pow: 2i/C, the power (correctly rounded), and its reciprocal, each to `compute`. exp: ln theta,
    that over C/2, -i times it, and e to that. exp2: i over C/2, log2 theta, minus their product, and 2 to that.
    **Raises** ConfigError for a scaling that is read but not computed.
    **Source:** pow: transformers 5.24.0, modeling_rope_utils.py, in f32; exp: MLX 0.32, mlx/fast.cpp (CPU); exp2: its
    backend/metal/kernels/rope.metal.
    """
    return _scaled(_FREQUENCIES[form](config, compute), config, compute)


def _scaled(plain: Float64Array, config: Config, compute: Format) -> Float64Array:
    scaling = config.rope_scaling
    match scaling.rope_type if scaling else "default":
        case "default" | "dynamic":  # dynamic changes nothing up to max_position_embeddings, which is never exceeded
            return plain
        case "linear":
            assert scaling is not None
            return widen(ops.div(plain, scaling.factor, compute))
        case "llama3":
            assert scaling is not None
            return _llama3(plain, scaling, compute)
    raise _not_computed(scaling)


def _by_pow(config: Config, compute: Format) -> Float64Array:
    steps = np.arange(0, config.head_dim, 2, dtype=np.float64)
    exponent = ops.div(steps, float(config.head_dim), compute)
    power = functions.pow(config.rope_theta, widen(exponent), compute)
    return widen(ops.div(1.0, widen(power), compute))


def _by_exp(config: Config, compute: Format) -> Float64Array:
    return functions.exp_wide(_exponents(config, compute), compute)


def _exponents(config: Config, compute: Format) -> Float64Array:
    """-i times ln theta over C/2, each step rounded."""
    half = config.head_dim // 2
    step = float(ops.div(functions.log(config.rope_theta, compute), float(half), compute))
    return round_wide(-step * np.arange(half, dtype=np.float64), compute)


def _by_exp2(config: Config, compute: Format) -> Float64Array:
    half = config.head_dim // 2
    part = widen(ops.div(np.arange(half, dtype=np.float64), float(half), compute))
    exponent = round_wide(-part * _log2(config.rope_theta, compute), compute)
    return widen(functions.pow(2.0, exponent, compute))


def _log2(x: float, fmt: Format) -> float:
    """log2 of x > 0, rounded once: exact for powers of 2, else from 50 digits."""
    mantissa, exponent = math.frexp(x)
    if mantissa == 0.5:
        return float(exponent - 1)
    with localcontext() as context:
        context.prec = 50
        return round_exact(Fraction(Decimal(x).ln() / Decimal(2).ln()), fmt)


_FREQUENCIES = {"pow": _by_pow, "exp": _by_exp, "exp2": _by_exp2}


def _llama3(plain: Float64Array, scaling: RopeScaling, compute: Format) -> Float64Array:
    """Low frequencies divided by the factor, high ones kept, a linear blend between. Each step rounds to `compute`."""

    def op(what: Any, x: Any, y: Any) -> Float64Array:
        return widen(what(x, y, compute))

    original, low, high = scaling.original_max_position_embeddings, scaling.low_freq_factor, scaling.high_freq_factor
    assert original is not None
    assert low is not None
    assert high is not None
    wavelength = op(ops.div, 2 * math.pi, plain)
    divided = op(ops.div, plain, scaling.factor)
    blend = op(ops.div, op(ops.sub, op(ops.div, float(original), wavelength), low), high - low)
    blended = op(ops.add, op(ops.mul, op(ops.sub, 1.0, blend), divided), op(ops.mul, blend, plain))
    is_low, is_high = wavelength > original / low, wavelength < original / high
    return np.where(is_low, divided, np.where(is_high, plain, blended))


def _llama3_divisors(config: Config, scaling: RopeScaling) -> Float64Array:
    """What llama3 divides each pair's angle by: 1, the factor, or 1 over a blend of 1/factor and 1. (C/2,), f32 values.

    **Rounds:** each step to f32; a number over a tensor is R(R(1 / tensor) number), as PyTorch has it.
    **Source:** llama.cpp, conversion/llama.py, generate_extra_tensors, which writes them into the file.
    """

    def op(what: Any, x: Any, y: Any) -> Float64Array:
        return widen(what(x, y, f32))

    original, low, high = scaling.original_max_position_embeddings, scaling.low_freq_factor, scaling.high_freq_factor
    assert original is not None
    assert low is not None
    assert high is not None
    wavelength = op(ops.mul, op(ops.div, 1.0, _by_pow(config, f32)), float(np.float32(2 * math.pi)))
    turns = op(ops.mul, op(ops.div, 1.0, wavelength), float(original))
    smooth = op(ops.div, op(ops.sub, turns, low), high - low)
    blend = op(ops.add, op(ops.div, op(ops.sub, 1.0, smooth), scaling.factor), smooth)
    divisors = np.where(wavelength > original / low, scaling.factor, op(ops.div, 1.0, blend))
    return np.where(wavelength < original / high, 1.0, divisors)
