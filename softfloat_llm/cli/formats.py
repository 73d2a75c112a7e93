"""`softfloat-llm formats`: what each number format is."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated, Any

import typer

from softfloat_llm.analysis.numbers import about, code
from softfloat_llm.analysis.wording import labelled, markdown_table
from softfloat_llm.cli.options import OutputFlags, grouped
from softfloat_llm.cli.screen import show, show_json
from softfloat_llm.numerics.formats import FORMATS, Format, aliases_of, format_of

_HEADER = ("format", "bits", "s+e+t", "largest", "smallest normal", "smallest", "ulp(1)")


@grouped
def formats(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="bf16, half, e4m3fn, e5m7 ...")] = None,
    *,
    output: OutputFlags,
) -> int:
    """softfloat-llm formats bf16

    Look a number format up; without a name, list those that have one. Where two types meet: `formats promote bf16 f32`.
    """
    if name is None:
        rows = {fmt.name: _facts(fmt) for fmt in FORMATS.values()}
        return _answer(output, {"formats": rows}, _list_text())
    fmt = format_of(name)
    return _answer(output, _facts(fmt), _detail_text(fmt))


def _answer(output: OutputFlags, body: dict[str, Any], text: str) -> int:
    if output.as_json:
        show_json("formats", body)
    else:
        show(text)
    return 0


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


def _detail_text(fmt: Format) -> str:
    def value(x: float) -> str:
        return f"{about(x, 9)} = {code(x, fmt)}"

    nan = {
        "ieee": "exponent all ones, trailing significand not zero",
        "all_ones": "the code of all ones",
        "negative_zero": "the code of -0",
        "none": "no",
    }
    rows = [
        ["bits", f"{fmt.bits}: {int(fmt.is_signed)} sign, {fmt.exponent_bits} exponent, {fmt.trailing_bits} trailing"],
        ["precision p", f"{fmt.precision} bits of significand, the leading one included"],
        ["exponents", f"{fmt.emin} to {fmt.emax}, bias {fmt.bias}"],
        ["largest", value(fmt.max)],
        ["smallest normal", value(fmt.smallest_normal)],
        ["smallest", value(fmt.smallest_subnormal)],
        ["ulp(1)", value(fmt.eps)],
        ["infinities", "yes" if fmt.has_infinity else "no"],
        ["NaN", nan[fmt.nan]],
        ["zero", ("+0 and -0" if fmt.has_negative_zero else "+0") if fmt.has_zero else "no"],
        ["also called", ", ".join(aliases_of(fmt)) or "-"],
        ["carried as", f"NumPy {fmt.dtype}"],
        ["source", fmt.source],
    ]
    return markdown_table([fmt.name, "what it is"], rows)
