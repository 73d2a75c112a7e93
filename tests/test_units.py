"""Matrix units and instructions as recipes: each runs, its order is the unit's, and what its evidence says is so."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.adders import units
from softfloat_llm.numerics.exact import round_exact
from softfloat_llm.numerics.formats import f16, f32, format_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.recipe import recipe_names, recipe_of, unit_recipe_names
from softfloat_llm.runs import simulate
from softfloat_llm.sites import LINEAR, MATMUL
from tests.oracle import assert_same

PROMPT = (260, 496, 497)
UNITS = list(units().values())


@pytest.mark.parametrize("name", unit_recipe_names())
def test_a_recipe_of_a_unit_runs_and_changes_only_matrix_products(name):
    recipe = recipe_of(name)
    base = {"bf16": "bf16", "f16": "f16", "f32": "f32"}[str(recipe.at("embed").storage)]
    changed = {setting.rsplit(".", 1)[0] for setting in recipe.difference()}
    plain = recipe_of(base).words()
    assert {site for site, words in recipe.words().items() if words != plain[site]} <= set(MATMUL), changed
    run, reference = (simulate(tokens=PROMPT, model="tiny", recipe=r, taps=()) for r in (name, base))
    logits, others = (r["logits"].astype(np.float64) for r in (run, reference))
    assert np.isfinite(logits).all()
    # tiny's logits reach 16; f16 accumulators and FP8 operands cost a few bf16 ulp there, nothing costs more
    assert 0 <= np.abs(logits - others).max() < 2


def unit_in(name, site="attn.q_proj"):
    """The unit, and what stands before it in the order."""
    order = recipe_of(name).at(site).precision.order
    return order.adder, order.text.rpartition("fused:")[0]


def test_a_recipe_that_has_a_unit_s_name_is_made_of_it():
    for name in set(unit_recipe_names()) & set(units()):
        adder, before = unit_in(name)
        assert (adder.name, before) == (name, "")
        assert recipe_of(name).at("attn.pv").precision.order.adder is adder


FP8 = {
    "nvidia-ada-fp8-fast": ("nvidia-ada-e4m3", ""), "nvidia-ada-fp8-slow": ("nvidia-ada-e4m3", "blocked:128 > "),
    "nvidia-hopper-fp8-fast": ("nvidia-hopper-e4m3", ""),
    "nvidia-hopper-fp8-slow": ("nvidia-hopper-e4m3", "blocked:128 > "),
    "nvidia-blackwell-fp8": ("nvidia-blackwell-e4m3", ""),
    "nvidia-rtx-blackwell-fp8": ("nvidia-rtx-blackwell-e4m3", ""),
    "amd-cdna3-fp8": ("amd-cdna3-e4m3fnuz", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", FP8)
def test_fp8_recipes_take_8_bits_in_linear_layers_and_bf16_in_attention(name):
    unit, before = FP8[name]
    assert (str(unit_in(name)[0]), unit_in(name)[1]) == (unit, before)
    recipe = recipe_of(name)
    assert {recipe.at(site).storage for site in LINEAR} == {units()[unit].input}
    for site in ("attn.scores", "attn.pv"):
        assert recipe.at(site).precision.order.adder.name == f"{unit.rsplit('-', 1)[0]}-bf16"


# what has no recipe: other paths of the same unit, 5-bit exponents, and operands that need scales to mean anything
WITHOUT = ("-mma-", "e5m2", "e3m2", "e2m3", "e2m1", "e4m3-f16")


def test_every_unit_for_whole_models_has_a_recipe_and_every_unit_its_evidence():
    assert all(unit.evidence.endswith(".") and len(unit.source) > 20 for unit in UNITS)
    used = {str(recipe_of(name).at("attn.q_proj").precision.order.adder) for name in unit_recipe_names()}
    left = [unit.name for unit in UNITS if unit.name not in used and not any(word in unit.name for word in WITHOUT)]
    assert left == []
    assert set(unit_recipe_names()) < set(recipe_names())


def test_a_recipe_says_what_its_unit_was_held_against():
    for name in unit_recipe_names():
        adder, evidence = unit_in(name)[0], recipe_of(name).evidence
        if adder is not None and adder.name.startswith("nvidia"):
            has_data = adder.evidence.lower().startswith(("real", "wgmma. real", "tcgen05. real"))
            assert ("0 bits differ" in evidence or "agree (" in evidence) == has_data, name
        if adder is not None and adder.name.startswith("amd"):
            assert "one model (MMA-Sim)" in evidence
        assert "Open:" in evidence or "no results of a real one read" in evidence


# --- the example that tells units apart, for all of them --------------------------------------------------------------


def factors(exponent, sign):
    """(sign 2^a, 2^b) with a + b the exponent."""
    return sign * 2.0 ** (exponent // 2), 2.0 ** (exponent - exponent // 2)


def worked_example(storage, acc, order="seq", **more):
    """2^23 - 2^23 - 0.5 - 0.25 - 0.125, the first one as the accumulator.

    All times a power of two where the formats need it, and back; None where no such factors exist (6 and 4 bits).
    """
    fmt, out = format_of(storage), format_of(acc)
    scale = max(0, 23 - 2 * fmt.emax, 23 - out.emax)
    pairs = [factors(exponent - scale, -1.0) for exponent in (23, -1, -2, -3)]
    if not all(round_to(x, fmt) == x for pair in pairs for x in pair):
        return None
    at = {"storage": str(fmt), "acc": str(out), "output": str(out), "order": order} | more
    start = 2.0 ** (23 - scale)
    return reduce.dot(*(list(side) for side in zip(*pairs, strict=True)), at, init=start) * 2.0**scale


def expected(adder):
    """Section by section as published: the fraction bits decide, but where c is added last or all is exact."""
    if adder.model == "aligned" and adder.accumulator == "added":
        return 0.0
    if adder.model == "aligned":
        return {13: 0.0, 23: 0.0, 24: -0.5, 25: -0.75}[adder.fraction_bits]
    if adder.model == "two-step":
        return -1.0 if adder.groups == "parities" else -0.5
    return -0.875 if adder.model == "exact" else {2: -0.375, 4: 0.0}[adder.terms]


@pytest.mark.parametrize("adder", UNITS, ids=str)
def test_the_example_that_tells_units_apart(adder):
    """Source: Xie et al., MMA-Sim (2025), its discrepancy example; mma.sync with FP8: this package's."""
    storage = f32 if adder.truncates_input else adder.input
    found = worked_example(storage, f16 if adder.output is f16 else f32, f"fused:{adder}")
    assert found == (None if adder.input.bits < 8 else expected(adder))


