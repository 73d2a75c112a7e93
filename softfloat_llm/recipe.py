"""A recipe: the whole precision policy of an engine, as data.

A recipe is a list of layers; a layer is a list of settings (selector, key, word). Layers come from the recipe it is
based on, from its own table, from the precision flags, and from `--at`; a later layer wins, and inside one layer the
narrower selector does. `Recipe.at(site)` gives what applies at one site. Start reading at `recipe_of`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from softfloat_llm.errors import RecipeError, WordError, nearest, why
from softfloat_llm.numerics.formats import Format, format_of
from softfloat_llm.numerics.precision import Precision, precision_of
from softfloat_llm.recipe_files import check_keys, files_in, shipped_table, site_tables, toml_table, words_in
from softfloat_llm.site_specs import Setting, SiteSpec, rules_for, settings_of, site_spec, takers
from softfloat_llm.sites import GROUPS, MATMUL, SITES, is_selector, specificity

STATUSES = {
    "bits": "equal to a real run, bit for bit",
    "policy": "formats and roundings as read in source or documentation; orders are this package's own",
}
PRECISION_FLAGS = ("storage", "product", "acc", "output", "order", "rounding", "subnormals")


@dataclass(frozen=True)
class Recipe:
    """A named precision policy: for each site of the model its stages.

    `Recipe(storage="bf16", acc="f16")` is the recipe of these flags; `at` maps `SITE.KEY` to a word (or lists
    `SITE.KEY=WORD` texts), and `base` (a name, a file, a text) is the recipe that all of it is put upon. Raises
    RecipeError, FormatError, OrderError or PrecisionError for words that have no meaning.
    """

    name: str
    layers: tuple[tuple[Setting, ...], ...]
    about: str = ""
    source: str = ""
    status: str = "policy"
    evidence: str = ""

    def __init__(
        self,
        base: str | Path | Recipe | None = None,
        *,
        name: str | None = None,
        storage: str | Format | None = None,
        product: str | Format | None = None,
        acc: str | Format | None = None,
        output: str | Format | None = None,
        order: str | None = None,
        rounding: str | None = None,
        subnormals: str | None = None,
        kv: str | Format | None = None,
        at: Mapping[str, str] | Iterable[str] = (),
        about: str = "",
        source: str = "",
        status: str | None = None,
        evidence: str = "",
    ) -> None:
        if status not in (None, *STATUSES):
            raise RecipeError(f"status {status!r} is none of {', '.join(STATUSES)}.")
        parent = recipe_of(base) if base is not None else None
        flags = {"storage": storage, "product": product, "acc": acc, "output": output, "order": order}
        flags |= {"rounding": rounding, "subnormals": subnormals, "kv": kv}
        given = {key: str(word) for key, word in flags.items() if word is not None}
        extra = tuple(layer for layer in (_flag_layer(given), _at_layer(at)) if layer)
        inherited = parent.layers if parent else ()
        values = {
            "name": name or _spelled(parent, given, at),
            "layers": inherited + extra,
            "about": about or (parent.about if parent and not extra else ""),
            "source": source or (parent.source if parent else ""),
            "status": status or (parent.status if parent and not extra else "policy"),
            "evidence": evidence or (parent.evidence if parent and not extra else ""),
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)
        for site in SITES:  # a recipe that exists can be followed: bad words are found here, not in the middle of a run
            self.at(site)

    def __hash__(self) -> int:
        return hash((self.name, self.layers))

    def at(self, site: str) -> SiteSpec:
        """What applies at a site. Raises RecipeError for an unknown site."""
        if site not in SITES:
            raise RecipeError(f"Unknown site {site!r}.{nearest(site, SITES)} Sites: {' '.join(SITES)}.")
        return self._specs[site]

    @property
    def ties(self) -> str:
        """Which id is chosen of those that share the largest logit: `lowest` or `last`."""
        return self.at("choice").options["ties"]

    @cached_property
    def _specs(self) -> dict[str, SiteSpec]:
        decided: dict[str, dict[str, Setting]] = {name: {} for name in SITES}
        rules: dict[str, list[Setting]] = {name: [] for name in SITES}
        for layer in self.layers:
            for setting in sorted(layer, key=lambda s: (specificity(s.selector), s.when is not None)):
                for name in takers(setting):
                    if setting.when is None:  # a word for all shapes ends the rules for some
                        decided[name][setting.key] = setting
                        rules[name] = [rule for rule in rules[name] if rule.key != setting.key]
            for name in SITES:
                rules[name] = [*rules_for(name, layer, decided[name]), *rules[name]]
        return {name: site_spec(SITES[name], decided[name], tuple(rules[name])) for name in SITES}

    def check_fit(self) -> None:
        """Raises RecipeError where two tensors that meet at a site lie in two formats, naming both and who set them."""
        table, rope = self.at("rope.table"), self.at("attn.rope")
        if rope.options["form"] == "each" and table.output != rope.storage:
            raise RecipeError(
                f"site 'attn.rope' gets q in {rope.storage} but cos/sin in {table.output}.\n"
                f"  q is stored as attn.rope asks ({_who(rope, 'storage')})\n"
                f"  cos, sin come from rope.table ({_who(table, 'output')})\n"
                f"  They must share a format: drop that option, or add --at rope.table.output={rope.storage}; or let\n"
                "  both be used as they are, with one rounding: --at attn.rope.form=once\n"
                f"  candle would say: dtype mismatch in rope {_shout(rope.storage)} {_shout(table.output)}"
                f" {_shout(table.output)}"
            )
        self._check_blocks()
        streams = {"embed": "attn.residual", "attn.residual": "mlp.residual", "mlp.residual": "attn.residual"}
        for giver, taker in streams.items():
            given, taken = self.at(giver), self.at(taker)
            if given.output != taken.storage:
                raise RecipeError(
                    f"site {taker!r} adds in {taken.storage} but gets the residual stream in {given.output}.\n"
                    f"  the stream comes from {giver} ({_who(given, 'output')})\n"
                    f"  the addition is {taker} ({_who(taken, 'storage')})\n"
                    f"  They must share a format: give embed, attn.residual and mlp.residual one, for example\n"
                    f"  --at embed={taken.storage} --at attn.residual={taken.storage} --at mlp.residual={taken.storage}"
                )

    def _check_blocks(self) -> None:
        """Raises RecipeError where the sites of attention disagree about blocks of keys."""
        softmax, values = self.at("attn.softmax"), self.at("attn.pv")
        in_blocks = softmax.options["online"] != "0" or any(rule.key == "online" for rule in softmax.rules)
        acc = values.precision.acc
        if in_blocks and (acc.method != "plain" or acc.format is None):
            raise RecipeError(
                f"attn.softmax.online corrects a running output: attn.pv.acc must be a plain format, not {acc}."
            )
        if not in_blocks and values.options["kept"] != "acc":
            raise RecipeError(
                f"attn.pv.kept={values.options['kept']} is for blocks of keys, of which there are none: add"
                " --at attn.softmax.online=N, or drop it."
            )

    def words(self) -> dict[str, dict[str, str]]:
        """The full expansion: site -> key -> word. Two recipes with the same expansion give the same bits."""
        return {name: self.at(name).words() for name in SITES}

    @property
    def usual(self) -> Precision:
        """The precision that most matrix products have; of equally many, that of `lm_head`."""
        count = Counter(self.at(name).precision for name in dict.fromkeys(("lm_head", *MATMUL)))
        return count.most_common(1)[0][0]

    def difference(self) -> list[str]:
        """What differs from the plain recipe of the usual flags, as `SITE.KEY=WORD` texts: for a short print."""
        head = self.usual
        plain = _plain_words(str(head.storage), dict(head.items()))
        return [
            f"{name}.{key}={word}"
            for name, keys in self.words().items()
            for key, word in keys.items()
            if plain[name].get(key) != word
        ]


class Scope(NamedTuple):
    """A recipe at one place of a pass: where a site rounds by random words, it has words of its own there."""

    recipe: Recipe
    name: str

    def at(self, site: str) -> SiteSpec:
        """What applies at a site, here."""
        spec = self.recipe.at(site)
        return spec.named(f"{self.name}/{site}") if spec.precision.is_stochastic else spec

    def within(self, name: str) -> Scope:
        """A place inside this one."""
        return Scope(self.recipe, f"{self.name}/{name}")


def _who(spec: SiteSpec, key: str) -> str:
    return f"set by {spec.settings[key]}" if key in spec.settings else f"{key} is f32 unless set"


def _shout(fmt: Format) -> str:
    return str(fmt).upper()


def _plain_words(storage: str, words: Mapping[str, str]) -> dict[str, dict[str, str]]:
    flags = {key: word for key, word in words.items() if key in PRECISION_FLAGS and key != "storage"}
    if flags.get("output") == storage:
        flags.pop("output")
    return Recipe(name="plain", storage=storage, **flags).words()


def _flag_layer(flags: Mapping[str, str]) -> tuple[Setting, ...]:
    """The settings that precision flags mean: storage everywhere, the sums' stages at the matrix products only."""
    return tuple(setting for key, word in flags.items() for setting in _flag_settings(key, word))


