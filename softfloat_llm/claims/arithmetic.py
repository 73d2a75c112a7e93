"""Claims about numbers alone: formats, roundings, sums, one product, one softmax."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from softfloat_llm.claims.articles import articles
from softfloat_llm.claims.bench import Bench, wide
from softfloat_llm.claims.outcome import Line, between, equal, holds, of_size, shown
from softfloat_llm.numerics import functions, ops, reduce
from softfloat_llm.numerics.formats import Array, Float64Array, decode, format_of
from softfloat_llm.numerics.reduce import argmax
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.numerics.ulps import ulp, ulp_distance

REFERENCE_TOLERANCE = 2e-4
"""How far a logit of the recipe f32 lies from transformers' in float32 at most: tests/test_references.py."""
SEEDS = range(10)
_FORMATS = {
    "f32": (4, 1, 8, 23, 3.4028234663852886e38, 2.0**-23),
    "f16": (2, 1, 5, 10, 65504.0, 2.0**-10),
    "bf16": (2, 1, 8, 7, 3.3895313892515355e38, 2.0**-7),
}


def s01(_: Bench) -> list[Line]:
    """Formats: bytes, bits of sign, exponent and trailing significand, largest value, eps."""
    found = {}
    for name in _FORMATS:
        fmt = format_of(name)
        found[name] = (
            fmt.dtype.itemsize, int(fmt.is_signed), fmt.exponent_bits, fmt.trailing_bits, float(fmt.max), float(fmt.eps)
        )  # fmt: skip
    what = "bytes, sign, exponent, trailing, max, eps"
    return [equal(f"{name}: {what}", wanted, found[name]) for name, wanted in _FORMATS.items()]


def s02(_: Bench) -> list[Line]:
    """In bf16, 257 ties to 256, so the order of 256 + 1 + 1 decides."""
    return [
        equal("(256 + 1) + 1 in bf16", 256.0, float(ops.add(ops.add(256, 1, "bf16"), 1, "bf16"))),
        equal("256 + (1 + 1) in bf16", 258.0, float(ops.add(256, ops.add(1, 1, "bf16"), "bf16"))),
        equal("sum of 256, 1, 1, in order", 256.0, float(reduce.sum([256, 1, 1], "storage=bf16,acc=bf16"))),
        equal("the same in reverse", 258.0, float(reduce.sum([256, 1, 1], "storage=bf16,acc=bf16,order=reverse"))),
    ]


def s03(bench: Bench) -> list[Line]:
    """The spacing of bf16 and f16, and what it makes of logits."""
    values = decode(np.arange(1 << 16), "bf16").astype(np.float64)
    inside = values[(values >= 16) & (values < 32)]
    logits = wide(bench.run("bf16"))
    seen = logits[(logits >= 16) & (logits < 32)]
    f16_steps = sorted({float(ulp(x, "f16")) for x in inside})
    return [
        equal("bf16 spacing at 256", 2.0, float(ulp(256.0, "bf16"))),
        equal(
            "all bf16 values in [16, 32) are 16, 16.125, ...", True, np.array_equal(inside, np.arange(16, 32, 0.125))
        ),
        equal("f16 spacing there", [1 / 64], f16_steps),
        holds(
            "bf16 logits of the run in [16, 32): multiples of 0.125",
            f"{len(seen)} of {len(seen)}",
            f"{np.count_nonzero(seen % 0.125 == 0)} of {len(seen)}",
            if_=bool((seen % 0.125 == 0).all()),
        ),
    ]


_CLOSE = np.array([22.371271, 22.277479], np.float32)


def s04(bench: Bench) -> list[Line]:
    """Two close logits, rounded to bf16 and to f16."""
    rounded = round_to(_CLOSE, "bf16")
    lines = [
        equal("22.371271, 22.277479 in bf16", [22.375, 22.25], rounded.astype(np.float64).tolist()),
        equal("how many bf16 ulp apart", 1, int(ulp_distance(rounded[0], rounded[1], "bf16"))),
        equal("the same in f16", [22.375, 22.28125], round_to(_CLOSE, "f16").astype(np.float64).tolist()),
    ]
    if bench.kind == "original":
        told = articles()["S4"]
        best = np.sort(bench.reference().step_logits[told["step"]].astype(np.float64))[::-1][:2].tolist()
        is_near = all(abs(x - y) <= REFERENCE_TOLERANCE for x, y in zip(best, told["logits"], strict=True))
        obtained = [round(x, 6) for x in best]
        lines.append(holds("best two of step 4, to 2e-4", "22.371271, 22.277479", obtained, if_=is_near))
    return lines


