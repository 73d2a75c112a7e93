"""The sites of a Llama: the places where a precision applies, and the keys that each of them takes.

A site is named as it is in the recipe, on the command line and in the taps: `attn.scores`, `norm.final`, `lm_head`. A
selector names several: `*`, a group (`linear`, `matmul`), or the beginning of a name (`attn`, `norm`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from softfloat_llm.errors import RecipeError, nearest
from softfloat_llm.site_options import FormatOption, Option, Words

SUM_KEYS = ("storage", "product", "acc", "order", "output")
MODE_KEYS = ("rounding", "subnormals", "overflow")


@dataclass(frozen=True)
class Site:
    """One place where a precision applies.

    `keys` are the settings that it takes beside the modes; `options` are those that are no stages, by name, each with
    what it can be (`site_options`). `compute` is the format of the steps that are no sums (a square root, an
    exponential, a division): always ties to even with subnormals kept, whatever the modes of the stages.
    """

    name: str
    what: str
    keys: tuple[str, ...]
    options: Mapping[str, Option] = field(default_factory=dict)

    def takes(self, key: str) -> bool:
        """True for a stage, an option, a mode, or a mode of one stage (`acc.rounding`)."""
        stage, _, mode = key.rpartition(".")
        is_mode = key in MODE_KEYS or (stage in self.keys and mode in MODE_KEYS)
        return key in self.keys or key in self.options or is_mode


_REDUCTION = (*SUM_KEYS, "compute")
_ELEMENTWISE = ("storage", "output")
_NORM: dict[str, Option] = {
    "form": Words(
        "where the weight w comes in; r is 1 / sqrt(mean + eps), R a rounding to the output",
        {
            "round-then-weight": "R(w R(x r))",
            "weight-then-round": "R((x r) w), x r in compute",
            "weight-first": "R((x w) r), x w in compute",
        },
    ),
    "root": Words(
        "how x comes to be divided by sqrt(mean + eps)",
        {
            "rsqrt": "times 1/sqrt, which is one rounding",
            "one-over-sqrt": "times 1 / R(sqrt): two roundings",
            "divide": "x / R(sqrt): no reciprocal",
        },
    ),
    "root_format": FormatOption(
        "the format in which the root (or its reciprocal) is kept before x meets it",
        {"compute": "that of the other steps", "output": "the site's output, as candle has it"},
    ),
    "mean": Words(
        "how the sum of squares S is divided by n",
        {
            "divide": "R(S) / n in compute",
            "times-reciprocal": "R(S) times R(1 / n) in compute",
            "divide-accumulator": "S / n in the accumulator's format, then rounded to compute (exact: as divide)",
        },
    ),
    "takes": Words(
        "which residual stream it takes; the unrounded one is the last sum as `compute` of that residual site has it",
        {
            "stored": "as the residual site gave it",
            "unrounded": "the sum before it was rounded to be stored",
            "unrounded-statistics": "the mean of the unrounded squares, but x as it was stored",
        },
    ),
}
_EXP: dict[str, Option] = {
    "exp": Words(
        "which exponential",
        {
            "correct": "correctly rounded",
            "sleef-u10": "Sleef's expf, as PyTorch's CPU softmax, sigmoid and silu have it",
            "flash-u20": "the cubic of PyTorch's CPU flash attention for halves",
            "vector-u20": "the polynomial of PyTorch's CPU flash attention for f32",
        },
    )
}
_SILU: dict[str, Option] = {
    "form": Words(
        "how x / (1 + exp(-x)) is made; R a rounding to the output",
        {
            "quotient": "exp, 1 + it and the quotient in compute, then once R",
            "stepwise": "R(x / R(1 + R(exp(-x))))",
            "times-sigmoid": "R(x R(1 / (1 + exp(-x)))), the sigmoid in compute",
        },
    ),
    **_EXP,
}
_PRODUCT: dict[str, Option] = {
    "compute": FormatOption(
        "a format that the product is rounded to before it is rounded to the output",
        {"exact": "none: one rounding"},
    )
}
_SOFTMAX: dict[str, Option] = {
    "form": Words(
        "how a term is divided by the sum",
        {"divide": "term / sum", "reciprocal": "term times R(1 / sum)"},
    ),
    "normalise": Words(
        "where a term is divided by the sum",
        {"before": "before it meets the values", "after": "the weighted sum of values is, at attn.pv"},
    ),
    **_EXP,
}
_ROPE: dict[str, Option] = {
    "form": Words(
        "how many roundings a rotated pair has",
        {"each": "each product and the sum", "once": "the exact value, once"},
    )
}

SITES: dict[str, Site] = {
    site.name: site
    for site in (
        Site("embed", "embedding rows, gathered", _ELEMENTWISE),
        Site("norm.input", "RMSNorm before attention", _REDUCTION, _NORM),
        Site("attn.q_proj", "queries: x Wq^T", SUM_KEYS),
        Site("attn.k_proj", "keys: x Wk^T", SUM_KEYS),
        Site("attn.v_proj", "values: x Wv^T", SUM_KEYS),
        Site("rope.table", "cos and sin of position times frequency", (*_ELEMENTWISE, "compute")),
        Site("attn.rope", "rotation of q and k by the table", _ELEMENTWISE, _ROPE),
        Site("kv.k", "keys as the cache stores them", ("storage",)),
        Site("kv.v", "values as the cache stores them", ("storage",)),
        Site("attn.scores", "q k^T", SUM_KEYS),
        Site("attn.scale", "scores times head_dim^-1/2", (*_ELEMENTWISE, "compute")),
        Site("attn.softmax", "probabilities", _REDUCTION, _SOFTMAX),
        Site("attn.pv", "probabilities times values", SUM_KEYS),
        Site("attn.o_proj", "attention output: x Wo^T", SUM_KEYS),
        Site("attn.residual", "residual stream + attention", (*_ELEMENTWISE, "compute")),
        Site("norm.post_attention", "RMSNorm before the mlp", _REDUCTION, _NORM),
        Site("mlp.gate_proj", "gate: x Wg^T", SUM_KEYS),
        Site("mlp.up_proj", "up: x Wu^T", SUM_KEYS),
        Site("mlp.act", "silu(gate) = gate / (1 + exp(-gate))", (*_ELEMENTWISE, "compute"), _SILU),
        Site("mlp.act_mul", "silu(gate) times up", _ELEMENTWISE, _PRODUCT),
        Site("mlp.down_proj", "x Wd^T", SUM_KEYS),
        Site("mlp.residual", "residual stream + mlp", (*_ELEMENTWISE, "compute")),
        Site("norm.final", "last RMSNorm", _REDUCTION, _NORM),
        Site("lm_head", "logits: x We^T", SUM_KEYS),
    )
}

LOGITS = "lm_head.out"
"""The tap of the logits."""

LINEAR = (*(name for name in SITES if name.endswith("_proj")), "lm_head")
MATMUL = (*LINEAR, "attn.scores", "attn.pv")
GROUPS: dict[str, tuple[str, ...]] = {"*": tuple(SITES), "linear": LINEAR, "matmul": MATMUL}


def select(selector: str) -> tuple[str, ...]:
    """The sites that a selector names, in the order of the forward pass. Raises RecipeError where it names none."""
    if selector in SITES:
        return (selector,)
    if selector in GROUPS:
        return GROUPS[selector]
    chosen = tuple(name for name in SITES if name.startswith(selector + "."))
    if not chosen:
        prefixes = sorted({name.split(".")[0] for name in SITES if "." in name})
        known = [*SITES, *GROUPS, *prefixes]
        raise RecipeError(
            f"Unknown site {selector!r}.{nearest(selector, known)} Sites: {' '.join(SITES)}."
            f" Several at once: {' '.join([*GROUPS, *prefixes])}."
        )
    return chosen


def specificity(selector: str) -> int:
    """How narrow a selector is: `*` 0, a group 1, a beginning 2, a site 3. In one table the narrower one wins."""
    return 3 if selector in SITES else {"*": 0}.get(selector, 1 if selector in GROUPS else 2)