def _flag_settings(key: str, word: str) -> list[Setting]:
    match key:
        case "storage" if format_of(word).name == "tf32":  # a compute path: the tensors between the sites stay f32
            between = [Setting("*", "storage", "f32"), Setting("*", "output", "f32")]
            return [*between, Setting("matmul", "storage", word)]
        case "storage":
            return [Setting("*", "storage", word), Setting("*", "output", word)]
        case "kv":
            return [Setting("kv", "storage", word)]
        case "rounding" | "subnormals":
            return [Setting("*", key, word)]
    return [Setting("matmul", key, word)]


_AT = re.compile(r"(?P<path>[^=\s]+)=(?P<word>.+)")


def _at_layer(at: Mapping[str, str] | Iterable[str]) -> tuple[Setting, ...]:
    at = [at] if isinstance(at, str) else at
    pairs = at.items() if isinstance(at, Mapping) else [_split_at(text) for text in at]
    return tuple(setting for path, word in pairs for setting in settings_of(path, word))


def _split_at(text: str) -> tuple[str, str]:
    match = _AT.fullmatch(text.strip())
    if match is None:
        raise RecipeError(f"{text!r}: expected SITE.KEY=WORD, such as attn.softmax.acc=f32.")
    return match["path"], match["word"].strip()


def _spelled(parent: Recipe | None, given: Mapping[str, str], at: Mapping[str, str] | Iterable[str]) -> str:
    """A name for a recipe that has none: the text form that gives it again."""
    pairs = [f"{key}={word}" for key, word in given.items()]
    pairs += [f"{path}={word}" for path, word in at.items()] if isinstance(at, Mapping) else list(at)
    if parent is None:
        return ",".join(pairs) or "f32"
    return ",".join([parent.name, *pairs])


