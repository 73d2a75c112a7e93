"""The orders of MKL's float32 products: what each adds with what, and MKL's own results, bit for bit.

`data/references/mkl.npz` holds what MKL 2024.2 gave for the operands below (its AVX-512 kernels, one thread).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from softfloat_llm.errors import OrderError
from softfloat_llm.numerics import mkl_orders, reduce
from softfloat_llm.numerics.orders import Order

RECORDED = np.load(Path(__file__).parents[1] / "data" / "references" / "mkl.npz")
REST = {4: "gemv:t-rest", 5: "gemv:t-rest-2", 6: "gemv:t-rest"}  # of 7 columns


def cases():
    """(kind, rows, terms, columns), and the results (rows, columns), of large products the first 2 by 16."""
    start = 0
    for text in RECORDED["cases"].tolist():
        kind, *sizes = text.split(".")
        rows, terms, columns = map(int, sizes)
        shape = (min(rows, 2), columns if rows == 1 else min(columns, 16))
        stop = start + shape[0] * shape[1]
        yield kind, rows, terms, columns, RECORDED["bits"][start:stop].view(np.float32).reshape(shape)
        start = stop
    assert start == len(RECORDED["bits"])


def operands(rows, terms, columns):
    """a (rows, terms), b (columns, terms): 24 random bits times a random power of two."""
    rng = np.random.default_rng([rows, terms, columns])
    factors = []
    for n in (rows, columns):
        bits = rng.integers(-(1 << 23), 1 << 23, (n, terms))
        factors.append((bits * 2.0 ** rng.integers(-30, -18, (n, terms))).astype(np.float32))
    return factors


def ours(a, b, order):
    return reduce.matmul(a, b.T, f"storage=f32,acc=f32,output=f32,order={order}")


def order_of(kind, rows, terms):
    if rows == 1:
        return f"gemv:{kind}"
    return "lanes:4:adj > lanes:4:seq" if rows == 2 else f"blocked:{288 if terms == 576 else 384} > seq"


def test_each_recorded_product_is_mkls_own():
    told_apart = total = 0
    for kind, rows, terms, columns, theirs in cases():
        a, b = (x[: len(theirs) if i == 0 else theirs.shape[1]] for i, x in enumerate(operands(rows, terms, columns)))
        result = ours(a, b, order_of(kind, rows, terms))
        if columns == 7:  # four columns at a time; those that are left over have another loop
            for column, order in REST.items():
                result[:, column] = ours(a, b[column : column + 1], order)[:, 0]
        np.testing.assert_array_equal(theirs.view(np.uint32), result.view(np.uint32), err_msg=f"{kind} {rows} {terms}")
        told_apart += np.count_nonzero(theirs != ours(a, b, "seq"))
        total += theirs.size
    assert total > 7000
    assert told_apart > 0.5 * total  # most of these results would have shown another order


def test_the_trees_as_text():
    assert str(Order("gemv:t").tree(5)) == "(((0)+1)+(3))+((2)+(4))"
    assert str(Order("gemv:n").tree(9)) == "(((6+4)+(7+5))+((2+0)+(3+1)))+8"
    assert Order("gemv:t-rest").tree(64) != Order("gemv:t-rest-2").tree(64)
    assert Order("gemv:n").tree(7) == Order("seq").tree(7)


@pytest.mark.parametrize("kernel", mkl_orders.KERNELS)
def test_each_term_comes_once_for_any_number_of_terms(kernel):
    for n in range(150):
        weights = 2.0 ** np.arange(n) if n < 24 else np.ones(n)
        total = reduce.sum(weights, f"storage=f32,acc=f32,output=f32,order=gemv:{kernel}")
        assert total == np.add.reduce(weights), n


def test_an_unknown_kernel_is_refused():
    with pytest.raises(OrderError, match=r"no kernel of MKL.*Known: t t-rest t-rest-2"):
        Order("gemv:x")
    with pytest.raises(OrderError, match="takes an argument"):
        Order("gemv")


def test_a_bf16_matrix_with_one_vector_is_taken_four_columns_at_a_time_and_the_rest_from_its_end():
    assert str(Order("gemv:n-bf16").tree(9)) == "((0+2)+(1+3))+((4+6)+(5+7))+8"
    assert str(Order("gemv:n-bf16").tree(7)) == "((0+2)+(1+3))+6+5+4"
    assert str(Order("gemv:n-bf16").tree(2)) == "1+0"


def test_columns_before_the_first_aligned_one_add_four_terms_and_then_a_sum_of_four():
    assert str(Order("gemv:n-edge").tree(13)) == "0+1+2+3+(4+5+6+7)+8+9+10+11+12"
    assert Order("gemv:n-edge").tree(7) == Order("seq").tree(7)
