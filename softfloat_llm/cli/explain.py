"""`softfloat-llm explain`: why one number came out as it did: a rounding, a sum, a token."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from softfloat_llm.analysis.answers import Answer
from softfloat_llm.analysis.explain_round import explain_round
from softfloat_llm.analysis.explain_step import NEEDED_TAPS, StepStory, explain_step
from softfloat_llm.analysis.explain_sum import Values, explain_dot, explain_sum
from softfloat_llm.analysis.names import named
from softfloat_llm.analysis.reading import numbers_of
from softfloat_llm.cli.asked import saved_run
from softfloat_llm.cli.options import OutputFlags, PassFlags, grouped, quoted
from softfloat_llm.cli.screen import answer_of, show, show_json, watched
from softfloat_llm.cli.unknown_options import NUMBERS, NumbersCommand
from softfloat_llm.io.arrays import read_array
from softfloat_llm.numerics.precision import precision_of
from softfloat_llm.recipe import recipe_of
from softfloat_llm.runs import Run, simulate

At = Annotated[
    str, typer.Option("--at", metavar="KEY=WORD,...", help="storage, product, acc, order, output, as for simulate.")
]
Init = Annotated[str | None, typer.Option("--init", metavar="X", help="Where the accumulator starts.")]


@grouped
def round_(
    x: Annotated[str, typer.Argument(metavar="X", help="0.1, 0x1.64p+4, 1/3, 1+2^-11, f32:0x41b2372d, inf, nan")],
    to: Annotated[str, typer.Option("--to", metavar="F", help="The format that it is rounded to.")] = "bf16",
    mode: Annotated[str, typer.Option("--mode", metavar="M", help="ties_to_even, toward_zero, ...")] = "ties_to_even",
    overflow: Annotated[str, typer.Option("--overflow", metavar="O", help="ieee or saturate.")] = "ieee",
    subnormals: Annotated[str, typer.Option("--subnormals", metavar="S", help="keep, ftz, daz, ftz+daz.")] = "keep",
    *,
    output: OutputFlags,
) -> int:
    """softfloat-llm explain round 22.277479 --to bf16

    Tell the story of one rounding in exact numbers: the two neighbours, the midpoint, the distances, and what decided.
    """
    story = explain_round(x, to, mode, overflow=overflow, subnormals=subnormals)
    return _told(story, output, _other_format(x, to))


def _other_format(x: str, to: str) -> str:
    return f"softfloat-llm explain round {quoted(x)} --to {'f16' if to == 'bf16' else 'bf16'}"


@grouped
def sum_(
    terms: Annotated[list[str], typer.Argument(metavar="X...", help="Numbers as for round; or @FILE.npy[:NAME][ROW]")],
    at: At = "storage=bf16,acc=bf16",
    init: Init = None,
    *,
    output: OutputFlags,
) -> int:
    """softfloat-llm explain sum 256 1 1 --at acc=bf16,order=seq

    Show a sum step by step along the tree of its order: what each term did, what was lost, and where most.
    """
    story = explain_sum(_listed(terms), _precision(at), init=init)
    return _told(story, output, f"softfloat-llm explain sum {_again(terms)} --at acc=f32")


@grouped
def dot(
    a: Annotated[str, typer.Argument(metavar="A", help="Numbers with commas between, or @FILE.npy[:NAME][ROW]")],
    b: Annotated[str, typer.Argument(metavar="B", help="As many again.")],
    at: At = "storage=bf16,acc=bf16",
    init: Init = None,
    *,
    output: OutputFlags,
) -> int:
    """softfloat-llm explain dot 256,1,1 1,1,1 --at storage=bf16,acc=bf16

    Show a dot product step by step: the exact products, how they enter the accumulator, what was lost, and where most.
    Of a matrix unit (order fused:UNIT), the aligned exponents and the bits that it cuts.
    """
    story = explain_dot(_listed([a]), _listed([b]), _precision(at), init=init)
    return _told(story, output, f"softfloat-llm explain dot {_again([a, b])} --at order=pairwise")


def _precision(text: str) -> str:
    """The words of --at; without a storage they are put upon bf16."""
    is_whole = "storage" in text or "=" not in text
    whole = text if is_whole else f"storage=bf16,{text}"
    precision_of(whole)
    return whole


def _listed(words: list[str]) -> Values:
    """The numbers that words mean: a file's array, or the numbers themselves."""
    if len(words) == 1 and words[0].startswith("@"):
        return read_array(words[0][1:])
    return numbers_of(words)


