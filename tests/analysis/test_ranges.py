"""ranges: magnitudes against hand-made taps, counts against every rounding one by one, scales of the cache."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softfloat_llm.analysis.ranges import ranges
from softfloat_llm.analysis.rounding_counts import counts_in
from softfloat_llm.errors import FormatError, RunError
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.formats import format_of
from softfloat_llm.runs import simulate
from tests.analysis.made import made_run

FORMATS = ["f16", "bf16", "e4m3fn", "e5m2", "e2m1fn", "e3m2fn", "e4m3fnuz"]


def strict_json(found):
    return json.loads(json.dumps(found.to_dict(), sort_keys=True, allow_nan=False))


# --- counts -----------------------------------------------------------------------------------------------------------


def counted_one_by_one(values, fmt):
    """(clipped, subnormal, flushed) by exact roundings with a range far beyond the format's."""
    wide = format_of(f"e8m{fmt.trailing_bits}")
    clipped = subnormal = flushed = 0
    for x in values:
        if not math.isfinite(x) or x == 0:
            continue
        rounded = abs(round_exact(x, fmt, overflow="saturate"))
        clipped += abs(round_exact(x, wide)) > fmt.max
        subnormal += 0 < rounded < fmt.smallest_normal
        flushed += rounded == 0
    return clipped, subnormal, flushed


@pytest.mark.parametrize("name", FORMATS)
@given(st.lists(st.floats(width=32, allow_subnormal=True), max_size=20))
def test_counts_are_those_of_every_rounding_one_by_one(name, values):
    fmt = format_of(name)
    found = counts_in(np.array(values), fmt)
    assert (found.clipped, found.subnormal, found.flushed) == counted_one_by_one(values, fmt)
    assert found.values == len([x for x in values if math.isfinite(x) and x != 0])


@pytest.mark.parametrize("name", FORMATS)
def test_counts_at_the_midpoints_where_overflow_and_flushing_begin(name):
    fmt = format_of(name)
    top, least = fmt.max, fmt.smallest_subnormal
    over = top + (top - round_exact(np.nextafter(top, 0), fmt, "toward_zero")) / 2
    values = [top, over, np.nextafter(over, 0), np.nextafter(over, np.inf), -2 * top]
    values += [least, least / 2, np.nextafter(least / 2, 1), fmt.smallest_normal, np.nextafter(fmt.smallest_normal, 0)]
    found = counts_in(np.array(values), fmt)
    assert (found.clipped, found.subnormal, found.flushed) == counted_one_by_one(values, fmt)
    assert found.clipped >= 2
    assert found.flushed == 1


def test_counts_add_up():
    x = counts_in(np.array([1e6, 1e-9, 1e-5]), format_of("f16"))
    assert (x + x).to_dict() == {key: 2 * value for key, value in x.to_dict().items()}


# --- ranges -----------------------------------------------------------------------------------------------------------


def measured(act, more=None, fmt="f16", **options):
    return ranges(made_run(act=act, more=more), format=fmt, **options)


def test_a_range_is_the_largest_and_the_smallest_magnitude_with_its_place():
    found = measured([[0.5, -100.0], [0.0, 3e-6]])
    (act,) = [one for one in found.taps if one.place == "layers.0.mlp.act.out"]
    assert (act.largest, act.largest_at) == (100.0, ("layers.0.mlp.act.out", (0, 1)))
    assert act.smallest == float(np.float32(3e-6))
    assert (act.zeros, act.not_finite, act.size) == (1, 0, 4)
    assert act.headroom(found.format) == 655.04
    assert act.counts.to_dict() == {"values": 3, "clipped": 0, "subnormal": 1, "flushed": 0}


def test_the_first_overflow_is_first_in_the_order_of_the_forward_pass():
    found = measured([[7e4, 1.0], [0.0, 2.0]], {"layers.1.mlp.act.out": [[9e4, 1.0], [1e5, 1.0]]})
    assert found.first_overflow.place == "embed.out"  # which made_run fills with the same values
    assert "4 stored values would overflow f16's 65504, first embed.out; the largest is 100000" in str(found)
    sites = {one.place: one for one in found.sites}
    assert sites["layers.*.mlp.act.out"].counts.clipped == 3
    assert sites["layers.*.mlp.act.out"].largest_at == ("layers.1.mlp.act.out", (1, 0))


def test_what_a_norm_takes_is_squared_where_f16_could_not_sum_it():
    found = measured([[1.0, 1.0], [1.0, 1.0]], {"layers.0.norm.input.in": [[256.0, 1.0], [3.0, 0.0]]})
    by_place = {one.place: one for one in found.taps}
    assert by_place["layers.0.norm.input.square"].largest == 65536.0
    assert by_place["layers.0.norm.input.square"].counts.clipped == 1
    assert by_place["layers.0.norm.input.in"].counts.clipped == 0
    assert found.first_overflow is None
    assert found.first_inner_overflow.place == "layers.0.norm.input.square"
    assert "1 sum or square would overflow f16's 65504, first layers.0.norm.input.square" in str(found)


