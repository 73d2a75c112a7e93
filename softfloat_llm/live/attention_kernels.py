"""Sums inside PyTorch's attention that no caller gets: a softmax's, scores and weighted values of flash attention.

Their orders are read from what comes out at the end. Exponentials are never negative: a softmax's sum is asked by
triples. A score of flash attention comes out as its exponential beside that of a key whose score is 0; a weighted sum
of values, where all scores are 0, as a mean. Both are read to the nearest of few numbers, not in bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from softfloat_llm.analysis.probes import Kernel, Mask
from softfloat_llm.live.kernels import Places, same_rows
from softfloat_llm.live.torch_host import import_torch
from softfloat_llm.live.torch_kernels import own_tensor
from softfloat_llm.live.transformers_model import from_torch
from softfloat_llm.numerics.carriers import carry, widen
from softfloat_llm.numerics.formats import Array, Float64Array, Format, bf16
from softfloat_llm.numerics.rounding import round_to

_HALF_AN_ULP = -16.92  # exp of it is 0.75 * 2^-24: less than half an ulp of 1, and twice it is more
_NOTHING = -1e4  # a score whose exponential is 0
_TRIALS = 12


@dataclass(frozen=True)
class SoftmaxSum:
    """The row sums of torch.softmax of (1, heads, rows, terms) in float32, which eager attention asks for."""

    heads: int
    rows: int
    terms: int

    @property
    def what(self) -> str:
        return f"torch softmax of ({self.heads}, {self.rows}, {self.terms})"

    def meets(self, triples: Array) -> Array:
        """Whether the second and third exponential of each triple (R, 3) are added before either meets the first."""
        torch = import_torch()
        at_once = self.heads * self.rows
        told = np.empty(len(triples), bool)
        for start in range(0, len(triples), at_once):
            part = triples[start : start + at_once]
            here = np.arange(len(part))
            scores = np.full((at_once, self.terms), _NOTHING, np.float32)
            scores[here, part[:, 0]] = 0.0
            scores[here[:, None], part[:, 1:]] = _HALF_AN_ULP
            shaped = torch.from_numpy(scores.reshape(1, self.heads, self.rows, self.terms))
            given = torch.nn.functional.softmax(shaped, dim=-1, dtype=torch.float32).numpy()
            told[start : start + at_once] = given.reshape(at_once, -1)[here, part[:, 0]] < 1.0
        return told


@dataclass(frozen=True)
class Flash:
    """scaled_dot_product_attention of `rows` queries over `keys` keys, causal where there are several queries.

    `heads` share the keys and values of `groups`; `size` is that of a head. Query t stands at keys - rows + t. What is
    asked are the products of one block of queries, `first` to `last`, over the keys that its last query sees.
    """

    heads: int
    groups: int
    rows: int
    keys: int
    size: int
    format: Format
    first: int
    last: int

    @property
    def what(self) -> str:
        block = f", queries {self.first} to {self.last}" if self.last - self.first + 1 < self.rows else ""
        return f"torch sdpa of {self.rows} queries and {self.keys} keys in {self.format}{block}"

    @property
    def scale(self) -> float:
        return float(np.float32(self.size**-0.5))

    @property
    def seen(self) -> int:
        """How many keys the last query of the block sees."""
        return self.keys - self.rows + self.last + 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Groups, rows and keys of the block's scores."""
        return self.groups, self.last - self.first + 1, self.seen

    def attend(self, q: Float64Array, k: Float64Array, v: Float64Array) -> Float64Array:
        """q (H, T, C), k and v (G, S, C) -> (H, T, C)."""
        torch = import_torch()
        tensors = [own_tensor(carry(x, self.format), self.format)[None] for x in (q, k, v)]
        given: Any = torch.nn.functional.scaled_dot_product_attention(
            *tensors, is_causal=self.rows > 1, enable_gqa=self.heads != self.groups
        )
        return widen(from_torch(given)[0])

    def _of_block(self, given: Float64Array) -> Float64Array:
        """(H, T, C) -> (G, rows of the block, C), those of the first head of each group."""
        return given[:: self.heads // self.groups, self.first : self.last + 1]

    # --- scores -----------------------------------------------------------------------------------------------------

    @property
    def score_mask(self) -> Mask:
        """As many units as a head has terms, times the scale, change an exponential by what can be read.

        A score is the logarithm of what comes out: bf16 shows it to about 2^-7, f16 to 2^-10.
        """
        unit = (-4 if self.format is bf16 else -6) + round(np.log2(1 / self.scale))
        if self.format is bf16:
            return Mask(60, unit, 0, bits=24, most=self.size)
        return Mask(30, unit, 15, bits=24, most=min(self.size, 2 ** (5 - unit)))

    def scores_at(self, places: Places) -> Kernel:
        """The sums q k at places (group, row of the block, key), approximately."""
        row = int(np.bincount(places[:, 1]).argmax())
        slots = places[places[:, 1] == row][:, (0, 2)]

        def sums(a: Array, b: Array) -> Float64Array:
            out = np.full(len(a), np.nan)
            for group in same_rows(a, len(slots)):
                part = slots[: len(group)]
                k = np.zeros((self.groups, self.keys, self.size))
                k[part[:, 0], part[:, 1]] = b[group]
                out[group] = self._scores(widen(a[group[0]]), k)[part[:, 0], row, part[:, 1]]
            return out

        return sums

    def _scores(self, q: Float64Array, k: Float64Array) -> Float64Array:
        """Every sum q k of the block, q (C,) and k (G, S, C): (G, rows, keys), NaN where a key is not seen.

        What comes out for a key is read beside what comes out for one that is made zero: the first, then the last.
        """
        found = np.full(self.shape, np.nan)
        queries = np.tile(q, (self.heads, self.rows, 1))
        for reference in dict.fromkeys((0, self.seen - 1)):
            zeroed = k.copy()
            zeroed[:, reference] = 0.0
            others = np.setdiff1d(np.arange(self.seen), [reference])
            for start in range(0, len(others), self.size - 1):
                shown = np.append(others[start : start + self.size - 1], reference)
                v = np.zeros(k.shape)
                v[:, shown, np.arange(len(shown))] = 1.0
                given = self._of_block(self.attend(queries, zeroed, v))[..., : len(shown)]
                with np.errstate(divide="ignore", invalid="ignore"):
                    told = np.log(given[..., :-1] / given[..., -1:]) / self.scale
                here = found[:, :, shown[:-1]]
                found[:, :, shown[:-1]] = np.where(np.isnan(here) & np.isfinite(told), told, here)
        return found

    def score_places(self) -> list[Places]:
        """The places of the scores that add alike, the largest set first; without those that no query sees."""
        told = np.stack([self._scores(*self._residue(seed)) for seed in range(_TRIALS)], axis=-1)
        return _alike_about(told, 4 * 2.0**self.score_mask.unit)

    def _residue(self, seed: int) -> tuple[Float64Array, Float64Array]:
        """q (C,), and one key everywhere, whose products cancel but for what was rounded away, of size 1 to 100."""
        rng = np.random.default_rng(seed)
        first, second = rng.permutation(self.size)[: self.size // 2 * 2].reshape(2, -1)
        q, k = (np.ldexp(rng.uniform(-2, 2, self.size), rng.integers(4, 14, self.size)) for _ in range(2))
        q[second], k[second] = q[first], -k[first]
        k[np.setdiff1d(np.arange(self.size), [*first, *second])] = 0.0
        q, k = (widen(round_to(x, self.format)) for x in (q, k))
        return q, np.tile(k, (self.groups, self.keys, 1))

    # --- values -----------------------------------------------------------------------------------------------------

    @property
    def value_mask(self) -> Mask:
        """Terms of values: their sum comes out divided by the number of keys, in the format."""
        if self.format is bf16:
            return Mask(60, -20, 0, bits=24, most=64)
        return Mask(15, -16, 0, bits=24, most=64)

    def values_at(self, places: Places) -> Kernel:
        """The sums of all values that the block sees, x (R, seen), at (group, row of the block, column), about."""
        row = int(np.bincount(places[:, 1]).argmax())
        slots = places[places[:, 1] == row][:, (0, 2)]

        def sums(x: Array) -> Float64Array:
            out = np.empty(len(x))
            for start in range(0, len(x), len(slots)):
                part = slots[: len(x) - start]
                v = np.zeros((self.groups, self.keys, self.size))
                v[part[:, 0], : self.seen, part[:, 1]] = x[start : start + len(part)]
                out[start : start + len(part)] = self._means(v)[part[:, 0], row, part[:, 1]]
            return out

        return sums

    def _means(self, v: Float64Array) -> Float64Array:
        """What comes out where every score is 0: (G, rows, C)."""
        zeros = np.zeros((self.heads, self.rows, self.size))
        return self._of_block(self.attend(zeros, np.zeros(v.shape), v))

    def value_places(self) -> list[Places]:
        """The columns of the last row of the block that add alike, the largest set first."""
        told = []
        low, high = (-20, 20) if self.format is bf16 else (-12, 14)  # sums of f32 lose bits of terms so far apart
        for seed in range(_TRIALS):
            rng = np.random.default_rng(seed)
            first, second = rng.permutation(self.seen)[: self.seen // 2 * 2].reshape(2, -1)
            x = widen(
                round_to(np.ldexp(rng.uniform(-2, 2, self.seen), rng.integers(low, high, self.seen)), self.format)
            )
            x[second] = -x[first]
            x[np.setdiff1d(np.arange(self.seen), [*first, *second])] = 0.0  # an odd one would hide what is left
            v = np.zeros((self.groups, self.keys, self.size))
            v[:, : self.seen] = x[:, None]
            told.append(self._means(v)[:, -1:])
        places = _alike_about(np.stack(told, axis=-1), 0.0)
        for each in places:
            each[:, 1] = self.shape[1] - 1
        return places


def _alike_about(told: Float64Array, most: float) -> list[Places]:
    """Places of told (G, M, N, trials) that differ by at most so much in every trial; the largest set first."""
    seen = np.argwhere(~np.isnan(told).any(axis=-1))
    sets: list[tuple[Float64Array, list[Array]]] = []
    for place in seen:
        values = told[tuple(place)]
        home = next((members for first, members in sets if (np.abs(values - first) <= most).all()), None)
        if home is None:
            sets.append((values, [place]))
        else:
            home.append(place)
    return [np.array(members) for _, members in sorted(sets, key=lambda each: -len(each[1]))]
