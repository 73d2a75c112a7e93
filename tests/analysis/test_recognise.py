"""Trees get their names back: every form of the language, nested ones, and trees that have none."""

from __future__ import annotations

import pytest

from softfloat_llm.analysis.recognise import Shape, names_of
from softfloat_llm.numerics.orders import Order
from softfloat_llm.numerics.trees import Chain, Flat, Join, Rounded, Tree
from tests.numerics.test_orders import STORED, TABLE

FORMS = [
    "vector:8", "ilp:4", "cascade:8", "pairwise:8", "dot:8x8", "lanes:16x2:8.1.2.4 > swap:2",
    "blocked:24 > lanes:8:4.1.2", "blocked:288 > blocked:32 > lanes:2", "split-k:3:bf16", "swap:4 > lanes:8",
]  # fmt: skip


def first_name(tree, **options):
    return next(names_of(tree, **options), None)


@pytest.mark.parametrize("text", [*TABLE, *(text for text in STORED if ":1:" not in text), *FORMS])
def test_every_order_is_named_by_a_text_that_means_its_tree(text):
    for n in (1, 2, 3, 7, 19, 70):
        tree = Order(text).tree(n)
        name = first_name(tree, entering=True)
        if name is None:
            assert "perm" in text or (n < 8 and "f16" in text), n  # terms are stored one by one
            continue
        assert Shape(Order(name).tree(n)).is_same(Shape(tree), entering=True)


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("seq", 576), ("swap:2", 576), ("lanes:64", 576), ("blocked:512 > swap:2", 576), ("cascade:8", 576),
        ("blocked:288 > blocked:32 > lanes:2", 576), ("lanes:4:adj > lanes:4:seq", 64), ("pairwise:8", 1000),
        ("lanes:16x2:8.1.2.4 > swap:2", 64), ("dot:8x8", 100), ("vector:16", 40), ("blocked:8 > swap:2", 40),
    ],
)  # fmt: skip
def test_the_orders_of_real_kernels_are_named_by_their_own_words(text, n):
    assert first_name(Order(text).tree(n)) == text


def test_which_of_two_terms_enters_unrounded_tells_orders_apart_where_it_is_asked():
    reversed_pairs = Order("swap:2").tree(4)  # fma(t0, R(t1)) where seq has fma(t1, R(t0))
    assert first_name(Tree(2, Chain((1, 0)))) == "seq"
    assert first_name(Tree(2, Chain((1, 0))), entering=True) == "reverse"
    assert first_name(Tree(2, Join((1, 0))), entering=True) == "pairwise"
    assert first_name(reversed_pairs, entering=True) == "swap:2"


def test_the_order_of_the_operands_of_an_addition_does_not_count():
    assert first_name(Tree(4, Join((Join((3, 2)), Join((1, 0)))))) == "pairwise"
    assert first_name(Tree(3, Join((Chain((2,)), Chain((0, 1)))))) == "seq"


def test_adders_are_named_by_those_that_may_be_meant():
    tree = Tree(5, Flat((Flat((0, 1, 2)), 3, 4)))
    assert first_name(tree) is None
    assert list(names_of(tree, adders=["4", "3", "3:25"])) == ["fused:3", "fused:3:25"]
    blocks = Order("blocked:6 > fused:3").tree(12)
    assert first_name(blocks, adders=["3"]) == "blocked:6 > fused:3"


def test_a_stored_partial_sum_counts_but_not_what_the_whole_is_rounded_to():
    stored = Order("split-k:2:bf16").tree(8)
    assert first_name(stored) == "split-k:2:bf16"
    assert first_name(Order("split-k:2").tree(8)) == "blocked:4"
    assert first_name(Tree(8, Rounded(Order("seq").tree(8).root, Order("split-k:2:bf16").levels[0].partial))) == "seq"


def test_a_tree_without_a_name_has_none():
    assert list(names_of(Order("perm:5").tree(40))) == []