# --- looking recipes up ---------------------------------------------------------------------------------------------


def recipe_names() -> list[str]:
    """The names of the recipes that the package brings."""
    return sorted(files_in("recipes") | files_in("recipes/units"))


def unit_recipe_names() -> list[str]:
    """Those of them that are made of one matrix unit or instruction: plain recipes but for their matrix products."""
    return sorted(files_in("recipes/units"))


def recipe_of(value: str | Path | Recipe | Mapping[str, Any]) -> Recipe:
    """The recipe of a name, a TOML file, a text form (`bf16,acc=f16,attn.softmax.acc=bf16`) or JAX's spelling.

    Raises RecipeError where the name is unknown (with the nearest known one) or the file is malformed.
    """
    if isinstance(value, Recipe):
        return value
    if isinstance(value, Mapping):
        return _from_table(dict(value), "a mapping")
    if isinstance(value, Path) or str(value).endswith(".toml"):
        return _from_file(Path(value))
    return _from_text(str(value).strip())


def _from_text(text: str) -> Recipe:
    if text in recipe_names():
        return _from_table(shipped_table(text), text, name=text)
    first, *rest = (part.strip() for part in text.split(","))
    if "=" not in first and rest:
        return _from_pairs(rest, base=_from_text(first))
    if "=" in first:
        return _from_pairs([first, *rest], base=None)
    if re.fullmatch(r"[A-Z0-9]+(_[A-Z0-9]+)+", text):
        precision = precision_of(text)
        return Recipe(name=text, storage=precision.storage, product=precision.product, acc=str(precision.acc))
    known = ", ".join(sorted(files_in("recipes")))
    raise RecipeError(
        f"Unknown recipe {text!r}.{nearest(text, recipe_names())} Known: {known}; those of matrix units (softfloat-llm"
        " recipes --units); or a .toml file, or KEY=WORD pairs such as storage=bf16,acc=f16."
    )


