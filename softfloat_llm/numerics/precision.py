"""Precision: the stages of a sum of products, chosen separately, and their text form.

`storage` the format that the operands lie in · `product` exact, or the format that each product is rounded to · `acc`
the accumulator · `order` the shape of the summation · `output` the rounding on the way back. Each stage has its
rounding mode, its treatment of subnormals and of overflow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

from softfloat_llm.errors import FormatError, PrecisionError, WordError, nearest
from softfloat_llm.numerics.adders import Adder
from softfloat_llm.numerics.formats import Format, f32, format_of, tf32
from softfloat_llm.numerics.modes import MODES, OVERFLOWS, SUBNORMALS, check_option, check_rounding
from softfloat_llm.numerics.orders import Order
from softfloat_llm.numerics.stochastic import stochastic_of

_RULE_KEYS = ("mode", "overflow", "subnormals")
STAGES = ("storage", "product", "acc", "output")
Method = Literal["plain", "kahan", "neumaier", "exact"]


class PerStage(NamedTuple):
    """One word for each stage that rounds."""

    storage: str
    product: str
    acc: str
    output: str


@dataclass(frozen=True)
class Accumulator:
    """What a running sum is kept in: a format, plain or compensated, or the exact sum (no format)."""

    format: Format | None
    method: Method = "plain"

    def __str__(self) -> str:
        if self.format is None:
            return "exact"
        return str(self.format) if self.method == "plain" else f"{self.format}+{self.method}"


EXACT = Accumulator(None, "exact")
"""The mathematically exact sum, rounded once to the output."""


def accumulator_of(word: str | Format | Accumulator) -> Accumulator:
    """`exact`, a format, or a format with `+kahan` or `+neumaier`. Raises PrecisionError or FormatError."""
    if isinstance(word, Accumulator):
        return word
    if isinstance(word, str) and word.strip() == "exact":
        return EXACT
    if isinstance(word, str) and "+" in word:
        name, method = (part.strip() for part in word.split("+", 1))
        if method not in ("kahan", "neumaier"):
            raise PrecisionError(f"Accumulator {word!r}: after '+' stands kahan or neumaier, not {method!r}.")
        return Accumulator(format_of(name), method)  # type: ignore[arg-type]
    return Accumulator(_format_or(word, "exact, FORMAT+kahan, FORMAT+neumaier"))


def _format_or(word: str | Format, others: str) -> Format:
    """The format. Raises FormatError, which says what else could stand there."""
    try:
        return format_of(word)
    except FormatError as error:
        raise FormatError(f"{error} Here also: {others}.") from None


@dataclass(frozen=True, init=False)
class Precision:
    """The stages of a sum of products. Strings are accepted wherever a value object is.

    Missing `output` = `storage` (f32 where the storage is tf32, which is a compute path and no storage); missing
    `acc` = f32; missing `product` = exact; missing `order` = seq. `rounding`, `subnormals` and `overflow` are one word
    for all stages, or a mapping from stage to word.

    With `product` exact, a term enters its accumulator by fma (one rounding); otherwise the product is rounded, then
    the sum. `acc` exact: the exact sum, rounded once to `output`.

    >>> str(Precision(storage="bf16", acc="f16", rounding={"acc": "toward_zero"}))
    'storage=bf16,product=exact,acc=f16,output=bf16,order=seq,acc.rounding=toward_zero'
    """

    storage: Format
    product: Format | None
    acc: Accumulator
    order: Order
    output: Format
    rounding: PerStage
    subnormals: PerStage
    overflow: PerStage

    def __init__(
        self,
        storage: str | Format = "f32",
        *,
        product: str | Format | None = None,
        acc: str | Format | Accumulator = "f32",
        order: str | Order = "seq",
        output: str | Format | None = None,
        rounding: str | Mapping[str, str] | PerStage = "ties_to_even",
        subnormals: str | Mapping[str, str] | PerStage = "keep",
        overflow: str | Mapping[str, str] | PerStage = "ieee",
    ) -> None:
        stored = format_of(storage)
        default_output = "f32" if stored is tf32 else stored
        for name, value in {
            "storage": stored,
            "product": None if product in (None, "exact") else _format_or(product, "exact"),
            "acc": accumulator_of(acc),
            "order": Order(order),
            "output": format_of(default_output if output is None else output),
            "rounding": _per_stage("rounding", rounding, MODES, "ties_to_even"),
            "subnormals": _per_stage("subnormals", subnormals, SUBNORMALS, "keep"),
            "overflow": _per_stage("overflow", overflow, OVERFLOWS, "ieee"),
        }.items():
            object.__setattr__(self, name, value)
        self._check()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Kept: a precision is asked for it many times in each pass."""
        return hash(tuple(getattr(self, each.name) for each in fields(self)))

    def __getstate__(self) -> dict[str, Any]:
        """Without what is kept: another process has other hashes of texts."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def _check(self) -> None:
        """Storage f64 is for looking: its products are not exact in float64, so they must be asked for as rounded."""
        if self.order.adder is not None:
            self._check_adder(self.order.adder)
        stages = (self.storage, self.product, self.acc.format, self.output)
        for fmt, word, stage in zip(stages, self.rounding, STAGES, strict=True):
            if fmt is not None and fmt.precision > 24 and stochastic_of(word):
                raise PrecisionError(f"{stage}.rounding={word}: of {fmt} there are no further bits to round by.")
        if self.acc == EXACT and self.product is not None and stochastic_of(self.rounding.product):
            raise PrecisionError(f"product.rounding={self.rounding.product}: not before an exact accumulator.")
        is_narrow = self.storage.precision <= 24
        is_usual = (self.rounding.product, self.overflow.acc, self.subnormals.acc) == ("ties_to_even", "ieee", "keep")
        if is_narrow or (self.product == self.storage and is_usual):
            return
        raise PrecisionError(
            f"Storage {self.storage} needs product={self.storage} with ties_to_even (products as the hardware rounds"
            f" them), and a plain range of its sums; found product={self.product or 'exact'}, rounding"
            f" {self.rounding.product}, overflow {self.overflow.acc}, subnormals {self.subnormals.acc}."
        )

    def _check_adder(self, adder: Adder) -> None:
        """A multi-operand adder brings its own products, rounding and register: what else is asked must agree."""
        fmt, plain = self.acc.format, self.acc.method == "plain"
        register = adder.output or fmt
        words = (self.rounding.acc, self.subnormals.acc, self.overflow.acc)
        problems = (
            (fmt is None or not plain, f"acc={self.acc}: its sum is kept in a format, neither compensated nor exact"),
            (self.product is not None, f"product={self.product}: its products are exact"),
            (words[0] not in ("ties_to_even", adder.rounding), f"acc.rounding={words[0]}: it has {adder.rounding}"),
            (words[1] != "keep", f"acc.subnormals={words[1]}: what it flushes is part of it"),
            (words[2] != "ieee", f"acc.overflow={words[2]}: too large a sum is infinite"),
            (not _reads(adder, self.storage), f"storage={self.storage}: it reads {adder.input or 'up to 24 bits'}"),
            (fmt and register and not register.is_subset_of(fmt), f"acc={self.acc}: it gives values of {register}"),
            (
                register and adder.zero_exponent > register.emin,
                f"acc={self.acc}: zeros would count as more than its least",
            ),
        )
        for is_there, problem in problems:
            if is_there:
                raise PrecisionError(f"Order {self.order.text!r} with {problem}.")

    def rules(self, stage: str) -> dict[str, Any]:
        """How a stage rounds, as keyword arguments of `round_wide`, `round_sum` and `round_block`.

        A stage that rounds stochastically takes random words of its own, and not those of the others. The mapping is
        the same each time: not to be changed.
        """
        return self._rules[stage]

    @cached_property
    def _rules(self) -> dict[str, dict[str, Any]]:
        return {stage: self._rules_of(stage) for stage in STAGES}

    def _rules_of(self, stage: str) -> dict[str, Any]:
        rules = {key: getattr(words, stage) for key, words in zip(_RULE_KEYS, self._modes(), strict=True)}
        rule = stochastic_of(rules["mode"])
        return rules if rule is None else rules | {"mode": rule.named(stage)}

    @cached_property
    def is_stochastic(self) -> bool:
        """True where a stage rounds by random words."""
        return any(stochastic_of(word) for word in self.rounding)

    def _modes(self) -> tuple[PerStage, PerStage, PerStage]:
        return self.rounding, self.overflow, self.subnormals

    def with_output(self, fmt: Format) -> Precision:
        """The same stages with another output."""
        return self if fmt is self.output else replaced(self, output=fmt)

    def with_storage(self, fmt: Format) -> Precision:
        """The same stages with another storage."""
        return self if fmt is self.storage else replaced(self, storage=fmt)

    def __str__(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self.items())

    def items(self) -> list[tuple[str, str]]:
        """The stages as (key, word) pairs; rounding, subnormals and overflow only where they are not the usual ones."""
        pairs = [
            ("storage", str(self.storage)),
            ("product", str(self.product or "exact")),
            ("acc", str(self.acc)),
            ("output", str(self.output)),
            ("order", str(self.order)),
        ]
        for key, usual in (("rounding", "ties_to_even"), ("subnormals", "keep"), ("overflow", "ieee")):
            words: PerStage = getattr(self, key)
            if len(set(words)) == 1:
                pairs += [(key, words[0])] if words[0] != usual else []
            else:
                pairs += [(f"{s}.{key}", w) for s, w in zip(STAGES, words, strict=True) if w != usual]
        return pairs

    @property
    def jax_name(self) -> str | None:
        """JAX's spelling (`BF16_BF16_F32`), where the precision has one."""
        spelled = f"{self.storage}_{self.storage}_{self.acc}".upper()
        return spelled if re.fullmatch(_JAX, spelled) and Precision(**_from_jax(spelled)) == self else None


