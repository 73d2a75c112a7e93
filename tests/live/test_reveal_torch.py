"""PyTorch's kernels reveal their orders unaided, and recipes made of them give its bits.

Which orders they are depends on the CPU; that what was found is held against the kernel in bits does not.
"""

from __future__ import annotations

import numpy as np
import pytest

from softfloat_llm.errors import LiveError
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.live.attention_orders import reveal_inside
from softfloat_llm.live.comparison import compare_live
from softfloat_llm.live.kernels import place_conditions, reveal_places
from softfloat_llm.live.revealed_recipe import reveal_recipe
from softfloat_llm.live.torch_host import configured, host_facts
from softfloat_llm.live.torch_kernels import torch_kernel
from softfloat_llm.recipe import recipe_of
from softfloat_llm.runs import simulate

pytestmark = pytest.mark.torch

ZEN4 = ("AuthenticAMD", "avx512bf16")


def found_of(operation, shape, fmt, threads=1):
    with configured(threads=threads):
        return reveal_places(torch_kernel(operation, shape, fmt))


def host():
    facts = host_facts()
    return facts.vendor, facts.instruction_set


@pytest.mark.parametrize("rows", [5, 33, 64])
def test_bf16_linear(rows):
    (found,) = found_of("linear", (rows, 64, 576), "bf16")
    assert found.revealed.is_confirmed
    if host() == ZEN4:
        assert found.revealed.order == "blocked:512 > swap:2"
        assert set(found.precision.subnormals) == {"ftz+daz"}


@pytest.mark.parametrize("rows", [1, 5])
def test_f16_linear(rows):
    (found,) = found_of("linear", (rows, 64, 576), "f16")
    assert found.revealed.is_confirmed
    assert str(found.precision.acc) == "f32"
    if rows == 1 or host() == ZEN4:
        assert found.revealed.order == "lanes:64"


@pytest.mark.parametrize("rows", [1, 5, 24])
def test_f32_linear_through_mkl(rows):
    sets = found_of("linear", (rows, 576, 576), "f32", threads=2)
    assert all(found.revealed.is_confirmed for found in sets)
    if host() == ZEN4 and rows == 5:  # four rows for one thread; the last one is another kernel's, of rounded products
        assert [found.revealed.order for found in sets] == ["blocked:192", "lanes:4"]
        assert [str(found.precision.product) for found in sets] == ["None", "f32"]
        assert place_conditions([found.places for found in sets], (5, 576)) == ["", "m == 4"]


@pytest.mark.parametrize(("operation", "shape"), [("sum", (3, 1000)), ("mean", (5, 576))])
def test_f32_sums_are_the_cascade(operation, shape):
    (found,) = found_of(operation, shape, "f32")
    assert (found.revealed.order, found.revealed.is_confirmed) == ("cascade:8", True)


@pytest.mark.parametrize("fmt", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("shape", [(2, 1, 9, 33), (3, 5, 5, 16)])
def test_scores_and_values_of_eager_attention(shape, fmt):
    for operation in ("scores", "pv"):
        for found in found_of(operation, shape, fmt):
            assert found.revealed.is_confirmed, (operation, found.revealed.findings)


def test_what_pytorch_has_not_is_refused():
    with pytest.raises(LiveError, match="Did you mean 'linear'"):
        torch_kernel("liner", (1, 2, 3), "bf16")
    with pytest.raises(LiveError, match="not in e4m3fn"):
        torch_kernel("linear", (1, 2, 3), "e4m3fn")
    with pytest.raises(LiveError, match="bf16 or f16"):
        reveal_recipe(open_model("tiny").config, format="f32", attention="sdpa")
    with pytest.raises(LiveError, match="at least 1"):
        reveal_recipe(open_model("tiny").config, lengths=[0])


@pytest.mark.parametrize("keys", [7, 40])
def test_a_softmaxs_sum_is_told_by_triples(keys):
    with configured(threads=1):
        _, [(_, found)] = reveal_inside("softmax", (2, 3, keys), "f32")
    if host_facts().capability == "AVX512":
        assert found.order == ("seq" if keys < 16 else "lanes:16")


def test_scores_and_values_of_flash_attention_are_read_from_what_comes_out():
    """Four keys at a time; the key that is left over has lanes of its own, and so has a column before 16 bytes."""
    if host() != ZEN4:
        pytest.skip("what flash attention does on other CPUs is not held")
    with configured(threads=1):
        _, scores = reveal_inside("sdpa-scores", (4, 2, 5, 5, 64), "bf16")
        _, values = reveal_inside("sdpa-values", (4, 2, 1, 17, 64), "f16")
    assert [found.order for _, found in scores] == ["lanes:4", "lanes:8"]
    assert set(scores[1][0][:, 2]) == {4}
    assert [found.order for _, found in values] == ["seq", "gemv:n-edge"]
    assert set(values[1][0][:, 2]) == {0}


def test_sizes_that_attention_cannot_have_are_refused():
    with pytest.raises(LiveError, match="B,M,K"):
        reveal_inside("softmax", (3, 4), "f32")
    with pytest.raises(LiveError, match="heads in groups"):
        reveal_inside("sdpa-scores", (3, 2, 4, 4, 16), "bf16")
    with pytest.raises(LiveError, match="bf16 or f16"):
        reveal_inside("sdpa-values", (2, 2, 4, 4, 16), "f32")


# --- recipes --------------------------------------------------------------------------------------------------------


def revealed(tmp_path, fmt, attention, lengths):
    model = open_model("tiny")
    found = reveal_recipe(model.config, format=fmt, attention=attention, lengths=lengths, threads=1, name="mine")
    found.save(tmp_path / "mine.toml")
    return found, recipe_of(tmp_path / "mine.toml"), model


def differing(recipe, model, attention, length):
    tokens = np.random.default_rng(length).integers(3, model.config.vocab_size, length).tolist()
    run = simulate(tokens=tokens, model=model, recipe=recipe, steps=2)
    return compare_live(run, attention=attention, threads=1, mkldnn=True).differing


@pytest.mark.parametrize(("fmt", "attention"), [("bf16", "eager"), ("f16", "eager"), ("bf16", "sdpa"), ("f16", "sdpa")])
def test_a_revealed_recipe_gives_pytorchs_bits_at_every_tap(tmp_path, fmt, attention):
    if attention == "sdpa" and host() != ZEN4:
        pytest.skip("what flash attention does on other CPUs is not held")
    lengths = (1, 3, 6, 13, 33)
    found, recipe, model = revealed(tmp_path, fmt, attention, lengths)
    assert found.problems == ()
    assert recipe.status == "policy"
    assert "PyTorch" in recipe.source
    assert {n: differing(recipe, model, attention, n) for n in lengths} == dict.fromkeys(lengths, 0)


def test_an_order_without_a_name_is_kept_as_a_tree_beside_the_recipe(tmp_path):
    """MKL's product of a matrix and a vector has none where it is not one of the kernels that were seen before."""
    named = reveal_recipe(open_model("tiny").config, lengths=[1], threads=1, name="f32")
    assert named.name == named.table["name"] == "revealed-f32"  # f32 is a shipped recipe
    found, recipe, model = revealed(tmp_path, "f32", "eager", (4,))
    assert found.problems == ()
    assert differing(recipe, model, "eager", 4) == 0
    if found.trees:
        assert (tmp_path / "mine.trees").is_dir()
        assert "tree:@" in recipe.at("attn.q_proj").shaped(M=1, N=64, K=64).precision.order.text
