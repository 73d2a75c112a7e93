"""A live run of Hugging Face transformers on PyTorch, as a Run of ours: the same weights, the same taps, its own bits.

Start reading at `run_transformers`; `run_like` repeats a run of ours. Nothing is emulated here: what comes out is what
the installed PyTorch computed on this CPU, and the run's recipe and notes say which.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from softfloat_llm.errors import LiveError, RunError, TokenError, nearest
from softfloat_llm.io.checkpoint import Model, open_model
from softfloat_llm.live.torch_host import Host, configured, host_facts, import_torch
from softfloat_llm.live.transformers_model import build, from_torch, torch_dtype
from softfloat_llm.live.transformers_taps import watched
from softfloat_llm.llama.cache import check_window
from softfloat_llm.llama.decode import argmax
from softfloat_llm.numerics.formats import Array, Format, format_of
from softfloat_llm.prompts import pieces_of, what_to_feed
from softfloat_llm.recipe import Recipe
from softfloat_llm.runs import Run
from softfloat_llm.sites import LOGITS
from softfloat_llm.trace import Trace

Attention = Literal["eager", "sdpa", "math"]
ATTENTIONS: tuple[str, ...] = get_args(Attention)


def run_transformers(
    prompt: str | None = None,
    *,
    tokens: Sequence[int] | None = None,
    model: str | Path | Model = "tiny",
    format: str | Format = "bf16",
    attention: str = "eager",
    steps: int = 1,
    teacher: Run | str | Path | None = None,
    taps: str | Sequence[str] = ("*.out",),
    mkldnn: bool = True,
    threads: int | None = None,
) -> Run:
    """Run a model in PyTorch, as transformers' LlamaForCausalLM, and keep what our taps name (their `.out` stage).

    prompt, tokens, model, steps, teacher, taps: as `runs.simulate`. The prompt is one pass; each token after it is one
    more pass, through transformers' DynamicCache. `format`: bf16, f16 or f32, in which the weights are loaded.
    `attention`: eager, sdpa (what PyTorch chooses: on a CPU the flash kernel), or math (sdpa held to its math backend);
    of the last two only `attn.pv` can be seen. `mkldnn`: oneDNN on or off; `threads`: PyTorch's, unless said as many
    as it has.
    **Raises** LiveError where PyTorch or transformers is missing, or for a word that is none of these; TokenError,
    CheckpointError, ConfigError and NonFiniteError as `simulate`.
    """
    import_torch()
    opened = model if isinstance(model, Model) else open_model(model)
    reference = Run.load(teacher) if isinstance(teacher, (str, Path)) else teacher
    prompt_tokens, forced, steps = what_to_feed(opened, prompt, tokens, steps, reference)
    asked = _asked(opened, format, attention, mkldnn, threads, taps)
    return _run(asked, prompt_tokens, forced, steps, is_teacher_forced=teacher is not None)


def run_like(
    run: Run | str | Path,
    *,
    format: str | Format | None = None,
    attention: str | None = None,
    mkldnn: bool = True,
    threads: int | None = None,
    model: Model | None = None,
) -> Run:
    """A live run that is fed what `run` was fed, pass by pass, and keeps the taps that it keeps.

    format and attention: what the run's recipe says, unless given. The model is opened by the run's name for it.
    **Raises** LiveError as `run_transformers`; RunError where the name means other weights now.
    """
    import_torch()
    wanted = Run.load(run) if isinstance(run, (str, Path)) else run
    opened = open_model(wanted.model) if model is None else model
    if opened.weights.digest != wanted.model_digest:
        raise RunError(
            f"Repeating a run of {wanted.model!r} in PyTorch: the model of that name has sha256"
            f" {opened.weights.digest}, the run's had {wanted.model_digest}. Run it again on these weights."
        )
    fmt = wanted.recipe.at("lm_head").storage if format is None else format
    asked = _asked(opened, fmt, attention or attention_of(wanted.recipe), mkldnn, threads, wanted.names)
    fed = wanted.fed[len(wanted.prompt_tokens) :]
    return _run(asked, wanted.prompt_tokens, fed, wanted.steps, is_teacher_forced=True)


def attention_of(recipe: Recipe) -> str:
    """The attention that a recipe imitates, by its name and its scores: sdpa keeps them in f32. Else eager."""
    word = next((word for word in ATTENTIONS if f"-{word}" in recipe.name), None)
    scores = recipe.at("attn.scores")
    return word or ("sdpa" if scores.output != scores.storage else "eager")


class _Asked(NamedTuple):
    model: Model
    format: Format
    attention: str
    mkldnn: bool
    threads: int | None
    taps: tuple[str, ...]


def _asked(
    model: Model, fmt: str | Format, attention: str, mkldnn: bool, threads: int | None, taps: str | Sequence[str]
) -> _Asked:
    """The arguments, checked before a model is built."""
    if attention not in ATTENTIONS:
        raise LiveError(
            f"attention={attention!r} is unknown.{nearest(attention, ATTENTIONS)} It is one of {', '.join(ATTENTIONS)}."
        )
    if threads is not None and threads < 1:
        raise LiveError(f"threads is {threads}: at least 1 does the work.")
    fmt = format_of(fmt)
    torch_dtype(import_torch(), fmt)
    return _Asked(model, fmt, attention, mkldnn, threads, (taps,) if isinstance(taps, str) else tuple(taps))


def _run(
    asked: _Asked, prompt: Sequence[int], teacher: Sequence[int] | None, steps: int, *, is_teacher_forced: bool
) -> Run:
    limit, needed = asked.model.config.position_limit, len(prompt) + max(steps - 1, 0)
    if needed > limit:
        raise TokenError(f"{len(prompt)} tokens and {steps} steps need {needed} positions; the model has {limit}.")
    check_window(needed, asked.model.config.sliding_window)
    trace = Trace((*asked.taps, LOGITS))
    with configured(uses_mkldnn=asked.mkldnn, threads=asked.threads) as torch:
        host = host_facts(uses_mkldnn=asked.mkldnn)
        net = build(asked.model, asked.format, "eager" if asked.attention == "eager" else "sdpa")
        with watched(net, trace), _backend(torch, asked.attention):
            generated, fed = _decode(torch, net, prompt, teacher, steps, trace)
    return Run(
        model=asked.model.name,
        model_digest=asked.model.weights.digest,
        config=json.loads(json.dumps(asdict(asked.model.config))),
        recipe=live_recipe(asked.format, asked.attention, host),
        prompt_tokens=tuple(prompt),
        generated=generated,
        fed=fed,
        is_teacher_forced=is_teacher_forced,
        arrays=trace.arrays,
        formats=trace.formats,
        pieces=pieces_of(asked.model, {*prompt, *generated, *fed}),
        notes=(*asked.model.notes, f"a live run: {host}"),
    )


def _backend(torch: Any, attention: str) -> Any:
    """A context in which sdpa takes its math backend; else one that changes nothing."""
    from contextlib import nullcontext

    if attention != "math":
        return nullcontext()
    return torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)


def _decode(
    torch: Any, net: Any, prompt: Sequence[int], teacher: Sequence[int] | None, steps: int, trace: Trace
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Feed the prompt, then one token a step. The tokens chosen (the lowest id among equal logits), the tokens fed."""
    from transformers import DynamicCache

    names = inspect.signature(type(net).forward).parameters
    cache_name = "cache" if "cache" in names else "past_key_values"
    cache = DynamicCache()
    fed, chosen = list(prompt), []
    rows = _logits(torch, net, fed, {cache_name: cache})
    for place in range(steps):
        chosen.append(argmax(rows[-1], trace))
        if place + 1 == steps:
            break
        fed.append(chosen[-1] if teacher is None else teacher[place])
        rows = _logits(torch, net, fed[-1:], {cache_name: cache})
    return tuple(chosen), tuple(fed)


def _logits(torch: Any, net: Any, tokens: Sequence[int], cache: dict[str, Any]) -> Array:
    """One pass: logits (T, V) of every position fed."""
    out = net(input_ids=torch.tensor([list(tokens)]), use_cache=True, **cache)
    return from_torch(out.logits[0])


def live_recipe(fmt: Format, attention: str, host: Host) -> Recipe:
    """A recipe that says what is known of a live run: the formats of each site. Its orders stand for none."""
    inside = {"attn.scores.output": "f32", "attn.scale": "f32", "attn.softmax.storage": "f32"}
    after = {"attn.softmax.normalise": "after"}
    outer = {"attn.softmax.output": "f32", "attn.pv.storage": "f32"}
    at = {"eager": {}, "sdpa": inside | after, "math": inside | outer}[attention]
    return Recipe(
        "transformers-eager",
        name=f"live transformers {attention} {fmt}",
        storage=fmt,
        at=at,
        about=f"A live run, not an emulation: transformers {attention} attention in {fmt}, {host}.",
        source=f"transformers {host.transformers}, PyTorch {host.torch}, run here.",
        status="policy",
        evidence="The values are PyTorch's own. The orders here are placeholders: a live run does not tell them.",
    )