def _reads(adder: Adder, storage: Format) -> bool:
    """True where a unit takes operands of this format, or cuts float32 words to its own."""
    if adder.input is None:
        return storage.precision <= 24
    return storage.is_subset_of(f32 if adder.truncates_input else adder.input)


@lru_cache(maxsize=256)
def replaced(at: Precision, *, storage: Format | None = None, output: Format | None = None) -> Precision:
    """A precision with another storage or output; everything else stays."""
    return Precision(
        storage or at.storage,
        product=at.product,
        acc=at.acc,
        order=at.order,
        output=output or at.output,
        rounding=at.rounding,
        subnormals=at.subnormals,
        overflow=at.overflow,
    )


def _per_stage(key: str, words: str | Mapping[str, str] | PerStage, known: tuple[str, ...], usual: str) -> PerStage:
    if isinstance(words, str):
        words = dict.fromkeys(STAGES, words)
    elif isinstance(words, PerStage):
        words = words._asdict()
    for stage, word in words.items():
        if stage not in STAGES:
            hint = nearest(stage, STAGES)
            raise PrecisionError(f"{key} of unknown stage {stage!r}.{hint} Stages: {', '.join(STAGES)}.")
        if key == "rounding":
            check_rounding(word)
        else:
            check_option(key, word, known)
    return PerStage(*(words.get(stage, usual) for stage in STAGES))


