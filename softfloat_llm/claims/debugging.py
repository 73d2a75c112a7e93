"""The claim about how to debug: formats recorded, one operator, one layer, the whole pass; the earliest difference; NaN
and infinities first, then tokens, then errors. `compare` does these in this order.
"""

from __future__ import annotations

from softfloat_llm.analysis.compare import compare
from softfloat_llm.analysis.comparison import Comparison
from softfloat_llm.analysis.taps import tap_of
from softfloat_llm.claims.bench import Bench
from softfloat_llm.claims.outcome import Line, equal, holds
from softfloat_llm.site_runs import local_run

SITE = "mlp.up_proj"
WRONG = f"f32,{SITE}.output=e5m2"
"""A recipe with a known fault: one site gives far fewer bits."""
OVERFLOWING = "f32,lm_head.output=e3m4"
"""The largest value of e3m4 is 15.5: the top logits overflow, and nothing before them does."""
KINDS = ("inf in the run, first at", "token", "KL divergence", "largest error", "First different value")
"""What each sentence of the answer begins with or is about, in the order in which they must come."""
_TAPS = ("*.in", "*.out")
_RECORDED = ("layers.0.norm.input.in", "layers.0.attn.q_proj.in", "layers.0.attn.residual.out", "layers.0.kv.v.out",
             "lm_head.out")  # fmt: skip


def s20(bench: Bench) -> list[Line]:
    """A fault that is put in at one site is found there; what is not finite is told before all else."""
    reference, wrong = bench.run("f32", taps=_TAPS), bench.run(WRONG, taps=_TAPS)
    place = f"layers.0.{SITE}.out"
    cached = bench.run("bf16,kv=e4m3fn", taps=_TAPS)
    formats = [str(cached.format_of_tap(tap)) for tap in _RECORDED]
    scopes = {"one operator": [place], "one layer": ["layers.0.*"], "the whole pass": None}
    found = {scope: compare(wrong, reference, names=names) for scope, names in scopes.items()}
    whole = compare(wrong, reference, local=local_run(wrong, reference, model=bench.model))
    erring = sorted({tap_of(tap.tap).site for tap in whole.local or () if tap.count})
    return [
        equal("formats: norm, product, stream, cache, logits", ["bf16", "bf16", "bf16", "e4m3fn", "bf16"], formats),
        *(
            equal(f"{scope} ({len(one.taps)} taps): the earliest difference", place, _first(one))
            for scope, one in found.items()
        ),
        equal("sites that err, each fed the reference's values", [SITE], erring),
        *_order(bench),
    ]


def _first(found: Comparison) -> str:
    return "none" if found.first_divergence is None else found.first_divergence.tap.name


def _order(bench: Bench) -> list[Line]:
    """The sentences of a comparison in which everything there is to tell is told."""
    found = compare(bench.run(OVERFLOWING), bench.run("f32"))
    text = [sentence for sentence in found.sentences() if any(kind in sentence for kind in KINDS)]
    told = [next(kind for kind in KINDS if kind in sentence) for sentence in text]
    where = found.nonfinite[0].tap.name if found.nonfinite else "none"
    return [
        equal("an overflow in the logits is first told of", "lm_head.out", where),
        holds(
            "what is told, in order",
            " · ".join(KINDS),
            " · ".join(dict.fromkeys(told)),
            if_=told == sorted(told, key=KINDS.index) and set(told) == set(KINDS),
        ),
    ]
