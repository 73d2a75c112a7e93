"""Claims about whole models: flips and margins, errors of recipes, two ways to decode, ranges, orders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from softfloat_llm.analysis.compare import compare
from softfloat_llm.analysis.comparison import Comparison
from softfloat_llm.analysis.logit_bands import model_band
from softfloat_llm.analysis.numbers import about
from softfloat_llm.analysis.ranges import ranges
from softfloat_llm.analysis.rounding_counts import counts_in
from softfloat_llm.analysis.step_logits import question
from softfloat_llm.analysis.verdicts import Verdict
from softfloat_llm.claims.arithmetic import REFERENCE_TOLERANCE
from softfloat_llm.claims.articles import articles
from softfloat_llm.claims.bench import Asked, Bench, largest_error, wide
from softfloat_llm.claims.outcome import Line, between, equal, holds, of_size, shown
from softfloat_llm.llama.forward import forward
from softfloat_llm.numerics.formats import bf16, f16, f32
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.recipe import recipe_of
from softfloat_llm.runs import Run
from softfloat_llm.tiny import NEAR_TIES

SDPA = "transformers-sdpa-bf16-cpu-native"
F16_ACCUMULATORS = "candle-f16-cpu-neon"
ATTENTION_IN_F32 = "bf16,attn.scores=f32,attn.scale=f32,attn.softmax=f32,attn.pv.storage=f32"
"""Everything else stays bf16: weights, activations, the residual stream, the cache."""

# --- S6: margins and flips --------------------------------------------------------------------------------------------


def s06(bench: Bench) -> list[Line]:
    """Teacher forced on the f32 run's tokens, bf16 flips only where the margin is small.

    Two logits that are each off by at most e change places only where they lie less than 2e apart.
    """
    found = [bench.compared("bf16", prompt) for prompt in bench.prompts]
    steps = [step for one in found for step in one.steps]
    flipped = [step for step in steps if step.is_flip]
    possible = [step for step in steps if step.margin < 2 * step.error]
    below = [step for step in flipped if step in possible]
    lines = [
        shown(f"of {len(steps)} steps flip (prompt/step)", _places(found)),
        holds(
            "flips with a margin below twice the logit error",
            f"{len(flipped)} of {len(flipped)}",
            f"{len(below)} of {len(flipped)}",
            if_=flipped == below,
        ),
    ]
    if bench.kind == "tiny":
        lines.append(holds("flips of prompts that end in near-ties", "some, below a quarter", len(flipped),
                           if_=0 < len(flipped) < len(steps) / 4))  # fmt: skip
    if bench.kind == "smollm2":
        lines.append(
            holds("steps at which a flip would be possible", "4 or more", len(possible), if_=len(possible) >= 4)
        )
        lines.append(between("median logit error of a step", 0.2, 0.7, float(np.median([s.error for s in steps]))))
    return lines + (_margins_of_the_article(bench, steps) if bench.kind == "original" else [])


def _places(found: Sequence[Comparison]) -> list[str]:
    """The steps that flip, each with the number of its prompt where there are several."""
    names = ["{}"] if len(found) == 1 else [f"{place}/{{}}" for place in range(len(found))]
    return [name.format(step.step) for name, one in zip(names, found, strict=True) for step in one.flipped]


def _margins_of_the_article(bench: Bench, steps: Sequence[Verdict]) -> list[Line]:
    told = articles()["S6"]
    # the last digit is rounded, and two logits lie within the tolerance each
    most = 0.0005 + 2 * REFERENCE_TOLERANCE
    off = max(abs(step.margin - margin) for step, margin in zip(steps, told["margins"], strict=True))
    close = [place for place, margin in enumerate(told["margins"]) if margin < 0.1]
    flips = [step.step for step in bench.compared(SDPA).flipped]
    margins = [round(step.margin, 3) for step in steps]
    return [
        holds(
            f"margins of the reference, to {about(most, 2)}",
            ", ".join(map(str, told["margins"])),
            margins,
            if_=off <= most,
        ),
        holds(
            "bf16 sdpa flips only at the steps with a margin below 0.1",
            f"some of {close}",
            flips,
            if_=set(flips) <= set(close),
        ),
        shown("the steps that flipped there", flips, told["flips"]),
    ]


# --- S8, S9: errors of recipes ----------------------------------------------------------------------------------------


def s08(bench: Bench) -> list[Line]:
    """The largest difference of a logit at the last position of the prompt, against the recipe f32."""
    reference = bench.run("f32")
    errors = [largest_error(bench.run(recipe), reference) for recipe in ("f16", "bf16", F16_ACCUMULATORS)]
    f16_error, bf16_error, engine = errors
    if bench.kind == "tiny":
        plain = largest_error(bench.run("f16,acc=f16"), reference)
        return [
            between("error of bf16, in errors of f16 (3 bits fewer: about 8)", 4, 16, bf16_error / f16_error),
            holds(
                "f16 accumulators, in errors of f16", "over 1.5", about(plain / f16_error), if_=plain > 1.5 * f16_error
            ),
            holds("candle's, in errors of f16", "over 1.5", about(engine / f16_error), if_=engine > 1.5 * f16_error),
        ]
    if bench.kind == "smollm2":
        return [
            between("error of f16", 0.03, 0.06, f16_error),
            between("error of bf16", 0.3, 0.7, bf16_error),
            between("error of f16 with f16 accumulators", 0.3, 0.5, engine),
        ]
    what = "errors: f16, bf16, f16 with f16 accumulators"
    told = [about(error) for error in errors]
    least = holds(what, "the first is the least", told, if_=f16_error < min(bf16_error, engine))
    return [*(_errors_of_the_article(bench, errors) if bench.kind == "original" else []), least]


def _errors_of_the_article(bench: Bench, errors: Sequence[float]) -> list[Line]:
    told, top = articles()["S8"], float(wide(bench.run("f32"))[-1].max())
    is_near = abs(top - told["max_reference"]) <= 0.05 + REFERENCE_TOLERANCE
    return [
        holds("largest logit of the reference, to 0.05", str(told["max_reference"]), round(top, 3), if_=is_near),
        of_size("error of f16", told["f16"], errors[0]),
        of_size("error of bf16", told["bf16"], errors[1]),
        of_size("error of f16 with f16 accumulators", told["f16_acc"], errors[2]),
    ]


def s09(bench: Bench) -> list[Line]:
    """Attention in f32 instead of bf16 moves the error, but does not decide the close step."""
    pairs = [(bench.compared("bf16", p), bench.compared(ATTENTION_IN_F32, p)) for p in bench.prompts]
    low, high = ([step.error for pair in pairs for step in pair[side].steps] for side in (0, 1))
    less, same = (sum(op(b, a) for a, b in zip(low, high, strict=True)) for op in (float.__lt__, float.__eq__))
    lines = [
        holds(
            "steps at which f32 attention errs less", "some, not all", f"{less} of {len(low)}", if_=0 < less < len(low)
        ),
        shown("errors at step 0: bf16, f32 attention", [about(low[0]), about(high[0])], _told(bench, "errors")),
        shown("common prefix with the reference", [_prefix(found) for found in pairs[0]], _told(bench, "prefixes")),
    ]
    if bench.kind == "tiny":
        flips = [step.step for _, found in pairs for step in found.flipped]
        return [*lines, holds("close steps flip with f32 attention too", "some", len(flips), if_=bool(flips))]
    moved = len(low) - same
    closest = min(pairs[0][0].steps, key=lambda step: step.margin).step
    tokens = [found.steps[closest].run.token for found in pairs[0]]
    return [
        *lines,
        holds(
            "steps whose error moves (logits are multiples of an eighth)",
            "15 or more of 20",
            moved,
            if_=4 * moved >= 3 * len(low),
        ),
        equal(f"the closest step, {closest}, chooses", tokens[0], tokens[1]),
    ]


def _told(bench: Bench, key: str) -> object:
    return articles()["S9"][key] if bench.kind == "original" else ""


def _prefix(found: Comparison) -> int:
    """Up to the first flip of a teacher-forced run, free running gives the same tokens."""
    return found.flipped[0].step if found.flips else len(found.steps)


# --- S10: two ways to decode ------------------------------------------------------------------------------------------

SHAPE_FREE = ("f32", "bf16", "f16", "f16,acc=f16", "bf16,order=lanes:8")
_OUT = ("*.out",)
PAIRWISE = "bf16,attn.pv.acc=bf16,attn.pv.order=pairwise"


def s10(bench: Bench) -> list[Line]:
    """Free running and teacher forcing; a cached decode and one long pass."""
    prompt, forced = _flipping(bench)
    lines = [shown("free running beside teacher forcing", "no step of the prompt flips in bf16")]
    if forced is not None:
        first = forced.flipped[0].step
        taught = bench.taught("bf16", prompt)
        free = bench.run("bf16", prompt, steps=first + 2)
        known = len(taught.prompt_tokens) + first
        lines = [
            equal(
                f"tokens up to the first flip (step {first}), fed its own or the reference's",
                list(taught.generated[: first + 1]),
                list(free.generated[: first + 1]),
            ),
            equal("logits up to there: values that differ", 0, _differing(free, taught, known)),
            holds(
                "what is fed after it",
                "another token",
                [free.fed[known], taught.fed[known]],
                if_=free.fed[known] != taught.fed[known],
            ),
        ]
    for recipe in SHAPE_FREE if bench.kind == "tiny" else SHAPE_FREE[:2]:
        lines.append(
            equal(f"{recipe}: cached steps and one pass, values that differ", 0, _cached_and_whole(bench, recipe))
        )
    pairwise = _cached_and_whole(bench, PAIRWISE)
    return [*lines, holds("sums over keys in pairs: values that differ", "some", pairwise, if_=pairwise > 0)]


def _flipping(bench: Bench) -> tuple[Asked, Comparison | None]:
    """A prompt of which a step flips in bf16, the taught run beside the reference."""
    prompts = NEAR_TIES if bench.kind == "tiny" else bench.prompts
    for prompt in prompts:
        found = bench.compared("bf16", prompt)
        if found.flips and found.flipped[0].step + 1 < bench.steps:
            return prompt, found
    return bench.prompt, None


def _differing(run: Run, other: Run, positions: int) -> int:
    pair = [r["logits"][:positions] for r in (run, other)]
    return int(np.count_nonzero(pair[0] != pair[1]))


def _cached_and_whole(bench: Bench, recipe: str) -> int:
    """How many values of a cached decode, over all taps, are not those of one pass over its tokens."""
    free = bench.run(recipe, steps=8 if bench.kind == "tiny" else 3, taps=_OUT)
    whole = bench.run(recipe, free.fed, steps=0, taps=_OUT)
    return sum(tap.count for tap in compare(free, whole).taps)


# --- S18: ranges ------------------------------------------------------------------------------------------------------


def s18(bench: Bench) -> list[Line]:
    """f16 overflows at 65504 and underflows early; bf16 has f32's range."""
    magnitudes = 2.0 ** np.arange(-60, 60)
    lost, kept = counts_in(magnitudes, f16), counts_in(magnitudes, bf16)
    run = bench.run("f32", taps=("*norm.*",))
    sums = {fmt: ranges(run, format=fmt).first_inner_overflow for fmt in ("f16", "bf16")}
    return [
        equal("65519.9 and 65520 in f16", [65504.0, float("inf")], round_to([65519.9, 65520.0], f16).tolist()),
        equal("2^-25 and a little more in f16", [0.0, 2.0**-24], round_to([2.0**-25, 2.0**-25 * 1.001], f16).tolist()),
        equal("exponents of bf16 and f32", [f32.emin, f32.emax] * 2, [bf16.emin, bf16.emax, f32.emin, f32.emax]),
        equal(
            "2^-60 to 2^59 in f16: clipped, subnormal, lost", [44, 10, 36], [lost.clipped, lost.subnormal, lost.flushed]
        ),
        equal("in bf16", [0, 0, 0], [kept.clipped, kept.subnormal, kept.flushed]),
        holds(
            "the first sum of squares that f16 cannot hold",
            "there is one",
            sums["f16"].place if sums["f16"] else "none",
            if_=sums["f16"] is not None,
        ),
        equal("that bf16 cannot hold", "none", sums["bf16"].place if sums["bf16"] else "none"),
    ]


