"""Sites and the selectors that name several of them."""

from __future__ import annotations

import pytest

from softfloat_llm.errors import RecipeError
from softfloat_llm.site_options import Count, FormatOption, Positive
from softfloat_llm.sites import GROUPS, LINEAR, MATMUL, MODE_KEYS, SITES, TAPPED, select, specificity


def test_there_are_28_sites_in_the_order_of_the_forward_pass():
    assert list(SITES) == [
        "embed", "norm.input", "attn.q_proj", "attn.k_proj", "attn.v_proj", "norm.q", "norm.k", "rope.table",
        "attn.rope", "kv.k", "kv.v",
        "attn.scores", "attn.scale", "attn.mask", "attn.softmax", "attn.pv", "attn.o_proj", "attn.residual",
        "norm.post_attention", "mlp.gate_proj", "mlp.up_proj", "mlp.act", "mlp.act_mul", "mlp.down_proj",
        "mlp.residual", "norm.final", "lm_head", "choice",
    ]  # fmt: skip
    assert all(site.name == name and site.what for name, site in SITES.items())


def test_the_linear_layers_are_the_seven_projections_and_the_head_and_matmul_adds_scores_and_pv():
    assert sorted(LINEAR) == sorted(
        ["attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
         "lm_head"]
    )  # fmt: skip
    assert set(MATMUL) == {*LINEAR, "attn.scores", "attn.pv"}


@pytest.mark.parametrize(("selector", "chosen"), [
    ("*", tuple(SITES)), ("linear", LINEAR), ("matmul", MATMUL), ("embed", ("embed",)), ("lm_head", ("lm_head",)),
    ("norm", ("norm.input", "norm.q", "norm.k", "norm.post_attention", "norm.final")),
    ("kv", ("kv.k", "kv.v")), ("rope", ("rope.table",)),
    ("mlp", tuple(n for n in SITES if n.startswith("mlp."))), ("attn.softmax", ("attn.softmax",)),
])  # fmt: skip
def test_a_selector_names_a_site_a_group_or_the_beginning_of_names(selector, chosen):
    assert select(selector) == chosen


@pytest.mark.parametrize("word", ["", "att", "attn.", "norm.inputs", "LM_HEAD", "mlp.act.", "**", "Linear"])
def test_half_a_word_names_nothing(word):
    with pytest.raises(RecipeError, match="Unknown site"):
        select(word)


def test_an_unknown_site_suggests_the_nearest_and_lists_all():
    with pytest.raises(RecipeError, match=r"Unknown site 'attn\.softmx'\. Did you mean 'attn\.softmax'\?") as caught:
        select("attn.softmx")
    assert all(name in str(caught.value) for name in (*SITES, *GROUPS, "attn", "kv", "mlp", "norm", "rope"))


def test_a_narrower_selector_is_the_more_specific_one():
    assert [specificity(s) for s in ("*", "linear", "attn", "attn.q_proj")] == [0, 1, 2, 3]
    assert specificity("matmul") == 1
    assert specificity("embed") == 3


@pytest.mark.parametrize(("site", "taken", "refused"), [
    ("lm_head", ["storage", "product", "acc", "order", "output", "rounding", "acc.rounding", "product.subnormals"],
     ["compute", "form", "acc.form", "acc.acc", ""]),
    ("embed", ["storage", "output", "overflow", "output.rounding"], ["acc", "order", "product", "acc.rounding"]),
    ("kv.k", ["storage", "storage.rounding", "overflow"], ["output", "compute", "output.rounding"]),
    ("norm.input", ["acc", "compute", "form", "root"], ["scale"]),
    ("attn.softmax", ["acc", "compute", "form"], ["root"]),
    ("attn.rope", ["storage", "output", "form"], ["compute", "acc"]),
    ("rope.table", ["compute", "output"], ["form"]),
], ids=lambda x: x if isinstance(x, str) else "")  # fmt: skip
def test_a_site_takes_its_own_keys_only(site, taken, refused):
    assert [key for key in taken if not SITES[site].takes(key)] == []
    assert [key for key in refused if SITES[site].takes(key)] == []


def test_every_site_that_stores_something_takes_every_mode():
    assert all(SITES[name].takes(key) for name in TAPPED for key in MODE_KEYS)
    assert set(SITES) - set(TAPPED) == {"choice"}
    assert not any(SITES["choice"].takes(key) for key in (*MODE_KEYS, "storage"))


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("word", "spelled"), [
    ("1", "1"), ("1.0", "1"), ("600/448", "1.3392857142857142"), ("1e-3", "0.001"), ("0.125", "0.125"),
])  # fmt: skip
def test_a_positive_number_is_spelled_in_one_way(word, spelled):
    assert Positive("a scale").spelled("scale", word) == spelled


@pytest.mark.parametrize("word", ["0", "-1", "nan", "inf", "1/0", "1.5/2", "1e400", "1e999999999", "", "x"])
def test_what_is_no_positive_number_is_refused_by_name(word):
    with pytest.raises(RecipeError, match=r"scale=.*expected a number above 0"):
        Positive("a scale").spelled("scale", word)


def test_a_count_is_a_whole_number():
    assert Count("keys").spelled("online", "064") == "64"
    for word in ("-1", "1.5", "²", "", "9" * 10):
        with pytest.raises(RecipeError, match=r"online=.*expected a whole number"):
            Count("keys").spelled("online", word)


def test_a_format_option_takes_a_format_or_a_stage():
    option = FormatOption("where the root is rounded", {"compute": "as the other steps", "output": "as the output"})
    assert [option.spelled("root_format", word) for word in ("fp16", "output", option.default)] == [
        "f16",
        "output",
        "compute",
    ]
    with pytest.raises(RecipeError, match=r"root_format=f33.*Did you mean 'f32'"):
        option.spelled("root_format", "f33")


def test_every_option_says_what_it_is_and_what_each_word_means():
    options = [(name, key, option) for name, site in SITES.items() for key, option in site.options.items()]
    assert options
    for name, key, option in options:
        assert option.what, (name, key)
        assert all(option.meanings.values()), (name, key)
        assert option.spelled(key, option.default) == option.default