CHAINS = {"intel-vdpbf16ps": -0.875, "intel-tdpbf16ps": -1.0, "arm-bfdot": -1.375, "arm-bfmmla-ebf": -0.375}


@pytest.mark.parametrize("name", CHAINS)
def test_the_same_example_by_instructions_that_round_at_each_step(name):
    """VDPBF16PS: -0.5 meets 2^23 first, where it is held. TDPBF16PS: -2^23 - 0.625 rounds to -2^23 - 1. BFDOT: a tie of

    -2^23 - 0.5 goes to the odd neighbour, with FPCR.EBF to the even one.
    """
    words = dict(recipe_of(name).at("lm_head").precision.items()) | {"output": "f32"}
    assert worked_example(words.pop("storage"), words.pop("acc"), **words) == CHAINS[name]


# --- Arm, in fractions ------------------------------------------------------------------------------------------------


def flushed(x, fmt):
    return 0.0 if abs(x) < format_of(fmt).smallest_normal else x


def bfdot(a, b, acc=0.0):
    """BFDotAdd with FPCR.EBF = 0: every step rounded to odd, operands and results flushed."""

    def to_odd(x):
        return flushed(round_exact(x, "f32", "to_odd"), "f32")

    a, b = [flushed(x, "bf16") for x in a], [flushed(x, "bf16") for x in b]
    for k in range(0, len(a), 2):
        products = [to_odd(Fraction(x) * Fraction(y)) for x, y in zip(a[k : k + 2], b[k : k + 2], strict=True)]
        acc = to_odd(Fraction(acc) + Fraction(to_odd(sum(map(Fraction, products)))))
    return acc


def bfdot_ebf(a, b, acc=0.0):
    """With FPCR.EBF = 1: two products by one rounding, then one addition."""
    for k in range(0, len(a), 2):
        pair = sum(Fraction(x) * Fraction(y) for x, y in zip(a[k : k + 2], b[k : k + 2], strict=True))
        acc = round_exact(Fraction(acc) + Fraction(round_exact(pair, "f32")), "f32")
    return acc


@pytest.mark.parametrize(("name", "oracle", "lowest"), [("arm-bfdot", bfdot, -70), ("arm-bfmmla-ebf", bfdot_ebf, -40)])
def test_arm_s_dot_products_are_those_of_the_manual_in_fractions(name, oracle, lowest):
    rng = np.random.default_rng(5)
    exponents = np.repeat([[lowest], [-20], [0], [3]], 60, axis=0)  # from -70 on, products are f32 subnormals
    x, y = (round_to(np.ldexp(rng.normal(size=(240, 12)), exponents + rng.integers(-4, 5, (240, 12))), "bf16")
            for _ in range(2))  # fmt: skip
    y[:, 1::3] = -y[:, 0::3][:, : y[:, 1::3].shape[1]]  # cancellation
    at = dict(recipe_of(name).at("lm_head").precision.items()) | {"output": "f32"}
    rows = zip(x.astype(np.float64).tolist(), y.astype(np.float64).tolist(), strict=True)
    assert_same(reduce.dot(x, y, at), [oracle(a, b) + 0.0 for a, b in rows])


# --- FP8 over a long K ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["ada", "hopper"])
def test_slow_accumulation_is_the_f32_sum_of_fast_ones_of_128_each(arch):
    rng = np.random.default_rng(2)
    a, b = (round_to(rng.normal(size=(16, 600)), "e4m3fn") for _ in range(2))
    fast, slow = (
        recipe_of(f"nvidia-{arch}-fp8-{kind}").at("lm_head").precision.with_output(f32) for kind in ("fast", "slow")
    )
    total = np.zeros(16, np.float32)
    for k in range(0, 600, 128):
        total = (total + reduce.dot(a[:, k : k + 128], b[:, k : k + 128], fast)).astype(np.float32)
    assert_same(reduce.dot(a, b, slow), total)
    exact = np.add.reduce(a.astype(np.float64) * b.astype(np.float64), axis=1)
    errors = [np.abs(reduce.dot(a, b, at).astype(np.float64) - exact).max() for at in (fast, slow)]
    print(f"{arch}: largest error of 600 terms {errors[0]:.4f} fast, {errors[1]:.4f} slow")
    assert errors[1] < errors[0]