def s05(bench: Bench) -> list[Line]:
    """Of two logits that round to one value, the lowest id is taken."""
    logits = np.zeros(512, np.float32)
    logits[253], logits[260] = 22.2301, 22.2815  # 260 is larger before the rounding
    rounded = round_to(logits, "bf16").astype(np.float64)
    lines = [
        equal("ids 253 and 260 in bf16", [22.25, 22.25], [float(rounded[253]), float(rounded[260])]),
        equal(
            "the id that is taken: in f32, bf16, f16",
            [260, 253, 260],
            [argmax(logits.astype(np.float64)), argmax(rounded), argmax(round_to(logits, "f16").astype(np.float64))],
        ),
    ]
    if bench.kind == "original":
        told = articles()["S5"]
        row = bench.taught("transformers-sdpa-bf16-cpu-native").step_logits[told["step"]].astype(np.float64)
        tied = np.flatnonzero(row == row.max()).tolist()
        lines += [
            equal("bf16 sdpa, step 4: the ids that tie", told["ids"], tied),
            equal("their logit", told["logit"], float(row.max())),
            equal("the id that is taken", told["ids"][0], argmax(row)),
        ]
    steps = [step for prompt in bench.prompts for step in bench.compared("bf16", prompt).steps]
    ties = [step for step in steps if step.run.ties > 1]
    lowest = [step.run.token == step.tied[0].token for step in ties]
    if not ties:
        return [*lines, shown(f"of {len(steps)} steps in bf16 that tie", 0)]
    what = f"of {len(steps)} steps in bf16 that tie, the lowest id is taken"
    return [*lines, holds(what, f"at {len(ties)}", f"at {lowest.count(True)}", if_=all(lowest))]


# --- S7: one product --------------------------------------------------------------------------------------------------


def s07(_: Bench) -> list[Line]:
    """One f16 product [8, 1536] x [1536, 576] of normal draws, w scaled by 1 / sqrt(576), over 10 seeds."""
    errors = [_product_errors(seed) for seed in SEEDS]
    ratios = [f16 / f32 for f16, f32, _ in errors]
    halves = [f32 / half for _, f32, half in errors]
    told = articles()["S7"]
    # the f32 accumulator adds 1536 roundings of at most half an f32 ulp of a partial sum below 16 to the last one
    most = 1 + max(1536 * 2.0**-21 / half for *_, half in errors)
    return [
        between("error of an f16 accumulator, in errors of an f32 one", 20, 60, ratios),
        between("error of the f32 accumulator, in half f16 ulps of the largest result", 0.8, round(most, 3), halves),
        of_size("the ratio that was measured", told["f16"] / told["f32"], float(np.median(ratios))),
    ]


def _product_errors(seed: int) -> tuple[float, float, float]:
    """The largest error with an f16 accumulator, with an f32 one, and half an f16 ulp of the largest result.

    The exact product of the f16 operands is held by float64 to some 1e-14.
    """
    rng = np.random.default_rng(seed)
    x = round_to(rng.standard_normal((8, 1536)), "f16")
    w = round_to(rng.standard_normal((1536, 576)) / np.sqrt(576), "f16")
    exact = reduce.matmul(x, w, "storage=f16,acc=exact,output=f64").astype(np.float64)
    f16, f32 = (
        float(np.abs(reduce.matmul(x, w, f"storage=f16,acc={acc}").astype(np.float64) - exact).max())
        for acc in ("f16", "f32")
    )
    return f16, f32, float(ulp(np.abs(exact).max(), "f16")) / 2


# --- S13: a softmax ---------------------------------------------------------------------------------------------------


def s13(_: Bench) -> list[Line]:
    """A softmax in bf16, whose sum is made in bf16 or in f32."""
    equal_scores = round_to(np.zeros(512), "bf16")
    p, weights = softmax(equal_scores, "bf16")
    last, stands = stuck_point(weights)
    normal = round_to(np.random.default_rng(0).standard_normal(2048), "bf16")
    low, high = (exact_total(softmax(normal, acc)[0]) for acc in ("f32", "bf16"))
    # with f32: one rounding of each weight's quotient and one of the sum, each at most half a bf16 ulp
    slack = 2 * 2.0**-8 + 2.0**-15
    return [
        equal("512 equal scores: the bf16 sum sticks after term, at", [256, 256.0], [last, stands]),
        equal("their probabilities", [1 / 256], sorted(set(p.astype(np.float64).tolist()))),
        equal("add up to", 2.0, exact_total(p)),
        equal("with an f32 sum, to", 1.0, exact_total(softmax(equal_scores, "f32")[0])),
        between("2048 normal scores with an f32 sum add up to", 1 - slack, 1 + slack, low),
        holds("with a bf16 sum, to", "over 1.05", round(high, 4), if_=high > 1.05),
    ]


def softmax(scores: Array, acc: str) -> tuple[Array, Array]:
    """exp, sum and division in bf16, each rounded once; the sum in the accumulator. Probabilities, and weights."""
    weights = functions.exp(ops.sub(scores, float(scores.max())))
    total = reduce.sum(weights, f"storage=bf16,acc={acc}")
    return ops.div(weights, round_to(total, "bf16")), weights


def stuck_point(weights: Array) -> tuple[int, float]:
    """After which term a running bf16 sum moves no more, and where it stands."""
    total, last = 0.0, 0
    wide_weights: Float64Array = weights.astype(np.float64)
    for n, weight in enumerate(wide_weights, start=1):
        before, total = total, float(reduce.sum([weight], "storage=bf16,acc=bf16", init=total))
        last = n if total != before else last
    return last, total


def exact_total(probabilities: Array) -> float:
    """The sum without a rounding, then one to float64."""
    return float(sum(map(Fraction, probabilities.astype(np.float64).tolist()), Fraction(0)))
