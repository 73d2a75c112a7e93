"""What the answers of the analyses share: text for a terminal and HTML for a notebook, made of the same parts.

An answer is a frozen dataclass that says its heading, its sentences, its tables and its ending; `Answer` lays them out.
So the two never disagree, and `to_dict` (the JSON) is made of the same fields. Start reading at `Answer.text`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from softfloat_llm.analysis.markup import html_folded, html_labels, html_paragraphs, html_table
from softfloat_llm.analysis.wording import labelled, markdown_table

if TYPE_CHECKING:
    from softfloat_llm.runs import Run

_SHOWN_PROMPT = 60


@dataclass(frozen=True)
class Table:
    """A table of an answer. `right`: the columns that are aligned to the right; `note` stands below it.

    A long one may be `folded`: its HTML then lies under this title.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    note: str = ""
    folded: str = ""

    def as_text(self) -> str:
        """Markdown whose columns line up in plain text too."""
        table = markdown_table(self.header, self.rows, self.right)
        return f"{table}\n{self.note}" if self.note else table

    def as_html(self) -> str:
        """The same cells, and the note as paragraphs."""
        html = html_table(self.header, self.rows, self.right) + html_paragraphs(self.note.splitlines())
        return html_folded(self.folded, html) if self.folded else html

    def cut(self, most: int, more: str = "-v") -> Table:
        """The first rows, and in the note how many more there are and what shows them."""
        left = len(self.rows) - most
        if left <= 0:
            return self
        told = f"({left} further row{'s are' if left > 1 else ' is'} not shown: {more})"
        note = f"{self.note}\n{told}" if self.note else told
        return Table(self.header, self.rows[:most], self.right, note, self.folded)


class Answer:
    """The layout of an answer: heading, sentences, tables, ending. Its dataclass says what stands in each."""

    def heading(self) -> list[tuple[str, str]]:
        """(label, text) lines above the answer: what was run, and how."""
        raise NotImplementedError

    def sentences(self) -> list[str]:
        """The answer itself, what matters most first."""
        raise NotImplementedError

    def remarks(self) -> list[tuple[str, str]]:
        """(label, text) lines below the answer: what should be known of it."""
        return []

    def tables(self, *, verbose: bool = False) -> list[Table]:
        """What the sentences rest on; `verbose`: every row."""
        raise NotImplementedError

    def ending(self) -> list[tuple[str, str]]:
        """(label, text) lines below the tables: digests."""
        return []

    def to_dict(self) -> dict[str, Any]:
        """The answer as JSON has it: plain numbers, strings and lists; non-finite numbers as strings."""
        raise NotImplementedError

    def text(self, *, verbose: bool = False, then: str | None = None) -> str:
        """The answer as plain text: heading, sentences, remarks, tables, what to run next (`then`), ending."""
        head = [*self.heading(), *zip(["answer", *[""] * 99], self.sentences(), strict=False), *self.remarks()]
        tables = [table.as_text() for table in self.tables(verbose=verbose) if table.rows]
        last = [("next", then)] if then else []
        return "\n\n".join(part for part in (_lines(head), *tables, _lines([*last, *self.ending()])) if part)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        tables = "".join(table.as_html() for table in self.tables(verbose=True) if table.rows)
        labels = html_labels([*self.heading(), *self.ending()])
        said = html_paragraphs([*self.sentences(), *(text for _, text in self.remarks())])
        return f"<div>{said}{tables}{labels}</div>"


def prompt_of(run: Run) -> str:
    """The text of the prompt of a run."""
    return run.text_of(run.prompt_tokens)


def shown_prompt(text: str) -> str:
    """A prompt in quotes, a long one cut."""
    return repr(text) if len(text) <= _SHOWN_PROMPT else f"{text[:_SHOWN_PROMPT]!r}..."


def counted(count: int, what: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def _lines(pairs: list[tuple[str, str]]) -> str:
    return "\n".join(labelled(label, text) for label, text in pairs)
