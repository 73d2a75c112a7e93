"""The pictures: right in what they show, the same bytes each time, readable on light and dark pages."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from xml.etree import ElementTree

import numpy as np
import pytest

from softfloat_llm.analysis.compare import compare
from softfloat_llm.analysis.explain_sum import explain_dot, explain_sum
from softfloat_llm.analysis.margins import margins
from softfloat_llm.analysis.reading import number_of
from softfloat_llm.errors import OrderError, ReportError, WordError
from softfloat_llm.numerics.formats import bf16, decode, e4m3fn, f16, f32
from softfloat_llm.numerics.orders import Order
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.report import pictures
from softfloat_llm.report.accumulation_path import accumulation_path_of
from softfloat_llm.report.drawing import PALETTE, STYLE, without_style
from softfloat_llm.report.heat_map import HeatMap, heat_map_of, heat_map_svg, level
from softfloat_llm.report.margin_ladder import MarginLadder, Rung, margin_ladder_of, margin_ladder_svg
from softfloat_llm.report.number_line import number_line_of
from softfloat_llm.report.text_pictures import (
    accumulation_path_text,
    heat_map_text,
    margin_ladder_text,
    number_line_text,
)
from softfloat_llm.report.tree_drawing import tree_drawing_of
from tests.analysis.made import made_run
from tests.browser import measured, outside, overlaps
from tests.pages import contrast

ROWS = [[1.0, 2.0, 3.0, 0.5], [20.0, 22.375, 22.25, -4.0], [5.0, 5.0, 1.0, 0.0], [1.0, 2.0, 30.0, 0.0]]
RANDOM = np.random.default_rng(7)
A, B = (np.round(RANDOM.normal(size=40) * 16) / 16 for _ in range(2))


def pair(last=ROWS[3]):
    """A run of three steps whose first flips, and its reference. The second is a tie; `last`: the run's third row."""
    fed = {"prompt": (5, 6), "fed": (5, 6, 1, 0)}
    reference = made_run("f32", logits=ROWS, act=[[0.5, -1.0]] * 4, generated=(1, 0, 2), **fed)
    moved = [ROWS[0], [20.0, 22.25, 22.375, -4.0], ROWS[2], last]
    return made_run("bf16", logits=moved, act=[[0.5, -1.0], [0.5, -1.0078125], [4.0, 1.0], [2.0, 2.0]],
                    generated=(2, 0, 2), **fed), reference  # fmt: skip


def sums(*accumulators, order="seq"):
    return [explain_dot(A, B, f"storage=bf16,acc={acc},order={order}") for acc in accumulators]


def every_picture():
    found = compare(*pair())
    return {
        "number line": pictures.number_line("22.277479", marks={"run": 22.375}),
        "margin ladder": pictures.margin_ladder(found),
        "margins alone": pictures.margin_ladder(margins(pair()[1])),
        "accumulation path": pictures.accumulation_path(sums("bf16", "f16", "f32")),
        "heat map": pictures.heat_map(found, local=found.taps),
        "tree": pictures.summation_tree("split-k:2:bf16 > lanes:2", 12),
    }


@pytest.fixture(scope="module")
def drawn():
    return every_picture()


# --- bytes and markup -------------------------------------------------------------------------------------------------


def test_the_same_data_give_the_same_bytes_also_in_another_process(drawn):
    code = "from tests.report.test_pictures import every_picture; print(*every_picture().values(), sep='', end='')"
    for seed in ("1", "12345"):
        told = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        )
        assert told.stdout.decode() == "".join(drawn.values())


NAMES = ("number line", "margin ladder", "margins alone", "accumulation path", "heat map", "tree")


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_xml_with_a_title_and_nothing_from_outside(drawn, name):
    root = ElementTree.fromstring(drawn[name])
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.attrib["role"] == "img"
    assert [child.tag.split("}")[1] for child in root][:3] == ["title", "desc", "style"]
    assert root[0].text
    assert root[1].text
    targets = [value for node in root.iter() for key, value in node.attrib.items() if key.endswith("href")]
    assert all(target.startswith("#") for target in targets)
    assert not re.search(r"https?://(?!www\.w3\.org/(2000/svg|1999/xlink))", drawn[name])
    assert not re.search(r"<(script|image|foreignObject|metadata)|matplotlib|20[0-9]{2}-[0-9]{2}", drawn[name])
    assert len(drawn[name]) < 100_000


@pytest.mark.parametrize("name", NAMES)
def test_every_colour_is_a_variable_that_the_picture_defines(drawn, name):
    body = without_style(drawn[name])
    assert STYLE in drawn[name]
    assert not re.search(r"[:\"]\s*(#[0-9a-f]{3,8}|rgb|black|white)", body)
    used = set(re.findall(r"var\(--sf-([a-z0-9-]+)\)", body))
    assert used <= set(PALETTE)
    assert {"paper", "ink"} <= used


