"""The candidates that `identify` tries, declared as data: for each operation, blocks of keys with the words of each.

A block means every combination of its words. A word that begins with `@` stands for what the data say: `@storage` the
formats in which the operands can have lain, `@output` those whose values the output holds. Options of a site are taken
from `sites.SITES` itself, so a new word there is a candidate here. Start reading at `GRIDS` and `candidates`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

from softfloat_llm.errors import WordError
from softfloat_llm.numerics.adders import units
from softfloat_llm.numerics.formats import FORMATS, f32, tf32
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.operations import TABLE, Operation, precision, spec
from softfloat_llm.recipe import recipe_names, recipe_of
from softfloat_llm.site_options import Words
from softfloat_llm.sites import SITES

Block = Mapping[str, tuple[str, ...]]

ORDERS = (
    "seq", "reverse", "pairwise", "tree:adj", "tree:half", "swap:2",
    "lanes:2", "lanes:4", "lanes:8", "lanes:16", "lanes:32", "lanes:64", "lanes:4:seq", "lanes:8:seq", "lanes:8:adj",
    "lanes:16:seq", "lanes:16:adj", "lanes:32:adj", "lanes:16x2 > swap:2", "ilp:4", "ilp:8", "vector:4", "vector:8",
    "vector:16", "cascade:4", "cascade:8", "cascade:16", "dot:8x8", "blocked:16", "blocked:32", "blocked:64",
    "blocked:128", "blocked:256", "blocked:512", "split-k:2", "split-k:4", "split-k:8", "split-k:2:@output",
    "split-k:4:@output", "blocked:32 > lanes:2",
)  # fmt: skip
"""Orders of sums; those that a shipped recipe names are candidates too."""
FEW_ORDERS = ("seq", "reverse", "pairwise", "lanes:4", "lanes:8", "lanes:16", "lanes:32", "blocked:32", "split-k:2")
ROW_ORDERS = (
    "seq", "pairwise", "lanes:4", "lanes:8", "lanes:16", "lanes:32", "lanes:64", "vector:8", "vector:16", "cascade:8",
    "cascade:16", "blocked:32",
)  # fmt: skip

_ENDS: Block = {"output": ("@output",), "output.rounding": ("ties_to_even", "toward_zero")}
_STORED: Block = {"storage": ("@storage",)}
_FUSED: Block = {**_STORED, "product": ("exact",)}
_DIRECTED = ("toward_zero", "toward_positive", "toward_negative")
_EXACT_PRODUCTS: tuple[Block, ...] = (
    {**_FUSED, "acc": ("f32",), "order": ("@orders",), "subnormals": ("@flushing",), **_ENDS},
    {**_FUSED, "acc": ("f32",), "order": FEW_ORDERS, "acc.rounding": ("toward_zero",), **_ENDS},
    {**_FUSED, "acc": ("f32", "@narrow"), "order": ("seq",), "rounding": _DIRECTED, "output": ("@output",)},
    {**_FUSED, "acc": ("@narrow",), "order": ("@orders",), **_ENDS},
    {**_FUSED, "acc": ("f64", "f32+kahan", "f32+neumaier", "e8m13"), "order": FEW_ORDERS, **_ENDS},
    {**_FUSED, "acc": ("exact",), **_ENDS},
    {**_STORED, "acc": ("@unit-acc",), "order": ("@units",), **_ENDS},
)
_ROUNDED_PRODUCTS: tuple[Block, ...] = (
    {
        **_STORED, "product": ("@product",), "acc": ("f32", "@narrow"), "order": ("@orders",),
        "subnormals": ("@flushing",), **_ENDS,
    },
)  # fmt: skip
_SUMS: tuple[Block, ...] = tuple({k: w for k, w in b.items() if k != "product"} for b in _EXACT_PRODUCTS[:-1])

_ROOTS: Block = {"root_format": ("compute", "output")}
_NORM: Block = {"storage": ("@storage",), "output": ("@output",), "eps": ("@eps",), "takes": ("@takes",), **_ROOTS}
_ROPE: Block = {"storage": ("@storage",), "output": ("@output",)}
_TABLE: Block = {
    f"{TABLE}compute": ("f32", "@narrow"), f"{TABLE}output": ("f32", "@narrow"),
    f"{TABLE}frequency_format": ("compute", "@narrow"),
}  # fmt: skip

GRIDS: dict[str, tuple[Block, ...]] = {
    "sum": _SUMS,
    "dot": (*_EXACT_PRODUCTS, *_ROUNDED_PRODUCTS),
    "matmul": (*_EXACT_PRODUCTS, *_ROUNDED_PRODUCTS),
    "linear": (*_EXACT_PRODUCTS, *_ROUNDED_PRODUCTS),
    "norm": (
        {**_NORM, "acc": ("f32",), "order": ROW_ORDERS},
        {**_NORM, "acc": ("f64", "exact", "f32+kahan"), "order": ("seq",)},
        {**_NORM, "compute": ("@narrow",), "acc": ("@narrow", "f32"), "order": FEW_ORDERS[:5]},
    ),
    "rope": (_ROPE,),
    "softmax": (
        {"storage": ("@storage",), "output": ("@output",), "acc": ("f32",), "order": ROW_ORDERS},
        {"storage": ("@storage",), "output": ("@output",), "acc": ("f64", "exact"), "order": ("seq",)},
        {
            "storage": ("@storage",), "output": ("@output",), "compute": ("@narrow",), "acc": ("@narrow", "f32"),
            "order": FEW_ORDERS[:5],
        },
    ),
    "silu": (
        {"storage": ("@storage",), "output": ("@output",)},
        {"storage": ("@storage",), "output": ("@output",), "compute": ("@narrow",)},
    ),
}  # fmt: skip

LEFT_OUT = {"softmax": ("normalise", "online", "base"), "norm": ("takes", "root_format")}
"""Options of a site that are no candidates here: those of later steps, and those that a block names itself."""


USUAL = {
    "product": "exact", "acc.rounding": "ties_to_even", "output.rounding": "ties_to_even", "subnormals": "keep",
    "rounding": "ties_to_even", "compute": "f32", "order": "any",
}  # fmt: skip
"""What a key means where a candidate does not say it (an exact sum has any order)."""


@dataclass(frozen=True)
class Facts:
    """What the data leave open: for each `@word` the words that it stands for.

    `terms` is how many terms each sum has.
    """

    words: Mapping[str, tuple[str, ...]]
    terms: int


@dataclass(frozen=True)
class Candidate:
    """One combination: the words of an operation, as a recipe would say them."""

    operation: str
    words: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return ",".join(f"{key}={word}" for key, word in self.words)

    def word(self, key: str) -> str:
        """The word of a key, or what stands there where the candidate does not say it."""
        return dict(self.words).get(key, USUAL.get(key, "-"))

    @property
    def oddness(self) -> int:
        """How many of its words are not what one would expect first: 0 for the plainest."""
        words = dict(self.words)
        odd = sum(word != USUAL[key] for key, word in words.items() if key in USUAL and key != "order")
        return odd + (words.get("output") != words.get("storage")) + (words.get("order", "seq") != "seq")

    def to_dict(self) -> dict[str, str]:
        return dict(self.words)


def candidates(operation: Operation, facts: Facts) -> list[Candidate]:
    """The grid of an operation, what the data exclude left out, in the order of its declaration; each once."""
    found: dict[Candidate, None] = {}
    for block in GRIDS[operation.name]:
        for words in _combinations(_with_options(block, operation, facts), facts):
            candidate = Candidate(operation.name, words)
            if candidate not in found and _has_meaning(operation, dict(words)):
                found[candidate] = None
    return list(found)


def _with_options(block: Block, operation: Operation, facts: Facts) -> Block:
    """The block with every word of the options of the operation's site, and of its table's where it is made here."""
    whole = dict(block)
    if operation.name == "rope" and "@table" in facts.words:
        whole.update(_TABLE)
        whole.update({f"{TABLE}{key}": words for key, words in _options("rope.table").items()})
    if operation.site is None:
        return whole
    left_out = LEFT_OUT.get(operation.name, ())
    options = {key: words for key, words in _options(operation.site).items() if key not in left_out}
    return {**options, **whole} if operation.site != "lm_head" else whole


def _options(site: str) -> dict[str, tuple[str, ...]]:
    options = SITES[site].options.items()
    return {key: tuple(option.words) for key, option in options if isinstance(option, Words)}


def _combinations(block: Block, facts: Facts) -> Iterator[tuple[tuple[str, str], ...]]:
    keys = list(block)
    for words in product(*(_resolved(block[key], facts) for key in keys)):
        pairs = dict(zip(keys, words, strict=True))
        yield tuple((key, word) for key, word in pairs.items() if word != "")


def _resolved(words: tuple[str, ...], facts: Facts) -> tuple[str, ...]:
    """The words with what `@names` stand for, each once; `split-k:2:@output` too."""
    found: list[str] = []
    for word in words:
        head, at, name = word.partition("@")
        values = facts.words.get(f"@{name}", ()) if at else ("",)
        found += [head + value for value in values]
    return tuple(dict.fromkeys(found))


def _has_meaning(operation: Operation, words: dict[str, str]) -> bool:
    """False for words that contradict each other, and for formats of a product or accumulator that nobody combines."""
    own = {key: word for key, word in words.items() if key not in ("eps",) and not key.startswith(TABLE)}
    table = {key.removeprefix(TABLE): word for key, word in words.items() if key.startswith(TABLE)}
    try:
        at = precision(own) if operation.site is None else spec(operation.site, own).precision
        if table:
            spec("rope.table", table)
    except WordError:
        return False
    return _is_sensible(at, words) and (operation.site in (None, "lm_head") or _is_of_a_model(at, words))


def _is_of_a_model(at: Precision, words: Mapping[str, str]) -> bool:
    """Norms, softmax and the like give their own format or f32, and are made in f32 or in their own format."""
    own = str(at.storage)
    return words["output"] in (own, "f32") and words.get("compute", "f32") in (own, "f32")


def _is_sensible(at: Precision, words: Mapping[str, str]) -> bool:
    """Rounded products are of the storage's format (of f32 for tf32); a narrow sum is of the storage's or output's."""
    adder = at.order.adder
    if adder is not None and len(at.order.levels) == 1 and adder.output not in (None, at.acc.format):
        return False
    storage = f32 if at.storage == tf32 else at.storage
    is_product = "product" not in words or at.product in (None, storage)
    is_narrow = at.acc.format is not None and str(at.acc.format) in NARROW
    if words.get("output.rounding", "ties_to_even") != "ties_to_even" and at.acc.format == at.output:
        return False  # nothing is left to round
    return is_product and (not is_narrow or at.acc.format in (at.storage, at.output))


@cache
def orders() -> tuple[str, ...]:
    """The declared orders, and every one that a shipped recipe names for its sums."""
    named = [
        word
        for name in recipe_names()
        for words in recipe_of(name).words().values()
        for key, word in words.items()
        if key.partition(" if ")[0] == "order" and "fused" not in word
    ]
    return tuple(dict.fromkeys([*ORDERS, *named]))


@cache
def units_of(storage: str) -> tuple[tuple[str, str], ...]:
    """(order, accumulator) of every matrix unit that reads operands of a storage format."""
    found = []
    for name, adder in units().items():
        if storage in (("f32", "tf32") if adder.truncates_input else (str(adder.input),)):
            found.append((f"fused:{name}", str(adder.output)))
    return tuple(found)


NARROW = tuple(name for name, fmt in FORMATS.items() if fmt.bits <= 16)
"""The formats that an accumulator, a product or a table of that width can have."""
