"""A run of ours held against PyTorch, run beside it: how many values differ at each site, and which is the first.

Start reading at `compare_live`. The comparison itself is that of `analysis.compare`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from softfloat_llm.analysis.compare import compare
from softfloat_llm.analysis.comparison import Comparison
from softfloat_llm.analysis.distances import Difference
from softfloat_llm.analysis.markup import html_text
from softfloat_llm.analysis.numbers import about, decimal, distance
from softfloat_llm.analysis.taps import tap_of
from softfloat_llm.analysis.wording import labelled, markdown_table
from softfloat_llm.live.torch_host import Host, host_facts
from softfloat_llm.live.transformers_run import attention_of, run_like
from softfloat_llm.numerics.formats import Format
from softfloat_llm.recipe import Recipe, recipe_names
from softfloat_llm.runs import Run
from softfloat_llm.site_runs import local_run

SHOWN_SITES = 10
HEADER = ["site", "differing", "of", "max ulp", "first", "run", "PyTorch"]
REVEAL = "softfloat-llm reveal --engine torch"


@dataclass(frozen=True)
class LiveComparison:
    """What differs between a run and PyTorch's own; `host` says what PyTorch ran on, `notes` what to know about it."""

    found: Comparison
    host: Host
    attention: str
    notes: tuple[str, ...]

    @property
    def differing(self) -> int:
        """Values whose bits differ, over all taps; -0 is not +0, all NaN are one."""
        return sum(tap.count for tap in self.found.taps)

    @property
    def compared(self) -> int:
        return sum(math.prod(tap.shape) for tap in self.found.taps)

    def text(self, *, verbose: bool = False, then: str | None = None) -> str:
        """Recipe, answer, a table of the sites that differ, what to run next, digest. `verbose`: every tap."""
        return _text(self, verbose, then)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return html_text(self.text(verbose=True))

    def to_dict(self) -> dict[str, Any]:
        """The comparison's own keys, and `live`: the host, the counts, the notes."""
        live = {"host": self.host.to_dict(), "attention": self.attention, "notes": list(self.notes)}
        return self.found.to_dict() | {"live": live | {"differing": self.differing, "compared": self.compared}}


def compare_live(
    run: Run | str | Path,
    *,
    attention: str | None = None,
    format: str | Format | None = None,
    mkldnn: bool | None = None,
    threads: int | None = None,
    taps: Sequence[str] | None = None,
    is_local: bool = False,
) -> LiveComparison:
    """`run` against the same weights and tokens in PyTorch, as `transformers_run.run_like` runs them.

    attention, format, mkldnn: what the run's recipe says (a name that ends in `native` means oneDNN off), unless given.
    `taps`: shell-style patterns of what is compared. `is_local`: each of our sites is fed PyTorch's values too, in one
    more pass. **Raises** LiveError where PyTorch or transformers is missing.
    """
    ours = Run.load(run) if isinstance(run, (str, Path)) else run
    uses_mkldnn = not ours.recipe.name.endswith("-native") if mkldnn is None else mkldnn
    word = attention or attention_of(ours.recipe)
    live = run_like(ours, attention=word, format=format, mkldnn=uses_mkldnn, threads=threads)
    host = host_facts(uses_mkldnn=uses_mkldnn, threads=threads)
    note = note_on_host(ours.recipe, host)
    found = compare(ours, live, names=taps, local=local_run(ours, live) if is_local else None)
    return LiveComparison(found, host, word, () if note is None else (note,))


def recipe_here(host: Host, fmt: str | Format, attention: str) -> str:
    """The name of the recipe for what runs here. It may name none that the package brings: see `recipe_names`."""
    return f"transformers-{attention}-{fmt}-cpu-{kernels_here(host, str(fmt), attention)}"


def kernels_here(host: Host, fmt: str, attention: str) -> str:
    """The word of a recipe's name for the kernels that serve a format and an attention here; `other` for none of them.

    Products of float32, and those of flash attention, are MKL's, which takes other kernels for each maker's CPUs.
    """
    if fmt == "f32":
        is_seen = host.vendor == "GenuineIntel" and "avx512f" in host.instructions and not host.caps
        return "mkl" if is_seen else "other"
    is_mkls = attention != "eager" and host.instruction_set in ("native", "avx512bf16")
    return "other" if is_mkls and host.vendor != "AuthenticAMD" else host.instruction_set


