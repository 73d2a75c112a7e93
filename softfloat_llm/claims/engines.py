"""Claims about what engines do: tables of rope, types that meet, autocast, refusals, SGLang's formats, TF32."""

from __future__ import annotations

from collections import Counter

import numpy as np

from softfloat_llm.analysis.numbers import about
from softfloat_llm.claims.bench import Bench, largest_error
from softfloat_llm.claims.outcome import Line, equal, holds
from softfloat_llm.errors import RecipeError
from softfloat_llm.llama.rope import rope_table
from softfloat_llm.llama.taps import Taps
from softfloat_llm.numerics.formats import Array, format_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.promotion import promote
from softfloat_llm.recipe import recipe_of
from softfloat_llm.refusals import check, is_known_to_run, remarks
from softfloat_llm.runs import Run
from softfloat_llm.sites import MATMUL, TAPPED

# --- S11: the rope table ----------------------------------------------------------------------------------------------

MISMATCHES = {
    "bf16,rope.table=f32": "dtype mismatch in rope BF16 F32 F32",
    "f32,rope.table=bf16": "dtype mismatch in rope F32 BF16 BF16",
    "f16,rope.table=f32": "dtype mismatch in rope F16 F32 F32",
}
POSITIONS = 40


def s11(bench: Bench) -> list[Line]:
    """The rope table has a format of its own: made in f32, then stored in the model's."""
    f32_table = table_of(bench, "f32")
    lines = []
    for fmt in ("bf16", "f16"):
        table = table_of(bench, f"transformers-eager,storage={fmt}")
        formats = [str(format_of(part.dtype)) for part in (table.enter, table.out)]
        lines.append(equal(f"{fmt}: the angles, and the table", ["f32", fmt], formats))
        apart = np.count_nonzero(round_to(f32_table.out, fmt) != table.out)
        lines.append(equal(f"{fmt}: values that are not the f32 table rounded once", 0, int(apart)))
    error = _apart(table_of(bench, "bf16").out, table_of(bench, "bf16,rope.table.compute=bf16").out)
    half_ulp = 2.0**-9  # of bf16 below 1: what storing costs
    what = f"angles in bf16 too, {POSITIONS} positions: largest difference"
    lines.append(holds(what, "over 8 times what storing costs", about(error), if_=error > 8 * half_ulp))
    for recipe, says in MISMATCHES.items():
        message = _refusal(recipe)
        lines.append(holds(f"{recipe} is refused", says, says if says in message else message, if_=says in message))
    both = bench.run("bf16,rope.table=f32,attn.rope.form=once", taps=("*rope*",))
    formats = [str(both.format_of_tap(tap)) for tap in ("rope.table.out", "layers.0.attn.rope.out")]
    return [*lines, equal("with one rounding, table and queries may be", ["f32", "bf16"], formats)]


def table_of(bench: Bench, recipe: str) -> Taps:
    """The table of the first positions, and the angles that it is of."""
    return rope_table(np.arange(POSITIONS), bench.model.config, recipe_of(recipe).at("rope.table"))


def _apart(x: Array, y: Array) -> float:
    return float(np.abs(x.astype(np.float64) - y.astype(np.float64)).max())


def _refusal(recipe: str) -> str:
    try:
        recipe_of(recipe).check_fit()
    except RecipeError as error:
        return str(error)
    return "nothing is said"


# --- S12: types that meet ---------------------------------------------------------------------------------------------


def s12(_: Bench) -> list[Line]:
    """bf16 and f32 make f32; a scalar does not promote inside its category; a product of matrices refuses two types."""
    scalars = (("python", "float"), ("zero-dim", "f32"))
    refused = promote("bf16", "f32", op="matmul")
    return [
        *(
            equal(f"{rules}: bf16 + f32", "f32", promote("bf16", "f32", rules=rules).result)
            for rules in ("torch", "numpy", "jax")
        ),
        *(
            equal(
                f"torch: bf16 times a {kind} {name}",
                "bf16",
                promote("bf16", name, kinds=("tensor", kind), op="mul").result,
            )
            for kind, name in scalars
        ),
        equal("torch: matmul of bf16 and f32", "refused", "refused" if refused.is_refused else refused.result),
    ]


# --- S14: autocast ----------------------------------------------------------------------------------------------------

