"""The program: its verbs, and what each kind of failure looks like.

Exit codes: 0 done, claims hold · 1 a claim does not hold · 2 the words are wrong · 3 an input cannot be used ·
4 internal error · 130 interrupted.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from softfloat_llm.cli.bisect import bisect
from softfloat_llm.cli.bound import bound
from softfloat_llm.cli.budget import budget
from softfloat_llm.cli.compare import compare
from softfloat_llm.cli.explain import explain
from softfloat_llm.cli.fetch import fetch
from softfloat_llm.cli.formats import formats
from softfloat_llm.cli.golden import golden
from softfloat_llm.cli.groups import verb_with
from softfloat_llm.cli.identify import identify
from softfloat_llm.cli.inspect import inspect
from softfloat_llm.cli.lesson import lesson
from softfloat_llm.cli.margins import margins
from softfloat_llm.cli.promote import promote_verb
from softfloat_llm.cli.ranges import ranges
from softfloat_llm.cli.recipes import recipes
from softfloat_llm.cli.recipes_check import check_verb
from softfloat_llm.cli.report import report
from softfloat_llm.cli.reproduce import reproduce
from softfloat_llm.cli.reveal import reveal
from softfloat_llm.cli.screen import say, show, silence_stdout
from softfloat_llm.cli.simulate import simulate
from softfloat_llm.cli.sweep import sweep
from softfloat_llm.cli.taps import taps
from softfloat_llm.cli.ties import ties
from softfloat_llm.cli.unknown_options import NUMBERS, NumbersCommand, UsageError, no_such_option
from softfloat_llm.cli.vectors import vectors
from softfloat_llm.errors import SoftfloatError, why
from softfloat_llm.runs import package_version

PROGRAM = "softfloat-llm"
OK, CLAIM_FAILS, WRONG_WORDS, UNUSABLE_INPUT, INTERNAL_ERROR, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 4, 130, 143

ClickException: Any = UsageError.__bases__[0]

app = typer.Typer(
    name=PROGRAM,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="softfloat-llm simulate --storage bf16 --acc f16\n\nWhat a choice of precision does to a Llama, bit for bit.",
)
_SUMMARIES = {
    simulate: "Run a forward pass and say what the precision did.",
    compare: "How two runs (or tensors of other tools) differ, and where first.",
    margins: "By how much each token was chosen, in ulps of a format.",
    ties: "Steps whose best logits tie in a format.",
    budget: "How much of an error each stage or site makes.",
    bisect: "Which site's precision flipped a token.",
    ranges: "Largest and smallest values; what would overflow in f16.",
    bound: "How far right results may lie apart; what a test must allow.",
    reproduce: "Claims of others, checked: expected beside obtained.",
    reveal: "The order of a real kernel's sums, found from outside.",
    report: "One HTML page about a run, with pictures.",
    sweep: "Many recipes, orders, prompts and seeds at once.",
    formats: "What each number format is.",
    recipes: "The precision policies of engines, as data.",
    taps: "The named values of a forward pass.",
    lesson: "Short lessons: predict, then see what really comes out.",
    inspect: "The audit of a checkpoint: what was understood, what its values lose.",
    fetch: "Get a model.",
}
_FURTHER = {formats: {"promote": promote_verb}, recipes: {"check": check_verb}}


def _show_version(is_asked: bool) -> None:
    if is_asked:
        show(f"{PROGRAM} {package_version()}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """What stands before the verb."""


for verb, summary in _SUMMARIES.items():
    if verb in _FURTHER:
        app.add_typer(verb_with(verb, **_FURTHER[verb]), name=verb.__name__, short_help=summary)
    else:
        app.command(name=verb.__name__, short_help=summary)(verb)
app.command(
    name="identify", cls=NumbersCommand, short_help="Which precision made an output.", context_settings=NUMBERS
)(identify)
app.add_typer(explain, name="explain", short_help="Why a number came out so: a rounding, a sum, a token.")
app.add_typer(golden, name="golden", short_help="Golden outputs: write them, check against them.")
app.add_typer(vectors, name="vectors", short_help="Conformance vectors: write them, run them.")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script `softfloat-llm`."""
    signal.signal(signal.SIGTERM, _terminated)  # so that what is half-written is removed
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def simulate_main() -> NoReturn:
    """The console script `simulate`: the same as `softfloat-llm simulate`."""
    main(["simulate", *sys.argv[1:]])


def run(arguments: list[str]) -> int:
    """Run the program and give its exit code; failures are told on stderr."""
    is_verbose = any(word in ("-v", "--verbose") for word in arguments)
    try:
        code = app(args=arguments, prog_name=PROGRAM, standalone_mode=False) or OK
        return _tell_interruption() if code == INTERRUPTED else int(code)  # newer versions of typer give 130 back
    except (KeyboardInterrupt, typer.Abort):  # older ones raise
        return _tell_interruption()
    except BrokenPipeError:
        silence_stdout()
        return OK
    except SystemExit as end:  # rich ends so where the reader of a help page has gone away
        silence_stdout()
        return TERMINATED if end.code == TERMINATED else OK
    except ClickException as error:
        return _tell_usage(error)
    except (SoftfloatError, OSError) as error:
        if is_verbose:
            traceback.print_exc()
        say(f"{type(error).__name__}: {_of_system(error) if isinstance(error, OSError) else error}")
        return error.exit_code if isinstance(error, SoftfloatError) else UNUSABLE_INPUT
    except Exception as error:
        if is_verbose:
            traceback.print_exc()
        say(f"Internal error: {type(error).__name__}: {error}\nThis is a fault of {PROGRAM}; -v shows where.")
        return INTERNAL_ERROR


def _of_system(error: OSError) -> str:
    """What the system refused, and of which file: where no part of the program has said what it was doing."""
    told = why(error, with_file=True)
    return f"{told}. Check that it is there, and may be read or written here; -v shows where this came up."


def _tell_interruption() -> int:
    say("Interrupted; nothing half-written stays behind.")
    return INTERRUPTED


def _tell_usage(error: Any) -> int:
    """The words were wrong: say which, and where the right ones are listed."""
    context: Any = getattr(error, "ctx", None)
    where = context.command_path.rstrip() if context is not None else PROGRAM
    is_of_option = context is not None and hasattr(error, "option_name") and hasattr(error, "possibilities")
    message = no_such_option(error.option_name, context.command) if is_of_option else error.format_message()
    if message:  # without a verb the help has been shown already
        say(f"Usage error: {message}\nSee: {where} --help")
    return WRONG_WORDS


def _terminated(*_: object) -> NoReturn:
    sys.exit(TERMINATED)
