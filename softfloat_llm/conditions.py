"""Conditions on the shape of a sum, for rules such as `order if M >= 33 and K == 576`: data in a recipe, not code."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from math import prod

from softfloat_llm.errors import RecipeError

_OPERATORS: dict[str, Callable[[int, int], bool]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_COMPARISON = re.compile(r"([MNKB](?:\*[MNKB])*(?: % [1-9][0-9]{0,8})?) (<=|>=|==|!=|<|>) ([0-9]{1,18})")


class Condition:
    """A conjunction of comparisons of dimensions with numbers: `M == 1 and B*M*N*K <= 4096 and K % 64 == 0`.

    M rows (query positions), N columns, K terms of each sum, B products of this shape at once (heads).
    Raises RecipeError for any other text.
    """

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split())
        self._comparisons = tuple(_parsed(part, self.text) for part in self.text.split(" and "))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Condition({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def holds(self, dims: Mapping[str, int]) -> bool:
        """True where every comparison holds; a dimension that is not given counts as 1."""
        return all(compare(_value(name, dims), number) for name, compare, number in self._comparisons)


def _parsed(part: str, text: str) -> tuple[str, Callable[[int, int], bool], int]:
    match = _COMPARISON.fullmatch(part.strip())
    if match is None:
        raise RecipeError(
            f"Condition {text!r}: {part!r} is no comparison such as M >= 33, B*M*N*K <= 4096 or K % 64 == 0,"
            " joined by 'and'."
        )
    return match[1], _OPERATORS[match[2]], int(match[3])


def _value(name: str, dims: Mapping[str, int]) -> int:
    factors, _, modulus = name.partition(" % ")
    value = prod(dims.get(factor, 1) for factor in factors.split("*"))
    return value % int(modulus) if modulus else value
