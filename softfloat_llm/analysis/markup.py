"""Answers as HTML for notebooks and reports: the same lines and cells as the text has, escaped.

Whatever comes from outside (tokens, prompts, names of models and files) goes through `escaped`. Start reading there.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

# Hebrew, Arabic and the other scripts that are written from right to left, and their presentation forms
_RIGHT_TO_LEFT = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff"
_FOREIGN = re.compile(f"[{_RIGHT_TO_LEFT}]+(?:[^\\w<>&]*[{_RIGHT_TO_LEFT}]+)*")


def escaped(text: str) -> str:
    """The text as HTML shows it, character by character: nothing in it is markup, and nothing moves its neighbours.

    What cannot be printed (controls, marks that turn the direction of writing, lone surrogates) is spelled out, and
    text that is written from right to left stands in a `bdi` of its own, so that what is around it stays in its order.

    >>> escaped("<script> & '\u202e'"), escaped("'\u05d0' -> 'b'")
    ('&lt;script&gt; &amp; &#x27;\\\\u202e&#x27;', '&#x27;<bdi>\u05d0</bdi>&#x27; -&gt; &#x27;b&#x27;')
    """
    shown = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
    return _FOREIGN.sub(r"<bdi>\g<0></bdi>", html.escape(shown))


def html_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = (), caption: str = ""
) -> str:
    """A table with every cell escaped. Its classes: `n` for cells of the columns on the right, `x` for what begins so.

    `right`: the columns that are aligned to the right. Answers write `x` before what does not hold.
    """
    head = "".join(_cell("th", cell, place in right) for place, cell in enumerate(header))
    body = "".join(f"<tr>{_cells(row, right)}</tr>" for row in rows)
    told = f"<caption>{escaped(caption)}</caption>" if caption else ""
    return f"<table>{told}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(row: Sequence[str], right: Sequence[int]) -> str:
    return "".join(_cell("td", cell, place in right, place > 0) for place, cell in enumerate(row))


def _cell(tag: str, text: str, is_right: bool, can_fail: bool = False) -> str:
    words = ["n"] * is_right + ["x"] * (can_fail and text.startswith("x "))
    kind = f' class="{" ".join(words)}"' if words else ""
    scope = ' scope="col"' if tag == "th" else ""
    return f"<{tag}{scope}{kind}>{escaped(text)}</{tag}>"


def html_paragraphs(lines: Iterable[str]) -> str:
    """Each line as a paragraph; one that has several lines keeps them."""
    return "".join(f"<p>{_broken(line)}</p>" for line in lines)


def html_labels(pairs: Iterable[tuple[str, str]]) -> str:
    """(label, text) lines as a list of terms; a text of several lines keeps them."""
    items = "".join(f"<dt>{escaped(label)}</dt><dd>{_broken(text)}</dd>" for label, text in pairs)
    return f"<dl>{items}</dl>" if items else ""


def html_folded(title: str, html: str) -> str:
    """Markup that is shown when its title is opened."""
    return f"<details><summary>{escaped(title)}</summary>{html}</details>"


def _broken(text: str) -> str:
    return escaped(text).replace("\n", "<br>")


def html_text(text: str) -> str:
    """A text that has its own layout, as it stands."""
    return f"<pre>{escaped(text)}</pre>"