AUTOCAST = ("torch-autocast-bf16-cpu", "torch-autocast-bf16-cuda")
LOW = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "kv.v", "scores", "scale", "pv",
       "act", "act_mul", "lm_head")  # fmt: skip
HIGH = ("embed", "norm.input", "norm.post_attention", "norm.final", "rope.table", "attn.rope", "kv.k", "mask",
        "softmax", "residual")  # fmt: skip
WAY = ("q_proj.out", "rope.in", "rope.out", "scores.in", "scores.out", "mask.out", "softmax.out", "pv.in", "pv.out")


def s14(bench: Bench) -> list[Line]:
    """Autocast chooses a format for each operation: of a region's outputs only some are low precision."""
    lines = []
    for recipe in AUTOCAST:
        formats = formats_of(bench.run(recipe, taps=("*.out",)))
        wanted = {name: "bf16" if name.removesuffix(".out").endswith(LOW) else "f32" for name in formats}
        lines.append(equal(f"{recipe}: outputs in bf16, f32", _counts(wanted), _counts(formats)))
        lines.append(
            equal(
                f"{recipe}: outputs in another format than that",
                0,
                len([n for n in formats if formats[n] != wanted[n]]),
            )
        )
    way = formats_of(bench.run(AUTOCAST[0], taps=("layers.0.attn.*",)))
    wanted_way = ["bf16", "f32", "f32", "bf16", "bf16", "f32", "f32", "bf16", "bf16"]
    lines.append(equal("one tensor's way through attention", wanted_way, [way[f"layers.0.attn.{tap}"] for tap in WAY]))
    reference = bench.run("f32")
    errors = [largest_error(bench.run(recipe), reference) for recipe in (AUTOCAST[0], "transformers-eager")]
    lines.append(
        holds(
            "logit error: autocast, all in bf16",
            "over 0; less than the other",
            [about(e) for e in errors],
            if_=0 < errors[0] < errors[1],
        )
    )
    return lines


def formats_of(run: Run) -> dict[str, str]:
    """Tap -> the format whose values it holds."""
    return {name: str(run.format_of_tap(name)) for name in run.names}


def _counts(formats: dict[str, str]) -> list[int]:
    found = Counter(formats.values())
    return [found["bf16"], found["f32"]]


# --- S15: who can run what --------------------------------------------------------------------------------------------

CANDLE = {
    ("bf16", "candle-cpu"): "unsupported dtype BF16 for op matmul",
    ("bf16", "candle-accelerate"): "unsupported dtype BF16 for op matmul",
    ("f16", "candle-accelerate"): "the accelerate backend does not support f16 matmul",
    ("bf16,rope.table=f32", "candle-metal"): "dtype mismatch in rope BF16 F32 F32",
    ("f32,rope.table=bf16", "candle-cpu"): "unsupported dtype for rope F32 BF16 BF16",
}
RUN_BOTH = ("candle-metal", "transformers-eager", "transformers-sdpa", "transformers-mps")


def s15(_: Bench) -> list[Line]:
    """Who can run what, and in which words the others refuse (`recipes check ENGINE`)."""
    lines = [
        equal(f"{engine}, {recipe}", says, first_words(recipe, engine)) for (recipe, engine), says in CANDLE.items()
    ]
    lines.append(equal("candle-cpu, f16", "runs", _runs("f16", "candle-cpu")))
    told = remarks("f16", "candle-cpu")[0].what
    lines.append(holds("its sums of f16", "f16 products are f16 too", told, if_="f16 products are f16 too" in told))
    lines += [
        equal(f"{engine}: f16, bf16", ["runs", "runs"], [_runs(r, engine) for r in ("f16", "bf16")])
        for engine in RUN_BOTH
    ]
    return lines


def first_words(recipe: str, engine: str) -> str | None:
    """What the engine says where it first refuses; None where it does not."""
    found = check(recipe, engine)
    return found[0].says if found else None


def _runs(recipe: str, engine: str) -> str:
    return "runs" if is_known_to_run(recipe, engine) else first_words(recipe, engine) or "not known"


# --- S16: SGLang ------------------------------------------------------------------------------------------------------

SGLANG, SGLANG_FP8, SGLANG_HEAD = (f"sglang-bf16-cuda{part}" for part in ("", "-fp8kv", "-fp32-head"))
_LINEAR_ENDS = ("_proj.in", "_proj.out", "residual.out")


