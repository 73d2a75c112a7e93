"""Conditions on shapes: what they mean, and what is none."""

from __future__ import annotations

import pytest

from softfloat_llm.conditions import Condition
from softfloat_llm.errors import RecipeError


@pytest.mark.parametrize(
    ("text", "dims", "holds"),
    [
        ("M == 1", {"M": 1}, True),
        ("M == 1", {"M": 2}, False),
        ("M != 1", {"M": 2}, True),
        ("K >= 33", {"K": 33}, True),
        ("K > 33", {"K": 33}, False),
        ("K <= 33", {"K": 33}, True),
        ("K < 33", {"K": 33}, False),
        ("M == 1 and K < 64", {"M": 1, "K": 63}, True),
        ("M == 1 and K < 64", {"M": 1, "K": 64}, False),
        ("B*M*N*K <= 4096", {"B": 9, "M": 1, "N": 7, "K": 64}, True),
        ("B*M*N*K <= 4096", {"B": 9, "M": 1, "N": 8, "K": 64}, False),
        ("K % 64 == 0", {"K": 576}, True),
        ("K % 64 == 0", {"K": 100}, False),
        ("M*K % 10 == 5", {"M": 3, "K": 5}, True),
        ("B == 1", {"M": 7}, True),  # what is not given counts as 1
        ("T == 34 and M == 2", {"M": 2, "T": 34}, True),
    ],
)
def test_a_condition_compares_dimensions_with_numbers(text, dims, holds):
    assert Condition(text).holds(dims) is holds


def test_white_space_does_not_matter_and_equal_texts_are_equal_conditions():
    assert Condition("M  ==  1   and K < 64") == Condition("M == 1 and K < 64")
    assert hash(Condition("M == 1")) == hash(Condition("M  == 1"))
    assert str(Condition(" M == 1 ")) == "M == 1"
    assert Condition("M == 1") != "M == 1"


@pytest.mark.parametrize(
    "text", ["", "M", "M = 1", "X == 1", "M == N", "M == -1", "M == 1 or K == 2", "M == 1 and", "2 < M", "M+K == 3",
             "M == 1.5", "M % == 0", "__import__('os')"]
)  # fmt: skip
def test_any_other_text_is_refused_with_an_example(text):
    with pytest.raises(RecipeError, match="is no comparison such as M >= 33"):
        Condition(text)


@pytest.mark.parametrize(
    ("text", "columns", "held"),
    [
        ("n >= N - N % 4", 10, [8, 9]),
        ("n >= N - N % 4", 8, []),
        ("n < N - N % 4", 6, [0, 1, 2, 3]),
        ("n == N - N % 4 + 1", 7, [5]),
        ("n == N - N % 4 + 1", 5, []),
        ("M == 1 and n >= N - N % 4 + 2", 7, [6]),
        ("n < 2", 5, [0, 1]),
        ("n == 3", 5, [3]),
        ("T == 1 and n >= 4", 3, []),
    ],
)
def test_a_condition_on_places_holds_from_the_last_incomplete_group_on(text, columns, held):
    condition = Condition(text)
    assert condition.has_place
    sizes = {"M": 1, "N": columns}
    at = [n for n in range(columns) if condition.holds_at(sizes, 0, n)]
    assert at == held
    changes = {n for n in range(1, columns) if (n in held) != (n - 1 in held)}
    assert changes <= set(condition.cuts(sizes, "N"))
    assert condition.cuts(sizes, "M") == []


def test_what_a_condition_says_of_rows_and_of_dimensions_is_kept_apart():
    condition = Condition("K == 64 and m >= M - M % 2")
    assert condition.holds({"K": 64})
    assert not condition.holds({"K": 63})
    assert [m for m in range(5) if condition.holds_at({"M": 5, "N": 1}, m, 0)] == [4]
    assert not Condition("K == 64").has_place


@pytest.mark.parametrize(
    "text", ["n >= M - M % 4", "n >= N - M % 4", "n >= N", "n <= 3", "k >= K - K % 4", "n >= N - N % 0"]
)
def test_other_places_are_refused(text):
    with pytest.raises(RecipeError, match="is no comparison such as M >= 33"):
        Condition(text)
