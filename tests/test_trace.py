"""Named taps and events: what is kept, how later passes are appended, how an event reads."""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.numerics.formats import bf16, f32
from softfloat_llm.trace import Event, Trace


def row(*values, dtype=np.float32):
    return np.array([values], dtype)


@pytest.mark.parametrize(("patterns", "name", "is_wanted"), [
    (("*.out",), "embed.out", True), (("*.out",), "embed.in", False), (("*",), "layers.0.attn.scores.acc", True),
    (("layers.3.*",), "layers.3.mlp.act.in", True), (("layers.3.*",), "layers.31.mlp.act.in", False),
    (("layers.[01].*.out",), "layers.1.kv.k.out", True), ((), "embed.out", False), (("EMBED.*",), "embed.out", False),
    (("a", "embed.?ut"), "embed.out", True), (("embed",), "embed.out", False),
])  # fmt: skip
def test_patterns_choose_names_as_a_shell_does(patterns, name, is_wanted):
    assert Trace(patterns).wants(name) is is_wanted


def test_outputs_are_kept_unless_asked_otherwise():
    trace = Trace()
    trace.keep("embed.out", row(1), f32)
    trace.keep("embed.in", row(1), f32)
    assert list(trace.arrays) == list(trace.formats) == ["embed.out"]


def test_later_rows_are_appended_under_the_same_name_with_their_format():
    trace = Trace(("*",))
    trace.keep("a", np.ones((2, 3), bf16.dtype), bf16)
    trace.keep("b", row(1), f32)
    trace.keep("a", np.zeros((1, 3), bf16.dtype), bf16)
    assert trace.arrays["a"].shape == (3, 3)
    assert trace.arrays["a"].dtype == bf16.dtype
    assert list(trace.arrays) == ["a", "b"]
    assert trace.formats == {"a": bf16, "b": f32}


def test_rows_over_a_growing_context_are_filled_up_at_the_right():
    trace = Trace(("*",))
    trace.keep("p", row(0.5, 0.5), f32, fill=0.0)
    trace.keep("p", row(0.2, 0.3, 0.5), f32, fill=0.0)
    trace.keep("p", row(1.0), f32, fill=0.0)
    assert trace.arrays["p"].tolist() == [row(0.5, 0.5, 0)[0].tolist(), row(0.2, 0.3, 0.5)[0].tolist(), [1.0, 0.0, 0.0]]
    trace.keep("s", row(1.0), f32, fill=-np.inf)
    trace.keep("s", row(1.0, 2.0), f32, fill=-np.inf)
    assert trace.arrays["s"].tolist() == [[1.0, -np.inf], [1.0, 2.0]]


def test_what_is_kept_does_not_change_with_its_source():
    trace, x = Trace(("*",)), row(1, 2)
    trace.keep("a", x, f32)
    x[:] = 0
    assert trace.arrays["a"].tolist() == [[1, 2]]


def test_the_first_event_of_each_tap_is_kept_in_the_order_of_arrival():
    trace = Trace(())
    events = [Event("b", (1, 2), np.inf, "f16"), Event("a", (0, 0), np.nan, "f16"), Event("b", (0, 0), np.nan, "f16")]
    for event in events:
        trace.note(event)
    assert trace.events == events[:2]


def test_traces_share_nothing():
    one, two = Trace(("*",)), Trace(("*",))
    one.keep("a", row(1), f32)
    one.note(Event("a", (0, 0), np.inf, "f16"))
    assert (two.arrays, two.formats, two.events) == ({}, {}, [])


@pytest.mark.parametrize(("event", "text"), [
    (Event("lm_head.out", (4, 17), np.inf, "f16"), "lm_head.out at position 4, element [17] became inf in f16"),
    (Event("norm.final.acc", (2,), -np.inf, "bf16"), "norm.final.acc at position 2, element [] became -inf in bf16"),
    (Event("layers.0.attn.pv.acc", (1, 2, 3), np.nan, "f16", 5, 9),
     "layers.0.attn.pv.acc at position 1, element [2, 3] became nan: its f16 sum after 5 of 9 terms"),
])  # fmt: skip
def test_an_event_reads_as_a_sentence(event, text):
    assert str(event) == text