def _again(words: list[str]) -> str:
    """The terms as a command has them, where they are few."""
    text = " ".join(map(quoted, words))
    return text if len(text) <= 60 else "..."


@grouped
def step(
    run: Annotated[str, typer.Argument(metavar="RUN", help="What `simulate --save` wrote; or a recipe's words.")],
    number: Annotated[int, typer.Argument(metavar="N", min=0, help="The step: 0 is the first token chosen.")],
    *,
    against: Annotated[
        str, typer.Option("--against", metavar="RUN|RECIPE", help="A saved run, or a recipe that is run on its tokens.")
    ] = "f32",
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT|@FILE", help="What is run, where RUN is a recipe's words.")
    ] = None,
    passes: PassFlags,
    output: OutputFlags,
) -> int:
    """softfloat-llm explain step RUN 0 --against f32

    Say why a step chose its token: the best candidates, the margin in ulps, the errors that met it, the tie rule, how
    the error grew by layer, and where the two runs first part. `RUN` may be words (`bf16,acc=f16`): then it is run.
    """
    with watched(is_quiet=output.is_quiet) as progress:
        saved, reference = _saved(run), _saved(against)
        if saved is not None:
            _refuse(prompt, passes)
            story = explain_step(saved, number, against=against if reference is None else reference)
        else:
            model = "tiny" if reference is None else reference.model
            given = passes.arguments(prompt, progress, model=model) | {"steps": number + 1, "taps": NEEDED_TAPS}
            story = _of_words(run, number, reference, against, given)
    made = "" if saved is not None else _as_words(run, prompt, passes)
    return _told(story, output, story.missing or _further(story, made or quoted(run), number, against))


def _as_words(recipe: str, prompt: str | None, passes: PassFlags) -> str:
    """A prompt and flags in place of a saved run, as bisect and margins take them."""
    told = [] if prompt is None else [quoted(prompt)]
    return " ".join([*told, f"--recipe {quoted(recipe)}", *passes.words()])


def _further(story: StepStory, run: str, number: int, against: str) -> str:
    """Which site turned the token over, where one did; else by how much the others were chosen."""
    if not story.verdict.is_flip:
        steps = f" --steps {number + 1}" if "--recipe" in run else ""
        return f"softfloat-llm margins {run}{steps}"
    reference = "" if against == "f32" or _saved(against) is not None else f" --against {quoted(against)}"
    return f"softfloat-llm bisect {run} --step {number} --fast{reference}"


def _saved(word: str) -> Run | None:
    """The saved run that a word names; None where it is a recipe's words. Raises RunError for another path."""
    try:
        is_place = Path(word).is_dir() or ("/" in word and not word.endswith(".toml"))
    except (OSError, ValueError):
        is_place = False
    return saved_run(word) if is_place else None


def _refuse(prompt: str | None, passes: PassFlags) -> None:
    if prompt is not None or passes.words():
        raise typer.BadParameter("--prompt, --tokens, --model, --taps cannot stand with a saved run: it has its own.")


def _of_words(words: str, number: int, reference: Run | None, against: str, given: dict[str, Any]) -> StepStory:
    """The run is made here, on the tokens of its reference; the reference too, where it is not saved."""
    recipe = recipe_of(words)
    taught_by = reference or simulate(recipe=against, **given)
    run = simulate(recipe=recipe, teacher=taught_by, **given)
    return explain_step(named(run, given["model"]), number, against=named(taught_by, given["model"]), missing="")


def _told(story: Answer, output: OutputFlags, then: str) -> int:
    if output.as_json:
        show_json("explain", story.to_dict())
        return 0
    text = story.text(verbose=output.is_verbose, then=then)
    show(answer_of(text) if output.is_quiet else text)
    return 0


explain = typer.Typer(
    no_args_is_help=True,
    help="softfloat-llm explain round 22.277479 --to bf16\n\nWhy a number came out as it did, in exact numbers.",
)
for name, verb, summary in (
    ("round", round_, "One rounding: the neighbours, and what decided."),
    ("sum", sum_, "A sum, step by step."),
    ("dot", dot, "A dot product, step by step."),
):
    explain.command(name=name, cls=NumbersCommand, short_help=summary, context_settings=NUMBERS)(verb)
explain.command(name="step", short_help="Why a step chose its token.")(step)
