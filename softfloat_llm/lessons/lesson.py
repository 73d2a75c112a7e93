"""What a lesson is: data. A question to predict, then words, Python, commands and pictures, the answer, where to go on.

A lesson holds no results. Its Python is run from top to bottom in one session; the names that it makes are what
pictures are called with, what the prediction is held against, and what the answer's `{name}` fields are filled with.
`telling` runs it for a terminal, `notebook` writes it as a notebook. Start reading at `Lesson`, then at any lesson.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import cleandoc
from typing import Any


@dataclass(frozen=True)
class Predict:
    """A question to answer before reading on. `answer`: a Python expression of the lesson's names.

    Its value is a number, a word, or several numbers in a tuple.
    """

    question: str
    answer: str


@dataclass(frozen=True)
class Text:
    """Paragraphs, an empty line between two."""

    words: str


@dataclass(frozen=True)
class Python:
    """Lines of Python, shown with what each expression gives."""

    code: str


@dataclass(frozen=True)
class Command:
    """A command line of the program, shown with what it prints."""

    line: str


@dataclass(frozen=True)
class Picture:
    """A call of a function of `drawn`: plain text in a terminal, an SVG where pictures can be shown."""

    call: str


@dataclass(frozen=True)
class Answer:
    """What the prediction should have been and why; `{name}` is filled with a value of the lesson's Python."""

    words: str


@dataclass(frozen=True)
class Next:
    """Where to go on: what to read (another lesson by its name), and commands to try."""

    read: str
    run: tuple[str, ...] = ()


Step = Predict | Text | Python | Command | Picture | Answer | Next


@dataclass(frozen=True)
class Lesson:
    """A short lesson: its question first, where to go on last, the answer before that."""

    name: str
    title: str
    steps: tuple[Step, ...]

    @property
    def question(self) -> Predict:
        return next(step for step in self.steps if isinstance(step, Predict))

    def of(self, kind: type[Any]) -> list[Any]:
        """The steps of a kind."""
        return [step for step in self.steps if isinstance(step, kind)]


def paragraphs(words: str) -> list[str]:
    """The paragraphs of a text of a lesson, each on one line.

    >>> paragraphs('''
    ...     One that goes
    ...     on.
    ...
    ...     Two.''')
    ['One that goes on.', 'Two.']
    """
    return [" ".join(part.split()) for part in cleandoc(words).split("\n\n")]
