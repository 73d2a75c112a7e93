"""The forward pass of a Llama: one straight line, no precision decision.

Every step is a site of the recipe: `see(site, taps)` records what the site took, summed and gave, and passes on what
it gave. Shape letters: B batch, T query positions, S key positions, D hidden, H query heads, G kv heads, C head size,
F mlp size, V vocabulary. Rows of all sequences of a batch lie behind each other (B*T) in everything but attention,
which goes through one sequence at a time: no row ever meets a neighbour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from softfloat_llm.errors import TokenError
from softfloat_llm.llama import attention, blocks
from softfloat_llm.llama.cache import KVCache, kept
from softfloat_llm.llama.config import Config
from softfloat_llm.llama.rope import rope_table
from softfloat_llm.llama.softmax import score_factor, softmax
from softfloat_llm.llama.stored_weights import StoredWeights
from softfloat_llm.llama.taps import Taps, entered_values
from softfloat_llm.llama.weights import EMBEDDING, Weights
from softfloat_llm.numerics.crew import ALONE, Crew
from softfloat_llm.numerics.formats import Array, Format
from softfloat_llm.recipe import Recipe, Scope
from softfloat_llm.site_specs import SiteSpec
from softfloat_llm.sites import select
from softfloat_llm.trace import Event, Trace

LAYER = "model.layers.%d."
Step = Callable[[int, int], None]
"""Called with (layers done, layers in all)."""
Instead = Callable[[str, int, Array, Format], Array]
"""Called with a tap's name (SITE.sum for a residual sum before it is stored), how many rows earlier passes put into it,
what the site gave, and the format of that; gives what is passed on in its place: values of the same shape, which the
next site rounds to its storage. What is passed to the cache must have its format."""


def forward(
    weights: Weights | StoredWeights,
    tokens: npt.ArrayLike,
    recipe: Recipe,
    cache: KVCache | None = None,
    trace: Trace | None = None,
    *,
    crew: Crew = ALONE,
    step: Step | None = None,
    instead: Instead | None = None,
) -> Array:
    """Logits for every position. tokens (T,) or (B, T); the result (T, V) or (B, T, V) in the format of `lm_head`.

    `cache` holds the positions before these and is extended by these. What lies at the left of a row as padding (see
    `KVCache.padding`) is skipped: its logits mean nothing, and no other row or position is touched by it. `instead`
    puts other values in the place of what a site gave, which the trace still keeps.
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
    run = _Pass(store, here, cache, _Recorder(recipe, trace or Trace(()), cache, instead), crew)
    at, see = here.at, run.see
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
    logits = run.dense("lm_head", h, "lm_head", divisor=config.logits_scaling)  # (B*T, V)
    cache.length += ids.shape[1]
    return logits if np.ndim(tokens) == 1 else logits.reshape(*ids.shape, -1)