def test_bf16_has_the_range_of_f32():
    found = measured([[3e38, 1e-37], [1.0, 1.0]], fmt="bf16")
    assert found.first_overflow is None
    assert all(one.counts.flushed == 0 for one in found.taps)


def test_what_a_query_does_not_see_does_not_count():
    hidden = [[[[1.0, 9e9], [2.0, 9e9]]], [[[1.0, 3.0], [2.0, 4.0]]]]  # (T, 1, H, S): the first query sees one key
    run = made_run(more={"layers.0.attn.scores.out": np.array(hidden).reshape(2, 2, 2)})
    (scores,) = [one for one in ranges(run).taps if "scores" in one.place]
    assert (scores.largest, scores.counts.clipped) == (4.0, 0)


def test_infinities_and_nan_are_counted_apart():
    found = measured([[math.inf, math.nan], [1.0, -math.inf]])
    (act,) = [one for one in found.taps if one.place == "layers.0.mlp.act.out"]
    assert (act.not_finite, act.largest, act.counts.values) == (3, 1.0, 1)
    assert "6 values of the run are not finite." in str(found)
    strict_json(found)


def test_a_tap_of_zeros_has_infinite_headroom():
    found = measured([[0.0, 0.0], [0.0, 0.0]])
    (act,) = [one for one in found.taps if one.place == "layers.0.mlp.act.out"]
    assert (act.largest, act.largest_at, act.headroom(found.format)) == (0.0, None, math.inf)
    assert strict_json(found)["taps"][0]["headroom"] == "inf"
    assert "| inf " in str(found) or " inf |" in str(found)


def test_a_run_of_its_logits_alone_is_measured_all_the_same():
    found = ranges(simulate(recipe="f32", taps=()))
    assert [one.place for one in found.taps] == ["lm_head.out"]


def test_an_unsigned_format_is_refused():
    with pytest.raises(FormatError, match="no negative values"):
        ranges(made_run(), format="e8m0fnu")


def test_every_site_of_tiny_has_headroom_in_f16_but_for_the_sum_of_squares_of_the_last_norm():
    found = ranges(simulate(recipe="f32", taps=("*",)))
    assert found.first_overflow is None
    assert found.first_inner_overflow.place == "norm.final.acc"
    assert len(str(found).splitlines()) < 25
    text = found.text(verbose=True)
    html = found._repr_html_()
    assert all(f"| {one.place} " in text and f"<td>{one.place}</td>" in html for one in found.taps)
    # and so it is: f16 sums of squares there become infinite
    run = simulate(recipe="f32,norm.final.acc=f16", taps=())
    assert run.events[0].tap == "norm.final.acc"


# --- scales of the cache ----------------------------------------------------------------------------------------------


def cached(k, v=((1.0, 0.5), (0.0, -0.25))):
    return made_run(more={"layers.0.kv.k.in": k, "layers.0.kv.v.in": v})


def test_a_scale_takes_the_largest_key_to_the_largest_value_of_the_format():
    found = ranges(cached([[896.0, 1.0], [-2.0, 1.5e-3]]), kv_format="e4m3fn")
    k, v = found.kv
    assert (k.layer, k.which, k.largest, k.scale) == (0, "k", 896.0, 2.0)
    assert k.as_is.to_dict() == {"values": 4, "clipped": 1, "subnormal": 1, "flushed": 0}
    assert k.scaled.to_dict() == {"values": 4, "clipped": 0, "subnormal": 0, "flushed": 1}
    assert (v.largest, v.scale) == (1.0, round_exact(Fraction(1, 448), "f32", "toward_positive"))
    assert "A cache in e4m3fn, keys: largest 896 (layer 0), scale 2;" in str(found)


@given(st.floats(2.0**-100, 2.0**100, width=32))
def test_nothing_is_clipped_with_its_own_scale(largest):
    found = ranges(cached([[largest, 0.0], [0.0, 0.0]]), kv_format="e4m3fn")
    assert found.kv[0].scaled.clipped == 0


def test_keys_of_zeros_need_no_scale():
    found = ranges(cached([[0.0, 0.0], [0.0, 0.0]]), kv_format="e4m3fn")
    assert found.kv[0].scale == 1.0


def test_scales_need_what_enters_the_cache():
    with pytest.raises(RunError, match=r"\*\.kv\.\*\.in"):
        ranges(made_run(), kv_format="e4m3fn")


def test_the_scales_of_tiny_run_without_a_clipped_value():
    run = simulate(recipe="f32", taps=("*",))
    found = ranges(run, kv_format="e2m1fn")
    assert any(one.as_is.clipped for one in found.kv)  # keys reach 9, e2m1 6
    assert not any(one.scaled.clipped for one in found.kv)
    scale = max(one.scale for one in found.kv if one.which == "k")
    held = simulate(recipe=f"f32,kv=e2m1fn,kv.k.scale={scale},kv.v.scale=2", taps=("*.kv.k.out",))
    assert all(np.abs(held[name].astype(np.float64)).max() <= 6 for name in held.names if ".kv." in name)
