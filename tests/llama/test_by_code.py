"""Steps by code: the table gives what the step gives, is made when it pays, and not where places count."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.llama import by_code
from softfloat_llm.llama.blocks import silu
from softfloat_llm.numerics.formats import decode
from softfloat_llm.recipe import recipe_of


@pytest.mark.parametrize("fmt", ["bf16", "f16"])
@pytest.mark.parametrize("form", ["quotient", "stepwise", "times-sigmoid", "times-even-sigmoid"])
def test_the_table_of_silu_holds_what_silu_gives(fmt, form):
    spec = recipe_of(f"{fmt},mlp.act.form={form},mlp.act.rounding=toward_zero").at("mlp.act")
    codes = np.arange(1 << 16, dtype=np.uint16)
    x = decode(codes[~np.isnan(decode(codes, fmt))][::7], fmt).astype(spec.storage.dtype)
    by_code._table.cache_clear()
    first, *_, last = [silu(x, spec).out for _ in range(10)]
    assert first.tobytes() == last.tobytes()


def test_a_table_is_made_after_as_many_elements_as_it_holds():
    calls = []

    def step(x, spec):
        calls.append(x.size)
        return -x

    spec = recipe_of("bf16").at("mlp.act")
    x = np.arange(30_000).astype(spec.storage.dtype)
    for _ in range(5):
        np.testing.assert_array_equal(by_code.by_code(step, x, spec), -x)
    assert calls == [30_000, 30_000, by_code.CODES]


@pytest.mark.parametrize(
    "words",
    ["f32", "storage=e7m8", "bf16,mlp.act.rounding=stochastic", "bf16,mlp.act.exp=vector-u20", "bf16,mlp.act.exp=ggml"],
)
def test_there_is_none_where_there_are_more_codes_or_places_count(words):
    sizes = []

    def step(x, spec):
        sizes.append(x.size)
        return x

    spec = recipe_of(words).at("mlp.act")
    for _ in range(2):
        by_code.by_code(step, np.zeros(by_code.CODES, spec.storage.dtype), spec)
    assert sizes == [by_code.CODES] * 2
