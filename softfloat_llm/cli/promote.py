"""`softfloat-llm formats promote`: what PyTorch, NumPy and JAX make of two types."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from softfloat_llm.analysis.wording import labelled, markdown_table
from softfloat_llm.cli.options import OutputFlags, grouped
from softfloat_llm.cli.screen import show, show_json
from softfloat_llm.promotion import OPS, REDUCTIONS, RULES, Promotion, note, promote, types

_SIGNS = {"add": "+", "mul": "*", "div": "/", "matmul": "@"}


@grouped
def promote_verb(
    a: Annotated[str, typer.Argument(metavar="A", help="A type: bf16, half, e4m3fn, i64, bool; or a Python scalar: 3")],
    b: Annotated[str | None, typer.Argument(metavar="B", help="The other; without it, A with every type.")] = None,
    *,
    rules: Annotated[
        str | None, typer.Option("--rules", metavar="|".join(RULES), help="Whose rules; all of them unless said.")
    ] = None,
    op: Annotated[str, typer.Option("--op", metavar="|".join(OPS), help="The operation.")] = "add",
    scalar: Annotated[bool, typer.Option("--scalar", help="B has no dimensions: torch.tensor(0.5).")] = False,
    output: OutputFlags,
) -> int:
    """softfloat-llm formats promote bf16 f32

    Say what type comes out where two types meet, in which format a scalar enters, or in which words it is refused.
    A number is a Python scalar: `formats promote bf16 0.5 --op mul`. `--op sum` and `--op mean` take one type.
    """
    chosen = RULES if rules is None else (rules,)
    others = [b] if b is not None or op in REDUCTIONS else list(types())
    found = [[_promotion(a, other, whose, op, scalar=scalar) for whose in chosen] for other in others]
    if output.as_json:
        show_json("formats-promote", {"promotions": [asdict(one) for row in found for one in row]})
    else:
        show(_one_text(found[0], is_verbose=output.is_verbose) if len(found) == 1 else _list_text(found))
    return 0


def _promotion(a: str, b: str | None, rules: str, op: str, *, scalar: bool) -> Promotion:
    first, kind = _operand(a)
    if b is None:
        return promote(first, rules=rules, kinds=(kind, "tensor"), op=op)
    second, other = _operand(b)
    return promote(
        first, second, rules=rules, kinds=(kind, "zero-dim" if scalar and other == "tensor" else other), op=op
    )


def _operand(word: str) -> tuple[str, str]:
    """(type, kind) of a word: a number, True and False are Python scalars."""
    if word in ("True", "False"):
        return "bool", "python"
    for kind in (int, float):
        try:
            kind(word)
        except ValueError:
            continue
        return kind.__name__, "python"
    return word, "tensor"


def _spelled(found: Promotion) -> str:
    """The operation, as in `bf16 + f32`."""
    if found.b is None:
        return f"{found.op}({found.a})"
    first, second = (_operand_text(name, kind) for name, kind in zip((found.a, found.b), found.kinds, strict=True))
    return f"{first} {_SIGNS[found.op]} {second}"


def _operand_text(name: str, kind: str) -> str:
    return {"tensor": name, "zero-dim": f"{name} of no dimensions", "python": f"Python {name}"}[kind]


def _one_text(found: list[Promotion], *, is_verbose: bool) -> str:
    facts = ["; ".join(_facts(one)) for one in found]
    header = ["rules", _spelled(found[0]), *(["how"] if any(facts) else [])]
    rows = [[one.rules, one.result or "refused", fact][: len(header)] for one, fact in zip(found, facts, strict=True)]
    sources = [f"{one.rules}: {one.source}" + (f". Held: {one.checked}" if is_verbose else "") for one in found]
    again = "bf16 f32 --op matmul" if any(one.scalar for one in found) else "bf16 0.5 --op mul"
    tail = [labelled("source", "\n".join(sources)), labelled("next", f"softfloat-llm formats promote {again}")]
    return "\n".join([markdown_table(header, rows), "", *tail])


def _facts(found: Promotion) -> list[str]:
    """What is to be known beside the type."""
    if found.is_refused:
        return [found.says]
    facts = []
    if found.scalar:
        facts.append(_SCALARS[found.scalar].format(found.scalar_format, found.result))
    if found.accumulator:
        facts.append(f"adds in {found.accumulator}")
    if {found.a, found.b} & {"f64", "i64"} and note(found.rules):
        facts.append(note(found.rules))
    return facts


_SCALARS = {
    "rounded": "the scalar is rounded to {0} first",
    "wide": "the scalar stays {0}; the result is rounded to {1} once",
    "reciprocal": "1 / t is rounded to {1}, then multiplied by the scalar in {0}",
    "rounded, then reciprocal": "the scalar is rounded to {0} first; XLA multiplies by its reciprocal",
}


def _list_text(found: list[list[Promotion]]) -> str:
    """A with every type."""
    first = found[0][0]
    rows = [[_spelled(row[0]), *(one.result or "refused" for one in row)] for row in found]
    table = markdown_table([first.op, *(one.rules for one in found[0])], rows)
    refused = next((one for row in found for one in row if one.is_refused), None)
    other = refused.b if refused and refused.b else "f32"
    return f"{table}\n\n{labelled('next', f'softfloat-llm formats promote {first.a} {other}')}"
