"""Options that a verb does not have: told with the nearest one that it has, also by verbs that take numbers below 0."""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperCommand

from softfloat_llm.errors import nearest_word
from softfloat_llm.recipe import PRECISION_FLAGS

# click's exception, by way of typer's own: newer versions of typer bring their own copy of click
UsageError: Any = typer.BadParameter.__bases__[0]
NUMBERS = {"ignore_unknown_options": True}  # so that -0.1 is a number, not an option
_OPTION = re.compile(r"--[a-z][\w-]*")
_IN_ONE_TEXT = "--at storage=bf16,acc=bf16,order=lanes:8"
_OTHER_NAMES = {
    "dtype": "storage", "accumulator": "acc", "accumulate": "acc", "reference": "against", "ref": "against",
    "threads": "workers", "jobs": "workers", "max-new-tokens": "steps", "max-tokens": "steps", "n": "steps",
}  # fmt: skip


def no_such_option(name: str, command: Any) -> str:
    """What is said of an option that a command does not have."""
    known = [option[2:] for option in _options(command) if option.startswith("--")]
    meant = nearest_word(name.strip("-"), known, {other: own for other, own in _OTHER_NAMES.items() if own in known})
    if "at" in known and "acc" not in known and name[2:] in PRECISION_FLAGS:
        return f"No such option: {name}. What a sum is made in goes in one text: {_IN_ONE_TEXT}."
    return f"No such option: {name}." + (f" Did you mean --{meant}?" if meant else "")


def _options(command: Any) -> list[str]:
    return ["--help", *(option for parameter in command.params for option in parameter.opts)]


class NumbersCommand(TyperCommand):
    """A verb that takes words such as -0.1 for numbers (`NUMBERS`), but none that begins as an option does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = args[: args.index("--")] if "--" in args else args
        for word in given:
            name = word.partition("=")[0]
            if _OPTION.fullmatch(name) and name not in _options(self):
                raise UsageError(no_such_option(name, self), ctx)
        return super().parse_args(ctx, args)
