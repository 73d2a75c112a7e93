"""`softfloat-llm golden`: outputs that must not change by a bit."""

from __future__ import annotations

import typer

golden = typer.Typer(no_args_is_help=True)
