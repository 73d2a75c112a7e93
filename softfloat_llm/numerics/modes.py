"""The words of a rounding: its mode, what becomes of an overflow and of subnormals, and what others call them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from softfloat_llm.errors import FormatError, nearest
from softfloat_llm.numerics.stochastic import Stochastic, stochastic_of

MODES = ("ties_to_even", "ties_to_away", "toward_zero", "toward_positive", "toward_negative", "to_odd")
OVERFLOWS = ("ieee", "saturate")
SUBNORMALS = ("keep", "ftz", "daz", "ftz+daz")
USUAL: Mapping[str, Any] = MappingProxyType({"mode": "ties_to_even", "overflow": "ieee", "subnormals": "keep"})
"""The rules of IEEE 754 unless said otherwise, as keyword arguments of `round_to`."""
OTHER_NAMES = {
    "nearest": "ties_to_even", "to_nearest": "ties_to_even", "tonearest": "ties_to_even", "rne": "ties_to_even",
    "rn": "ties_to_even", "rnte": "ties_to_even", "even": "ties_to_even", "half_even": "ties_to_even",
    "half_to_even": "ties_to_even", "nearest_even": "ties_to_even", "bankers": "ties_to_even",
    "rna": "ties_to_away", "rnta": "ties_to_away", "away": "ties_to_away", "half_away": "ties_to_away",
    "half_up": "ties_to_away", "nearest_away": "ties_to_away", "rtz": "toward_zero", "rz": "toward_zero",
    "zero": "toward_zero", "truncate": "toward_zero", "trunc": "toward_zero", "chop": "toward_zero",
    "rtp": "toward_positive", "rup": "toward_positive", "ru": "toward_positive", "up": "toward_positive",
    "upward": "toward_positive", "ceil": "toward_positive", "rtn": "toward_negative", "rdn": "toward_negative",
    "rd": "toward_negative", "down": "toward_negative", "downward": "toward_negative", "floor": "toward_negative",
    "odd": "to_odd", "rto": "to_odd", "sr": "stochastic",
    "flush": "ftz", "flush_to_zero": "ftz", "flush-to-zero": "ftz", "denormals_are_zero": "daz", "both": "ftz+daz",
    "none": "keep", "gradual": "keep", "preserve": "keep",
    "clamp": "saturate", "sat": "saturate", "satfinite": "saturate", "inf": "ieee",
}  # fmt: skip
"""What others (IEEE 754 shorthand, LLVM, CUDA, Python's decimal) call a mode or an option, for hints."""


def check_mode(mode: str) -> None:
    """Raises FormatError for a word that is not a deterministic rounding mode."""
    if mode in MODES:
        return
    if isinstance(mode, str) and stochastic_of(mode):
        raise FormatError(f"{mode!r} is for round_to and the stages of a precision; here: {', '.join(MODES)}.")
    raise FormatError(f"Unknown rounding mode {mode!r}.{nearest(mode, MODES, OTHER_NAMES)} Known: {', '.join(MODES)}.")


def check_rounding(mode: str | Stochastic) -> None:
    """Raises FormatError for what is neither a rounding mode nor `stochastic:BITS:SEED`."""
    if isinstance(mode, Stochastic) or (mode not in MODES and stochastic_of(mode)):
        return
    if mode not in MODES:
        known = ", ".join((*MODES, "stochastic[:BITS[:SEED]]"))
        hint = nearest(mode, (*MODES, "stochastic"), OTHER_NAMES)
        raise FormatError(f"Unknown rounding mode {mode!r}.{hint} Known: {known}.")


def check_option(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raises FormatError for a value that an option does not have."""
    if value not in known:
        raise FormatError(f"Unknown {name} {value!r}.{nearest(value, known, OTHER_NAMES)} Known: {', '.join(known)}.")
