"""Reading pages in tests: their text, their tags, and strings that a page must not take for markup."""

from __future__ import annotations

from html.parser import HTMLParser

HOSTILE = [
    "<script>alert(1)</script>", "</td></tr></table><b>", "\"' onmouseover=x", "&lt;b&gt;", "\x1b[31mred\x00",
    "\u202egnirts", "\ud800", "]]>", "<!--", "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627\u060c 12",
    "a" * 10_000, "$x^2$", "\n\n| - |\n", "", "\u2028", "\U0001f999",
]  # fmt: skip
"""Tags, quotes, entities, control characters, marks of direction, words from right to left, and a very long one."""


class Page(HTMLParser):
    """The text of a page, its tags with their attributes, and those that are still open."""

    VOID = ("br", "meta", "link", "hr", "img", "input")

    def __init__(self) -> None:
        super().__init__()
        self.text, self.found, self.open = "", [], []

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.found}

    def values(self, name: str) -> list[str]:
        """The values of an attribute, in their order."""
        return [given[name] for _, given in self.found if name in given]

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(html: str) -> Page:
    """The parsed page. Every tag is closed where it should be."""
    page = Page()
    page.feed(html)
    page.close()
    assert page.open == []
    return page


def contrast(one: str, other: str) -> float:
    """The contrast of two colours such as #14171c, 1 to 21. **Source:** WCAG 2.2, contrast ratio."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(code: str) -> float:
    parts = [int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    lit = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * lit[0] + 0.7152 * lit[1] + 0.0722 * lit[2]
