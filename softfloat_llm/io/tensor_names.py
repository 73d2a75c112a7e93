"""What other tools call the values of a Llama, and our taps for them.

A map has our tap names on the left and theirs on the right; `N` (or `{N}`, `{N+1}`) stands for the number of a layer on
both sides. What a map does not name goes by `HUGGING_FACE`: the names of modules, as forward hooks know them, and those
of a model's output. Start reading at `tap_names`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from softfloat_llm.errors import ArrayError, nearest, why
from softfloat_llm.sites import SITES

STAGES = ("in", "acc", "out")
HIDDEN_STATES, ATTENTIONS = "hidden_states", "attentions"

# Module of transformers' Llama (modeling_llama.py, 5.24.0) -> our site; {N} is the layer's number.
HUGGING_FACE = {
    "embed_tokens": "embed",
    "layers.{N}.input_layernorm": "layers.{N}.norm.input",
    "layers.{N}.self_attn.q_proj": "layers.{N}.attn.q_proj",
    "layers.{N}.self_attn.k_proj": "layers.{N}.attn.k_proj",
    "layers.{N}.self_attn.v_proj": "layers.{N}.attn.v_proj",
    "layers.{N}.self_attn.o_proj": "layers.{N}.attn.o_proj",
    "layers.{N}.self_attn": "layers.{N}.attn.o_proj",
    "layers.{N}.post_attention_layernorm": "layers.{N}.norm.post_attention",
    "layers.{N}.mlp.gate_proj": "layers.{N}.mlp.gate_proj",
    "layers.{N}.mlp.up_proj": "layers.{N}.mlp.up_proj",
    "layers.{N}.mlp.act_fn": "layers.{N}.mlp.act",
    "layers.{N}.mlp.down_proj": "layers.{N}.mlp.down_proj",
    "layers.{N}.mlp": "layers.{N}.mlp.down_proj",
    "layers.{N}": "layers.{N}.mlp.residual",
    "norm": "norm.final",
    "lm_head": "lm_head",
    "logits": "lm_head",
    "attentions.{N}": "layers.{N}.attn.softmax",
}
_ENDS = {"": "out", ".output": "out", ".out": "out", ".input": "in", ".in": "in"}
_ALONE_ENDS = {"self_attn", "mlp", "layers.{N}", "attentions.{N}", "logits"}  # their input is no site's input
_INDEX = re.compile(rf"(?:.*\.)?({HIDDEN_STATES}|{ATTENTIONS})[._\[]?(\d+)\]?")


def read_map(path: str | Path) -> dict[str, str]:
    """Our names -> theirs, of a TOML or JSON file; in TOML names may be tables and dotted keys.

    Raises ArrayError: no such file, another kind, damaged, a name that is no text, or one of no site of ours.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        body: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ArrayError(f"Reading the names {path}: {why(error)}. Expected a TOML or JSON file of names.") from None
    found = dict(_flat(body, path))
    for ours in found:
        site, stage = _site_of(ours)
        if site not in SITES or stage not in STAGES:
            raise ArrayError(
                f"Reading the names {path}: {ours!r} is no tap of ours.{nearest(site, SITES)} Expected a name such as"
                " layers.N.mlp.down_proj.out (`softfloat-llm taps` lists them) = the other tool's name."
            )
    return found


def _flat(body: Any, path: Path, prefix: str = "") -> Iterable[tuple[str, str]]:
    if not isinstance(body, dict):
        raise ArrayError(f"Reading the names {path}: expected a table of names, found {type(body).__name__}.")
    for key, value in body.items():
        if isinstance(value, dict):
            yield from _flat(value, path, f"{prefix}{key}.")
        elif isinstance(value, str):
            yield f"{prefix}{key}", value
        else:
            raise ArrayError(f"Reading the names {path}: {prefix}{key} is {value!r}, expected a name in quotes.")


def _site_of(tap: str) -> tuple[str, str]:
    place, _, stage = tap.rpartition(".")
    return re.sub(r"^layers\.(?:N|\{N\}|\d+)\.", "", place), stage


