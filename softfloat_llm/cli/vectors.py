"""`softfloat-llm vectors`: the conformance suite, written as text and run against any callable."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from softfloat_llm.cli.options import OutputFlags, grouped
from softfloat_llm.cli.screen import answer_of, say, show, show_json
from softfloat_llm.errors import VectorError, why
from softfloat_llm.io.atomic import new_file
from softfloat_llm.vectors.cases import OPERANDS, Case, read_cases
from softfloat_llm.vectors.runner import Subject, read_testfloat, run_cases
from softfloat_llm.vectors.suite import COUNT, suite

vectors = typer.Typer(no_args_is_help=True, help="softfloat-llm vectors run FILE --with package.module:function")


@vectors.command("write")
@grouped
def write(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the vectors go.")],
    *,
    operation: Annotated[str, typer.Option("--op", metavar="|".join(OPERANDS), help="The operation.")],
    format: Annotated[str, typer.Option("--format", metavar="F", help="Of operands and result.")],
    mode: Annotated[str, typer.Option("--mode", metavar="M", help="The rounding mode.")] = "ties_to_even",
    count: Annotated[
        int, typer.Option("--count", min=0, metavar="N", help="Seeded cases beside the special ones.")
    ] = COUNT,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="S", help="Which seeded ones.")] = 0,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a file that is there already.")] = False,
    output: OutputFlags,
) -> int:
    """softfloat-llm vectors write add.txt --op add --format bf16

    Write vectors, one case a line, whose results are worked out in exact rational arithmetic.
    """
    if file.exists() and not replace:
        raise VectorError(f"{file} is there already. Choose another place, or ask to replace it (--replace).")
    cases = suite(operation, format, mode, count=count, seed=seed)
    words = (
        f"softfloat-llm vectors write --op {operation} --format {format} --mode {mode} --count {count} --seed {seed}"
    )
    lines = [f"# made by: {words}", "# OPERATION FORMAT MODE OPERANDS -> RESULT FLAGS", *map(str, cases)]
    try:
        with new_file(file) as target:
            target.write(("\n".join(lines) + "\n").encode())
    except OSError as error:
        raise VectorError(f"Writing {file}: {why(error)}. Choose a place that can be written.") from None
    if output.as_json:
        show_json("vectors-write", {"file": str(file), "cases": len(cases)})
    else:
        show(f"{len(cases)} cases.")
    return 0


@vectors.command("run")
@grouped
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Vectors: ours, or what testfloat_gen wrote.")],
    *,
    subject: Annotated[
        str | None,
        typer.Option("--with", metavar="MODULE:FUNCTION", help="function(operation, format, mode, operands) -> float."),
    ] = None,
    testfloat: Annotated[
        str | None, typer.Option("--testfloat", metavar="FUNCTION", help="FILE is of testfloat_gen f16_mulAdd (or so).")
    ] = None,
    mode: Annotated[str, typer.Option("--mode", metavar="M", help="That of a TestFloat file.")] = "ties_to_even",
    output: OutputFlags,
) -> int:
    """softfloat-llm vectors run add.txt --with package.module:function

    Hold a function (ours, unless one is named) against vectors. Exit 1 where a case differs.
    """
    found = run_cases(_cases(file, testfloat, mode), _subject(subject), name=subject or "softfloat_llm.numerics")
    if output.as_json:
        show_json("vectors", found.to_dict())
    else:
        text = found.text(verbose=output.is_verbose)
        show(answer_of(text) if output.is_quiet else text)
    return 1 if found.wrong else 0


def _cases(file: Path, testfloat: str | None, mode: str) -> list[Case]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise VectorError(
            f"Reading the vectors {file}: {why(error)}. `softfloat-llm vectors write` makes such a file."
        ) from None
    cases = list(read_cases(lines, str(file)) if testfloat is None else read_testfloat(lines, testfloat, mode))
    if not cases:
        say(f"{file} holds no case.")
    return cases


def _subject(words: str | None) -> Subject | None:
    """The function that MODULE:FUNCTION names. Raises typer.BadParameter where there is none."""
    if words is None:
        return None
    module, _, name = words.partition(":")
    try:
        function: Any = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise typer.BadParameter(f"--with {words}: {error}. Expected MODULE:FUNCTION, importable from here.") from None
    if not callable(function):
        raise typer.BadParameter(f"--with {words}: {name} cannot be called.")
    chosen: Subject = function
    return chosen
