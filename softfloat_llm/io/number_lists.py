"""Whole numbers as people write them: `504,3575,1..300`, a range with both of its ends."""

from __future__ import annotations

import re

from softfloat_llm.errors import WordError

MOST = 1 << 20
"""Numbers of one list: far more than any model has positions, so that a slip of the finger fills no memory."""
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_NUMBER = re.compile(r"-?\d+")


def numbers_in(text: str, what: str) -> list[int]:
    """The numbers of a list with commas, ranges `A..B` spelled out, in their order. `what` one of them is.

    Raises WordError for what is no number, a range that runs backwards, and more than `MOST` numbers.

    >>> numbers_in("7, 1..3", "seed")
    [7, 1, 2, 3]
    """
    found: list[int] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        first, last = _ends(word, what)
        if len(found) + (last - first) >= MOST:
            raise WordError(f"{word!r} makes more than {MOST} numbers in all; a {what} is one of fewer.")
        found += range(first, last + 1)
    return found


def _ends(word: str, what: str) -> tuple[int, int]:
    """The first and the last number of one word."""
    if _NUMBER.fullmatch(word):
        return int(word), int(word)
    match = _RANGE.fullmatch(word)
    if match is None:
        raise WordError(f"{word!r} is no {what}; expected numbers such as 5,2,8, or a range such as 1..40.")
    first, last = int(match[1]), int(match[2])
    if first > last:
        raise WordError(f"The range {word!r} runs backwards: write {last}..{first}.")
    return first, last