_JAX = r"(BF16|F16|F32|TF32|F64)_\1_(BF16|F16|F32|F64)"
_PLAIN_KEYS = ("storage", "product", "acc", "output", "order")
_MODE_KEYS = ("rounding", "subnormals", "overflow")


def precision_of(value: str | Precision | Mapping[str, Any]) -> Precision:
    """A Precision from its text form (`storage=f16,acc=f16,order=lanes:8`), JAX's spelling, or a mapping of keys.

    Raises PrecisionError for an unknown key, FormatError or OrderError for a word that a key cannot take.
    """
    if isinstance(value, Precision):
        return value
    if isinstance(value, Mapping):
        return precision_of_keys({str(key): str(word) for key, word in value.items()})
    if not isinstance(value, str):
        raise PrecisionError(f"A precision is a text such as 'storage=bf16,acc=f32', or a mapping; not {value!r}.")
    return _parsed(value)


@lru_cache(maxsize=512)
def _parsed(text: str) -> Precision:
    word = text.strip()
    if re.fullmatch(r"[A-Z0-9]+(_[A-Z0-9]+)+", word):
        return Precision(**_from_jax(word))
    keys: dict[str, str] = {}
    for part in word.split(","):
        key, equals, chosen = (piece.strip() for piece in part.partition("="))
        if not equals or not chosen:
            raise PrecisionError(
                f"Precision {text!r}: expected KEY=WORD pairs as in storage=bf16,acc=f32; found {part!r}.{_meant(key)}"
            )
        if key in keys:
            raise PrecisionError(f"Precision {text!r}: {key!r} is given twice.")
        keys[key] = chosen
    return precision_of_keys(keys)


