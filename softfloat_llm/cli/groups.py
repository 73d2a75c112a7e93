"""Verbs that have verbs of their own and still do something by themselves: `formats bf16`, `formats promote A B`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

_ITSELF = "itself"  # the name under which the group's own verb is kept; it is never shown


class _Group(TyperGroup):
    """A group that hands to its own verb whatever does not begin with the name of another."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_named = bool(args) and args[0] in self.commands
        return super().parse_args(ctx, args if is_named else [_ITSELF, *args])

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
