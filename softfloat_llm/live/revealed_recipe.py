"""A recipe of what PyTorch does on this machine: the formats of transformers, the orders as its kernels reveal them.

Start reading at `reveal_recipe`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from softfloat_llm.errors import LiveError, nearest
from softfloat_llm.io.checkpoint import Model
from softfloat_llm.live.comparison import compare_live
from softfloat_llm.live.pass_sums import Progress, ShapeFound, Way, revealed_sums
from softfloat_llm.live.shape_rules import Told, rules_of
from softfloat_llm.live.torch_host import Host, configured, host_facts
from softfloat_llm.live.transformers_model import DTYPES
from softfloat_llm.llama.config import Config
from softfloat_llm.numerics.formats import Format, format_of
from softfloat_llm.numerics.trees import Tree, write_tree
from softfloat_llm.recipe import Recipe, recipe_names
from softfloat_llm.runs import simulate
from softfloat_llm.sites import LINEAR

ATTENTIONS = ("eager", "sdpa")
_BASES = {
    ("eager", "bf16"): "transformers-eager-bf16-cpu-native", ("eager", "f16"): "transformers-eager-f16-cpu-native",
    ("eager", "f32"): "transformers-eager-f32-cpu-mkl", ("sdpa", "bf16"): "transformers-sdpa-bf16-cpu-native",
    ("sdpa", "f16"): "transformers-sdpa-f16-cpu-native",
}  # fmt: skip


@dataclass(frozen=True)
class RevealedRecipe:
    """A recipe as a table, the trees that its orders name by file, what was found shape by shape, and what was not."""

    name: str
    table: dict[str, Any]
    trees: dict[str, Tree]
    shapes: tuple[ShapeFound, ...]
    problems: tuple[str, ...]

    def save(self, path: str | Path) -> None:
        """Write NAME.toml, and beside it NAME.trees/ with the orders that have no name."""
        import tomli_w

        target = Path(path)
        folder = target.with_suffix(".trees")
        for name, tree in self.trees.items():
            folder.mkdir(exist_ok=True)
            write_tree(tree, folder / name)
        table = _with_folder(self.table, str(folder))
        target.write_text(tomli_w.dumps(table), encoding="utf-8")


def reveal_recipe(
    config: Config,
    *,
    format: str | Format = "bf16",
    attention: str = "eager",
    lengths: Iterable[int] = (5,),
    name: str = "revealed",
    threads: int | None = None,
    mkldnn: bool = True,
    progress: Progress | None = None,
) -> RevealedRecipe:
    """The recipe of transformers on the PyTorch that is installed here, for prefills of some lengths and a step after.

    Orders of linear layers, scores, weighted values, and of the sums of norms and (eager) softmax are revealed; formats
    and exponentials are those of the recipe that it is based on; so is the order of flash attention's row sums.
    **Raises** LiveError where PyTorch is missing, for words that are none of these, or where kernels are not steady.
    """
    fmt = format_of(format)
    if attention not in ATTENTIONS:
        raise LiveError(
            f"attention={attention!r}: it is one of {', '.join(ATTENTIONS)}.{nearest(attention, ATTENTIONS)}"
        )
    if fmt.name not in DTYPES or (attention, fmt.name) not in _BASES:
        raise LiveError(f"Revealing {attention} attention in {fmt}: it can be bf16 or f16, and with eager f32.")
    wanted = sorted(set(lengths))
    if not wanted or wanted[0] < 1:
        raise LiveError(f"Revealing prefills of {wanted} tokens: there is at least one length, of at least 1.")
    with configured(uses_mkldnn=mkldnn, threads=threads):
        host = host_facts(uses_mkldnn=mkldnn)
        shapes, problems = revealed_sums(config, fmt, attention, wanted, progress)
    trees: dict[str, Tree] = {}
    name = f"revealed-{name}" if name in recipe_names() else name  # a shipped recipe's name is its own
    table = _head(name, attention, fmt, host, wanted, len(shapes)) | {"site": site_tables(shapes, trees)}
    return RevealedRecipe(name, table, trees, tuple(shapes), tuple(problems))


@dataclass(frozen=True)
class LengthChecked:
    """A prompt of some length and a cached step, under a recipe and in PyTorch: values compared, and differing."""

    length: int
    compared: int
    differing: int
    first: str | None


def check_recipe(
    recipe: Recipe, model: Model, *, attention: str, lengths: Iterable[int], threads: int | None, mkldnn: bool
) -> list[LengthChecked]:
    """Every `.out` tap of a recipe held against transformers on this machine, prompt by prompt, in bits."""
    checked = []
    for length in lengths:
        tokens = [1 + (length * 7919 + 104_729 * place) % (model.config.vocab_size - 1) for place in range(length)]
        run = simulate(tokens=tokens, model=model, recipe=recipe, steps=2)
        live = compare_live(run, attention=attention, threads=threads, mkldnn=mkldnn)
        first = next((tap.tap for tap in live.found.taps if tap.count), None)
        checked.append(LengthChecked(length, live.compared, live.differing, first))
    return checked


def _head(name: str, attention: str, fmt: Format, host: Host, lengths: Sequence[int], count: int) -> dict[str, str]:
    told = f"{lengths[0]} to {lengths[-1]}" if len(lengths) > 1 else str(lengths[0])
    return {
        "name": name,
        "base": _BASES[attention, fmt.name],
        "about": f"transformers, {attention} attention, {fmt}, as PyTorch computes it on one machine.",
        "source": f"softfloat-llm reveal: {host}.",
        "status": "policy",
        "evidence": f"Orders revealed from outside for prompts of {told} tokens and one cached step, {count} shapes."
        " Linear layers, eager scores and values, and norms were held against PyTorch in bits.",
    }


def site_tables(shapes: Sequence[ShapeFound], trees: dict[str, Tree]) -> dict[str, dict[str, str]]:
    """Site -> key, or key with its condition -> word. What most linear layers say stands under `linear`."""
    tables: dict[str, dict[str, str]] = {}
    for site in dict.fromkeys(site for shape in shapes for site in shape.sites):
        own = [shape for shape in shapes if site in shape.sites]
        keys = ("order",) if site.startswith("norm") or site == "attn.softmax" else ("order", "product", "subnormals")
        axis = {"attn.scores": "N", "attn.pv": "K", "attn.softmax": "K"}.get(site, "M")
        tables[site] = {}
        for key in keys:
            told = [Told(shape.dims, tuple((way.place, _word(way, key, trees)) for way in shape.ways)) for shape in own]
            tables[site] |= rules_of(key, axis, told)
    linear = [tables[site] for site in tables if site in LINEAR]
    usual = max(linear, key=linear.count)
    return {"linear": usual} | {site: table for site, table in tables.items() if site not in LINEAR or table != usual}


def _word(way: Way, key: str, trees: dict[str, Tree]) -> str:
    """What a rule says; a tree without a name is kept under its digest, so that equal trees are one word."""
    if key != "order" or way.order is not None:
        return str(getattr(way, key))
    digest = sha256(repr(way.tree.program()).encode()).hexdigest()
    name = f"{way.tree.n}-terms-{digest[:12]}.json"
    trees[name] = way.tree
    return f"tree:@{_FOLDER}/{name}"


_FOLDER = "{trees}"


def _with_folder(value: Any, folder: str) -> Any:
    if isinstance(value, dict):
        return {key: _with_folder(inner, folder) for key, inner in value.items()}
    return value.replace(_FOLDER, folder) if isinstance(value, str) else value
