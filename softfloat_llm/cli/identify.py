"""`softfloat-llm identify`: which precision made an output that came from somewhere else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from softfloat_llm.analysis.answers import Answer
from softfloat_llm.analysis.grids import USUAL
from softfloat_llm.analysis.identify import Identification
from softfloat_llm.analysis.identify import identify as identify_operation
from softfloat_llm.analysis.identify_facts import is_held
from softfloat_llm.analysis.identify_format import Pairs, identify_format
from softfloat_llm.analysis.identify_logits import identify_logits
from softfloat_llm.analysis.identify_tensor import identify_tensor
from softfloat_llm.analysis.reading import numbers_of
from softfloat_llm.cli.options import OutputFlags, grouped, quoted
from softfloat_llm.cli.screen import answer_of, show, show_json, watched
from softfloat_llm.errors import ArrayError, nearest, why
from softfloat_llm.io.arrays import KINDS, read_array, read_arrays
from softfloat_llm.io.progress import Progress
from softfloat_llm.numerics.formats import Array, f32
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.operations import OPERATIONS, TABLE
from softfloat_llm.sites import SITES

WHATS = (*OPERATIONS, "logits", "round", "format", "tensor")


@grouped
def identify(
    what: Annotated[str, typer.Argument(metavar="WHAT", help=", ".join(WHATS))],
    given: Annotated[
        list[str] | None,
        typer.Argument(metavar="GIVEN...", help="FILE.npz, FILE.safetensors, NAME=1,2,3 or NAME=@FILE[:NAME]; numbers"),
    ] = None,
    *,
    pairs: Annotated[
        Path | None,
        typer.Option("--pairs", metavar="FILE", help="For format: two numbers a line; or arrays x, out."),
    ] = None,
    at: Annotated[
        list[str] | None, typer.Option("--at", metavar="KEY=WORD", help="What is known: storage=e4m3fn. Repeatable.")
    ] = None,
    output: OutputFlags,
) -> int:
    """softfloat-llm identify dot a=256,1,1 b=1,1,1 out=256

    Find which formats, accumulators, orders and forms give an output bit for bit: the arrays are the inputs of WHAT and
    `out`. `logits 22.375 22.25 ...`: the grid of printed numbers. `round`, `format`: the rule of a rounding, from
    samples. `tensor FILE[:NAME]`: 16-bit numbers read in the wrong format. Exit 1 where nothing fits.
    """
    words = given or []
    with watched(is_quiet=output.is_quiet) as progress:
        found = _found(what, words, pairs, _known(at or []), progress)
    if output.as_json:
        show_json("identify", found.to_dict())
    else:
        text = found.text(verbose=output.is_verbose, then=_then(found))
        show(answer_of(text) if output.is_quiet else text)
    return 0 if getattr(found, "fits", True) else 1


def _known(words: Sequence[str]) -> dict[str, str]:
    """The keys and words of --at."""
    split = [(key.strip(), word.strip()) for key, _, word in (text.partition("=") for text in words)]
    if wrong := [text for text, (key, word) in zip(words, split, strict=True) if not key or not word]:
        raise typer.BadParameter(f"--at {wrong[0]!r}: expected KEY=WORD, such as storage=e4m3fn.")
    return dict(split)


def _found(
    what: str, words: Sequence[str], pairs: Path | None, known: dict[str, str], progress: Progress | None
) -> Answer:
    if what not in WHATS:
        raise typer.BadParameter(f"{what!r} cannot be identified.{nearest(what, WHATS)} Known: {', '.join(WHATS)}.")
    if pairs is not None and what not in ("format", "round"):
        raise typer.BadParameter("--pairs goes with `identify format`.")
    if known and what not in OPERATIONS:
        raise typer.BadParameter(f"--at goes with {', '.join(OPERATIONS)}.")
    match what:
        case "logits":
            return _logits(words, progress)
        case "tensor":
            return identify_tensor(_one_array(words))
        case "format" | "round":
            return identify_format(_pairs(words, pairs))
    return identify_operation(what, _arrays(words), known=known, progress=progress)


# --- what is given ----------------------------------------------------------------------------------------------------


def _arrays(words: Sequence[str]) -> dict[str, Array]:
    """Arrays by name: those of files, and NAME=VALUES."""
    found: dict[str, Array] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if equals and not _is_file(word):
            found[name.strip()] = _values(values)
        else:
            found |= read_arrays(word.removeprefix("@"))
    return found


def _is_file(word: str) -> bool:
    return Path(word).suffix in KINDS and Path(word).exists()


def _values(text: str) -> Array:
    """An array: of a file (`@FILE`), or numbers with commas between, rows with `;`.

    Decimals that float32 does not hold are taken for the float32 that is printed so.
    """
    if text.startswith("@"):
        return read_array(text[1:])
    rows = [[number.value for number in numbers_of([row])] for row in text.strip("; ").split(";")]
    if len({len(row) for row in rows}) != 1:
        raise ArrayError(f"{text!r}: its rows have {', '.join(str(len(row)) for row in rows)} numbers.")
    objects = np.array(rows, dtype=object)
    exact = np.asarray(round_to(objects, "f64"))
    values = exact if is_held(exact, f32) else np.asarray(round_to(objects, "f32"))
    return values if len(rows) > 1 else values[0]


def _one_array(words: Sequence[str]) -> Array:
    if len(words) != 1:
        raise typer.BadParameter("tensor takes one array: FILE.npy, or FILE.safetensors:NAME.")
    return read_array(words[0].removeprefix("@"))


def _logits(words: Sequence[str], progress: Progress | None) -> Answer:
    """The grid of numbers or of one array; the whole operation, where a file has what went into it too."""
    if len(words) == 1 and Path(words[0].removeprefix("@").partition("[")[0].partition(":")[0]).suffix in KINDS:
        place = words[0].removeprefix("@")
        arrays = read_arrays(place) if Path(place).suffix in KINDS else {}
        if {"x", "weight", "out"} <= set(arrays):
            return identify_operation("linear", arrays, progress=progress)
        return identify_logits(read_array(place))
    return identify_logits([part for word in words for part in word.replace(",", " ").split()])


def _pairs(words: Sequence[str], file: Path | None) -> Pairs:
    """Pairs of numbers: X=Y words, lines of a text file, or the arrays x and out."""
    if file is not None:
        words = [*words, f"@{file}"] if file.suffix in KINDS else [*words, *_lines(file)]
    if any(word.startswith("@") or _is_file(word) or word.startswith(("x=", "out=")) for word in words):
        arrays = _arrays(words)
        if len(arrays) == 1 and next(iter(arrays.values())).ndim == 2:
            both = next(iter(arrays.values())).T
            arrays = {"x": both[0], "out": both[1]} if len(both) == 2 else {}
        if set(arrays) != {"x", "out"} or arrays["x"].shape != arrays["out"].shape:
            raise ArrayError("A rounding is identified by two arrays of one shape, x and out (or one of shape (N, 2)).")
        return list(zip(*(arrays[n].astype(np.float64).ravel().tolist() for n in ("x", "out")), strict=True))
    return [_pair(word) for word in words]


def _lines(file: Path) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArrayError(
            f"Reading the pairs of {file}: {why(error)}. Expected lines with two numbers, X Y, or {', '.join(KINDS)}."
        ) from None
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def _pair(word: str) -> tuple[str, str]:
    parts = word.replace("->", " ").replace("=", " ").replace(",", " ").split()
    if len(parts) != 2:
        raise typer.BadParameter(f"{word!r} is no pair of numbers: expected X=Y, or a line with two numbers.")
    return parts[0], parts[1]


# --- what to run next -------------------------------------------------------------------------------------------------

_FLAGS = ("storage", "product", "acc", "output", "order", "rounding", "subnormals")


def _then(found: Answer) -> str:
    """The same precision in a whole model."""
    if not isinstance(found, Identification) or not found.fits:
        return ""
    first = dict(found.fits[0].candidate.words)
    site = OPERATIONS[found.operation].site
    usual = USUAL | {"order": "seq", "output": first["storage"], "acc": "f32", "takes": "stored"}
    usual |= {key: option.default for key, option in (SITES[site].options.items() if site else ())}
    words = {k: w for k, w in first.items() if k != "eps" and w != usual.get(k)}
    if site in (None, "lm_head"):
        flags = [f"--{key} {quoted(word)}" for key, word in words.items() if key in _FLAGS]
        rest = [f"--at {quoted(f'matmul.{key}={word}')}" for key, word in words.items() if key not in _FLAGS]
        return " ".join(["simulate", *flags, *rest])
    place = "norm" if site == "norm.input" else site
    paths = {key: f"rope.{key}" if key.startswith(TABLE) else f"{place}.{key}" for key in words}
    told = [f"--at {quoted(f'{paths[k]}={w}')}" for k, w in words.items() if k not in ("storage", "output")]
    return " ".join(["simulate", f"--storage {words['storage']}", *told])