def _layer(x: Stream, table: Array, layer: int, run: _Pass) -> Stream:
    """One decoder layer. x (B*T, D), table (B*T, C): cos, then sin; the result (B*T, D)."""
    at, see, config, cache = run.recipe.at, run.see, run.store.config, run.cache
    heads, groups, size, prefix = config.num_attention_heads, config.num_key_value_heads, config.head_dim, LAYER % layer
    cos, sin = table[:, : size // 2], table[:, size // 2 :]  # (B*T, C/2) each
    h = run.norm("norm.input", x, prefix + "input_layernorm.weight")  # (B*T, D)
    q, k, v = run.denses({f"attn.{name}": f"{prefix}self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj")}, h)
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
    h = _attention(q.reshape(cache.batch, -1, heads, size), layer, cache, run.recipe, see)  # (B*T, H*C)
    h = run.dense("attn.o_proj", h, prefix + "self_attn.o_proj")  # (B*T, D)
    x = run.add("attn.residual", x, h)
    h = run.norm("norm.post_attention", x, prefix + "post_attention_layernorm.weight")
    gate, up = run.denses({f"mlp.{name}": f"{prefix}mlp.{name}" for name in ("gate_proj", "up_proj")}, h)  # (B*T, F)
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
    see: _Recorder
    crew: Crew

    @property
    def eps(self) -> float:
        return self.store.config.rms_norm_eps

    def dense(self, site: str, x: Array, name: str, *, divisor: float = 1.0) -> Array:
        """x W^T (+ bias), over the divisor, with the weight of that name. x (B*T, K); the result (B*T, N)."""
        (weight, bias), spec = self.store.linear(site, name), self.recipe.at(site)
        taps = blocks.linear(x, weight, spec, bias=bias, crew=self.crew)
        return self.see(site, taps if divisor == 1 else blocks.divided(taps, divisor, spec))

    def denses(self, names: Mapping[str, str], x: Array) -> list[Array]:
        """The layers of these sites, each with the weight of its name, of one x (B*T, K); the results (B*T, N)."""
        stored = [self.store.linear(site, name) for site, name in names.items()]
        specs = [self.recipe.at(site) for site in names]
        layers = [blocks.Layer(weight, spec, bias) for (weight, bias), spec in zip(stored, specs, strict=True)]
        taps = blocks.linears(x, layers, crew=self.crew)
        return [self.see(site, each) for site, each in zip(names, taps, strict=True)]

    def norm(self, site: str, x: Stream, name: str) -> Array:
        """RMSNorm with the weight of that name. x (B*T, D); the result (B*T, D)."""
        spec = self.recipe.at(site)
        return self.see(site, blocks.rms_norm(x.stored, self.store[name], spec, self.eps, unrounded=x.unrounded))

    def head_norm(self, site: str, x: Array, name: str) -> Array:
        """RMSNorm of each head by itself, with the weight of that name. x (B*T, heads, C), as the result."""
        taps = blocks.rms_norm(x.reshape(-1, x.shape[-1]), self.store[name], self.recipe.at(site), self.eps)
        assert taps.acc is not None
        enter, out = taps.enter.reshape(x.shape), taps.out.reshape(x.shape)
        return self.see(site, taps._replace(enter=enter, acc=taps.acc.reshape(x.shape[:2]), out=out))

    def add(self, site: str, x: Stream, h: Array) -> Stream:
        """The stream plus h times the config's residual_multiplier, both (B*T, D)."""
        spec, factor = self.recipe.at(site), self.store.config.residual_multiplier
        h = h if factor == 1 else blocks.times(h, factor, spec)
        given = self.see(site, blocks.residual(x.stored, h, spec))
        if not _is_unrounded_wanted(self.recipe):
            return Stream(given)
        last_sum = blocks.unrounded_residual(x.stored, h, spec)
        return Stream(given, self.see.passed_on(site, last_sum, spec.compute, stage="sum"))


def _is_unrounded_wanted(recipe: Scope) -> bool:
    return any(recipe.at(name).options.get("takes", "stored") != "stored" for name in select("norm"))


def _attention(q: Array, layer: int, cache: KVCache, recipe: Scope, see: _Recorder) -> Array:
    """Attention of each sequence over its own keys, padding left out. q (B, T, H, C); the result (B*T, H*C)."""
    batch, length, heads, size = q.shape
    out = np.zeros((batch, length, heads, size), see.dtype_of(recipe.at("attn.pv").output))
    keys, values = cache.read(layer)  # (B, S, G, C)
    for row in range(batch):
        pad, here = int(cache.padding[row]), recipe.within(str(row))
        skipped = min(max(pad - cache.length, 0), length)  # queries that are padding themselves
        if recipe.at("attn.mask").options["value"] != "hidden":
            for t in range(skipped):  # each sees all keys alike
                out[row, t] = _attended(q[row, t : t + 1], keys[row], values[row], here, cache)[0]
        if skipped < length:
            out[row, skipped:] = _attended(q[row, skipped:], keys[row, pad:], values[row, pad:], here, cache, see, row)
    return out.reshape(batch * length, heads * size)


def _attended(
    q: Array, k: Array, v: Array, recipe: Scope, cache: KVCache, see: _Recorder | None = None, row: int = 0
) -> Array:
    """Attention of one sequence. q (T, H, C), k and v (S, G, C); the result (T, H, C). Without `see`, q sees no key."""
    at, is_masked = recipe.at, recipe.at("attn.mask").options["value"] != "hidden"

    def tap(site: str, taps: Taps) -> Array:
        return taps.out if see is None else see(site, taps, row)

    on, size, multiplier = at("attn.scale").options["on"], q.shape[-1], cache.attention_multiplier
    factor = score_factor(size, at("attn.scale"), at("attn.softmax"), multiplier=multiplier)
    if on != "scores":
        q = tap("attn.scale", attention.scaled(q, factor, at("attn.scale")))
    if on == "both":
        k = attention.scaled(k, factor, recipe.within("keys").at("attn.scale")).out
    s = tap("attn.scores", attention.scores(q, k, at("attn.scores")))  # (T, H, S)
    if on == "scores":
        s = tap("attn.scale", attention.scale(s, factor, at("attn.scale")))
    if is_masked:
        s = tap("attn.mask", attention.mask(s, at("attn.mask"), sees_none=see is None))
    taps, pending = softmax(s, at("attn.softmax"))
    p = tap("attn.softmax", taps)  # (T, H, S)
    return tap("attn.pv", attention.weighted_values(p, v, at("attn.pv"), pending=pending))


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


