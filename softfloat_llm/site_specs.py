"""What applies at one site: settings as a recipe says them, and the stages that they come to.

A `Setting` is one word for one key at some sites, for all shapes or for some. A `SiteSpec` is all of them decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from softfloat_llm.conditions import Condition
from softfloat_llm.errors import FormatError, RecipeError, WordError, nearest, nearest_word
from softfloat_llm.numerics.formats import Format, f32, format_of
from softfloat_llm.numerics.precision import Precision, precision_of_keys
from softfloat_llm.numerics.stochastic import stochastic_of
from softfloat_llm.site_options import FormatOption
from softfloat_llm.sites import GROUPS, MATMUL, MODE_KEYS, SITES, Site, is_selector, select, specificity


@dataclass(frozen=True)
class Setting:
    """At the sites that `selector` names, `key` is `word`: always, or for the shapes that `when` admits."""

    selector: str
    key: str
    word: str
    when: Condition | None = None

    def __str__(self) -> str:
        return f"{self.selector}.{self.full_key}={self.word}"

    @property
    def full_key(self) -> str:
        """The key as a recipe file says it: `order`, or `order if M == 1`."""
        return self.key if self.when is None else f"{self.key} if {self.when}"


class Piece(NamedTuple):
    """Rows and columns of a product that are made alike."""

    rows: slice
    columns: slice
    precision: Precision


@dataclass(frozen=True)
class SiteSpec:
    """What applies at one site: its stages, the format of its other steps, and its options."""

    site: str
    precision: Precision
    compute: Format
    options: Mapping[str, str]
    settings: Mapping[str, Setting]
    """key -> the setting that decided it."""
    rules: tuple[Setting, ...] = ()
    """Settings for certain shapes, the one that wins first."""

    def shaped(self, **dims: int) -> SiteSpec:
        """What applies at these dimensions: M rows, N columns, K terms, and B such products at once.

        Its rules are those that are left, which speak of some rows or columns: see `pieces`.
        """
        chosen: dict[str, Setting] = {}
        left: list[Setting] = []
        for rule in self.rules:
            assert rule.when is not None
            if rule.key in chosen or not rule.when.holds(dims):
                continue
            if rule.when.has_place:
                left.append(rule)
            else:
                chosen[rule.key] = rule
        return self._replaced(tuple(chosen.values()), tuple(left)) if self.rules else self

    def pieces(self, rows: int, columns: int) -> list[Piece]:
        """A product of these dimensions, cut where its order changes. Of a spec that is `shaped`."""
        if not self.rules:
            return [Piece(slice(0, rows), slice(0, columns), self.precision)]
        sizes = {"M": rows, "N": columns}
        bounds: dict[str, list[int]] = {}
        for axis, size in sizes.items():
            cuts = {cut for rule in self.rules if rule.when for cut in rule.when.cuts(sizes, axis) if 0 < cut < size}
            bounds[axis] = [0, *sorted(cuts), size]
        return [
            Piece(slice(top, bottom), slice(start, stop), self.precision_at(sizes, top, start))
            for top, bottom in pairwise(bounds["M"])
            for start, stop in pairwise(bounds["N"])
        ]

    def precision_at(self, sizes: Mapping[str, int], m: int, n: int) -> Precision:
        """The stages of row m and column n of a product of these sizes, M and N. Of a spec that is `shaped`."""
        for rule in self.rules:  # the first one wins
            if rule.when and rule.when.holds_at(sizes, m, n):
                return self._replaced((rule,)).precision
        return self.precision

    def _replaced(self, chosen: tuple[Setting, ...], left: tuple[Setting, ...] = ()) -> SiteSpec:
        return _shaped_spec(self.site, tuple(self.settings.values()), chosen, left)

    def named(self, name: str) -> SiteSpec:
        """The same, with random words of its own where a stage rounds stochastically: those of this name."""
        if not self.precision.is_stochastic:
            return self
        settings = tuple(_renamed(setting, name) for setting in self.settings.values())
        return _spec_of(self.site, settings, tuple(_renamed(rule, name) for rule in self.rules))

    @property
    def storage(self) -> Format:
        return self.precision.storage

    @property
    def output(self) -> Format:
        return self.precision.output

    def format_of(self, option: str) -> Format:
        """The format that an option names, or whose stage it names."""
        word = self.options[option]
        stages = {"compute": self.compute, "storage": self.storage, "output": self.output}
        return stages[word] if word in stages else format_of(word)

    def number_of(self, option: str) -> float:
        """The number that an option gives."""
        return float(self.options[option])

    def words(self) -> dict[str, str]:
        """Every key of the site with its word, as a recipe file would say it."""
        site = SITES[self.site]
        words = {key: word for key, word in self.precision.items() if site.takes(key)}
        if "compute" in site.keys:
            words["compute"] = str(self.compute)
        words |= dict(self.options)
        for rule in self.rules:  # the first one wins
            words.setdefault(rule.full_key, rule.word)
        return words


def takers(setting: Setting) -> list[str]:
    """The sites that a setting reaches: those it names which have such a key. Raises RecipeError where none has."""
    names = select(setting.selector)
    takers = [name for name in names if SITES[name].takes(setting.key)]
    if not takers and "." in setting.key:
        select(f"{setting.selector}.{setting.key.partition('.')[0]}")  # a misspelt site: `attn.sofmax.acc`
    if not takers:
        keys = sorted({key for name in names for key in (*SITES[name].keys, *SITES[name].options)}) + list(MODE_KEYS)
        raise RecipeError(
            f"{setting}: site {setting.selector!r} has no {setting.key!r}.{nearest(setting.key, keys)}"
            f" It takes {', '.join(keys)}."
        )
    return takers


def rules_for(name: str, layer: tuple[Setting, ...], decided: Mapping[str, Setting]) -> list[Setting]:
    """The rules of a layer that hold at a site: narrower selectors first, none that a narrower plain word ends."""
    rules = [s for s in layer if s.when is not None and name in takers(s)]
    rules.sort(key=lambda s: -specificity(s.selector))
    return [rule for rule in rules if not _is_ended(rule, decided.get(rule.key), layer)]


def _is_ended(rule: Setting, plain: Setting | None, layer: tuple[Setting, ...]) -> bool:
    return plain is not None and plain in layer and specificity(plain.selector) > specificity(rule.selector)


def _renamed(setting: Setting, name: str) -> Setting:
    rule = stochastic_of(setting.word) if setting.key.rpartition(".")[2] == "rounding" else None
    return setting if rule is None else replace(setting, word=str(rule.named(name)))


@lru_cache(maxsize=512)
def _spec_of(site: str, settings: tuple[Setting, ...], rules: tuple[Setting, ...]) -> SiteSpec:
    return site_spec(SITES[site], {s.key: s for s in settings}, rules)


@lru_cache(maxsize=512)
def _shaped_spec(
    site: str, settings: tuple[Setting, ...], chosen: tuple[Setting, ...], left: tuple[Setting, ...]
) -> SiteSpec:
    return site_spec(SITES[site], {s.key: s for s in (*settings, *chosen)}, left)


def site_spec(site: Site, settings: Mapping[str, Setting], rules: tuple[Setting, ...]) -> SiteSpec:
    words = {key: setting.word for key, setting in settings.items()}
    try:
        options = {key: option.spelled(key, words.get(key, option.default)) for key, option in site.options.items()}
        for key in ("storage", "output", "compute"):
            if key not in site.options:
                _refuse_f64(key, words.get(key))
        for key, option in site.options.items():
            if isinstance(option, FormatOption) and options[key] not in option.words:
                _refuse_f64(key, options[key])
        compute = format_of(words.get("compute", "f32")) if "compute" in site.keys else f32
        spec = SiteSpec(site.name, _precision(site, words, compute), compute, options, settings, rules)
        _check_options(spec)
    except WordError as error:
        raise type(error)(f"At site {site.name!r}: {error}") from None
    for rule in rules:  # a rule that is never met must have a meaning too
        _check_storage(spec._replaced((rule,)), spec, rule)
    return spec


def _check_options(spec: SiteSpec) -> None:
    """Raises RecipeError for options that do not go together, or not with the site's stages."""
    options, acc = spec.options, spec.precision.acc
    for key in ("exp", "functions"):
        word = options.get(key, "correct")
        if word != "correct" and spec.compute != f32:
            raise RecipeError(f"{key}={word!r} is made of float32 steps: compute must be f32, not {spec.compute}.")
    if options.get("base", "e") == "2" and options["exp"] != "correct":
        raise RecipeError(f"base=2 has correctly rounded powers: exp must be correct, not {options['exp']}.")
    if options.get("online", "0") == "0":
        return
    if options["normalise"] != "after":
        raise RecipeError(f"online={options['online']}: the sum is known at the end, so normalise must be after.")
    if acc.method != "plain" or acc.format is None:
        raise RecipeError(f"online={options['online']} corrects a running sum: acc must be a plain format, not {acc}.")


