"""S19: another order of the sums gives other bits; run-to-run noise is another thing, and there is none here.

Batch size, split-K and fusion change the order. The same request under two orders: the first difference is named.
"""

from __future__ import annotations

from softfloat_llm.claims.model_runs import ORDERS
from softfloat_llm.runs import simulate
from tests.claims import reproduced


def test_s19_the_same_request_under_two_orders_first_differs_where_the_first_sum_is_made(tiny_bench):
    reproduced(tiny_bench, "S19")
    one = tiny_bench.run("f32")
    assert all(tiny_bench.run(f"f32,order={order}").generated == one.generated for order in ORDERS)


def test_s19_the_same_order_gives_the_same_bits_however_often_it_is_run(tiny_bench):
    model = tiny_bench.model
    digests = {simulate(model=model, recipe="bf16,order=split-k:4", workers=w).digest for w in (1, 2, 1)}
    assert len(digests) == 1