def note_on_host(recipe: Recipe, host: Host) -> str | None:
    """What to know where a recipe's name says other kernels than those that run here; None where it fits."""
    _, is_named, said = recipe.name.partition("-cpu-")
    fmt, attention = str(recipe.at("lm_head").storage), attention_of(recipe)
    here = kernels_here(host, fmt, attention)
    if not is_named or said == here:
        return None
    fitting = recipe_here(host, fmt, attention)
    ways = f"take {fitting}" if fitting in recipe_names() else f"find them: {REVEAL} --save FILE"
    able = " ".join((host.vendor, *host.instructions, *host.caps)) + ("" if host.uses_mkldnn else ", oneDNN off")
    return (
        f"{recipe.name} is for {said!r} kernels, but {here!r} ones run here\n({able}): other orders are likely; {ways}."
    )


# --- in words -------------------------------------------------------------------------------------------------------


class _SiteCount(NamedTuple):
    """The taps of one site, over all layers."""

    site: str
    differing: int
    values: int
    max_ulp: float
    first: Difference | None


def _sites(taps: Sequence[Difference]) -> list[_SiteCount]:
    """One count for each site that differs, in the order in which they first do."""
    of_site: dict[str, list[Difference]] = {}
    for tap in taps:
        of_site.setdefault(tap_of(tap.tap).site, []).append(tap)
    counts = []
    for tap in taps:
        if tap.count and (each := of_site.pop(tap_of(tap.tap).site, None)) is not None:
            found, values = sum(t.count for t in each), sum(math.prod(t.shape) for t in each)
            counts.append(_SiteCount(tap_of(tap.tap).site, found, values, max(t.max_ulp for t in each), tap))
    return counts


def _text(live: LiveComparison, verbose: bool, then: str | None) -> str:
    found = live.found
    assert found.recipe is not None
    lines = [labelled(*found.heading()[0]), labelled("against", f"{live.attention} in {live.host}")]
    lines += [labelled("answer" if place == 0 else "", text) for place, text in enumerate(_answer(live))]
    lines += [labelled("note", note) for note in (*live.notes, *found.notes)]
    rows = _rows(found.taps, every=verbose)
    table = markdown_table(HEADER, rows, right=(1, 2, 3)) if rows else ""
    ending = [labelled("next", then)] if then else []
    assert found.logits is not None
    ending += [labelled(*line) for line in found.ending()]
    return "\n\n".join(part for part in ("\n".join(lines), table, "\n".join(ending)) if part)


def _answer(live: LiveComparison) -> list[str]:
    """How many values differ, what became of the tokens and the logits, and the first value that differs."""
    found = live.found
    count = f"{live.differing:,} of {live.compared:,} values differ, in {len(found.taps)} taps."
    if live.differing == 0:
        return [f"Equal to PyTorch in every bit: {count}"]
    lines = [count, *(f"{one}." for one in found.nonfinite)]
    if found.steps:
        lines.append(f"{found.flips} of {len(found.steps)} tokens flip.")
    if found.logits is not None and found.logits.max_abs_at is not None:
        at = found.logits.max_abs_at.reference
        lines.append(f"The largest error of a logit is {distance(found.max_abs, at, found.format)}.")
    if (part := found.first_divergence) is not None:
        place = f"position {part.at.index[0]}, element {list(part.at.index[1:])}"
        pair = f"{decimal(part.at.run, part.format)} against {decimal(part.at.reference, part.reference_format)}"
        lines.append(f"First different value: {part.tap.name}, {place}: {pair}.")
    return lines


def _rows(taps: Sequence[Difference], *, every: bool) -> list[list[str]]:
    """Each site that differs (with `every`: each tap): how many, by how much, and the first value of both."""
    if every:
        counts = [_SiteCount(t.tap, t.count, math.prod(t.shape), t.max_ulp, t if t.count else None) for t in taps]
    else:
        counts = _sites(taps)[:SHOWN_SITES]
    return [[c.site, f"{c.differing:,}", f"{c.values:,}", about(c.max_ulp), *_first(c.first)] for c in counts]


def _first(tap: Difference | None) -> list[str]:
    if tap is None or tap.first is None:
        return ["", "", ""]
    layer = tap_of(tap.tap).layer
    place = f"{'' if layer is None else f'layer {layer} '}{list(tap.first.index)}"
    return [place, decimal(tap.first.run, tap.format), decimal(tap.first.reference, tap.reference_format)]