# --- S19: orders ------------------------------------------------------------------------------------------------------

ORDERS = ("split-k:4", "lanes:8", "blocked:16", "perm:1")
_TAPS = ("layers.0.*",)


def s19(bench: Bench) -> list[Line]:
    """Another order of the sums gives other bits; the same order gives the same, however often it is run."""
    one = bench.run("f32", taps=_TAPS)
    lines = []
    for order in ORDERS:
        found = compare(bench.run(f"f32,order={order}", taps=_TAPS), one)
        lines.append(equal(f"{order}: the first difference", "layers.0.attn.q_proj.acc", _first(found)))
        lines.append(
            holds(
                f"{order}: largest difference of a logit",
                "over 0, below 2e-4",
                about(found.max_abs),
                if_=0 < found.max_abs < REFERENCE_TOLERANCE,
            )
        )
    alone = compare(bench.run("f32,mlp.down_proj.order=split-k:2", taps=_TAPS), one)
    lines.append(equal("one site in another order: the first difference", "layers.0.mlp.down_proj.acc", _first(alone)))
    return [*lines, *_batches(bench), *(_bands(bench) if bench.kind == "tiny" else [])]


def _first(found: Comparison) -> str:
    return "none" if found.first_divergence is None else found.first_divergence.tap.name


def _batches(bench: Bench) -> list[Line]:
    """Three sequences at once: no bit of the first moves, unless a rule changes the order with their number."""
    tokens = [bench.run("f32").prompt_tokens] * 3
    rows = 2 * len(tokens[0])
    rule = recipe_of({"base": "f32", "site": {"linear": {f"order if M >= {rows}": "split-k:4"}}})
    apart = []
    for recipe in (recipe_of("f32"), rule):
        alone, batched = (forward(bench.model.weights, part, recipe) for part in (tokens[:1], tokens))
        apart.append(float(np.abs(batched[0].astype(np.float64) - alone[0].astype(np.float64)).max()))
    return [
        equal("a batch of 3 moves a logit of its first row by", 0.0, apart[0]),
        holds("where more rows are summed in other parts", "over 0", about(apart[1]), if_=apart[1] > 0),
    ]


def _bands(bench: Bench) -> list[Line]:
    """What right results of other orders lie apart, and a test must allow."""
    asked = question(bench.run("f32"), 0, model=bench.model)
    found = {recipe: model_band(asked, recipe, orders=6).seen for recipe in ("f32", "f16,acc=f16")}
    return [
        holds(
            "6 orders in f32 lie apart by", "over 0, below 2^-16", about(found["f32"]), if_=0 < found["f32"] < 2.0**-16
        ),
        holds(
            "in f16 with f16 accumulators", "over 2^-8", about(found["f16,acc=f16"]), if_=found["f16,acc=f16"] > 2.0**-8
        ),
    ]