def test_ids_of_all_pictures_together_are_of_one_thing_each(drawn):
    found = [each for svg in drawn.values() for each in re.findall(r' id="([^"]+)"', svg)]
    assert len(found) == len(set(found))


@pytest.mark.parametrize("page", [0, 1])
def test_text_has_the_contrast_that_wcag_asks_for(page):
    at = {name: pair[page] for name, pair in PALETTE.items()}
    for ink in ("ink", "quiet", "run", "reference", "flip", "error-edge"):
        assert contrast(at[ink], at["paper"]) >= 4.5, ink
    for shade in range(9):
        assert contrast(at["on-strong" if shade >= 5 else "on-pale"], at[f"heat-{shade}"]) >= 4.5, shade
    for ink in ("ink", "flip", "run"):  # marks upon a shaded floor
        assert min(contrast(at[ink], at[floor]) for floor in ("floor", "error", "even", "odd")) >= 3, ink


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ReportError, match=r"\.\[report\]"):
        pictures.number_line(1)


def test_neither_the_modules_nor_the_text_pictures_load_matplotlib():
    code = (
        "import sys; from softfloat_llm.report import number_line, pictures, text_pictures;"
        "text_pictures.number_line_text(number_line.number_line_of(257)); print('matplotlib' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"


def test_a_picture_leaves_the_settings_of_matplotlib_as_they_were():
    import matplotlib

    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 33.0, "svg.fonttype": "path"}):
        told = pictures.number_line("22.277479", marks={"run": 22.375})
        assert matplotlib.rcParams["font.size"] == 33.0
    assert dict(matplotlib.rcParams) == before
    assert told == pictures.number_line("22.277479", marks={"run": 22.375})


# --- number line ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", [bf16, f16, e4m3fn])
def test_the_intervals_of_a_number_line_are_what_rounding_does(fmt):
    """All values of e4m3fn, and some of each other format: what lies inside of an interval rounds to its value."""
    codes = np.arange(0, 1 << fmt.bits, 1 if fmt.bits == 8 else 331)
    for x in (float(x) for x in np.unique(np.abs(decode(codes, fmt))) if math.isfinite(x)):
        (grid,) = number_line_of(x, [fmt]).grids
        assert float(x) in [float(place.value) for place in grid.places]
        for place in grid.places:
            for point in (place.low, place.high, (place.low + 3 * place.value) / 4, (place.high + 3 * place.value) / 4):
                rounded = float(round_to(point, fmt, overflow="saturate"))
                is_end = point in (place.low, place.high)
                assert (rounded == float(place.value)) == (not is_end or place.is_even or abs(place.value) == fmt.max)


def test_a_number_line_has_every_value_of_its_stretch():
    line = number_line_of("22.277479", ["bf16", "f16"])
    coarse, fine = line.grids
    assert [float(place.value) for place in coarse.places] == [22 + i / 8 for i in range(6)]
    assert [float(place.value) for place in fine.places] == [21.9375 + i / 64 for i in range(49)]
    assert coarse.error_ulp == (Fraction("22.25") - Fraction("22.277479")) * 8
    assert (coarse.rounded, fine.rounded) == (22.25, 22.28125)


def test_a_number_line_beyond_a_format_says_so_and_beyond_all_is_refused():
    line = number_line_of("1e5", ["f16", "bf16"])
    assert line.grids[0].places == ()
    assert "the largest value is 65504" in number_line_text(line)
    assert "no value" in pictures.number_line("1e5", ["f16", "bf16"])
    for x in ("1e39", "nan", "-inf"):
        with pytest.raises(WordError, match=r"number line|range"):
            number_line_of(x, ["f16", "bf16"])


@pytest.mark.parametrize("x", ["0", "-0.0", "1e-8", "65504", "-65519", "1/3", "0x1p-149", "3.4e38"])
def test_a_number_line_is_drawn_anywhere(x):
    assert ElementTree.fromstring(pictures.number_line(x, ["bf16", "f16", "e8m0fnu", "e2m1fn"])) is not None
    assert number_line_text(number_line_of(x, ["bf16", "f16", "e8m0fnu", "e2m1fn"]))


def test_a_mark_outside_of_the_stretch_is_left_out():
    assert [words for words, _ in number_line_of(1, marks={"near": 1.0078125, "far": 2.0}).marks] == ["near"]


# --- margin ladder ----------------------------------------------------------------------------------------------------


