"""Sums whose terms cannot be negative tell their tree by which two of three terms meet first."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.analysis.guesses import tree_of
from softfloat_llm.analysis.recognise import Shape, names_of
from softfloat_llm.analysis.traits import Traits
from softfloat_llm.analysis.triples import joins_by_triples
from softfloat_llm.errors import ProbeError
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.orders import Order
from tests.numerics.test_orders import TABLE

LESS_THAN_HALF_AN_ULP = 0.75 * 2.0**-24


def meets_of(order, n):
    def meets(triples):
        terms, rows = np.zeros((len(triples), n), np.float32), np.arange(len(triples))
        terms[rows, triples[:, 0]] = 1.0
        terms[rows[:, None], triples[:, 1:]] = LESS_THAN_HALF_AN_ULP
        return reduce.sum(terms, f"storage=f32,order={order}") > 1.0

    return meets


@pytest.mark.parametrize("text", [*TABLE, "vector:16", "lanes:8:4.1.2"])
def test_every_order_tells_its_tree(text):
    for n in (1, 2, 3, 9, 17, 33):
        tree = tree_of(n, joins_by_triples(meets_of(text, n), n), Traits())
        assert Shape(tree).is_same(Shape(Order(text).tree(n)), entering=False)


def test_a_tree_that_was_told_has_its_name():
    tree = tree_of(41, joins_by_triples(meets_of("lanes:16", 41), 41), Traits(starts_at_zero=True))
    assert next(names_of(tree)) == "lanes:16"


def test_answers_of_no_tree_are_refused():
    rng = np.random.default_rng(3)
    with pytest.raises(ProbeError):
        joins_by_triples(lambda triples: rng.random(len(triples)) < 0.5, 12)
