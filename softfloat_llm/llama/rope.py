"""Rotary positions: the inverse frequencies of a config, and the table of cos and sin.

Powers are taken correctly rounded, so the table is the same on every machine; the format of each step is `compute`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softfloat_llm.errors import ConfigError
from softfloat_llm.llama.config import Config, RopeScaling
from softfloat_llm.llama.taps import Taps
from softfloat_llm.numerics import functions, ops
from softfloat_llm.numerics.formats import Array, Float64Array, Format
from softfloat_llm.numerics.rounding import carry, round_wide, widen
from softfloat_llm.site_specs import SiteSpec


def rope_table(positions: Array, config: Config, spec: SiteSpec) -> Taps:
    """cos and sin of position times inverse frequency. positions (T,) integers; the result (T, C), cos then sin.

    **Rounds:** to `compute`: the position, the angle, its cosine and sine (correctly rounded); then once to the output.
    """
    c = spec.compute
    place = round_wide(np.asarray(positions).astype(np.float64), c)[:, None]
    angle = round_wide(place * inverse_frequencies(config, c), c)  # (T, C/2)
    wide = np.concatenate([widen(functions.cos(angle, c)), widen(functions.sin(angle, c))], axis=-1)
    out = carry(round_wide(wide, spec.output, **spec.precision.rules("output")), spec.output)
    return Taps(carry(angle, c), None, out, enter_format=c)


def inverse_frequencies(config: Config, compute: Format) -> Float64Array:
    """1 / theta^(2i/C), scaled as the config asks. The result (C/2,) holds values of `compute`.

    **Rounds:** 2i/C, the power (correctly rounded), and its reciprocal, each to `compute`.
    **Raises** ConfigError for a scaling that is read but not computed.
    **Source:** transformers 5.24.0, modeling_rope_utils.py, in f32.
    """
    steps = np.arange(0, config.head_dim, 2, dtype=np.float64)
    exponent = ops.div(steps, float(config.head_dim), compute)
    power = functions.pow(config.rope_theta, widen(exponent), compute)
    plain = widen(ops.div(1.0, widen(power), compute))
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
    raise ConfigError(
        f"config: rope type {scaling.rope_type!r} is read, but its frequencies are not computed by this version."  # type: ignore[union-attr]
    )


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