def test_the_ladder_has_the_comparisons_numbers_and_its_flips():
    found = compare(*pair())
    ladder = margin_ladder_of(found)
    assert [rung.margin for rung in ladder.rungs] == [step.margin_ulp for step in found.steps] == [1.0, 0.0, 224.0]
    assert [rung.step for rung in ladder.flips] == [0]
    text = margin_ladder_text(ladder)
    assert re.search(r"^   0  .*X.*  flip", text, re.M)
    assert re.search(r"^   1  o", text, re.M)
    assert text.count("\n") == 7


def test_a_row_with_nan_has_no_place_on_the_ladder_but_is_told():
    run, reference = pair(last=[np.nan, 1.0, 2.0, 3.0])
    for one, other in ((run, reference), (reference, run)):
        ladder = margin_ladder_of(compare(one, other))
        assert ladder.rungs[2].margin is None or ladder.rungs[2].error is None
        assert "NaN" in margin_ladder_text(ladder)
        assert ElementTree.fromstring(pictures.margin_ladder(compare(one, other))) is not None


def test_a_ladder_needs_steps():
    with pytest.raises(ReportError, match="1 to 1000 steps"):
        margin_ladder_of(compare(*[made_run(r, generated=()) for r in ("bf16", "f32")]))


# --- accumulation path ------------------------------------------------------------------------------------------------


ORDERS = ["seq", "lanes:4", "pairwise", "split-k:4:bf16", "blocked:8:f16"]


@pytest.mark.parametrize(
    ("order", "product"), [*((o, p) for o in ORDERS for p in ("exact", "bf16")), ("fused:4:3", "exact")]
)
def test_a_path_and_the_output_rounding_end_at_the_error_of_the_result(order, product):
    story = explain_dot(A, B, f"storage=bf16,product={product},acc=f32,output=bf16,order={order}")
    (path,) = accumulation_path_of([story]).paths
    assert path.errors[-1] + story.output_error == story.error == path.end
    assert len(path.errors) == len(story.steps)


def test_a_path_of_a_running_sum_is_that_sum_less_the_exact_one():
    story = explain_dot(A, B, "storage=bf16,acc=bf16")
    exact, (path,) = Fraction(0), accumulation_path_of([story]).paths
    for step, error, x, y in zip(story.steps, path.errors, A, B, strict=True):
        exact += Fraction(x) * Fraction(y)
        assert Fraction(step.after) - exact == error


def test_256_1_1_loses_half_an_ulp_a_step():
    (path,) = accumulation_path_of([explain_sum([256, 1, 1], "storage=bf16,acc=bf16")]).paths
    assert [path.in_ulp(error) for error in path.errors] == [0.0, -0.5, -1.0]
    assert "-1 bf16 ulp in [256, 512)" in accumulation_path_text(
        accumulation_path_of([explain_sum([256, 1, 1], "storage=bf16,acc=bf16")])
    )


def test_too_many_sums_and_exact_ones_have_no_path():
    with pytest.raises(ReportError, match="exact accumulator"):
        accumulation_path_of(sums("exact"))
    with pytest.raises(ReportError, match="1 to 4"):
        accumulation_path_of(sums(*["f32"] * 5))


def test_a_sum_that_leaves_the_range_has_a_path_and_no_end():
    found = accumulation_path_of([explain_sum([60000, 60000, 1], "storage=f16,acc=f16")])
    assert found.paths[0].end is None
    assert "not finite" in accumulation_path_text(found)
    assert (
        ElementTree.fromstring(pictures.accumulation_path([explain_sum([60000, 60000], "storage=f16,acc=f16")]))
        is not None
    )


# --- heat map ---------------------------------------------------------------------------------------------------------


def test_the_heat_map_has_the_ulps_of_the_comparison():
    found = compare(*pair())
    heats = heat_map_of(found)
    ulps = {tap.tap: tap.max_row_ulp for tap in found.taps}
    assert heats.heat("inherited", "mlp.act", 0) == math.log2(1 + ulps["layers.0.mlp.act.out"])
    assert heats.heat("inherited", "embed", None) == math.log2(1 + ulps["embed.out"])
    assert heats.heat("inherited", "embed", 0) is None
    assert "mlp.act" in heat_map_text(heats)
    assert [level(x) for x in (0.0, 0.1, 1.0, 6.9, 7.0, 99.0, math.inf)] == [0, 1, 2, 7, 8, 8, 8]


def test_what_is_not_finite_is_the_hottest_and_says_inf():
    heats = heat_map_of(compare(*pair(last=[np.nan, 1.0, 2.0, 3.0])))
    assert heats.heat("inherited", "lm_head", None) == math.inf
    assert "inf" in heat_map_text(heats)
    assert ">inf</text>" in pictures.heat_map(compare(*pair(last=[np.nan, 1.0, 2.0, 3.0])))


def test_local_errors_stand_beside_the_inherited():
    found = compare(*pair())
    told = heat_map_text(heat_map_of(found, local=found.taps[:2]))
    assert told.index("inherited error") < told.index("local error")
    assert list(heat_map_of(found).parts) == ["inherited"]