def _check_storage(shaped: SiteSpec, spec: SiteSpec, rule: Setting) -> None:
    """A tap has one format for all shapes: that of the plain storage, which holds what the rules round to."""
    if rule.key == "storage" and not shaped.storage.is_subset_of(spec.storage):
        raise RecipeError(
            f"At site {spec.site!r}: {rule} is no part of storage={spec.storage}. Make the widest the plain one, and"
            f" say when a narrower one holds: storage={shaped.storage}, and a rule with {spec.storage}."
        )


def _refuse_f64(key: str, word: str | None) -> None:
    """f64 is for looking at single values: exp, cos and the like are correctly rounded to at most 24 bits."""
    if word is not None and format_of(word).precision > 24:
        raise FormatError(f"{key}={word}: tensors of a forward pass have at most f32's 24 bits (acc=f64 is possible).")


def _precision(site: Site, words: Mapping[str, str], compute: Format) -> Precision:
    """The stages of a site. Where a reduction does not say `product`, its terms are rounded to `compute`."""
    keys = {key: word for key, word in words.items() if key not in site.options and key != "compute"}
    if "compute" in site.keys and "product" in site.keys:
        keys.setdefault("product", str(compute))
    return precision_of_keys(keys)


def settings_of(path: str, word: str) -> list[Setting]:
    """The settings of `SITE.KEY` = word; `SITE` = format is short for its storage and output.

    `SITE.KEY if CONDITION` is a rule for certain shapes: see `conditions.Condition`.
    Raises RecipeError where the path names no site, or a key that the site does not take.
    """
    place, _, condition = path.partition(" if ")
    selector, key = _site_and_key(place)
    if key is not None:
        setting = Setting(selector, key, word, Condition(condition) if condition else None)
        _check_rule(setting)
        takers(setting)
        return [setting]
    try:
        format_of(word)
    except FormatError as error:
        raise RecipeError(f"{path}={word}: a site alone takes a format (its storage and output). {error}") from None
    return [Setting(selector, key, word) for key in ("storage", "output") if _has_taker(selector, key)]


