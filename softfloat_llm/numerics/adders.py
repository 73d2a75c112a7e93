"""Multi-operand adders: what a matrix unit does with L products and its accumulator, as a row of parameters.

`Adder` is the row; `units.toml` is the table of real units, each with its source and with what it was checked against.
`adder_of` reads the text that stands after `fused:` in an order. The arithmetic is in `fused`. Start at `Adder`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

from softfloat_llm.errors import OrderError, nearest
from softfloat_llm.numerics.formats import Format, f32, format_of
from softfloat_llm.numerics.modes import MODES
from softfloat_llm.numerics.trees import Chain, Flat, Join, Node

Model = Literal["aligned", "exact", "two-step", "pairwise"]
Groups = Literal["one", "halves", "parities"]
Start = Literal["aligned", "added"]

_EXACT_BITS = 53  # of float64, in which the aligned integers are added


@dataclass(frozen=True)
class Adder:
    """L exact products and an accumulator c, added at once. The exponent of a product is that of a plus that of b.

    * `aligned`: with E the largest exponent, zeros counting as `zero_exponent`, everything is cut toward zero to
      multiples of 2^(E - fraction_bits), added exactly, and rounded once to `output`. What is too large becomes
      infinite, toward zero too. `accumulator`: c is `aligned` with the products, or `added` to their rounded sum by one
      rounding to nearest. `groups`: `halves` adds the terms k mod 4 in {0, 1} first, then the others to that.
    * `exact`: everything is added exactly and rounded once.
    * `pairwise`: products, their pairs, pairs of those, then c: each step rounded to float32; subnormal operands and
      results are zeros.
    * `two-step`: the products are cut and added as in `aligned`, at their own largest exponent. At the larger of that
      and c's, their sum is rounded down to `sum_bits` and c down to `fraction_bits`; the total, down to `total_bits` at
      its own exponent, then to `output`. `groups`: `parities` adds the even and the odd terms apart, and drops a c
      whose exponent is more than `fraction_bits` + 1 below.

    An exactly zero result is +0, but for `pairwise`. `input`: the format of the operands (None: the storage); `output`:
    that of the result (None: the accumulator's).

    **Sources:** Khattak and Mikaitis, Accurate Models of NVIDIA Tensor Cores (2025); Xie et al., MMA-Sim: Bit-Accurate
    Reference Model of Tensor Cores and Matrix Cores (2025).
    """

    name: str
    terms: int
    model: Model = "aligned"
    fraction_bits: int = 24
    rounding: str = "toward_zero"
    zero_exponent: int = -132
    input: Format | None = None
    output: Format | None = None
    accumulator: Start = "aligned"
    groups: Groups = "one"
    sum_bits: int = 32
    total_bits: int = 31
    source: str = field(default="", compare=False)
    evidence: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.name

    @property
    def keeps_its_accumulator(self) -> bool:
        """True where an instruction of zeros leaves c as it is: its alignment cuts no bit of the accumulator's."""
        is_cut = self.model == "aligned" and self.accumulator == "aligned"
        return not is_cut or self.fraction_bits >= (self.output or f32).trailing_bits

    @property
    def most_bits(self) -> int:
        """Bits of the largest sum of aligned integers: each of L products is below 4 * 2^F, c below 2 * 2^F."""
        return self.fraction_bits + 2 + (self.terms + 1).bit_length()

    @property
    def truncates_input(self) -> bool:
        """True where the unit reads float32 words and cuts them to its input format (tf32, xf32)."""
        return self.input is not None and self.input.name == "tf32"

    def parts(self, ks: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """The terms of one instruction, as they are added together; terms that are missing at the end are zeros."""
        if self.groups == "one":
            return (ks,)
        is_second = [(i % 4 >= 2) if self.groups == "halves" else (i % 2 == 1) for i in range(len(ks))]
        first = tuple(k for k, second in zip(ks, is_second, strict=True) if not second)
        return first, tuple(k for k, second in zip(ks, is_second, strict=True) if second)

    def shape(self, node: Node, terms: tuple[int, ...]) -> Node:
        """The tree of one instruction: which values it joins at once. `node` is the accumulator."""
        first, *second = self.parts(terms)
        if self.model == "pairwise":
            pairs = [_joined(terms[i : i + 2]) for i in range(0, len(terms), 2)]
            return _after(node, _joined(pairs))
        if self.accumulator == "added":
            return _after(node, Flat((Flat(first), *second[0])) if second and second[0] else Flat(first))
        return Flat(terms if node == Chain(()) else (node, *terms))


def _joined(parts: Sequence[Node]) -> Node:
    return parts[0] if len(parts) == 1 else Join(tuple(parts))


def _after(node: Node, products: Node) -> Node:
    """c + the sum of the products: a join of two."""
    return products if node == Chain(()) else Join((node, products))


# --- text -----------------------------------------------------------------------------------------------------------

TEXT = "fused:UNIT, or fused:L[:F[:MODE[:E]]]"


def adder_of(text: str) -> Adder:
    """The adder that a text names: a unit, or `L:F:MODE:E` from the left.

    L products, F fraction bits below the largest exponent (24), the rounding of the result (toward_zero), and the
    exponent as which zeros count (-132). It takes operands of the storage and gives values of the accumulator's format.
    Raises OrderError.

    >>> adder_of("8").fraction_bits, adder_of("nvidia-hopper-bf16").fraction_bits
    (24, 25)
    """
    if not re.match(r"[0-9-]", text):
        return unit(text)
    words = text.split(":")
    if len(words) > 4:
        raise OrderError(f"fused:{text}: too many parameters. It is {TEXT}.")
    mode = words[2] if len(words) > 2 else "toward_zero"
    if mode not in MODES:
        known = ", ".join(MODES)
        raise OrderError(f"fused:{text}: unknown rounding mode {mode!r}.{nearest(mode, MODES)} Known: {known}.")
    adder = Adder(
        text,
        terms=_integer(words, 0, text, "L, the number of products", 1, 1024),
        fraction_bits=_integer(words, 1, text, "F, the fraction bits", 1, 46) if len(words) > 1 else 24,
        rounding=mode,
        zero_exponent=_integer(words, 3, text, "E, the exponent of zeros", -512, 0) if len(words) > 3 else -132,
    )
    if adder.most_bits > _EXACT_BITS:
        raise OrderError(
            f"fused:{text}: {adder.terms} products of {adder.fraction_bits} fraction bits make sums of"
            f" {adder.most_bits} bits; at most {_EXACT_BITS} are added exactly here. Take fewer terms or bits."
        )
    return adder


def _integer(words: list[str], place: int, text: str, what: str, lowest: int, highest: int) -> int:
    word = words[place]
    if not re.fullmatch(r"-?[0-9]{1,6}", word) or not lowest <= int(word) <= highest:
        raise OrderError(f"fused:{text}: {what}, is a whole number from {lowest} to {highest}; found {word!r}.")
    return int(word)


def unit(name: str) -> Adder:
    """The adder of a real unit. Raises OrderError, with the nearest name."""
    known = units()
    if name not in known:
        raise OrderError(f"Unknown matrix unit {name!r}.{nearest(name, known)} Known: {', '.join(known)}.")
    return known[name]


# --- the table ------------------------------------------------------------------------------------------------------


_CAPITALS = re.compile(r"HALF|FP8")  # in the name of a row for several inputs


@cache
def units() -> dict[str, Adder]:
    """The real units by name, from `units.toml`: a row is one unit, or one for each of several inputs."""
    table = tomllib.loads((resources.files("softfloat_llm.numerics") / "units.toml").read_text("utf-8"))
    sources = table.pop("sources")
    return {adder.name: adder for key, row in table.items() for adder in _adders(key, row, sources)}


def _adders(key: str, row: dict[str, Any], sources: dict[str, str]) -> list[Adder]:
    inputs = row.pop("input")
    row["source"] = "; ".join(sources[word] for word in row["source"])
    row["output"] = format_of(row.get("output", "f32"))
    named = inputs if isinstance(inputs, dict) else {inputs: inputs}
    return [_checked(_CAPITALS.sub(word, key), row | {"input": format_of(name)}) for word, name in named.items()]


def _checked(name: str, row: dict[str, Any]) -> Adder:
    """A row as an Adder; that the table is well formed is the table's business, and asserted."""
    known = {f.name for f in fields(Adder)}
    assert set(row) <= known, f"{name}: {set(row) - known}"
    adder = Adder(name, **row)
    assert adder.model in get_args(Model), name
    assert adder.groups in get_args(Groups), name
    assert adder.accumulator in get_args(Start), name
    assert adder.rounding in MODES, name
    assert adder.most_bits <= _EXACT_BITS, name
    return adder