def test_all_sites_are_measured_in_the_ulps_of_the_logits():
    """A site that gives f32 values is off by as many bf16 ulps as one that rounds the same to bf16."""
    run, reference = pair()
    exact = replace(
        run, formats=run.formats | {"embed.out": f32}, arrays={**run.arrays, "embed.out": reference["embed.out"] * 2}
    )
    assert heat_map_of(compare(exact, reference)).parts["inherited"]["embed", None] == 128.0


def test_a_heat_map_of_nothing_is_refused():
    with pytest.raises(ReportError, match="taps named"):
        heat_map_of(replace(compare(*pair()), taps=()))


# --- tree -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order", ["seq", "lanes:4", "pairwise", "split-k:3", "blocked:4 > lanes:2", "cascade:2", "fused:4:3"]
)
@pytest.mark.parametrize("n", [1, 2, 7, 16, 64])
def test_a_drawing_has_each_term_once_and_says_what_survives(order, n):
    """The knot that holds both i and j lowest has as many terms as the order's tree says."""
    tree, drawing = Order(order).tree(n), tree_drawing_of(order, n)
    below = []
    for knot in drawing.knots:
        own = set() if knot.parts else {knot.words}
        below.append(own.union(*(below[part] for part in knot.parts)))
    assert sorted(below[-1], key=int) == [str(k) for k in range(n)]
    assert drawing.what == f"{order} of {n} terms"
    for i, j in ((0, n - 1), (n // 2, n // 3)):
        if i != j:
            holding = [len(held) for held in below if {str(i), str(j)} <= held]
            assert n - min(holding) == tree.survivors(i, j)


def test_a_stored_partial_sum_is_marked_with_its_format():
    assert "rounded to bf16" in pictures.summation_tree("split-k:2:bf16", 8)
    assert "all at once" in pictures.summation_tree("fused:4:3", 8)


@pytest.mark.parametrize("n", [0, 65])
def test_too_many_terms_are_refused(n):
    with pytest.raises(OrderError, match="1 to 64"):
        tree_drawing_of("seq", n)


# --- in a browser -----------------------------------------------------------------------------------------------------


def ladder_of(steps):
    """A ladder of so many steps: margins from nothing to thousands of ulps, a third of the steps flipping."""
    errors = [None if step % 7 == 6 else 2.0 ** (step % 5) / 4 for step in range(steps)]
    margins_ulp = [0.0 if step % 5 == 3 else 1.9 ** (step % 13) / 8 for step in range(steps)]
    rungs = [Rung(k, margins_ulp[k] if k % 11 else None, errors[k], k % 3 == 0, "") for k in range(steps)]
    return MarginLadder(bf16, tuple(rungs), True)


def many_pictures():
    for x in ("22.277479", "-1e-7", "65504", "3.0000001", "1/3", "123456789.123", "1+2^-11"):
        yield pictures.number_line(
            x, ["bf16", "f16", "e4m3fn", "f32"], marks={"the run's value": round_to(number_of(x).value, "bf16")}
        )
    yield from (margin_ladder_svg(ladder_of(steps)) for steps in (1, 3, 17, 60, 1000))
    names = [f"{'a very long token of its kind'!r} in {acc}" for acc in ("bf16", "f16", "f32")]
    yield pictures.accumulation_path(sums("bf16", "f16", "f32"), names=names)
    yield pictures.accumulation_path(sums("bf16+kahan", order="lanes:8"))
    for layers in (1, 12, 32, 80):
        cells = {(s, k): 2.0 ** (k % 9) - 1 for s in ("norm.post_attention", "mlp.down_proj") for k in range(layers)}
        cells |= {("lm_head", None): math.inf}
        for parts in ({"inherited": cells}, {"inherited": cells, "local": cells}):
            yield heat_map_svg(
                HeatMap(bf16, ("norm.post_attention", "mlp.down_proj", "lm_head"), (None, *range(layers)), parts)
            )
    for order, n in (
        ("seq", 1),
        ("seq", 64),
        ("split-k:4:bf16 > blocked:2:f16", 40),
        ("fused:16", 64),
        ("pairwise", 33),
    ):
        yield pictures.summation_tree(order, n)


@pytest.mark.browser
def test_in_a_browser_no_words_of_any_picture_meet_or_stick_out(tmp_path):
    page = f"<!doctype html><meta charset='utf-8'><body>{''.join(many_pictures())}</body>"
    seen = measured(page, tmp_path, 1200)
    assert len(seen["pictures"]) == 7 + 5 + 2 + 8 + 5
    for place, picture in enumerate(seen["pictures"]):
        assert overlaps(picture) == [], (place, picture["name"])
        assert outside(picture) == [], (place, picture["name"])
