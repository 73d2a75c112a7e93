"""Reading the entries of a config.json one by one, so that no value is taken unchecked and no default in silence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from softfloat_llm.errors import ConfigError, nearest

_REQUIRED = object()
LARGEST = (2 - 2**-23) * 2.0**127  # of f32, in which an engine computes with the numbers of a config


class Keys:
    """The entries of one config.json, read one by one; each default taken becomes a note."""

    def __init__(self, entries: Mapping[str, Any], where: str = "config") -> None:
        self.entries = entries
        self.where = where
        self.notes: list[str] = []
        self.read: set[str] = set()

    def get(self, key: str) -> Any:
        """The value, or None where it is null or not there."""
        self.read.add(key)
        return self.entries.get(key)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def refuse(self, key: str, expected: str) -> NoReturn:
        raise ConfigError(f"{self.where}: {key} is {self.entries.get(key)!r}, expected {expected}.")

    def _given(self, key: str, default: Any, why: str) -> Any:
        value = self.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            state = "null" if key in self.entries else "missing"
            hint = "" if key in self.entries else nearest(key, self.entries)
            raise ConfigError(f"{self.where}: {key} is {state}, and nothing can stand in for it.{hint}")
        self.note(f"{key} is not given: {default} is used{why}")
        return default

    def integer(self, key: str, default: Any = _REQUIRED, why: str = "") -> int:
        """A whole number of 1 or more."""
        value = self._given(key, default, why)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.refuse(key, "a whole number of 1 or more")
        if value >= 1 << 63:
            self.refuse(key, "a whole number below 2^63")
        return value

    def number(self, key: str, default: Any = _REQUIRED, why: str = "", least: float = 0.0) -> float:
        """A finite number of `least` or more."""
        value = self._given(key, default, why)
        if not _is_number(value) or value < least:
            self.refuse(key, f"a finite number of {least:g} or more{', not a string' * isinstance(value, str)}")
        if value > LARGEST:
            self.refuse(key, f"a number that f32 can hold, up to {LARGEST:g}")
        return float(value)

    def flag(self, key: str, default: Any = _REQUIRED, why: str = "") -> bool:
        value = self._given(key, default, why)
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False
