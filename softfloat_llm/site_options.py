"""What a site can be told beside its stages: an option is a word out of a list, a format, a number or a count.

Each kind has a `default` and `spelled(key, word)`, which gives a word back as recipes print it, or says what is wrong
with it. `SiteSpec` keeps the spelled words; its `format_of` and `number_of` give their values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from softfloat_llm.errors import FormatError, RecipeError, nearest
from softfloat_llm.numerics.formats import format_of

_NUMBER = re.compile(r"[0-9]{1,40}(\.[0-9]{1,40})?(e[+-]?[0-9]{1,3}|/[0-9]{1,40})?")


@dataclass(frozen=True)
class Words:
    """One of a few words, the usual one first; `words` maps each to what it means."""

    what: str
    words: Mapping[str, str]

    @property
    def default(self) -> str:
        return next(iter(self.words))

    @property
    def meanings(self) -> Mapping[str, str]:
        return self.words

    def spelled(self, key: str, word: str) -> str:
        if word not in self.words:
            known = " or ".join(self.words)
            raise RecipeError(f"{key}={word!r} is unknown.{nearest(word, self.words)} It can be {known}.")
        return word


@dataclass(frozen=True)
class FormatOption:
    """A format, or one of a few words for one, the usual first: a stage of the site (`compute`) means its format."""

    what: str
    words: Mapping[str, str]

    @property
    def default(self) -> str:
        return next(iter(self.words))

    @property
    def meanings(self) -> Mapping[str, str]:
        return {**self.words, "FORMAT": "such as f32"}

    def spelled(self, key: str, word: str) -> str:
        if word in self.words:
            return word
        try:
            return str(format_of(word))
        except FormatError as error:
            raise RecipeError(f"{key}={word}: it takes a format, or {' or '.join(self.words)}. {error}") from None


@dataclass(frozen=True)
class Positive:
    """A positive number: a decimal such as 0.0125, or a fraction such as 600/448; held in float64."""

    what: str
    default: str = "1"

    @property
    def meanings(self) -> Mapping[str, str]:
        return {"NUMBER": "a decimal or a fraction above 0"}

    def spelled(self, key: str, word: str) -> str:
        try:
            value = float(Fraction(word)) if _NUMBER.fullmatch(word) else 0.0
        except (ValueError, ZeroDivisionError, OverflowError):  # ValueError: 1.5/2
            value = 0.0
        if not value > 0:
            raise RecipeError(f"{key}={word!r}: expected a number above 0, such as 0.0125 or 600/448.")
        return repr(value).removesuffix(".0")


@dataclass(frozen=True)
class Count:
    """A whole number from 0 on."""

    what: str
    default: str = "0"

    @property
    def meanings(self) -> Mapping[str, str]:
        return {"N": "a whole number, 0 for none"}

    def spelled(self, key: str, word: str) -> str:
        if not (word.isascii() and word.isdigit() and len(word) <= 9):
            raise RecipeError(f"{key}={word!r}: expected a whole number such as 64, or 0.")
        return str(int(word))


Option = Words | FormatOption | Positive | Count
