"""`softfloat-llm taps`: the named values of a forward pass, and their shapes."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer

from softfloat_llm.analysis.wording import labelled, markdown_table
from softfloat_llm.cli.options import OutputFlags, grouped
from softfloat_llm.cli.screen import show, show_json, watched
from softfloat_llm.errors import RunError, nearest
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.llama.config import Config
from softfloat_llm.sites import OF_SOME_MODELS, OUTSIDE, SITES, TAPPED

# What each site takes and gives, by shape letters; T query positions, S key positions, H query heads, G kv heads, C
# head size, D hidden, F mlp size, V vocabulary. Held against a real pass by tests/cli/test_verbs.py.
SHAPES = {
    "embed": ("T D", "T D"),
    "rope.table": ("T C/2", "T C"),
    "attn.q_proj": ("T D", "T HC"),
    "attn.k_proj": ("T D", "T GC"),
    "attn.v_proj": ("T D", "T GC"),
    "attn.rope": ("T H+G C", "T H+G C"),
    "kv.k": ("T G C", "T G C"),
    "kv.v": ("T G C", "T G C"),
    "attn.scores": ("T H C", "T H S"),
    "attn.scale": ("T H S", "T H S"),
    "attn.mask": ("T H S", "T H S"),
    "attn.softmax": ("T H S", "T H S"),
    "attn.pv": ("T H S", "T H C"),
    "attn.o_proj": ("T HC", "T D"),
    "mlp.gate_proj": ("T D", "T F"),
    "mlp.up_proj": ("T D", "T F"),
    "mlp.act": ("T F", "T F"),
    "mlp.act_mul": ("T F", "T F"),
    "mlp.down_proj": ("T F", "T D"),
    "lm_head": ("T D", "T V"),
}
_HEAD_NORMS = {"norm.q": "T H C", "norm.k": "T G C"}
SHAPES |= {site: (shape, shape) for site, shape in _HEAD_NORMS.items()}
_NORM = ("T D", "T D")


@grouped
def taps(
    pattern: Annotated[str | None, typer.Argument(metavar="PATTERN", help="Shell-style: 'layers.0.mlp.*'")] = None,
    *,
    model: Annotated[str, typer.Option("--model", metavar="NAME|PATH", help="As for simulate.")] = "tiny",
    output: OutputFlags,
) -> int:
    """softfloat-llm taps --model smollm2

    List the values of a forward pass that have a name: what `simulate --taps PATTERN` keeps, what `compare` compares.
    A site has up to three: NAME.in, what it took; NAME.acc, its sum before the last rounding; NAME.out, what it gave.
    """
    with watched(is_quiet=output.is_quiet) as progress:
        config = open_model(model, progress).config
    names = tap_shapes(config)
    if pattern is not None:
        names = _matching(names, pattern)
    if output.as_json:
        show_json("taps", {"model": model, "taps": {name: list(shape) for name, shape in names.items()}})
    else:
        show(_text(config, model) if pattern is None else _listing(names))
    return 0


def stages(site: str, config: Config) -> dict[str, tuple[str, ...]]:
    """The stages that a site has taps of, each with its shape: T and S as letters, the others as numbers."""
    enter, out = SHAPES.get(site, _NORM)
    acc = "T" if site.startswith("norm.") else "T H" if site == "attn.softmax" else out
    if site in _HEAD_NORMS:
        acc = _HEAD_NORMS[site].removesuffix(" C")
    letters = {"in": enter, "acc": acc, "out": out} if "acc" in SITES[site].keys else {"in": enter, "out": out}
    return {stage: _numbered(shape, config) for stage, shape in letters.items()}


def sites_of(config: Config) -> tuple[str, ...]:
    """The sites that a pass of this model goes through, in its order."""
    return tuple(site for site in TAPPED if config.qk_norm or site not in OF_SOME_MODELS)


def tap_shapes(config: Config) -> dict[str, tuple[str, ...]]:
    """Tap name -> shape, in the order of the forward pass."""
    layered = [site for site in sites_of(config) if site not in OUTSIDE]
    places = [(site, site) for site in OUTSIDE[:2]]
    places += [(f"layers.{layer}.{site}", site) for layer in range(config.num_hidden_layers) for site in layered]
    places += [(site, site) for site in OUTSIDE[2:]]
    return {f"{place}.{stage}": shape for place, site in places for stage, shape in stages(site, config).items()}


def _numbered(shape: str, config: Config) -> tuple[str, ...]:
    heads, groups, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    sizes = {"D": config.hidden_size, "F": config.intermediate_size, "V": config.vocab_size, "H": heads, "G": groups}
    sizes |= {"C": size, "C/2": size // 2, "HC": heads * size, "GC": groups * size, "H+G": heads + groups}
    return tuple(str(sizes.get(letter, letter)) for letter in shape.split())


def _matching(names: dict[str, tuple[str, ...]], pattern: str) -> dict[str, tuple[str, ...]]:
    found = {name: shape for name, shape in names.items() if fnmatchcase(name, pattern)}
    if not found:
        raise RunError(f"No tap is named {pattern!r}.{nearest(pattern, names)} `softfloat-llm taps` lists them.")
    return found


def _spelled(shape: tuple[str, ...] | None) -> str:
    return "" if shape is None else f"({', '.join(shape)}{',' if len(shape) == 1 else ''})"


def _listing(names: dict[str, tuple[str, ...]]) -> str:
    return markdown_table(["tap", "shape"], [[name, _spelled(shape)] for name, shape in names.items()])


def _text(config: Config, model: str) -> str:
    rows: list[list[Any]] = []
    for name in (*OUTSIDE[:2], *(site for site in sites_of(config) if site not in OUTSIDE), *OUTSIDE[2:]):
        shapes = stages(name, config)
        place = name if name in OUTSIDE else f"layers.N.{name}"
        rows.append([place, *(_spelled(shapes.get(stage)) for stage in ("in", "acc", "out")), SITES[name].what])
    letters = f"T query positions, S key positions; N from 0 to {config.num_hidden_layers - 1}. Shapes for {model}."
    again = f"softfloat-llm taps 'layers.0.attn.*'{'' if model == 'tiny' else f' --model {model}'}"
    return f"{markdown_table(['tap', '.in', '.acc', '.out', 'what'], rows)}\n\n{letters}\n{labelled('next', again)}"
