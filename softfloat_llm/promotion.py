"""Type promotion: what PyTorch, NumPy and JAX make of two types, as `promotion.toml` has it, and where they refuse.

A promotion decides in which format a line of somebody's model is computed; here nothing promotes. Start at `promote`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from softfloat_llm.errors import FormatError, nearest
from softfloat_llm.numerics.formats import FORMATS, format_of

RULES = ("torch", "numpy", "jax")
KINDS = ("tensor", "zero-dim", "python")
OPS = ("add", "mul", "div", "matmul", "sum", "mean")
REDUCTIONS = ("sum", "mean")
PYTHON_TYPES = ("bool", "int", "float")

_INTEGERS = {
    "int64": "i64", "long": "i64", "int32": "i32", "int": "i32", "int16": "i16", "short": "i16", "int8": "i8",
    "uint8": "u8", "byte": "u8",
}  # fmt: skip


@dataclass(frozen=True)
class Promotion:
    """What an operation makes of the types of its operands.

    `result`: the type of what it gives, None where it is refused, in the words `says`. `scalar`: how the value of a
    scalar enters, `rounded` (to `scalar_format`, before the operation), `wide` (kept at `scalar_format`), `reciprocal`
    (1/t is rounded, then multiplied by the wide scalar) or `rounded, then reciprocal` (times its reciprocal);
    empty where there is none. `accumulator`: what a reduction adds in.
    """

    rules: str
    op: str
    a: str
    b: str | None
    kinds: tuple[str, str]
    result: str | None
    says: str = ""
    scalar: str = ""
    scalar_format: str | None = None
    accumulator: str = ""
    source: str = ""
    checked: str = ""

    @property
    def is_refused(self) -> bool:
        return self.result is None


def promote(
    a: str,
    b: str | None = None,
    *,
    rules: str = "torch",
    kinds: tuple[str, str] = ("tensor", "tensor"),
    op: str = "add",
) -> Promotion:
    """The type of `a op b`, or of a reduction of a, by the rules of torch, numpy or jax.

    a and b are types (`types()`); where its kind is `python`, the type of a Python scalar: bool, int or float. A
    `zero-dim` operand is a tensor without dimensions.
    **Raises** FormatError for a word that is unknown, and for operands that the operation does not have.

    >>> promote("bf16", "f32").result, promote("bf16", "f32", kinds=("tensor", "zero-dim")).result
    ('f32', 'bf16')
    >>> promote("bf16", "f32", op="matmul").says
    'expected m1 and m2 to have the same dtype, but got: c10::BFloat16 != float'

    **Source:** `promotion.toml`, where every table names its own.
    """
    for what, word, known in (("rules", rules, RULES), ("operation", op, OPS), *(("kind", k, KINDS) for k in kinds)):
        if word not in known:
            raise FormatError(f"Unknown {what} {word!r}.{nearest(word, known)} Known: {', '.join(known)}.")
    of_a = _type_of(a, kinds[0])
    of_b = None if b is None else _type_of(b, kinds[1])
    _check_operands(of_a, of_b, kinds, op)
    promotion = Promotion(rules, op, of_a, of_b, kinds, None, **_about(rules))
    return _reduced(promotion) if of_b is None else _joined(promotion)


def types() -> tuple[str, ...]:
    """The types that the tables know.

    >>> types()[:4]
    ('bf16', 'f16', 'f32', 'f64')
    """
    return tuple(_data()["types"])


def note(rules: str) -> str:
    """What is to be known of f64 and i64 under these rules; empty where nothing is."""
    return str(_data()[rules].get("note", ""))


def spelling(rules: str, *, is_c: bool = False) -> Mapping[str, str]:
    """Type -> its name in the library's own messages, or in its C++."""
    names: Mapping[str, str] = _data()[rules]["c_names" if is_c else "names"]
    return names


def _type_of(word: str, kind: str) -> str:
    """A type by any of its names. Raises FormatError where the tables do not have it."""
    if kind == "python":
        if word not in PYTHON_TYPES:
            raise FormatError(f"A Python scalar is a {', a '.join(PYTHON_TYPES)}; found {word!r}.")
        return word
    name = _INTEGERS.get(word, word)
    if name not in types():
        known = [*types(), *_INTEGERS]
        try:
            name = format_of(word).name
        except FormatError:
            raise FormatError(f"Unknown type {word!r}.{nearest(word, known)} Known: {', '.join(types())}.") from None
    if name not in types():
        raise FormatError(f"{word!r}: promotion is known of {', '.join(types())}.")
    return name


