"""The forward pass of a Llama: one straight line, no precision decision.

Every step is a site of the recipe: `see(site, taps)` records what the site took, summed and gave, and passes on what
it gave. Shape letters: B batch, T query positions, S key positions, D hidden, H query heads, G kv heads, C head size,
F mlp size, V vocabulary. Rows of all sequences of a batch lie behind each other (B*T) in everything but attention,
which goes through one sequence at a time: no row ever meets a neighbour. What is large, attention and the logits, is
made some rows after the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from softfloat_llm.errors import TokenError
from softfloat_llm.llama import attention, blocks
from softfloat_llm.llama.attended import attend
from softfloat_llm.llama.cache import KVCache, kept
from softfloat_llm.llama.config import Config
from softfloat_llm.llama.recorder import Instead, Recorder
from softfloat_llm.llama.rope import rope_table
from softfloat_llm.llama.stored_weights import Named, StoredWeights
from softfloat_llm.llama.taps import Taps, entered_values
from softfloat_llm.llama.weights import EMBEDDING, Weights
from softfloat_llm.numerics.crew import ALONE, Crew
from softfloat_llm.numerics.formats import Array
from softfloat_llm.recipe import Recipe, Scope
from softfloat_llm.site_specs import SiteSpec
from softfloat_llm.sites import select
from softfloat_llm.trace import Trace

LAYER = "model.layers.%d."
_QKV, _GATED = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
Step = Callable[[int, int], None]
"""Called with (layers done, layers in all)."""


def forward(
    weights: Weights | StoredWeights,
    tokens: npt.ArrayLike,
    recipe: Recipe,
    cache: KVCache | None = None,
    trace: Trace | Sequence[Trace] | None = None,
    *,
    crew: Crew = ALONE,
    step: Step | None = None,
    instead: Instead | None = None,
    is_last_enough: bool = False,
) -> Array:
    """Logits for every position. tokens (T,) or (B, T); the result (T, V) or (B, T, V) in the format of `lm_head`.

    `is_last_enough`: the result has those of the last position alone, (1, V) or (B, 1, V); the trace gets all.

    `cache` holds the positions before these and is extended by these. What lies at the left of a row as padding (see
    `KVCache.padding`) is skipped: its logits mean nothing, and no other row or position is touched by it. `instead`
    puts other values in the place of what a site gave, which the trace still keeps. `trace`: one for all, whose taps
    hold the rows of all sequences, or one of each sequence, which gets what it would get of a pass of its own.
    **Rounds:** where and as the recipe says. A site that rounds stochastically has random words of its own in each
    layer and pass; those of one pass are not those of the same tokens in two.
    **Raises** TokenError for ids out of range, RecipeError where two sites' formats do not fit together.
    """
    config = weights.config
    ids = checked_tokens(tokens, config)  # (B, T)
    recipe.check_fit()
    store = weights if isinstance(weights, StoredWeights) else StoredWeights(weights, recipe)
    store.check_fit(recipe)
    cache = KVCache(config, recipe, len(ids)) if cache is None else cache
    cache.check_fit(len(ids), recipe)
    cache.make_room(ids.shape[1])
    here = Scope(recipe, str(cache.length))
    see = Recorder(recipe, Trace(()) if trace is None else trace, cache, ids.shape[1], instead)
    run, at = _Pass(store, here, cache, see, crew, crew.sending, _is_unrounded_wanted(recipe)), here.at
    places = np.maximum(np.arange(cache.length, cache.length + ids.shape[1]) - cache.padding[:, None], 0)  # (B, T)
    rows = store[EMBEDDING][ids.reshape(-1)]
    x = Stream(see("embed", blocks.embedding(rows, at("embed"), factor=config.embedding_multiplier)))  # (B*T, D)
    table = see("rope.table", rope_table(places.reshape(-1), config, at("rope.table")))  # (B*T, C)
    for layer in range(config.num_hidden_layers):
        see.layer = layer
        x = _layer(x, table, layer, run._replace(recipe=here.within(str(layer))))
        store.release(LAYER % layer)
        if step is not None:
            step(layer + 1, config.num_hidden_layers)
    see.layer = None
    h = run.norm("norm.final", x, "model.norm.weight")
    logits = _logits(h, run, ids.shape[1] if is_last_enough else 1)  # (B*T, V), or (B, V)
    cache.length += ids.shape[1]
    return logits if np.ndim(tokens) == 1 else logits.reshape(len(ids), -1, config.vocab_size)


LOGITS_AT_ONCE = 1 << 22
"""Logits that are made at once: float64 temporaries of 32 MiB."""


def _logits(h: Array, run: _Pass, every: int) -> Array:
    """The logits of each row, or of the last of `every` so many. h (B*T, D); the result (B*T / every, V).

    Some rows after the others, where no row's bits depend on those beside it.
    """
    count = len(h)
    if run.see.instead is None and are_rows_apart(run.recipe.at("lm_head")):
        count = max(1, LOGITS_AT_ONCE // run.store.config.vocab_size)
    wanted, parts = [], run.see.in_parts()
    for start in range(0, len(h), count):
        rows = h[start : start + count]
        parts.at_row(start, is_whole=count >= len(h))
        made = parts("lm_head", run.product("lm_head", rows, "lm_head", divisor=run.store.config.logits_scaling))
        wanted.append(made if every == 1 else made[(every - 1 - start) % every :: every].copy())
    parts.settle()
    return wanted[0] if len(wanted) == 1 else np.concatenate(wanted)


def are_rows_apart(spec: SiteSpec) -> bool:
    """True where each row of a linear layer has the bits that it has by itself."""
    return not spec.rules and not spec.precision.is_stochastic and spec.options["activations"] == "plain"


def _layer(x: Stream, table: Array, layer: int, run: _Pass) -> Stream:
    """One decoder layer. x (B*T, D), table (B*T, C): cos, then sin; the result (B*T, D)."""
    at, see, config, cache = run.recipe.at, run.see, run.store.config, run.cache
    heads, groups, size, prefix = config.num_attention_heads, config.num_key_value_heads, config.head_dim, LAYER % layer
    cos, sin = table[:, : size // 2], table[:, size // 2 :]  # (B*T, C/2) each
    h = run.norm("norm.input", x, prefix + "input_layernorm.weight")  # (B*T, D)
    q, k, v = run.denses(tuple((f"attn.{name}", f"{prefix}self_attn.{name}") for name in _QKV), h)
    q = q.reshape(-1, heads, size)  # (B*T, H, C)
    k, v = k.reshape(-1, groups, size), v.reshape(-1, groups, size)  # (B*T, G, C) each
    if config.qk_norm:
        q = run.head_norm("norm.q", q, prefix + "self_attn.q_norm.weight")
        k = run.head_norm("norm.k", k, prefix + "self_attn.k_norm.weight")
    both = np.concatenate([entered_values(x, at("attn.rope")) for x in (q, k)], axis=1)  # (B*T, H+G, C)
    both = attention.in_pairs(both, at("attn.rope"))
    if layer not in config.layers_without_rope:
        both = see("attn.rope", attention.rotate(both, cos, sin, at("attn.rope")))
    q, k = both[:, :heads], both[:, heads:]
    k = see("kv.k", kept(k, at("kv.k"), at("attn.rope").output))  # (B*T, G, C)
    v = see("kv.v", kept(v, at("kv.v"), at("attn.v_proj").output))  # (B*T, G, C)
    cache.append(layer, *(part.reshape(cache.batch, -1, groups, size) for part in (k, v)))
    h = attend(q.reshape(cache.batch, -1, heads, size), layer, cache, run.recipe, see, crew=run.sending)  # (B*T, H*C)
    h = run.dense("attn.o_proj", h, prefix + "self_attn.o_proj")  # (B*T, D)
    x = run.add("attn.residual", x, h)
    h = run.norm("norm.post_attention", x, prefix + "post_attention_layernorm.weight")
    gate, up = run.denses(tuple((f"mlp.{name}", f"{prefix}mlp.{name}") for name in _GATED), h)  # (B*T, F) each
    h = see("mlp.act_mul", blocks.multiply(see("mlp.act", blocks.silu(gate, at("mlp.act"))), up, at("mlp.act_mul")))
    h = run.dense("mlp.down_proj", h, prefix + "mlp.down_proj")  # (B*T, D)
    return run.add("mlp.residual", x, h)


class Stream(NamedTuple):
    """The residual stream (B*T, D) as it is stored, and its last sum before that where a norm takes that."""

    stored: Array
    unrounded: Array | None = None


class _Pass(NamedTuple):
    """What stays the same through a pass: weights, recipe, cache, recorder; and the blocks that have state."""

    store: StoredWeights
    recipe: Scope
    cache: KVCache
    see: Recorder
    crew: Crew
    sending: Crew
    is_unrounded_wanted: bool

    @property
    def eps(self) -> float:
        return self.store.config.rms_norm_eps

    def dense(self, site: str, x: Array, name: str, *, divisor: float = 1.0) -> Array:
        """x W^T (+ bias), over the divisor, with the weight of that name. x (B*T, K); the result (B*T, N)."""
        return self.see(site, self.product(site, x, name, divisor=divisor))

    def product(self, site: str, x: Array, name: str, *, divisor: float = 1.0) -> Taps:
        """The taps of `dense`."""
        ((weight, bias),), turned = self.store.linears(((site, name),))
        spec = self.recipe.at(site)
        taps = blocks.linear(x, weight, spec, bias=bias, turned=turned, crew=self.crew)
        return taps if divisor == 1 else blocks.divided(taps, divisor, spec)

    def denses(self, named: Named, x: Array) -> list[Array]:
        """The layers of these sites, each with the weight of its name, of one x (B*T, K); the results (B*T, N)."""
        stored, at = self.store.linears(named), self.recipe.at
        layers = [
            blocks.Layer(weight, at(site), bias) for (site, _), (weight, bias) in zip(named, stored.layers, strict=True)
        ]
        taps = blocks.linears(x, layers, turned=stored.turned, crew=self.crew)
        return [self.see(site, each) for (site, _), each in zip(named, taps, strict=True)]

    def norm(self, site: str, x: Stream, name: str) -> Array:
        """RMSNorm with the weight of that name. x (B*T, D); the result (B*T, D)."""
        spec = self.recipe.at(site)
        return self.see(site, blocks.rms_norm(x.stored, self.store[name], spec, self.eps, unrounded=x.unrounded))

    def head_norm(self, site: str, x: Array, name: str) -> Array:
        """RMSNorm of each head by itself, with the weight of that name. x (B*T, heads, C), as the result."""
        taps = blocks.rms_norm(x.reshape(-1, x.shape[-1]), self.store[name], self.recipe.at(site), self.eps)
        assert taps.acc is not None
        enter, acc, out = taps.enter.reshape(x.shape), taps.acc.reshape(x.shape[:2]), taps.out.reshape(x.shape)
        return self.see(site, taps.with_out(out, is_finite=taps.is_finite)._replace(enter=enter, acc=acc))

    def add(self, site: str, x: Stream, h: Array) -> Stream:
        """The stream plus h times the config's residual_multiplier, both (B*T, D)."""
        spec, factor = self.recipe.at(site), self.store.config.residual_multiplier
        h = h if factor == 1 else blocks.times(h, factor, spec)
        given = self.see(site, blocks.residual(x.stored, h, spec))
        if not self.is_unrounded_wanted:
            return Stream(given)
        last_sum = blocks.unrounded_residual(x.stored, h, spec)
        return Stream(given, self.see.passed_on(site, last_sum, spec.compute, stage="sum"))


def _is_unrounded_wanted(recipe: Recipe) -> bool:
    """True where a norm takes the residual stream as it was before it was stored."""
    return any(recipe.at(name).options.get("takes", "stored") != "stored" for name in select("norm"))


def checked_tokens(tokens: npt.ArrayLike, config: Config) -> Array:
    """Token ids as (B, T) integers. Raises TokenError where there are none, or one lies outside the vocabulary."""
    ids = np.asarray(tokens)
    if ids.size == 0:
        raise TokenError("There are no tokens: the prompt is empty. Give at least one.")
    if ids.dtype.kind not in "iu" or ids.ndim not in (1, 2):
        raise TokenError(f"Tokens are integers, a sequence or a batch of equal length; found {ids.dtype} {ids.shape}.")
    wrong = ids[(ids < 0) | (ids >= config.vocab_size)]
    if wrong.size:
        raise TokenError(
            f"Token id {int(wrong[0])} lies outside the vocabulary: it has {config.vocab_size} ids, from 0 to"
            f" {config.vocab_size - 1}."
        )
    return np.atleast_2d(ids)
