"""Kernels at one shape: NumPy's own, and made ones whose rows or columns add otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.analysis.recognise import Shape
from softfloat_llm.errors import LiveError
from softfloat_llm.live.kernels import Product, Reduction, alike, place_conditions, reveal_places
from softfloat_llm.live.numpy_kernels import numpy_kernel
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.formats import f32
from softfloat_llm.numerics.orders import Order
from softfloat_llm.numerics.precision import precision_of


def product(order_at, shape=(1, 3, 6, 20)):
    """A product each of whose elements has the order that order_at(m, n) says."""
    orders = np.array([[order_at(m, n) for n in range(shape[2])] for m in range(shape[1])])

    def multiply(x, w):
        out = np.empty(shape[:3], np.float32)
        for order in np.unique(orders):
            sums = reduce.dot(x[:, :, None], w[:, None], f"storage=f32,order={order}")
            out[:, orders == order] = sums[:, orders == order]
        return out

    return Product("made", f32, f32, shape, multiply)


def test_one_order_at_every_place():
    (found,) = reveal_places(product(lambda m, n: "lanes:4"))
    assert (found.revealed.order, len(found.places)) == ("lanes:4", 18)


def test_columns_that_groups_leave_over_are_told_apart():
    most, rest = reveal_places(product(lambda m, n: "lanes:4" if n < 4 else "seq"))
    assert (most.revealed.order, rest.revealed.order) == ("lanes:4", "seq")
    assert place_conditions([most.places, rest.places], (3, 6)) == ["", "n >= 4"]


def test_a_row_that_is_left_over_is_told_apart():
    most, rest = reveal_places(product(lambda m, n: "reverse" if m == 2 else "blocked:8"))
    assert (most.revealed.order, rest.revealed.order) == ("blocked:8", "reverse")
    assert place_conditions([most.places, rest.places], (3, 6)) == ["", "m == 2"]


def test_a_corner_needs_both_its_row_and_its_column():
    most, rest = alike(product(lambda m, n: "seq" if (m, n) == (2, 5) else "lanes:2"))[2]
    assert place_conditions([most.places, rest.places], (3, 6)) == ["", "m == 2 and n == 5"]


def test_places_that_no_rule_can_name_are_refused():
    most, rest = alike(product(lambda m, n: "seq" if (m + n) % 2 else "lanes:2"))[2]
    with pytest.raises(LiveError, match="no rule can speak of them"):
        place_conditions([most.places, rest.places], (3, 6))


def test_what_is_known_is_tried_first():
    known = [precision_of("storage=f32,order=seq"), precision_of("storage=f32,order=lanes:4")]
    (found,) = reveal_places(product(lambda m, n: "lanes:4", (1, 1, 2, 130)), known)
    assert (found.precision, found.revealed) == (known[1], None)
    (found,) = reveal_places(product(lambda m, n: "lanes:4", (1, 1, 2, 30)), known)  # so few terms are asked
    assert found.revealed.order == "lanes:4"


def test_a_kernel_that_is_not_steady_has_no_order():
    rng = np.random.default_rng()

    def multiply(x, w):
        places = rng.permutation(x.shape[2])
        return np.array([reduce.matmul(x[0][:, places], w[0][:, places].T, "storage=f32")])

    with pytest.raises(LiveError, match="It has no order"):
        reveal_places(Product("made", f32, f32, (1, 2, 3, 30), multiply))


def test_the_rows_of_a_reduction_are_told_apart():
    def add(x):
        return np.array([reduce.sum(row, f"storage=f32,order={'seq' if r else 'pairwise'}") for r, row in enumerate(x)])

    found = reveal_places(Reduction("made", f32, f32, (4, 15), add))
    assert [(each.revealed.order, len(each.places)) for each in found] == [("seq", 3), ("pairwise", 1)]


# --- NumPy ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["f16", "f32", "f64"])
@pytest.mark.parametrize("operation", ["sum", "mean"])
def test_numpys_sum_and_mean_are_pairwise(operation, fmt):
    (found,) = reveal_places(numpy_kernel(operation, (2, 200), fmt))
    assert found.revealed.is_confirmed
    assert found.revealed.order == "pairwise:8"


@pytest.mark.parametrize("fmt", ["f32", "f64"])
@pytest.mark.parametrize(("operation", "shape"), [("dot", (40,)), ("matmul", (1, 8, 40)), ("matmul", (5, 8, 40))])
def test_numpys_blas_is_found_and_held_against_it(operation, shape, fmt):
    """Whatever BLAS it is: its tree, fused or rounded products, and sums in f32 or f64 give its bits."""
    for found in reveal_places(numpy_kernel(operation, shape, fmt)):
        assert found.revealed.is_confirmed, found.revealed.findings
        assert found.revealed.tree.n == 40


def test_numpys_sum_of_one_row_takes_its_length_alone():
    kernel = numpy_kernel("sum", (19,), "f32")
    assert kernel.shape == (1, 19)
    (found,) = reveal_places(kernel)
    assert Shape(found.revealed.tree).is_same(Shape(Order("pairwise:8").tree(19)), entering=False)


@pytest.mark.parametrize(
    ("operation", "shape", "fmt", "says"),
    [
        ("summ", (3,), "f32", "Did you mean 'sum'"), ("matmul", (3, 4), "f32", "M,N,K; found 3, 4"),
        ("dot", (0,), "f32", "at least 1"), ("sum", (3,), "bf16", "not bf16"), ("sum", (), "f32", "found none"),
    ],
)  # fmt: skip
def test_what_numpy_has_not_is_refused(operation, shape, fmt, says):
    with pytest.raises(LiveError) as caught:
        numpy_kernel(operation, shape, fmt)
    assert says in str(caught.value)