_NOT_BY_SHAPE = ("storage", "output", "compute")
_ATTENTION_BY_SHAPE = {
    ("attn.scores", "storage"), ("attn.softmax", "online"), ("attn.softmax", "exp"), ("attn.pv", "kept"),
}  # fmt: skip
"""What kernels of attention for few and for many queries do apart, beside how they sum (llama.cpp has such two)."""


def _check_rule(setting: Setting) -> None:
    """Rules speak of how a sum is made. Formats of tensors and forms of elementwise steps hold for all shapes."""
    if setting.when is None:
        return
    if {(name, setting.key) for name in takers(setting)} <= _ATTENTION_BY_SHAPE and not setting.when.has_place:
        return
    is_format = setting.key in _NOT_BY_SHAPE or setting.key.startswith("storage.")
    elsewhere = [
        name for name in takers(setting) if "order" not in SITES[name].keys or setting.key in SITES[name].options
    ]
    if is_format or elsewhere:
        where = "" if is_format else f" at {elsewhere[0]!r}"
        raise RecipeError(
            f"{setting}: {setting.key!r} cannot depend on the shape{where}. What can: product, acc, order, rounding,"
            " subnormals and overflow of the sites that make sums."
        )
    if setting.when.has_place and setting.key != "order":
        raise RecipeError(f"{setting}: only the order can depend on where an element stands, not {setting.key!r}.")
    if setting.when.has_place and not set(takers(setting)) <= set(MATMUL):
        raise RecipeError(f"{setting}: those of the sums that have rows and columns are {', '.join(MATMUL)}.")


def _has_taker(selector: str, key: str) -> bool:
    return any(SITES[name].takes(key) for name in select(selector))


def _site_and_key(path: str) -> tuple[str, str | None]:
    """Cut a path where the site ends: the longest beginning that is a selector."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        selector = ".".join(parts[:cut])
        if is_selector(selector):
            return selector, ".".join(parts[cut:]) or None
    keys = (*SITES["lm_head"].keys, *MODE_KEYS)
    if (key := nearest_word(path, [*SITES, *GROUPS, *keys])) in keys:
        what = (
            f"{path!r} is a key, not a site." if key == path else f"{path!r} is no site. Did you mean the key {key!r}?"
        )
        raise RecipeError(
            f"{what} Say at which site: lm_head.{key} at one, matmul.{key} at all matrix products (linear layers,"
            f" scores, probabilities times values), *.{key} wherever it is taken."
        )
    select(parts[0] if len(parts) == 1 else ".".join(parts[:-1]))
    raise AssertionError(path)  # pragma: no cover - select has raised
