"""Renders one chat template in a process of its own, which may not take long, nor much memory, nor write a file.

`chat` runs it by its path, with {"template": ..., "variables": ...} on stdin; on stdout it gives {"text": ...} or
{"error": ...}. A template is a program from whoever made the checkpoint, so it gets what transformers gives it (5.24.0,
utils/chat_template_utils.py: an immutable sandbox, tojson, raise_exception, loop controls) but for the clock.
"""

from __future__ import annotations

import json
import sys
from typing import Any

SECONDS, MEMORY = 5, 1 << 29
MOST_CHARACTERS = 1_000_000


def main() -> None:
    """Read what is asked, give the answer."""
    asked = json.load(sys.stdin)
    _limit()
    try:
        answer = {"text": rendered(asked["template"], asked["variables"])}
    except MemoryError:
        answer = {"error": f"it takes more than {MEMORY >> 20} MB of memory"}
    except RecursionError:
        answer = {"error": "it calls itself without end"}
    except Exception as error:  # whatever a template can raise
        answer = {"error": f"{type(error).__name__}: {str(error)[:400]}"}
    json.dump(answer, sys.stdout)


def _limit() -> None:
    """No more than so many seconds, bytes of memory, and no byte in a file. Windows has no such limits."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def rendered(template: str, variables: dict[str, Any]) -> str:
    """The text that a template makes of its variables."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %}: what it encloses, as it is."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def strftime_now(_: str) -> None:
        raise jinja2.TemplateError("strftime_now asks for today's date: the answer would change from day to day")

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    parts, size = [], 0
    for part in environment.from_string(template).generate(**variables):
        parts.append(part)
        size += len(part)
        if size > MOST_CHARACTERS:
            raise jinja2.TemplateError(f"the text has more than {MOST_CHARACTERS} characters")
    return "".join(parts)


def _tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


if __name__ == "__main__":
    main()
