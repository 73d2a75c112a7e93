"""The rotary part of a config.json: theta and the scaling for longer contexts, wherever they stand in it.

Start at `rope_of`. The frequencies themselves are computed by the forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from softfloat_llm.errors import ConfigError
from softfloat_llm.llama.config_keys import Keys
from softfloat_llm.llama.families import Family


@dataclass(frozen=True)
class RopeScaling:
    """How the rotary frequencies are changed for longer contexts. Fields that a type does not use are None.

    rope_type   fields used beside `factor`
    linear      none
    dynamic     original_max_position_embeddings (always the model's max_position_embeddings, as in transformers)
    llama3      original_max_position_embeddings, low_freq_factor, high_freq_factor
    yarn        original_max_position_embeddings, beta_fast, beta_slow, truncate; attention_factor, or (where that is
                None) mscale and mscale_all_dim, or (where those are None too) 0.1*ln(factor) + 1
    """

    rope_type: str
    factor: float
    original_max_position_embeddings: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool | None = None


# Per type: the keys that must be there, and those that may.
_ROPE_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), ("original_max_position_embeddings",)),
    "yarn": (
        ("factor",),
        ("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
         "truncate"),
    ),
}  # fmt: skip
_ROPE_OTHER_KEYS = {"type", "rope_type", "rope_theta", "finetuned", "partial_rotary_factor"}


def rope_of(keys: Keys, family: Family) -> tuple[float, RopeScaling | None]:
    """theta and the scaling, from the top level, from `rope_scaling`, or from `rope_parameters` (newer files)."""
    old, new = (_rope_entries(keys, key) for key in ("rope_scaling", "rope_parameters"))
    theta = _theta(keys, family, old, new)
    scalings = [(part, _scaling(part, keys, family)) for part in (old, new) if part is not None]
    if len(scalings) == 2 and scalings[0][1] != scalings[1][1]:
        raise ConfigError(
            f"config: rope_scaling is {keys.get('rope_scaling')!r} and rope_parameters is "
            f"{keys.get('rope_parameters')!r}: they disagree; keep one."
        )
    scaling = scalings[0][1] if scalings else None
    if scaling is not None and scaling.rope_type == "yarn" and theta <= 1:
        raise ConfigError(
            f"config: rope_theta is {theta!r}: rope type 'yarn' divides by its logarithm; give one above 1."
        )
    return theta, scaling


def _rope_entries(keys: Keys, key: str) -> Keys | None:
    value = keys.get(key)
    if value is None or value == {}:
        return None
    if not isinstance(value, Mapping):
        keys.refuse(key, "null, or an object with a rope_type")
    return Keys(value, f"config: {key}")


def _theta(keys: Keys, family: Family, *parts: Keys | None) -> float:
    """rope_theta wherever it stands; where it stands twice both must agree."""
    places = [p for p in (keys, *parts) if p is not None and p.get("rope_theta") is not None]
    if not places:
        return keys.number("rope_theta", family.default("rope_theta"), family.as_said)
    values = [p.number("rope_theta") for p in places]
    if len(set(values)) > 1:
        raise ConfigError(
            f"config: rope_theta is {values[0]!r} in {places[0].where} and {values[1]!r} in {places[1].where}: which?"
        )
    if values[0] == 0:
        places[0].refuse("rope_theta", "a number above 0")
    return values[0]


def _scaling(part: Keys, keys: Keys, family: Family) -> RopeScaling | None:
    kind = _rope_type(part, keys)
    if part.get("partial_rotary_factor") not in (None, 1):
        part.refuse("partial_rotary_factor", "1: a partly rotated head is not Llama's")
    required, optional = _ROPE_KEYS[kind]
    missing = [key for key in required if part.get(key) is None]
    if missing:
        raise ConfigError(
            f"{part.where}: rope type {kind!r} needs {' and '.join(missing)}; found {dict(part.entries)!r}."
        )
    _check_rope_keys(part, keys, kind, {*required, *optional})
    if kind == "default":
        return None
    fields = {key: _rope_value(part, key) for key in (*required, *optional) if part.get(key) is not None}
    scaling = RopeScaling(rope_type=kind, **fields)
    return _with_rope_defaults(scaling, keys, family)


def _rope_type(part: Keys, keys: Keys) -> str:
    found = {key: part.get(key) for key in ("rope_type", "type") if part.get(key) is not None}
    if len(set(map(str, found.values()))) > 1:
        raise ConfigError(f"{part.where}: type is {found['type']!r} and rope_type is {found['rope_type']!r}: which?")
    if not found:
        if part.get("factor") is not None:
            raise ConfigError(f"{part.where}: factor is {part.get('factor')!r}, but rope_type is missing.")
        keys.note(f"{part.where.removeprefix('config: ')} has no rope_type: the unscaled one is used")
        return "default"
    kind = next(iter(found.values()))
    if not isinstance(kind, str) or kind not in _ROPE_KEYS:
        part.refuse(next(iter(found)), f"one of {', '.join(_ROPE_KEYS)}")
    return kind


def _check_rope_keys(part: Keys, keys: Keys, kind: str, own: set[str]) -> None:
    """A key of another rope type is ignored with a note, as transformers does; a key of none is refused."""
    elsewhere = {key for required, optional in _ROPE_KEYS.values() for key in (*required, *optional)}
    for key in part.entries:
        if key in own or key in _ROPE_OTHER_KEYS:
            continue
        if key not in elsewhere:
            part.refuse(key, f"no such key: rope type {kind!r} has {', '.join(sorted(own)) or 'none'}")
        keys.note(f"{part.where.removeprefix('config: ')}.{key} is ignored: rope type {kind!r} does not use it")


def _rope_value(part: Keys, key: str) -> Any:
    if key == "original_max_position_embeddings":
        return part.integer(key)
    if key == "truncate":
        return part.flag(key)
    value = part.number(key, least=1.0 if key == "factor" else 0.0)
    if value == 0 and key not in ("mscale", "mscale_all_dim"):
        part.refuse(key, "a number above 0")
    return value


def _with_rope_defaults(scaling: RopeScaling, keys: Keys, family: Family) -> RopeScaling:
    """Fill in what the type needs, each with a note; check what must hold between two values."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    if low is not None and high is not None and not high > low:
        raise ConfigError(
            f"config: low_freq_factor is {low!r} and high_freq_factor is {high!r}: the second must be the larger."
        )
    filled: dict[str, Any] = {}
    if scaling.rope_type != "linear":
        filled["original_max_position_embeddings"] = _original_length(scaling, keys, family)
    if scaling.rope_type == "yarn":
        for key, value in (("beta_fast", 32.0), ("beta_slow", 1.0), ("truncate", True)):
            if getattr(scaling, key) is None:
                filled[key] = value
                keys.note(f"{key} of the rope scaling is not given: {value} is used")
    complete = replace(scaling, **filled)
    if complete.rope_type == "yarn":
        _note_yarn(complete, keys)
    return complete


def _original_length(scaling: RopeScaling, keys: Keys, family: Family) -> int:
    """The length a model was trained for. It may stand in the scaling or at the top level, not differing."""
    limit = keys.integer("max_position_embeddings", family.default("max_position_embeddings"), family.as_said)
    if scaling.rope_type == "dynamic":
        return limit
    inner = scaling.original_max_position_embeddings
    outer = None
    if keys.get("original_max_position_embeddings") is not None:
        outer = keys.integer("original_max_position_embeddings")
    if inner is not None and outer is not None and inner != outer:
        raise ConfigError(
            f"config: original_max_position_embeddings is {outer} at the top level "
            f"and {inner} in the rope scaling: which?"
        )
    if inner is None and outer is None:
        keys.note(f"original_max_position_embeddings of the rope scaling is not given: {limit} is used")
    return inner or outer or limit


def _note_yarn(scaling: RopeScaling, keys: Keys) -> None:
    if scaling.attention_factor is None and not (scaling.mscale and scaling.mscale_all_dim):
        keys.note("attention_factor of the rope scaling is not given: 0.1*ln(factor) + 1 is used")
    limit, original = keys.get("max_position_embeddings"), scaling.original_max_position_embeddings
    if original and isinstance(limit, int) and limit / original != scaling.factor:
        keys.note(
            f"rope factor is {scaling.factor}, but max_position_embeddings / original_max_position_embeddings is "
            f"{limit}/{original} = {limit / original:g}: the factor is used (some transformers use the ratio)"
        )
