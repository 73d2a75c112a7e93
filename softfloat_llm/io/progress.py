"""How long pieces of work tell how far they are."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with (description, done, total) as a long piece of work goes on."""
