"""A page in a real browser: Chromium without a window measures it, at a given width and for a light or a dark page.

The page is put into a frame of the width that is asked for (a window of Chromium is never narrower than 500), with a
script that a page of ours would not let in: so its own policy is taken out of the copy. Start reading at `measured`.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>\n?')

_MEASURE = """
function box(node) { const b = node.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; }
function isScrolled(node) {
  for (let up = node; up; up = up.parentElement) {
    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(up).overflowX)) return true;
  }
  return false;
}
function measure() {
  document.querySelectorAll('details').forEach(node => node.open = true);
  const page = document.documentElement, wide = [];
  for (const node of document.body.querySelectorAll('*')) {
    const b = box(node);
    const isOut = b[2] > page.clientWidth + 1 || (b[0] < -1 && !node.matches('.skip'));
    if (isOut && !isScrolled(node)) wide.push([node.tagName, node.textContent.slice(0, 40), b]);
  }
  const pictures = [...document.querySelectorAll('svg')].map(svg => ({
    name: svg.getAttribute('class'), box: box(svg),
    texts: [...svg.querySelectorAll('text')].map(t => [t.textContent, ...box(t)]),
  }));
  const style = getComputedStyle(document.body);
  const scale = node => {
    const svg = node.ownerSVGElement;
    return svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
  };
  const letters = [...document.querySelectorAll('p,td,th,dd,figcaption,pre,text')].map(
    node => parseFloat(getComputedStyle(node).fontSize) * scale(node));
  return {
    width: page.clientWidth, scrollWidth: page.scrollWidth, height: page.scrollHeight, wide, pictures,
    smallest: Math.min(...letters), ink: style.color, paper: style.backgroundColor,
    stops: [...document.querySelectorAll('a,summary,[tabindex]')].filter(node => node.tabIndex === 0).length,
  };
}
"""


def chromium() -> str | None:
    """The program, where one is on the PATH."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


def measured(page: str, folder: Path, width: int, *, is_dark: bool = False) -> dict[str, Any]:
    """What the browser says of the page at a width: sizes, what sticks out, the places of all text in pictures.

    All that can be opened is open.
    """
    inner = _POLICY.sub("", page).replace("</body>", f"<script>{_MEASURE}</script></body>")
    script = (
        "const frame = document.querySelector('iframe');"
        "frame.onload = () => { document.querySelector('pre').textContent ="
        " JSON.stringify(frame.contentWindow.measure()); };"
    )
    told = _run(_framed(inner, width, f"<pre></pre><script>{script}</script>"), folder, "--dump-dom", is_dark=is_dark)
    found = re.search(r"<pre>(\{.*?\})</pre>", told, re.S)
    assert found, f"Chromium measured nothing: {told[-2000:]}"
    answer: dict[str, Any] = json.loads(html.unescape(found[1]))
    return answer


def screenshot(page: str, path: Path, width: int, height: int, *, is_dark: bool = False) -> Path:
    """A picture of the upper part of the page, for people to look at."""
    size = f"--window-size={max(500, width)},{height}"
    _run(_framed(page, width, ""), path.parent, "--hide-scrollbars", size, f"--screenshot={path}", is_dark=is_dark)
    return path


def _framed(page: str, width: int, more: str) -> str:
    frame = f'<iframe style="border:0;width:{width}px;height:60000px" srcdoc="{html.escape(page)}"></iframe>'
    return f'<!doctype html><meta charset="utf-8"><body style="margin:0">{frame}{more}'


def _run(outer: str, folder: Path, *words: str, is_dark: bool) -> str:
    file = folder / "framed.html"
    file.write_text(outer, encoding="utf-8")
    program = chromium()
    assert program is not None
    words = (
        "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--virtual-time-budget=5000",
        f"--user-data-dir={folder / 'profile'}", f"--blink-settings=preferredColorScheme={0 if is_dark else 1}", *words,
    )  # fmt: skip
    command = [program, *words, file.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


# --- what is wrong with a picture -------------------------------------------------------------------------------------


def overlaps(picture: dict[str, Any]) -> list[tuple[str, str]]:
    """The pairs of texts of a measured picture that lie upon each other."""
    texts = [text for text in picture["texts"] if text[0].strip()]
    return [(a[0], b[0]) for place, a in enumerate(texts) for b in texts[place + 1 :] if _met(a[1:], b[1:])]


def _met(one: list[float], other: list[float]) -> bool:
    """True where two boxes (left, top, right, bottom) share more than a pixel of width, and two of height.

    The box of a line of text is higher than its letters.
    """
    across = min(one[2], other[2]) - max(one[0], other[0])
    return across > 1 and min(one[3], other[3]) - max(one[1], other[1]) > 2


def outside(picture: dict[str, Any]) -> list[str]:
    """The texts that stick out of a measured picture."""
    left, top, right, bottom = picture["box"]
    return [t[0] for t in picture["texts"] if t[1] < left or t[2] < top or t[3] > right or t[4] > bottom]
