"""Attention of a layer: each sequence of a batch over its own keys, some queries after the others.

Start reading at `attend`. Shape letters as in `forward`; n queries of a block, W keys that are looked at for them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from softfloat_llm.llama import attention
from softfloat_llm.llama.cache import KVCache
from softfloat_llm.llama.query_blocks import Block, in_turn, whole
from softfloat_llm.llama.recorder import Parts, Recorder
from softfloat_llm.llama.softmax import score_factor, softmax
from softfloat_llm.llama.taps import Taps
from softfloat_llm.numerics.crew import ALONE, Crew
from softfloat_llm.numerics.extents import is_all_finite
from softfloat_llm.numerics.formats import Array
from softfloat_llm.recipe import Scope


def attend(q: Array, layer: int, cache: KVCache, recipe: Scope, see: Recorder, *, crew: Crew = ALONE) -> Array:
    """Attention of each sequence over its own keys, padding left out. q (B, T, H, C); the result (B*T, H*C).

    `crew` is one for matrices that are not kept: see `Crew.sending`.
    """
    batch, length, heads, size = q.shape
    out = np.zeros((batch, length, heads, size), see.dtype_of(recipe.at("attn.pv").output))
    keys, values = cache.read(layer)  # (B, S, G, C)
    multiplier = cache.attention_multiplier
    for row in range(batch):
        pad, here = int(cache.padding[row]), recipe.within(str(row))
        skipped = min(max(pad - cache.length, 0), length)  # queries that are padding themselves
        if recipe.at("attn.mask").options["value"] != "hidden":
            for t in range(skipped):  # each sees all keys alike
                alone = _Sequence(keys[row], values[row], here, multiplier, None, crew)
                out[row, t] = alone.attended(q[row, t : t + 1], _all_of(q[row, t : t + 1], keys[row])).out[0]
        if skipped < length:
            own = _Sequence(keys[row, pad:], values[row, pad:], here, multiplier, see.in_parts(row), crew)
            own.into(out[row, skipped:], q[row, skipped:], is_whole=see.instead is not None)
    return out.reshape(batch * length, heads * size)


class _Made(NamedTuple):
    """What the sites made of some queries, in their order, and what is passed on (n, H, C)."""

    taps: list[tuple[str, Taps]]
    out: Array


class _Sequence(NamedTuple):
    """One sequence: its keys and values (S, G, C), and what gets the taps. Without `parts` no query sees a key."""

    k: Array
    v: Array
    recipe: Scope
    multiplier: float | None
    parts: Parts | None
    crew: Crew

    def into(self, out: Array, q: Array, *, is_whole: bool) -> None:
        """Attention of all queries, q (T, H, C), into out (T, H, C): block by block, or as a whole."""
        assert self.parts is not None
        all_of = _all_of(q, self.k)
        blocks = [all_of] if is_whole else in_turn(all_of.queries, q.shape[1], self.recipe)
        is_finite = len(blocks) == 1 or is_all_finite(self.v)  # one block has all keys
        for block in blocks:
            with_all_keys = block._replace(width=len(self.k))
            made = self.attended(q[block.rows], block if is_finite else with_all_keys)
            if block.width < len(self.k) and is_finite and not _is_finite(made):
                made = self.attended(q[block.rows], with_all_keys)
            self.parts.at_row(block.rows.start, block.queries, is_whole=len(blocks) == 1)
            for site, taps in made.taps:
                self.parts.keep(site, taps)
            out[block.rows] = made.out
        self.parts.settle()

    def attended(self, q: Array, block: Block) -> _Made:
        """Attention of the queries of a block, q (n, H, C). Nothing is kept yet."""
        at, some, kept = self.recipe.at, block.queries, list[tuple[str, Taps]]()
        k, v = self.k[: block.width], self.v[: block.width]  # (W, G, C)

        def tap(site: str, taps: Taps) -> Array:
            kept.append((site, taps))
            return taps.out if self.parts is None else self.parts.passed_on(site, taps)

        factor = score_factor(q.shape[-1], at("attn.scale"), at("attn.softmax"), multiplier=self.multiplier)
        on = at("attn.scale").options["on"]
        if on != "scores":
            q = tap("attn.scale", attention.scaled(q, factor, at("attn.scale")))
        if on == "both":
            k = attention.scaled(k, factor, self.recipe.within("keys").at("attn.scale")).out
        s = tap("attn.scores", attention.scores(q, k, at("attn.scores"), some, crew=self.crew))  # (n, H, W)
        if on == "scores":
            s = tap("attn.scale", attention.scale(s, factor, at("attn.scale"), some))
        if at("attn.mask").options["value"] != "hidden":
            s = tap("attn.mask", attention.mask(s, at("attn.mask"), some, sees_none=self.parts is None))
        taps, pending = softmax(s, at("attn.softmax"), some)
        p = tap("attn.softmax", taps)  # (n, H, W)
        out = attention.weighted_values(p, v, at("attn.pv"), some, pending=pending, crew=self.crew)
        return _Made(kept, tap("attn.pv", out))


def _all_of(q: Array, k: Array) -> Block:
    """All queries at once, q (T, H, C), with all keys, k (S, G, C)."""
    return Block(slice(0, len(q)), whole(len(q), len(k)), len(k))


def _is_finite(made: _Made) -> bool:
    """True where all sums over keys are numbers, those of the probabilities not 0.

    With others it shows which keys were looked at: in probabilities that are NaN, in the terms that an event counts.
    """
    sums = {site: taps.acc for site, taps in made.taps}
    powers, values = sums["attn.softmax"], sums["attn.pv"]
    assert powers is not None
    assert values is not None
    return bool((np.isfinite(powers) & (powers > 0)).all() and np.isfinite(values).all())