class _Recorder:
    """Keeps the taps of each site under its name, and notes where a value first left the finite range."""

    layer: int | None = None

    def __init__(self, recipe: Recipe, trace: Trace, cache: KVCache, instead: Instead | None = None) -> None:
        self.recipe, self.trace, self.batch, self.instead = recipe, trace, cache.batch, instead
        self.first = cache.length * cache.batch  # how many rows earlier passes have put into a tap
        self.first_of_row = np.maximum(cache.length - cache.padding, 0)  # the same where each sequence has its own

    def __call__(self, site: str, taps: Taps, row: int | None = None) -> Array:
        name, spec = self._name(site, row), self.recipe.at(site)
        self.trace.count(site, taps.lost)
        for stage in _stages(taps, spec):
            self.trace.keep(f"{name}.{stage.name}", stage.values, stage.format, fill=stage.fill)
        self._watch(name, taps, spec, self._first(row))
        return self.passed_on(site, taps.out, _given_format(spec), row)

    def passed_on(self, site: str, given: Array, fmt: Format, row: int | None = None, *, stage: str = "out") -> Array:
        """What the sites after this one take: what it gave, or what stands in its place."""
        if self.instead is None:
            return given
        return self.instead(f"{self._name(site, row)}.{stage}", self._first(row), given, fmt)

    def dtype_of(self, fmt: Format) -> np.dtype[Any]:
        """What holds the values of a format, and those that may stand in their place."""
        return fmt.dtype if self.instead is None else np.dtype(np.float64)

    def _name(self, site: str, row: int | None) -> str:
        prefix = site if self.layer is None else f"layers.{self.layer}.{site}"
        return prefix if row is None or self.batch == 1 else f"rows.{row}.{prefix}"

    def _first(self, row: int | None) -> int:
        """How many rows earlier passes have put into a tap."""
        return self.first if row is None else int(self.first_of_row[row])

    def _watch(self, name: str, taps: Taps, spec: SiteSpec, first: int) -> None:
        """One event a site, where its sum or its output is not finite although what it took is.

        What an embedding takes is a weight, so it is looked at too. `first` is the first row of this pass in the tap.
        """
        entered, *made = _stages(taps, spec)
        if spec.site == "embed":
            made = [entered, *made]
        elif _first_nonfinite(entered) is not None:
            return
        for stage in made:
            if (found := _first_nonfinite(stage)) is None:
                continue
            terms = taps.terms(found) if stage.name == "acc" and taps.terms is not None else (None, None)
            value, place = float(stage.values[found]), (first + found[0], *found[1:])
            self.trace.note(Event(f"{name}.{stage.name}", place, value, stage.word, *terms))
            return


class _Stage(NamedTuple):
    """One tap of a site, and how the site's recipe spells its format."""

    name: str
    values: Array
    format: Format
    fill: float | None
    word: str


def _stages(taps: Taps, spec: SiteSpec) -> list[_Stage]:
    at, (enter_fill, acc_fill, out_fill) = spec.precision, taps.fills
    entered, given = taps.enter_format or spec.storage, _given_format(spec)
    stages = [_Stage("in", taps.enter, entered, enter_fill, str(entered))]
    if taps.acc is not None:
        fmt = taps.acc_format or at.acc.format or spec.output
        stages.append(_Stage("acc", taps.acc, fmt, acc_fill, str(at.acc)))
    return [*stages, _Stage("out", taps.out, given, out_fill, str(given))]


def _given_format(spec: SiteSpec) -> Format:
    return spec.storage if spec.site.startswith("kv.") else spec.output


def _first_nonfinite(stage: _Stage) -> tuple[int, ...] | None:
    bad = ~np.isfinite(stage.values)
    if not bad.any():
        return None
    if stage.fill is not None:  # a last axis of keys: those that the query does not see do not count
        bad &= ~attention.is_hidden(stage.values.shape[0], stage.values.shape[-1])
    return tuple(int(i) for i in np.argwhere(bad)[0]) if bad.any() else None
