"""The sites of a Llama: the places where a precision applies, and the keys that each of them takes.

A site is named as it is in the recipe, on the command line and in the taps: `attn.scores`, `norm.final`, `lm_head`. A
selector names several: `*`, a group (`linear`, `matmul`), or the beginning of a name (`attn`, `norm`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from softfloat_llm.errors import RecipeError, nearest
from softfloat_llm.numerics.scaled import SCALED
from softfloat_llm.site_options import Count, FormatOption, Option, Positive, Words

SUM_KEYS = ("storage", "product", "acc", "order", "output")
MODE_KEYS = ("rounding", "subnormals", "overflow")
MEANINGS = {
    "storage": "the format that the operands are rounded to as they come in",
    "product": "the format that each product is rounded to, or exact",
    "acc": "the format of the sum's accumulator (f32, f32+kahan, exact)",
    "order": "in which order the terms are added",
    "output": "the format of what the site gives",
    "compute": "the format of the steps that are no sums: ties to even, subnormals kept",
    "rounding": "the mode of every rounding of the stages; of one: acc.rounding",
    "subnormals": "keep, ftz (results flushed), daz (operands flushed), ftz+daz",
    "overflow": "ieee, or saturate: the largest finite value instead of an infinity",
}
"""What each key says that is no option of its site."""


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
        is_mode = (bool(self.keys) and key in MODE_KEYS) or (stage in self.keys and mode in MODE_KEYS)
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
_HEAD_NORM = {key: option for key, option in _NORM.items() if key != "takes"}
_EXP: dict[str, Option] = {
    "exp": Words(
        "which exponential",
        {
            "correct": "correctly rounded",
            "sleef-u10": "Sleef's expf, as PyTorch's CPU softmax, sigmoid and silu have it",
            "flash-u20": "the cubic of PyTorch's CPU flash attention for halves",
            "vector-u20": "the polynomial of PyTorch's CPU flash attention for f32",
            "glibc": "expf of the GNU C library",
            "ggml": "the polynomial of ggml's vectors of 16, glibc's on what is left",
            "ggml-padded": "ggml's vectors throughout: what is left is part of a vector too",
            "mlx": "MLX's polynomial on a CPU",
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
            "times-even-sigmoid": "R(x R(s)): 1 / (1 + R(exp|x|)) in compute is s for x < 0, else 1 less it, as in MLX",
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
_SCALED = {"plain": "as its format has them", **{name: f"{row.what}, decoded" for name, row in SCALED.items()}}
_WEIGHTS: dict[str, Option] = {
    "weights": Words("what the weights are stored as before the site takes them", _SCALED),
    "activations": Words("what the activations are stored as before the site takes them", _SCALED),
}
_CACHED: dict[str, Option] = {
    "blocks": Words("what x (over the scale) is stored as before the cache's format takes it", _SCALED),
    "scale": Positive(
        "x / scale is stored, and what is read is times scale, in f32 (kernels that fold the scale round elsewhere)"
    ),
    "quotient": FormatOption(
        "the format that x / scale is rounded to before the cache's",
        {"given": "that in which x came, as SGLang has it"},
    ),
}
_CHOICE: dict[str, Option] = {
    "ties": Words(
        "which id is taken of those that share the largest logit", {"lowest": "the lowest id", "last": "the last id"}
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
    "base": Words("what is raised to the scores", {"e": "e", "2": "2, and the scale is times log2(e)"}),
    "sum_of": Words(
        "what the sum is of",
        {"terms": "the exponentials in compute", "rounded": "the exponentials as rounded to the output"},
    ),
    "online": Count(
        "keys in a block: each against the largest score so far, and the sum and the output so far are times"
        " exp(old largest - new). 0: all keys at once"
    ),
    **_EXP,
}
_QUERIES: dict[str, Option] = {
    "queries": Words(
        "how many queries are one product, whose rows a rule's M counts",
        {
            "all": "all of a pass",
            "flash": "32 (64 of 192 or more, 256 of 768 or more), over the keys up to the last of them, as PyTorch's"
            " CPU flash attention",
        },
    )
}
_WEIGHTED: dict[str, Option] = {
    **_QUERIES,
    "kept": FormatOption(
        "what the output so far is rounded to between two blocks of keys, where attn.softmax has online=N",
        {"acc": "nothing: it stays in the accumulator"},
    ),
}
_SCALE: dict[str, Option] = {
    "on": Words(
        "what is scaled",
        {
            "scores": "the scores",
            "query": "the query, before it meets the keys",
            "both": "query and key, each by the root of the scale",
        },
    )
}
_MASK: dict[str, Option] = {
    "value": Words(
        "what becomes of a key that the query does not see",
        {
            "hidden": "it is left out; a query that sees no key gives 0",
            "add-lowest": "its score plus the lowest number of the output; a query that sees no key sees all alike",
            "set-lowest": "the lowest number of the output in place of its score; likewise",
        },
    )
}
_ROPE_TABLE: dict[str, Option] = {
    "frequencies": Words(
        "how the angle p theta^(-2i/C) of position p is made; R a rounding to compute",
        {
            "pow": "p R(1 / R(theta^(2i/C)))",
            "iterated": "p, then each time R(angle R(theta^(-2/C)))",
            "exp": "p R(e^R(-i R(R(ln theta) / (C/2))))",
            "exp2": "p R(2^R(-R(i / (C/2)) R(log2 theta)))",
        },
    ),
    "frequency_format": FormatOption(
        "the format that the frequencies (iterated: the ratio of two angles) are kept in",
        {"compute": "that of the other steps"},
    ),
    "functions": Words(
        "which cosine and sine (and which exponential, of frequencies=exp)",
        {
            "correct": "correctly rounded",
            "glibc": "those of the GNU C library",
            "torch-x86": "PyTorch's float32 cos and sin on x86 up to 10000, correctly rounded beyond",
            "mlx": "MLX's polynomials on a CPU",
        },
    ),
}
_ROPE: dict[str, Option] = {
    "form": Words(
        "how a pair (x, y) is rotated; R a rounding to the output",
        {
            "each": "R(R(x c) - R(y s)), R(R(y c) + R(x s))",
            "once": "R(x c - y s), R(y c + x s)",
            "fma": "R(x c - R(y s)), R(R(y c) + x s)",
        },
    ),
    "pairs": Words(
        "which elements are a pair",
        {
            "half-split": "i and i + C/2",
            "interleaved": "2i and 2i + 1: queries and keys are put in that order first, as a GGUF file has their rows",
        },
    ),
}

SITES: dict[str, Site] = {
    site.name: site
    for site in (
        Site("embed", "embedding rows, gathered", _ELEMENTWISE),
        Site("norm.input", "RMSNorm before attention", _REDUCTION, _NORM),
        Site("attn.q_proj", "queries: x Wq^T", SUM_KEYS, _WEIGHTS),
        Site("attn.k_proj", "keys: x Wk^T", SUM_KEYS, _WEIGHTS),
        Site("attn.v_proj", "values: x Wv^T", SUM_KEYS, _WEIGHTS),
        Site("norm.q", "RMSNorm of each head of the queries (Qwen3)", _REDUCTION, _HEAD_NORM),
        Site("norm.k", "RMSNorm of each head of the keys (Qwen3)", _REDUCTION, _HEAD_NORM),
        Site("rope.table", "cos and sin of position times frequency", (*_ELEMENTWISE, "compute"), _ROPE_TABLE),
        Site("attn.rope", "rotation of q and k by the table", _ELEMENTWISE, _ROPE),
        Site("kv.k", "keys as the cache stores them", ("storage",), _CACHED),
        Site("kv.v", "values as the cache stores them", ("storage",), _CACHED),
        Site("attn.scores", "q k^T", SUM_KEYS, _QUERIES),
        Site("attn.scale", "scores times head_dim^-1/2", (*_ELEMENTWISE, "compute"), _SCALE),
        Site("attn.mask", "scores of unseen keys, where they are not hidden", _ELEMENTWISE, _MASK),
        Site("attn.softmax", "probabilities", _REDUCTION, _SOFTMAX),
        Site("attn.pv", "probabilities times values", SUM_KEYS, _WEIGHTED),
        Site("attn.o_proj", "attention output: x Wo^T", SUM_KEYS, _WEIGHTS),
        Site("attn.residual", "residual stream + attention", (*_ELEMENTWISE, "compute")),
        Site("norm.post_attention", "RMSNorm before the mlp", _REDUCTION, _NORM),
        Site("mlp.gate_proj", "gate: x Wg^T", SUM_KEYS, _WEIGHTS),
        Site("mlp.up_proj", "up: x Wu^T", SUM_KEYS, _WEIGHTS),
        Site("mlp.act", "silu(gate) = gate / (1 + exp(-gate))", (*_ELEMENTWISE, "compute"), _SILU),
        Site("mlp.act_mul", "silu(gate) times up", _ELEMENTWISE, _PRODUCT),
        Site("mlp.down_proj", "x Wd^T", SUM_KEYS, _WEIGHTS),
        Site("mlp.residual", "residual stream + mlp", (*_ELEMENTWISE, "compute")),
        Site("norm.final", "last RMSNorm", _REDUCTION, _NORM),
        Site("lm_head", "logits: x We^T", SUM_KEYS, _WEIGHTS),
        Site("choice", "the token with the largest logit", (), _CHOICE),
    )
}

LOGITS = "lm_head.out"
"""The tap of the logits."""

TAPPED = tuple(name for name, site in SITES.items() if site.keys)
"""The sites that have taps: all that store something (attn.mask only where its value is not `hidden`)."""

OUTSIDE = ("embed", "rope.table", "norm.final", "lm_head")
"""Sites of no layer: two before the layers, two after."""

OF_SOME_MODELS = ("norm.q", "norm.k")
"""Sites that only some models pass: those that normalise queries and keys."""

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


def is_selector(word: str) -> bool:
    """True where `select` finds a site. It makes no message, which costs more than all else of reading a recipe."""
    return word in SITES or word in GROUPS or any(name.startswith(word + ".") for name in SITES)


def specificity(selector: str) -> int:
    """How narrow a selector is: `*` 0, a group 1, a beginning 2, a site 3. In one table the narrower one wins."""
    return 3 if selector in SITES else {"*": 0}.get(selector, 1 if selector in GROUPS else 2)
