"""Which form makes the sums of a precision, and why some have no fast one. Start reading at `path_of`."""

from __future__ import annotations

from functools import lru_cache

from softfloat_llm.numerics.formats import f32, f64
from softfloat_llm.numerics.masked_steps import can_mask
from softfloat_llm.numerics.precision import EXACT, Precision
from softfloat_llm.numerics.steps import Path, flushes
from softfloat_llm.numerics.tiles import can_round, term_bits


@lru_cache(maxsize=512)
def path_of(at: Precision) -> Path:
    """The fastest form that can serve a precision; a tile whose values do not allow it takes the evident one."""
    fmt = at.acc.format
    if fmt is None or at.acc.method != "plain" or at.order.adder is not None or not _is_fast_product(at):
        return "evident"
    is_usual = at.rounding.acc == "ties_to_even" and at.overflow.acc == "ieee"
    if is_usual and fmt is f32:
        is_exact_in_float32 = at.product is not None or term_bits(at) <= f32.precision
        return "native" if is_exact_in_float32 else "evident" if flushes(at) else "fused"
    if flushes(at):
        return "evident"
    if is_usual and fmt is f64:
        return "native"
    if is_usual and can_round(fmt) and term_bits(at) + fmt.precision <= 52:
        return "narrow"
    return "masked" if fmt is not f64 and can_mask(at) else "evident"


def _is_fast_product(at: Precision) -> bool:
    if at.product is None:
        return True
    if at.rounding.product != "ties_to_even" or at.overflow.product != "ieee":
        return False
    if at.product is f64:
        return at.acc.format is f64
    return can_round(at.product) and (not flushes(at) or at.product is f32)


def slow_reason(at: Precision) -> str | None:
    """Why sums of a precision have no fast form, and about how many times the time of plain f16 ones they take.

    None where they have one. The figures are those of benchmarks/bench_matmul.py, rounded.
    """
    product, adder = at.product, at.order.adder
    if at.acc == EXACT:
        is_slow = product is not None and not (product is f64 and at.storage.precision <= 24)
        return f"acc=exact of rounded products (product={product}) is made one by one: some 30" if is_slow else None
    if at.is_stochastic:
        return "stochastic rounding draws a word for every step: some 30"
    if path_of(at) != "evident":
        return None
    if adder is not None:
        return f"order={at.order} looks at all terms of an instruction: some 4"
    if at.acc.method != "plain":
        return f"acc={at.acc} takes four roundings a term: some 20 to 30"
    if not _is_fast_product(at):
        return f"product={product} with its rounding has no fast form: some 10"
    if flushes(at):
        return f"acc={at.acc} flushes subnormals: some 10"
    return f"acc={at.acc} of products of {term_bits(at)} bits: some 10"
