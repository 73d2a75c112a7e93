"""Verbs that have verbs of their own and still do something by themselves: `formats bf16`, `formats promote A B`."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperGroup

from softfloat_llm.cli.unknown_options import UsageError
from softfloat_llm.errors import WordError

_FIRST = f"{__name__}.first"  # where a call keeps its first word
_ITSELF = "itself"  # the name under which the group's own verb is kept; it is never shown


_ALIKE = 0.7  # as difflib has it: two letters of five that changed places (0.8), but no other word


class _Group(TyperGroup):
    """A group that hands to its own verb whatever does not begin with the name of another.

    Where that cannot take it, and it begins with nearly such a name, it was another verb that was meant.
    """

    def _others(self) -> list[str]:
        return [name for name in self.commands if name != _ITSELF]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_named = bool(args) and args[0] in self._others()
        ctx.meta[_FIRST] = "" if is_named or not args else args[0]
        return super().parse_args(ctx, args if is_named else [_ITSELF, *args])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (WordError, UsageError):
            first = ctx.meta[_FIRST]
            if meant := get_close_matches(first, self._others(), n=1, cutoff=_ALIKE):
                raise UsageError(f"No such command {first!r}. Did you mean {meant[0]!r}?", ctx) from None
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return ("" if name == _ITSELF else name), command, rest


def verb_with(verb: Callable[..., int], **others: Callable[..., int]) -> typer.Typer:
    """The verb, and further ones under names of their own: `formats`, and `formats promote`."""
    group = typer.Typer(cls=_Group)
    group.command(name=_ITSELF, hidden=True)(verb)
    for name, other in others.items():
        group.command(name=name)(other)
    return group