def tap_names(
    theirs: Iterable[str], names: Mapping[str, str] | None = None, layers: int | None = None
) -> dict[str, str]:
    """Their name -> our tap, for each of their names that has one: by the map, as it stands, or as Hugging Face has it.

    `layers`: how many the model has; hidden state number `layers` is what the last norm gave. Without it the highest
    number is taken for that. Of two names for one tap, the first that the map does not name is left out.
    **Raises** ArrayError for a name of the map that is not among theirs, or that means several taps.

    >>> tap_names(["model.layers.0.mlp", "hidden_states.0", "x.3"], {"layers.N.attn.pv.out": "x.N"})
    {'x.3': 'layers.3.attn.pv.out', 'model.layers.0.mlp': 'layers.0.mlp.down_proj.out', 'hidden_states.0': 'embed.out'}
    """
    known = list(theirs)
    found = _by_map(known, names or {})
    taken = set(found.values())
    top = layers if layers is not None else _top_state(known)
    for name in known:
        tap = None if name in found else _usual(name, top)
        if tap is not None and tap not in taken:
            found[name] = tap
            taken.add(tap)
    return found


def _by_map(theirs: list[str], names: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for ours, wanted in names.items():
        matches = {name: _filled(ours, wanted, name) for name in theirs}
        fitting = {name: tap for name, tap in matches.items() if tap is not None}
        if not fitting:
            raise ArrayError(
                f"The names say {ours} = {wanted!r}, but there is no such tensor.{nearest(wanted, theirs)} There are"
                f" {len(theirs)}: {', '.join(theirs[:4])}{', ...' if len(theirs) > 4 else ''}."
            )
        if twice := [name for name, tap in fitting.items() if name in found or tap in found.values()]:
            raise ArrayError(
                f"The names give {twice[0]!r} or {fitting[twice[0]]!r} twice; which is meant cannot be known."
            )
        found |= fitting
    return found


_HOLE = re.compile(r"\{N(?:\+(?P<more>\d+))?\}|(?<![^.])N(?![^.])")


def _filled(ours: str, wanted: str, name: str) -> str | None:
    """Our tap, with the number of the layer that their name has; None where the name is not the wanted one."""
    parts, end, added = [], 0, []
    for hole in _HOLE.finditer(wanted):
        parts += [re.escape(wanted[end : hole.start()]), r"(\d+)"]
        added.append(int(hole["more"] or 0))
        end = hole.end()
    match = re.fullmatch("".join(parts) + re.escape(wanted[end:]), name)
    if match is None:
        return None
    numbers = {int(digits) - more for digits, more in zip(match.groups(), added, strict=True)}
    if len(numbers) > 1 or min(numbers, default=0) < 0:
        return None
    return _HOLE.sub(str(numbers.pop()), ours) if numbers else ours


def _usual(name: str, top: int | None) -> str | None:
    """Our tap for a name that the map does not have."""
    site, stage = _site_of(name)
    if site in SITES and stage in STAGES:
        return name
    if (match := _INDEX.fullmatch(name)) is not None and match[1] == HIDDEN_STATES:
        return _hidden_state(int(match[2]), top)
    short = name.removeprefix("model.")
    number = re.search(r"(?<=layers\.)\d+|(?<=attentions\.)\d+", short)
    general = short if number is None else short[: number.start()] + "{N}" + short[number.end() :]
    for end, stage in _ENDS.items():
        stem = general.removesuffix(end) if end else general
        if general.endswith(end) and stem in HUGGING_FACE and not (stage == "in" and stem.endswith(tuple(_ALONE_ENDS))):
            ours = f"{HUGGING_FACE[stem]}.{stage}"
            return ours if number is None else ours.replace("{N}", number[0])
    return None


def _hidden_state(index: int, top: int | None) -> str | None:
    """transformers' hidden states: the embedding, each layer's output but the last, then what the last norm gave."""
    if index == 0:
        return "embed.out"
    if top is not None and index > top:
        return None
    return "norm.final.out" if index == top else f"layers.{index - 1}.mlp.residual.out"


def _top_state(theirs: Iterable[str]) -> int | None:
    matches = (_INDEX.fullmatch(name) for name in theirs)
    return max((int(match[2]) for match in matches if match and match[1] == HIDDEN_STATES), default=None)
