"""Rules made of what was measured say at every measured shape and place what was measured there."""

from __future__ import annotations

import random

import pytest

from softfloat_llm.conditions import Condition
from softfloat_llm.errors import LiveError
from softfloat_llm.live.pass_sums import ShapeFound, Way
from softfloat_llm.live.revealed_recipe import RevealedRecipe, site_tables
from softfloat_llm.live.shape_rules import Told, rules_of
from softfloat_llm.numerics.orders import Order
from softfloat_llm.recipe import Recipe, recipe_of

WORDS = ("seq", "lanes:4", "swap:2")


def said(rules, dims, m, n):
    """The word of the first rule that holds, as a recipe takes it."""
    for key, word in rules.items():
        _, _, text = key.partition(" if ")
        if text and Condition(text).holds(dims) and Condition(text).holds_at({"M": dims["M"], "N": dims["N"]}, m, n):
            return word
    return rules["order"]


@pytest.mark.parametrize("seed", range(40))
def test_what_is_said_is_what_was_measured(seed):
    draw = random.Random(seed)
    words = WORDS[: draw.randint(1, 3)]
    told = []
    for m, n in [*((n, n) for n in range(1, 9)), *((1, n) for n in range(2, 10))]:
        ways = [("", draw.choice(words))]
        if draw.random() < 0.3:
            ways.insert(0, ("n == 0", draw.choice(words)))
        told.append(Told({"M": m, "N": n, "K": 16, "B": 2}, tuple(ways)))
    seen = {(each.dims["M"], each.dims["N"]): each for each in told}
    rules = rules_of("order", "N", list(seen.values()))
    for (m, n), each in seen.items():
        for place in range(n):
            wanted = next((w for p, w in each.ways if p and place == 0), each.ways[-1][1])
            assert said(rules, each.dims, m - 1, place) == wanted


def test_sizes_next_to_one_another_make_one_rule():
    told = [Told({"M": m, "N": 8, "K": 16}, (("", "seq" if m < 6 else "swap:2"),)) for m in (1, 2, 4, 5, 6, 9)]
    assert rules_of("order", "M", told) == {"order": "seq", "order if M >= 6 and M <= 9": "swap:2"}


def test_what_no_axis_tells_apart_is_refused():
    told = [Told({"M": 2, "N": 8, "T": t, "K": 4}, (("", word),)) for t, word in ((2, "seq"), (40, "swap:2"))]
    with pytest.raises(LiveError, match="At N = 8 two shapes add in two ways"):
        rules_of("order", "N", told)


def test_linear_layers_that_say_the_same_stand_together_and_trees_lie_beside_the_recipe(tmp_path):
    def shape(site, order, rows):
        tree = Order(order or "perm:5").tree(16)
        return ShapeFound((site,), {"M": rows, "N": 8, "K": 16}, (Way("", order, tree),))

    shapes = [shape(site, "lanes:4", 1) for site in ("attn.q_proj", "attn.k_proj", "lm_head")]
    shapes += [shape("mlp.down_proj", "lanes:4", 1), shape("mlp.down_proj", None, 2)]
    trees = {}
    sites = site_tables(shapes, trees)
    assert sites["linear"]["order"] == "lanes:4"
    assert set(sites) == {"linear", "mlp.down_proj"}
    RevealedRecipe("mine", {"name": "mine", "base": "f32", "site": sites}, trees, (), ()).save(tmp_path / "mine.toml")
    recipe = recipe_of(tmp_path / "mine.toml")
    assert isinstance(recipe, Recipe)
    found = recipe.at("mlp.down_proj").shaped(M=2, N=8, K=16).precision.order
    assert found.tree(16) == Order("perm:5").tree(16)
    assert recipe.at("attn.q_proj").shaped(M=1, N=8, K=16).precision.order.text == "lanes:4"
