"""What a person predicted, held against what came out: numbers are compared exactly, words by their letters."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from softfloat_llm.analysis.exact_text import shown
from softfloat_llm.analysis.reading import number_of
from softfloat_llm.errors import SoftfloatError


def judged(prediction: str, answer: Any) -> str:
    """A sentence about a prediction.

    >>> print(judged("258", 256.0), judged("1/4", 0.25), judged("", "no"), sep=chr(10))
    You predicted 258. It is 256.
    Right: 1/4.
    The answer is: no.
    """
    said = prediction.strip().rstrip(".")
    if not said:
        return f"The answer is: {plain(answer)}."
    return f"Right: {said}." if is_right(said, answer) else f"You predicted {said}. It is {plain(answer)}."


def is_right(prediction: str, answer: Any) -> bool:
    """Whether a text says the answer: each number of it exactly, in order; or the word.

    >>> is_right("256 and 258", (256.0, 258.0)), is_right("NO", "no"), is_right("2^-2", 0.25), is_right("0.251", 0.25)
    (True, True, True, False)
    """
    if isinstance(answer, str):
        return prediction.strip(" '\".").casefold() == answer.casefold()
    wanted = answer if isinstance(answer, tuple) else (answer,)
    parts = re.split(r"\s*[,;]\s*|\s+and\s+|\s+", prediction.strip(" ()[].")) if len(wanted) > 1 else [prediction]
    return len(parts) == len(wanted) and all(_means(part, value) for part, value in zip(parts, wanted, strict=True))


def _means(text: str, value: float | Fraction) -> bool:
    try:
        number = number_of(text)
    except SoftfloatError:
        return False
    if not number.is_finite or not math.isfinite(value):
        return float(number.value) == float(value)
    return number.exact == Fraction(value)


def plain(value: Any) -> str:
    """A value for people, exact where that is short: `256`, `0.25`, `256, 258`.

    >>> plain((256.0, 0.25)), plain(Fraction(1, 3)), plain(float("inf"))
    ('256, 0.25', '1/3', 'inf')
    """
    if isinstance(value, tuple):
        return ", ".join(plain(part) for part in value)
    if isinstance(value, (str, bool)):
        return str(value)
    return shown(Fraction(value)) if math.isfinite(value) else str(float(value))


def filled(words: str, names: Mapping[str, Any]) -> str:
    """The words with the values of their `{name}` fields.

    >>> filled("It is {total}.", {"total": 256.0})
    'It is 256.'
    """
    wanted = {name for _, name, _, _ in string.Formatter().parse(words) if name}
    return words.format_map({name: plain(names[name]) for name in wanted})