def _from_pairs(pairs: list[str], base: Recipe | None) -> Recipe:
    flags: dict[str, Any] = {}
    at: dict[str, str] = {}
    for pair in pairs:
        key, _, word = (piece.strip() for piece in pair.partition("="))
        if not key or not word:
            raise RecipeError(f"{pair!r}: expected KEY=WORD or SITE.KEY=WORD, such as acc=f16 or attn.softmax.acc=f32.")
        chosen = flags if key in (*PRECISION_FLAGS, "kv") else at
        if chosen is at and "." not in key and not is_selector(key.partition(" ")[0]):
            known = [*PRECISION_FLAGS, "kv", *SITES, *GROUPS]
            raise RecipeError(
                f"{pair!r}: {key!r} is neither a stage nor a site.{nearest(key, known)} Stages:"
                f" {', '.join(PRECISION_FLAGS)}, kv; sites: softfloat-llm recipes --sites."
            )
        if key in chosen:
            raise RecipeError(f"{key!r} is given twice: {chosen[key]} and {word}.")
        chosen[key] = word
    return Recipe(base=base, at=at, **flags)


def _from_file(path: Path, above: tuple[Path, ...] = ()) -> Recipe:
    """The recipe of a file. `above`: the files that are based on it."""
    try:
        place = path.resolve()
        body = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: bytes that are no text, or a path that is none
        raise RecipeError(
            f"Reading the recipe {path}: {why(error)}. Expected a TOML file (softfloat-llm recipes NAME --toml shows"
            " one), or a name that `softfloat-llm recipes` lists."
        ) from None
    if place in above:
        raise RecipeError(f"Recipe {path} is based on itself, by way of {above[-1]}.")
    table = toml_table(body, str(path))
    base = table.get("base")
    if isinstance(base, str) and base.endswith(".toml"):  # beside the file that names it
        table["base"] = _from_file(path.parent / base, (*above, place))
    recipe = _from_table(table, str(path), name=path.stem)
    _check_certificate(recipe, path)
    return recipe


def _check_certificate(recipe: Recipe, path: Path) -> None:
    """Raises RecipeError where a changed copy of a shipped recipe still goes by its name, or by its evidence.

    Several recipes may rest on the same evidence: the one that is told is that by whose name it goes, else the one that
    it is most like.
    """
    words = recipe.words()
    claims = [recipe_of(name) for name in recipe_names() if _claims(recipe, name)]
    if not claims or any(words == shipped.words() for shipped in claims):
        return
    told = min(claims, key=lambda shipped: (shipped.name != recipe.name, _apart(words, shipped.words())))
    what = "goes by its name" if told.name == recipe.name else f"has its evidence ({recipe.evidence[:60]}...)"
    raise RecipeError(
        f"Recipe {path} says other things than {told.name}, but {what}."
        ' Give it a name of its own, status = "policy", and evidence = "".'
    )


def _apart(words: Mapping[str, Mapping[str, str]], others: Mapping[str, Mapping[str, str]]) -> int:
    """How many settings of two expansions differ."""
    pairs = [{(site, *pair) for site, keys in all_of.items() for pair in keys.items()} for all_of in (words, others)]
    return len(pairs[0] ^ pairs[1])


def _claims(recipe: Recipe, shipped: str) -> bool:
    return recipe.name == shipped or bool(recipe.evidence and recipe.evidence == shipped_table(shipped).get("evidence"))


def _from_table(table: dict[str, Any], where: str, name: str | None = None) -> Recipe:
    """A recipe from its TOML form: name, base, about, source, status, evidence, [precision], [site."NAME"]."""
    check_keys(table, where)
    if not isinstance(table.get("base", ""), str | Recipe):
        raise RecipeError(f"Recipe {where}: base is {table['base']!r}, expected the name or file of a recipe.")
    flags = words_in(table.get("precision", {}), f"{where}: [precision]")
    for key in flags:
        if key not in (*PRECISION_FLAGS, "kv"):
            known = (*PRECISION_FLAGS, "kv")
            raise RecipeError(f"Recipe {where}: [precision] has no key {key!r}.{nearest(key, known)}")
    at = {
        f"{selector}.{key}": word
        for selector, keys in site_tables(table.get("site", {}), where).items()
        for key, word in keys.items()
    }
    about = {key: table[key] for key in ("about", "source", "status", "evidence") if key in table}
    try:
        return Recipe(table.get("base"), name=table.get("name") or name, at=at, **about, **flags)
    except WordError as error:
        raise type(error)(f"Recipe {where}: {error}") from None


def to_toml(recipe: Recipe) -> str:
    """The full expansion of a recipe as a recipe file. Reading it back gives a recipe with the same expansion."""
    import tomli_w

    head = {"name": recipe.name, "about": recipe.about, "source": recipe.source, "status": recipe.status}
    return tomli_w.dumps(head | {"evidence": recipe.evidence, "site": recipe.words()})