def _check_operands(a: str, b: str | None, kinds: tuple[str, str], op: str) -> None:
    if (b is None) != (op in REDUCTIONS):
        raise FormatError(f"{op} takes {'one type' if op in REDUCTIONS else 'two types'}; found {a} and {b}.")
    if kinds == ("python", "python") or (b is None and kinds[0] == "python"):
        raise FormatError(f"{op} of {a} and {b}: Python scalars alone are Python's own business; take a tensor.")
    if op == "matmul" and set(kinds) != {"tensor"}:
        raise FormatError(f"matmul takes two tensors with dimensions; found a {kinds[0]} and a {kinds[1]} one.")


def _reduced(given: Promotion) -> Promotion:
    table = _data()[given.rules]
    result = table[given.op].get(given.a)
    if result is None:
        return replace(given, says=_worded(given, table["says"][given.op], None))
    accumulator = table["accumulator"].get(given.a, "")
    return _with_kernel(replace(given, result=result, accumulator=accumulator))


def _joined(given: Promotion) -> Promotion:
    """The promotion of two operands: what the table says of them, then whether there is a kernel for it."""
    table, kind = _data()[given.rules], _kind(given)
    name = {"python": "python", "zero-dim": "zero_dim", "tensor": "tensors"}[kind]
    name = "matmul" if given.op == "matmul" else name
    result = _looked_up(given, table, name)
    if result == "!":
        ordered = _dimensioned_first(given)
        says = table["says"]["equal" if table.get(name) == "equal" else "promote"]
        return replace(given, says=_worded(given, says, None, ordered))
    if given.op == "div" and result not in FORMATS:
        result = table["quotient"]
    return _with_kernel(_with_scalar(replace(given, result=result), table, kind))


def _looked_up(given: Promotion, table: dict[str, Any], name: str) -> str:
    """A cell: the dimensioned operand's line, the other's column; `!` where it is refused."""
    a, b = _dimensioned_first(given)
    if table[name] == "equal":
        return a if a == b else "!"
    return _cells(given.rules, "tensors" if table[name] == "tensors" else name)[a, b]


def _kind(given: Promotion) -> str:
    """What the pair is: two tensors alike, or a tensor with something weaker."""
    if "python" in given.kinds:
        return "python"
    return "tensor" if given.kinds[0] == given.kinds[1] else "zero-dim"


def _is_scalar_first(given: Promotion) -> bool:
    return KINDS.index(given.kinds[0]) > KINDS.index(given.kinds[1])


def _dimensioned_first(given: Promotion) -> tuple[str, str]:
    assert given.b is not None
    return (given.b, given.a) if _is_scalar_first(given) else (given.a, given.b)


_OPMATH = {"bf16": "f32", "f16": "f32"}


def _with_scalar(given: Promotion, table: dict[str, Any], kind: str) -> Promotion:
    """How the value of a scalar meets the others. A zero-dim array that counts as any other one is no scalar."""
    is_scalar = kind == "python" or (kind == "zero-dim" and table["zero_dim"] != "tensors")
    if not is_scalar or given.result not in FORMATS:
        return given
    how = table["scalar"].get(f"{given.op}, {_place(given.kinds)}", table["scalar"][given.op])
    wide = _OPMATH.get(given.result, given.result)
    return replace(given, scalar=how, scalar_format=given.result if how.startswith("rounded") else wide)


def _with_kernel(given: Promotion) -> Promotion:
    """Refused where the rules give a type in which nothing is computed."""
    place = "tensor" if given.b is None else _place(given.kinds)
    for row in _data()[given.rules].get("no_kernel", ()):
        if row["op"] == given.op and place in row.get("places", [place]) and given.result in row["types"]:
            return replace(given, result=None, says=_worded(given, row["says"], given.result))
    return given


def _place(kinds: tuple[str, str]) -> str:
    """Where the operand without dimensions stands; of two, the second counts."""
    weaker = max(kinds, key=KINDS.index)
    return weaker if weaker == "tensor" else f"{weaker} {'second' if kinds[1] == weaker else 'first'}"


def _worded(given: Promotion, says: str, result: str | None, ordered: tuple[str, str] | None = None) -> str:
    table = _data()[given.rules]
    names, c_names = table["names"], table.get("c_names", {})
    a, b = ordered or (given.a, given.b or given.a)
    words = {"A": names.get(a), "B": names.get(b), "R": names.get(result), "a": c_names.get(a), "b": c_names.get(b)}
    return says.format(**words)


def _about(rules: str) -> dict[str, str]:
    return {key: _data()[rules][key] for key in ("source", "checked")}


# --- the tables -----------------------------------------------------------------------------------------------------


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads((resources.files("softfloat_llm") / "promotion.toml").read_text("utf-8"))


@cache
def _cells(rules: str, name: str) -> dict[tuple[str, str], str]:
    """(type of the line, type of the column) -> what stands there."""
    header, *lines = (line.split() for line in _data()[rules][name].strip().splitlines())
    assert all(len(line) == len(header) + 1 for line in lines), f"{rules}.{name}"
    return {(line[0], column): cell for line in lines for column, cell in zip(header, line[1:], strict=True)}
