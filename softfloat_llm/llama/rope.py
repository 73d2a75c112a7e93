"""Rotary positions: the inverse frequencies of a config, and the table of cos and sin.

Powers are taken correctly rounded, so the table is the same on every machine; the format of each step is `compute`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from softfloat_llm.errors import ConfigError
from softfloat_llm.llama.config import Config, RopeScaling
from softfloat_llm.llama.taps import Taps
from softfloat_llm.numerics import functions, glibc, ops, torch_functions
from softfloat_llm.numerics.carriers import carry, widen
from softfloat_llm.numerics.engine_functions import mlx_cos, mlx_exp, mlx_sin
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.formats import Array, Float64Array, Format, f32
from softfloat_llm.numerics.rounding import round_wide
from softfloat_llm.site_specs import SiteSpec


def rope_table(positions: Array, config: Config, spec: SiteSpec) -> Taps:
    """cos and sin of position times inverse frequency. positions (T,) integers; the result (T, C), cos then sin.

    Dynamic scaling goes by the last of the positions, as in transformers: what a cache holds keeps its older rotation.
    **Rounds:** to `compute`: the position, the angle, its cosine and sine (correctly rounded, or as the option
    `functions` names them), and with yarn those times its factor; then once to the output.
    """
    c, places = spec.compute, np.asarray(positions)
    place = round_wide(places.astype(np.float64), c)[:, None]
    angle = _angles(place, config, spec, int(places.max()) + 1)  # (T, C/2)
    wide = np.concatenate([_function("cos", angle, spec), _function("sin", angle, spec)], axis=-1)
    factor = attention_factor(config.rope_scaling)
    if factor != 1:
        wide = widen(ops.mul(wide, factor_in(factor, c), c))
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


def _angles(place: Float64Array, config: Config, spec: SiteSpec, length: int) -> Float64Array:
    """The angle of each position, place (T, 1), and pair: (T, C/2)."""
    c, kept, form = spec.compute, spec.format_of("frequency_format"), spec.options["frequencies"]
    if form != "pow" and is_stretched(config, length):
        raise _not_computed(config.rope_scaling, form)
    if form == "iterated":
        return _iterated_angles(place, config, c, kept)
    if form == "exp":
        frequencies = _scaled(_function("exp", _exponents(config, c), spec), config, c, form)
    else:
        frequencies = inverse_frequencies(config, c, form=form, length=length)
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
    raise _not_computed(scaling, "iterated")


def _not_computed(scaling: RopeScaling | None, form: str) -> ConfigError:
    assert scaling is not None
    return ConfigError(
        f"config: rope type {scaling.rope_type!r} is computed from powers of theta only: set rope.table.frequencies=pow"
        f" (the recipe has {form})."
    )


def is_stretched(config: Config, length: int) -> bool:
    """True where dynamic scaling changes the frequencies of a pass whose last position is length - 1."""
    scaling = config.rope_scaling
    return scaling is not None and scaling.rope_type == "dynamic" and length > config.max_position_embeddings


def inverse_frequencies(config: Config, compute: Format, *, form: str = "pow", length: int = 0) -> Float64Array:
    """1 / theta^(2i/C), scaled as the config asks. The result (C/2,) holds values of `compute`.

    `length`: one more than the last position, by which dynamic scaling goes.
    **Rounds:** form=pow: 2i/C, the power (correctly rounded), and its reciprocal, each to `compute`. exp: ln theta,
    that over C/2, -i times it, and e to that. exp2: i over C/2, log2 theta, minus their product, and 2 to that. Each
    step of a scaling to `compute`, where a number of the config is first rounded to it.
    **Raises** ConfigError for a scaling that is not computed from such frequencies.
    **Source:** pow: transformers 5.24.0, modeling_rope_utils.py, in f32; exp: MLX 0.32, mlx/fast.cpp (CPU); exp2: its
    backend/metal/kernels/rope.metal.
    """
    if form != "pow":
        return _scaled(_FREQUENCIES[form](config, compute), config, compute, form)
    scaling = config.rope_scaling
    theta = _stretched_theta(config, compute, length) if is_stretched(config, length) else config.rope_theta
    powers = _powers(theta, config.head_dim, compute)
    if scaling is not None and scaling.rope_type == "yarn":
        return _yarn(powers, config, scaling, compute)
    return _scaled(widen(ops.div(1.0, powers, compute)), config, compute, form)


def _scaled(plain: Float64Array, config: Config, compute: Format, form: str) -> Float64Array:
    scaling = config.rope_scaling
    match scaling.rope_type if scaling else "default":
        case "default" | "dynamic":  # dynamic changes theta, and nothing up to max_position_embeddings
            return plain
        case "linear":
            assert scaling is not None
            return widen(ops.div(plain, factor_in(scaling.factor, compute), compute))
        case "llama3":
            assert scaling is not None
            return _llama3(plain, scaling, compute)
    raise _not_computed(scaling, form)


def factor_in(number: float, compute: Format) -> float:
    """A number of the config as the format of the steps holds it: what PyTorch makes of a Python number."""
    return float(round_wide(np.array([number]), compute)[0])


@lru_cache(maxsize=16)
def _powers(theta: float, size: int, compute: Format) -> Float64Array:
    """theta^(2i/C) (C/2,): the exponent and the power rounded. Kept for the next pass: not to be changed."""
    exponent = ops.div(np.arange(0, size, 2, dtype=np.float64), float(size), compute)
    powers = widen(functions.pow(theta, widen(exponent), compute))
    powers.flags.writeable = False
    return powers


def _by_pow(config: Config, compute: Format) -> Float64Array:
    return widen(ops.div(1.0, _powers(config.rope_theta, config.head_dim, compute), compute))


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


def _stretched_theta(config: Config, compute: Format, length: int) -> float:
    """theta (f n/m - (f - 1))^(C/(C-2)), f the factor, n the length and m max_position_embeddings: each step rounded.

    **Source:** transformers 5.24.0, modeling_rope_utils.py, _compute_dynamic_ntk_parameters: n is a tensor there.
    """
    assert config.rope_scaling is not None
    factor, size, limit = config.rope_scaling.factor, config.head_dim, float(config.max_position_embeddings)
    if size == 2:
        raise ConfigError("config: dynamic rope scaling raises to head_dim / (head_dim - 2), and head_dim is 2.")
    grown = widen(ops.mul(factor_in(factor, compute), factor_in(float(length), compute), compute))
    ratio = widen(ops.div(grown, factor_in(limit, compute), compute))
    base = widen(ops.sub(ratio, factor_in(factor - 1, compute), compute))
    power = functions.pow(float(base), factor_in(size / (size - 2), compute), compute)
    return float(widen(ops.mul(widen(power), factor_in(config.rope_theta, compute), compute)))


def _over(number: float, x: Float64Array, compute: Format) -> Float64Array:
    """A number over a tensor, as PyTorch has it: R(R(1 / x) number)."""
    return widen(ops.mul(widen(ops.div(1.0, x, compute)), factor_in(number, compute), compute))


def _llama3(plain: Float64Array, scaling: RopeScaling, compute: Format) -> Float64Array:
    """Low frequencies divided by the factor, high ones kept, a linear blend between. Each step rounds to `compute`.

    **Source:** transformers 5.24.0, modeling_rope_utils.py, _compute_llama3_parameters.
    """

    def op(what: Any, x: Any, y: Any) -> Float64Array:
        return widen(what(x, y, compute))

    original, low, high = scaling.original_max_position_embeddings, scaling.low_freq_factor, scaling.high_freq_factor
    assert original is not None
    assert low is not None
    assert high is not None
    factor = factor_in(scaling.factor, compute)
    wavelength = _over(2 * math.pi, plain, compute)
    turns = op(ops.sub, _over(float(original), wavelength, compute), factor_in(low, compute))
    blend = op(ops.div, turns, factor_in(high - low, compute))
    kept = op(ops.div, op(ops.mul, op(ops.sub, 1.0, blend), plain), factor)
    blended = op(ops.add, kept, op(ops.mul, blend, plain))
    longest, shortest = factor_in(original / low, compute), factor_in(original / high, compute)
    scaled = np.where(wavelength < shortest, plain, blended)
    return np.where(wavelength > longest, op(ops.div, plain, factor), scaled)


def _yarn(powers: Float64Array, config: Config, scaling: RopeScaling, compute: Format) -> Float64Array:
    """1/p for pairs that turn often, 1/(factor p) for those that turn rarely, a blend between. powers (C/2,).

    **Rounds:** each step to `compute`; the ends of the blend are made in f64, as Python has them.
    **Source:** transformers 5.24.0, modeling_rope_utils.py, _compute_yarn_parameters; Peng et al. 2023
    (arXiv:2309.00071), section 3.2.
    """

    def op(what: Any, x: Any, y: Any) -> Float64Array:
        return widen(what(x, y, compute))

    low, high = yarn_range(config, scaling)
    steps = np.arange(len(powers), dtype=np.float64)
    ramp = op(ops.div, op(ops.sub, steps, factor_in(low, compute)), factor_in(high - low, compute))
    kept = op(ops.sub, 1.0, np.clip(ramp, 0.0, 1.0))
    often = op(ops.div, 1.0, powers)
    rarely = op(ops.div, 1.0, op(ops.mul, powers, factor_in(scaling.factor, compute)))
    return op(ops.add, op(ops.mul, rarely, op(ops.sub, 1.0, kept)), op(ops.mul, often, kept))


def yarn_range(config: Config, scaling: RopeScaling) -> tuple[float, float]:
    """Between which pairs yarn blends: those that turn beta_fast and beta_slow times in the original length."""
    original, fast, slow = scaling.original_max_position_embeddings, scaling.beta_fast, scaling.beta_slow
    assert original is not None
    assert fast is not None
    assert slow is not None

    def pair(turns: float) -> float:
        return config.head_dim * _ln(original / (turns * 2 * math.pi)) / (2 * _ln(config.rope_theta))

    low, high = pair(fast), pair(slow)
    if scaling.truncate:
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, config.head_dim - 1.0)
    return low, high + 0.001 if low == high else high


def attention_factor(scaling: RopeScaling | None) -> float:
    """What yarn multiplies cosines and sines with, in f64; 1 for the others.

    **Source:** transformers 5.24.0, modeling_rope_utils.py, _compute_yarn_parameters.
    """
    if scaling is None or scaling.rope_type != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return _magnitude(scaling.factor, scaling.mscale) / _magnitude(scaling.factor, scaling.mscale_all_dim)
    return _magnitude(scaling.factor, 1.0)


def _magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * _ln(factor) + 1.0


def _ln(x: float) -> float:
    """ln x, x > 0, rounded once to f64, from 50 digits: the same on every machine."""
    with localcontext() as context:
        context.prec = 50
        return float(Decimal(x).ln())


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