def _meant(word: str) -> str:
    """A hint for a word without its key: that of the first stage which takes it."""
    for key, parse in (("storage", format_of), ("acc", accumulator_of), ("order", Order)):
        try:
            parse(word)
        except WordError:
            continue
        return f" Did you mean '{key}={word}'?"
    return ""


def precision_of_keys(keys: Mapping[str, str]) -> Precision:
    """A Precision from text keys: the plain ones, `rounding`, `subnormals`, `overflow`, `STAGE.rounding` and so on."""
    plain: dict[str, Any] = {}
    modes: dict[str, Any] = {key: {} for key in _MODE_KEYS}
    for key, word in sorted(keys.items(), key=lambda item: "." in item[0]):  # one word for all first
        stage, _, mode_key = key.rpartition(".")
        if key in _PLAIN_KEYS:
            plain[key] = word
        elif key in _MODE_KEYS:
            modes[key] = dict.fromkeys(STAGES, word)
        elif stage in STAGES and mode_key in _MODE_KEYS:
            modes[mode_key][stage] = word
        else:
            raise PrecisionError(
                f"Unknown precision key {key!r}.{nearest(key, [*_PLAIN_KEYS, *_MODE_KEYS])} Keys:"
                f" {', '.join(_PLAIN_KEYS + _MODE_KEYS)}, and STAGE.rounding, STAGE.subnormals, STAGE.overflow."
            )
    try:
        at = Precision(**plain, **modes)
        return _only(at, at.order.text)
    except WordError as error:
        spelled = ",".join(f"{key}={word}" for key, word in keys.items())
        raise type(error)(f"Precision {spelled!r}: {error}") from None


@lru_cache(maxsize=512)
def _only(at: Precision, spelled: str) -> Precision:
    """The first of all that are equal, and spelled alike where equal orders have several spellings.

    What sites share is then found in caches without comparing its stages.
    """
    return at


def _from_jax(spelling: str) -> dict[str, Any]:
    match = re.fullmatch(_JAX, spelling)
    if match is None:
        raise PrecisionError(
            f"Unknown precision {spelling!r}. JAX's spelling is STORAGE_STORAGE_ACC with both operands alike, such as"
            " BF16_BF16_F32, F16_F16_F16 or TF32_TF32_F32 (not the split products _X3, _X6, _X9)."
        )
    keys: dict[str, Any] = {"storage": match[1].lower(), "acc": match[2].lower()}
    return keys | ({"product": "f64"} if match[1] == "F64" else {})
