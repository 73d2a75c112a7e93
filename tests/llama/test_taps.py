"""What is known to be finite is not looked at for events: it must not be said of what is made of it since."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import pytest

from softfloat_llm.llama import attention, blocks
from softfloat_llm.llama.attention import Pending
from softfloat_llm.llama.cache import KVCache
from softfloat_llm.llama.config import config_from_dict
from softfloat_llm.llama.hidden import is_seen_finite
from softfloat_llm.llama.query_blocks import Queries
from softfloat_llm.llama.recorder import Recorder
from softfloat_llm.llama.taps import Taps, held_in
from softfloat_llm.numerics.formats import format_of
from softfloat_llm.recipe import recipe_of
from softfloat_llm.trace import Trace
from tests.checkpoints import config_dict

F16 = np.float16
RECIPE = recipe_of("f16")
LLAMA = Path(attention.__file__).parent


def events_of(site, taps):
    """What a recorder that keeps no tap notes of a site."""
    trace = Trace(())
    Recorder(RECIPE, trace, KVCache(config_from_dict(config_dict()), RECIPE), 1)(site, taps)
    return [str(event) for event in trace.events]


def test_another_output_is_not_known_to_be_finite():
    taps = Taps(np.ones(1), np.ones(1), np.ones(1), is_finite=True)
    for out in (np.ones(1), np.array([np.inf])):
        made = taps.with_out(out)
        assert made.out is out
        assert made.enter is taps.enter
        assert not made.is_finite
        assert taps.with_out(out, is_finite=True).is_finite


def test_no_output_is_replaced_in_another_way():
    """`_replace(out=...)` would keep what was known of the old one."""
    for path in sorted(LLAMA.glob("*.py")):
        replaced = [call.lineno for call in ast.walk(ast.parse(path.read_text())) if _is_of_out(call)]
        assert len(replaced) == (path.name == "taps.py"), (path.name, replaced)


def _is_of_out(node):
    is_one = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_replace"
    return is_one and any(word.arg in ("out", None) for word in node.keywords)


def test_logits_that_overflow_when_they_are_divided_are_noted():
    spec = RECIPE.at("lm_head")
    made = blocks.linear(np.full((1, 2), 4.0, F16), np.array([[1.0, 0.5], [1.0, 8.0]], F16), spec)
    assert made.is_finite
    assert events_of("lm_head", made) == []
    taps = blocks.divided(made, 2.0**-11, spec)
    assert taps.out.tolist() == [[12288.0, np.inf]]
    assert events_of("lm_head", taps) == ["lm_head.out at position 0, element [1] became inf in f16"]


@pytest.mark.parametrize(
    "pending", [Pending(np.full((1, 1), 8192.0)), Pending(np.full((1, 1), 2.0**-13), is_divisor=True)]
)
def test_weighted_values_that_overflow_when_they_are_normalised_are_noted(pending):
    spec = RECIPE.at("attn.pv")
    p, v = np.ones((1, 1, 1), F16), np.array([[[1.0, 8.0]]], F16)
    made = attention.weighted_values(p, v, spec)
    assert made.is_finite
    assert events_of("attn.pv", made) == []
    taps = attention.weighted_values(p, v, spec, pending=pending)
    assert taps.out.tolist() == [[[8192.0, np.inf]]]
    assert events_of("attn.pv", taps) == ["attn.pv.out at position 0, element [0, 1] became inf in f16"]


def test_a_query_of_its_own_that_is_not_finite_is_noted():
    made = attention.weighted_values(np.ones((2, 1, 2), F16), np.ones((2, 1, 1), F16), RECIPE.at("attn.pv"))
    assert made.is_finite
    row = Taps(made.enter[1:], np.full((1, 1, 1), 7e4, np.float32), np.full((1, 1, 1), np.inf, F16), made.terms)
    taps = attention._with_rows(made, {1: row}, 2)
    assert taps.out.tolist() == [[[2.0]], [[np.inf]]]
    assert events_of("attn.pv", taps) == ["attn.pv.out at position 1, element [0, 0] became inf in f16"]


def test_scores_that_overflow_when_they_are_scaled_are_noted():
    spec = RECIPE.at("attn.scale")
    q, k = np.ones((2, 1, 1), F16), np.array([[[1.0]], [[8.0]]], F16)
    scores = attention.scores(q, k, RECIPE.at("attn.scores"))
    assert scores.is_finite
    assert events_of("attn.scores", scores) == []  # that of the key that the first query does not see is -inf
    small, large = (attention.scale(scores.out, factor, spec) for factor in (4096.0, 8192.0))
    assert small.out.tolist() == [[[4096.0, -np.inf]], [[4096.0, 32768.0]]]
    assert small.is_finite
    assert events_of("attn.scale", small) == []
    assert large.out.tolist() == [[[8192.0, -np.inf]], [[8192.0, np.inf]]]
    assert events_of("attn.scale", large) == ["attn.scale.out at position 1, element [0, 1] became inf in f16"]


def test_what_is_seen_hangs_on_which_queries_these_are():
    x = np.array([[[1.0, 1.0, np.inf]]], F16)
    assert [is_seen_finite(x, Queries(first, 3, 3)) for first in range(3)] == [True, True, False]


@pytest.mark.parametrize(("fmt", "numbers"), [("e6m5", (0.0, -0.0)), ("e6m6", (-0.0, 0.0)), ("e6m7", (1e-99, -1e-99))])
def test_zeros_of_both_signs_are_held_as_two_numbers(fmt, numbers):
    """Whichever was asked for first: each pair in a format of its own, of which nothing is held yet."""
    for number in numbers:
        assert math.copysign(1.0, held_in(number, format_of(fmt))) == math.copysign(1.0, number)
