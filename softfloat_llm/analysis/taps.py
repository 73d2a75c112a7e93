"""The names of taps: which layer, site and stage a name speaks of, and in which order a forward pass makes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from softfloat_llm.errors import RunError, nearest
from softfloat_llm.numerics.formats import Array
from softfloat_llm.sites import SITES

STAGES = ("in", "acc", "out")
_NAME = re.compile(r"(?:rows\.(?P<row>\d+)\.)?(?:layers\.(?P<layer>\d+)\.)?(?P<site>.+)\.(?P<stage>in|acc|out)")
_ORDER = {site: place for place, site in enumerate(SITES)}
_AFTER_LAYERS = ("norm.final", "lm_head")

# Taps whose last axis is the key position S: it grows with the context, and what lies after the query means nothing.
_OVER_KEYS = {
    "attn.scores": ("acc", "out"), "attn.scale": ("in", "out"), "attn.mask": ("in", "out"),
    "attn.softmax": ("in", "out"), "attn.pv": ("in",),
}  # fmt: skip


@dataclass(frozen=True)
class Tap:
    """What a tap's name says. A name of another form has itself as its site, and no stage."""

    name: str
    layer: int | None
    site: str
    stage: str

    @property
    def place(self) -> str:
        """Site and stage, as each layer has them: `attn.softmax.out`."""
        return f"{self.site}.{self.stage}" if self.stage else self.site

    @property
    def is_over_keys(self) -> bool:
        """True where the last axis is the key position."""
        return self.stage in _OVER_KEYS.get(self.site, ())

    @property
    def order(self) -> tuple[int, ...]:
        """Sorts taps as a forward pass makes them."""
        part = 1 if self.layer is not None else 2 if self.site in _AFTER_LAYERS else 0
        stage = STAGES.index(self.stage) if self.stage else len(STAGES)
        return (part, self.layer or 0, _ORDER.get(self.site, len(_ORDER)), stage)

    def to_dict(self) -> dict[str, Any]:
        return {"tap": self.name, "layer": self.layer, "site": self.site, "stage": self.stage}


def tap_of(name: str) -> Tap:
    """The parts of a tap's name.

    >>> tap_of("layers.3.mlp.down_proj.out")
    Tap(name='layers.3.mlp.down_proj.out', layer=3, site='mlp.down_proj', stage='out')
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return Tap(name, None, name, "")
    return Tap(name, int(match["layer"]) if match["layer"] else None, match["site"], match["stage"])


def forward_order(names: Iterable[str]) -> list[Tap]:
    """The taps in the order of the forward pass, whatever order the names came in."""
    return sorted((tap_of(name) for name in names), key=lambda tap: tap.order)


def chosen(names: Iterable[str], patterns: Sequence[str] | None) -> list[Tap]:
    """The taps that fit one of the patterns (all without patterns), in forward order.

    Raises RunError for a pattern that no tap fits.
    """
    known = forward_order(names)
    if patterns is None:
        return known
    for pattern in patterns:
        if not any(fnmatchcase(tap.name, pattern) for tap in known):
            hint = nearest(pattern, [tap.name for tap in known])
            raise RunError(f"No tap that both runs keep is named {pattern!r}.{hint} They share {len(known)} taps.")
    return [tap for tap in known if any(fnmatchcase(tap.name, pattern) for pattern in patterns)]


def visible(tap: Tap, array: Array, positions: int) -> Array:
    """The first positions of a tap (T, ...); over keys (T, ..., S), with what lies after the query as zeros."""
    return over_seen_keys(array, positions) if is_over_keys(tap, array) else array[:positions]


def is_over_keys(tap: Tap, array: Array) -> bool:
    """True where the last axis of a tap (T, ...) is the keys.

    The tap of a scale that is put on queries is (T, H, C): its last axis, unless C is T, is not taken for the keys.
    """
    return tap.is_over_keys and array.shape[-1] == len(array)


def are_seen(first: int, rows: Array) -> Array:
    """For rows (n, ..., S) of a tap over keys, from position `first` on: which keys each position sees."""
    places = np.arange(first, first + len(rows)).reshape(-1, *[1] * (rows.ndim - 1))
    seen: Array = np.arange(rows.shape[-1]) <= places
    return seen


def over_seen_keys(array: Array, positions: int) -> Array:
    """The first positions of (T, ..., S), with zeros at the keys that lie after the query."""
    array = array[:positions, ..., :positions]
    kept: Array = np.where(are_seen(0, array), array, np.zeros((), array.dtype))
    return kept
