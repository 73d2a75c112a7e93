"""Short lessons about floating point in language models, one Python file each. Start reading at `value`.

`softfloat-llm lesson NAME` shows one; `lesson("ties")` has it as data, `telling.told` runs it.
A new lesson is a file with a `LESSON`, its name in `NAMES`, and its answer by fractions in `tests/lessons`.
"""

from __future__ import annotations

from importlib import import_module

from softfloat_llm.errors import WordError, nearest
from softfloat_llm.lessons.lesson import Lesson

NAMES = (
    "value", "ulp", "ties", "stages", "accumulator", "order", "batch", "margins", "islands", "range",
    "double-rounding", "stochastic", "blocks",
)  # fmt: skip
"""The lessons, in the order in which they build upon one another."""


def lesson(name: str) -> Lesson:
    """The lesson of a name. **Raises** WordError for an unknown one.

    >>> lesson("ties").title
    'Half way: ties go to the even value'
    """
    if name not in NAMES:
        raise WordError(f"Unknown lesson {name!r}.{nearest(name, NAMES)} There are: {', '.join(NAMES)}.")
    found: Lesson = import_module(f"{__name__}.{name.replace('-', '_')}").LESSON
    return found


def lessons() -> list[Lesson]:
    """All lessons, in their order."""
    return [lesson(name) for name in NAMES]
