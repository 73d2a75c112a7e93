"""`softfloat-llm formats`: what each number format is."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated, Any

import typer

from softfloat_llm.analysis.numbers import about, code, decimal
from softfloat_llm.analysis.wording import labelled, markdown_table
from softfloat_llm.cli.options import OutputFlags, grouped
from softfloat_llm.cli.screen import show, show_json
from softfloat_llm.numerics.formats import FORMATS, Format, aliases_of, format_of
from softfloat_llm.numerics.scaled import SCALED

_NAN = {
    "ieee": "exponent all ones, trailing significand not zero",
    "all_ones": "the code of all ones",
    "negative_zero": "the code of -0",
    "none": "no",
}
_HEADER = ("format", "bits", "s+e+t", "largest", "smallest normal", "smallest", "ulp(1)")


@grouped
def formats(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="bf16, half, e4m3fn, e5m7 ...")] = None,
    *,
    table: Annotated[bool, typer.Option("--table", help="All formats with all parameters, and scaled ones.")] = False,
    output: OutputFlags,
) -> int:
    """softfloat-llm formats bf16

    Look a number format up; without a name, list those that have one. Where two types meet: `formats promote bf16 f32`.
    """
    if table:
        if name is not None:
            raise typer.BadParameter(f"--table is of all formats; {name} is one: softfloat-llm formats {name}")
        return _answer(
            output, {"formats": _all_facts(), "scaled": _scaled_facts()}, f"{_whole_table()}\n\n{_scaled_table()}"
        )
    if name is None:
        return _answer(output, {"formats": _all_facts()}, _list_text())
    fmt = format_of(name)
    return _answer(output, _facts(fmt), _detail_text(fmt))


def _answer(output: OutputFlags, body: dict[str, Any], text: str) -> int:
    if output.as_json:
        show_json("formats", body)
    else:
        show(text)
    return 0


def _all_facts() -> dict[str, Any]:
    return {fmt.name: _facts(fmt) for fmt in FORMATS.values()}


def _scaled_facts() -> dict[str, Any]:
    return {
        row.name: {"what": row.what, "block": row.block, "largest": row.largest, "source": row.source}
        for row in SCALED.values()
    }


def _facts(fmt: Format) -> dict[str, Any]:
    derived = ("bits", "trailing_bits", "emin", "emax", "max", "smallest_normal", "smallest_subnormal", "eps")
    return asdict(fmt) | {key: getattr(fmt, key) for key in derived} | {"dtype": str(fmt.dtype)}


def _widths(fmt: Format) -> str:
    return f"{int(fmt.is_signed)}+{fmt.exponent_bits}+{fmt.trailing_bits}"


def _power(x: float) -> str:
    """A power of two, as 2^k."""
    return f"2^{math.frexp(x)[1] - 1}"


def _list_text() -> str:
    rows = [
        [
            fmt.name,
            str(fmt.bits),
            _widths(fmt),
            about(fmt.max, 6),
            *(_power(x) for x in (fmt.smallest_normal, fmt.smallest_subnormal, fmt.eps)),
        ]
        for fmt in FORMATS.values()
    ]
    body = markdown_table(_HEADER, rows, right=range(1, len(_HEADER)))
    note = "s+e+t: sign, exponent and trailing significand bits. Any eXmY is a format: X from 2 to 8, Y from 0 to 23."
    return f"{body}\n\n{note}\n{labelled('next', 'softfloat-llm formats bf16')}"


def _zero(fmt: Format) -> str:
    return ("+0 and -0" if fmt.has_negative_zero else "+0") if fmt.has_zero else "no"


def _whole_table() -> str:
    header = (
        *_HEADER[:3],
        "p",
        "bias",
        "emin",
        "emax",
        *_HEADER[3:],
        "infinities",
        "NaN",
        "zero",
        "carried as",
        "source",
    )
    rows = [
        [
            *(fmt.name, str(fmt.bits), _widths(fmt), str(fmt.precision), str(fmt.bias), str(fmt.emin), str(fmt.emax)),
            decimal(fmt.max, fmt),
            *(_power(x) for x in (fmt.smallest_normal, fmt.smallest_subnormal, fmt.eps)),
            *("yes" if fmt.has_infinity else "no", _NAN[fmt.nan], _zero(fmt), str(fmt.dtype), fmt.source),
        ]
        for fmt in FORMATS.values()
    ]
    return markdown_table(header, rows, right=range(1, 11))


def _scaled_table() -> str:
    rows = [[row.name, row.what, str(row.block), about(row.largest), row.source] for row in SCALED.values()]
    return markdown_table(("scaled format", "what it is", "block", "largest element", "source"), rows, right=(3,))


def _detail_text(fmt: Format) -> str:
    def value(x: float) -> str:
        return f"{about(x, 9)} = {code(x, fmt)}"

    rows = [
        ["bits", f"{fmt.bits}: {int(fmt.is_signed)} sign, {fmt.exponent_bits} exponent, {fmt.trailing_bits} trailing"],
        ["precision p", f"{fmt.precision} bits of significand, the leading one included"],
        ["exponents", f"{fmt.emin} to {fmt.emax}, bias {fmt.bias}"],
        ["largest", value(fmt.max)],
        ["smallest normal", value(fmt.smallest_normal)],
        ["smallest", value(fmt.smallest_subnormal)],
        ["ulp(1)", value(fmt.eps)],
        ["infinities", "yes" if fmt.has_infinity else "no"],
        ["NaN", _NAN[fmt.nan]],
        ["zero", _zero(fmt)],
        ["also called", ", ".join(aliases_of(fmt)) or "-"],
        ["carried as", f"NumPy {fmt.dtype}"],
        ["source", fmt.source],
    ]
    return markdown_table([fmt.name, "what it is"], rows)