def s16(bench: Bench) -> list[Line]:
    """SGLang: weights and activations in bf16, a cache format of its own, norms in f32, logits widened last."""
    runs = {recipe: bench.run(recipe, taps=("*",)) for recipe in (SGLANG, SGLANG_FP8, SGLANG_HEAD)}
    plain, fp8 = formats_of(runs[SGLANG]), formats_of(runs[SGLANG_FP8])
    changed = sorted({name.split(".", 2)[2] for name in plain if plain[name] != fp8[name]})
    held = runs[SGLANG_FP8]
    cached = round_to(held["layers.0.kv.v.in"], "e4m3fn", overflow="saturate")
    norm, stream = (runs[SGLANG][f"layers.0.{tap}"] for tap in ("norm.post_attention.in", "attn.residual.out"))
    head = runs[SGLANG_HEAD]
    scales = sorted({recipe_of(SGLANG_FP8).at(site).number_of("scale") for site in ("kv.k", "kv.v")})
    return [
        equal("accumulators", ["f32"], sorted({fmt for name, fmt in plain.items() if name.endswith(".acc")})),
        equal(
            "what linear layers take and give, and the stream",
            ["bf16"],
            sorted({fmt for name, fmt in plain.items() if name.endswith(_LINEAR_ENDS)}),
        ),
        equal("taps whose format an fp8 cache changes", ["kv.k.out", "kv.v.out"], changed),
        equal("its format, and its scales", ["e4m3fn", 1.0], [fp8["layers.0.kv.v.out"], *scales]),
        equal(
            "cached values that are not x rounded once, saturating",
            0,
            int(np.count_nonzero(cached.view(np.uint8) != held["layers.0.kv.v.out"].view(np.uint8))),
        ),
        equal("what a norm takes", "f32", plain["layers.0.norm.post_attention.in"]),
        equal(
            "of these, not the stream's sum before it was rounded",
            0,
            int(np.count_nonzero(round_to(norm, "bf16") != stream)),
        ),
        equal("logits: plain, with an f32 head", ["bf16", "f32"], [str(r.logits_format) for r in (runs[SGLANG], head)]),
        equal(
            "an f32 head keeps the accumulator: values that differ",
            0,
            int(np.count_nonzero(head["lm_head.out"] != head["lm_head.acc"])),
        ),
    ]


# --- S17: TF32 --------------------------------------------------------------------------------------------------------

TF32 = "storage=tf32"
TF32_UNITS = ("nvidia-ampere-tf32", "nvidia-hopper-tf32")


def s17(bench: Bench) -> list[Line]:
    """TF32 is a compute path for f32 products: only what a product takes has 11 bits."""
    recipe = recipe_of(TF32)
    storages = {site for site in TAPPED if str(recipe.at(site).storage) == "tf32"}
    outputs = {str(recipe.at(site).output) for site in TAPPED}
    run = bench.run(TF32, taps=("*.in", "*.out"))
    given, taken = run["layers.0.norm.input.out"], run["layers.0.attn.q_proj.in"]
    reference = bench.run("f32")
    errors = {r: largest_error(bench.run(r), reference) for r in ("exact", TF32, TF32_UNITS[0], "f16", "bf16")}
    ordered = [errors[r] for r in ("exact", TF32, "f16", "bf16")]
    return [
        equal("sites whose operands are tf32: all products", sorted(MATMUL), sorted(storages)),
        equal("what sites give", ["f32"], sorted(outputs)),
        equal("accumulators", ["f32"], sorted({str(recipe.at(site).precision.acc) for site in MATMUL})),
        holds(
            "values between sites that are no tf32",
            "some",
            int(np.count_nonzero(round_to(given, "tf32") != given)),
            if_=bool((round_to(given, "tf32") != given).any()),
        ),
        equal(
            "operands that are not those, rounded to tf32", 0, int(np.count_nonzero(taken != round_to(given, "tf32")))
        ),
        holds(
            "logit error: exact sums, tf32, f16, bf16",
            "each more than the one before",
            [about(e) for e in ordered],
            if_=ordered == sorted(ordered) and len(set(ordered)) == 4,
        ),
        holds(
            "a unit that cuts its operands errs more than rounded ones",
            f"over {about(errors[TF32])}",
            about(errors[TF32_UNITS[0]]),
            if_=errors[TF32_UNITS[0]] > errors[TF32],
        ),
    ]
