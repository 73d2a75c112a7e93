"""report(run, reference): one HTML file that says why a token flipped, or why not. It needs the extra `report`.

The page opens from disk: no network, no script, light and dark, the same bytes each time. Its words, tables and numbers
are those of the analyses. Start reading at `report`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from softfloat_llm.analysis.answers import Answer, Table, prompt_of, shown_prompt
from softfloat_llm.analysis.comparison import Comparison
from softfloat_llm.analysis.comparison_text import steps_table, taps_table
from softfloat_llm.analysis.markup import escaped, html_labels, html_table
from softfloat_llm.analysis.numbers import about
from softfloat_llm.analysis.step_logits import Count
from softfloat_llm.errors import ReportError, why
from softfloat_llm.io.atomic import new_file
from softfloat_llm.io.checkpoint import Model
from softfloat_llm.recipe import Recipe
from softfloat_llm.report import figures
from softfloat_llm.report.drawing import STYLE, without_style
from softfloat_llm.report.figures import Figure, figures_of
from softfloat_llm.report.findings import Findings, findings_of
from softfloat_llm.report.recipe_rows import expanded_table, sites_table
from softfloat_llm.runs import Run, package_version

SCHEMA = "softfloat-llm/report/1"
MOST_STEPS, MOST_TAPS = 300, 1000  # rows of a table: so that the page stays under a megabyte
MOST_OPEN = 24  # rows of a table that is not folded
_CAPTIONS = ("The best candidates", "The error of the residual stream, tap by tap")
_FOLDER = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Report:
    """A page and what it was made of. `pictures` has the SVG of each picture by name, as it stands in the page."""

    findings: Findings
    pictures: dict[str, Figure]
    command: str
    html: str

    @property
    def comparison(self) -> Comparison:
        return self.findings.comparison

    @property
    def digest(self) -> str:
        """sha256 of the page."""
        return f"sha256:{hashlib.sha256(self.html.encode()).hexdigest()}"

    def save(self, path: str | Path, *, replace: bool = False) -> Path:
        """Write the page; nothing half-written stays behind. Raises ReportError where the file is there already."""
        target = Path(path)
        check_page(target, replace=replace)
        try:
            with new_file(target) as file:
                file.write(self.html.encode())
        except OSError as error:
            raise ReportError(f"Writing the page {target}: {why(error)}. Choose a place that can be written.") from None
        return target

    def text(self, *, verbose: bool = False, then: str | None = None) -> str:
        """The comparison's answer, as the terminal has it."""
        return self.comparison.text(verbose=verbose, then=then)

    def __str__(self) -> str:
        return self.text()

    def to_dict(self) -> dict[str, Any]:
        """What the page says, as JSON has it."""
        story, budget = self.findings.story, self.findings.budget
        return {
            "schema": SCHEMA,
            "command": self.command,
            "digest": self.digest,
            "bytes": len(self.html.encode()),
            "comparison": self.comparison.to_dict(),
            "step": story and story.to_dict(),
            "budget": budget and budget.to_dict(),
            "pictures": {name: {"title": one.title, "caption": one.caption} for name, one in self.pictures.items()},
        }


def check_page(target: Path, *, replace: bool = False) -> None:
    """Raises ReportError where a page cannot be written: asked before a long run, and again by `Report.save`."""
    if target.exists() and not (replace and target.is_file()):
        raise ReportError(f"{target} is there already. Choose another place, or ask to replace it (--replace).")
    if not target.absolute().parent.is_dir():
        raise ReportError(f"{target} cannot be written: {target.parent} is no folder.")


def report(
    run: Run | str | Path,
    reference: Run | str | Path | None = None,
    *,
    against: str | Path | Recipe = "f32",
    step: int | None = None,
    budget: str | None = None,
    model: str | Path | Model | None = None,
    workers: int = 1,
    before: Count | None = None,
    command: str | None = None,
) -> Report:
    """The page about a run (or the folder that it was saved in), held against a reference run.

    Without `reference`, the run's tokens are fed again under the recipe `against`. `step` is explained in full (the
    first that flips, else that with the least margin); `budget`: how finely its error is shared out (stage, group,
    site, each), if at all. `command`: what the page says that it was made by.
    **Raises** ReportError where matplotlib or jinja2 is not installed, RunError where the runs cannot be compared.
    """
    _environment()
    found = findings_of(
        run, reference, against=against, step=step, budget=budget, model=model, workers=workers, before=before
    )
    return report_of(found, _command(run, reference, against, step, budget) if command is None else command)


def report_of(found: Findings, command: str) -> Report:
    """The page about what was found already."""
    pictures = figures_of(found)
    html: str = _environment().get_template("report.html").render(
        title=_title(found), generator=f"softfloat-llm {package_version()}", sections=_sections(found, pictures),
        command=command, picture_style=_safe(STYLE),
    )  # fmt: skip
    return Report(found, pictures, command, f"{html}\n")


def _command(
    run: Run | str | Path, reference: Run | str | Path | None, against: str | Path | Recipe, step: int | None,
    budget: str | None,
) -> str:  # fmt: skip
    """The command line that makes the same page."""
    words = ["softfloat-llm report", "RUN" if isinstance(run, Run) else str(run)]
    if reference is None:
        words += (
            [] if str(against) == "f32" else [f"--against {against.name if isinstance(against, Recipe) else against}"]
        )
    else:
        words.append("REF" if isinstance(reference, Run) else str(reference))
    words += [] if step is None else [f"--step {step}"]
    words += {None: [], "stage": ["--budget"]}.get(budget, [f"--budget --by {budget}"])
    return " ".join(words)


# --- what stands where ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """A part of the page: its id, heading and paragraphs, then finished markup."""

    name: str
    title: str
    lines: Sequence[str]
    parts: Sequence[Any]


def _title(found: Findings) -> str:
    """`bf16 against f32: 1 of 12 steps flips`."""
    told = found.comparison
    names = f"{told.name} against {told.reference_name}"
    if told.is_identical:
        return f"{names}: identical"
    if not told.steps or told.are_positions:
        return f"{names}: logits differ by up to {about(told.max_abs)}"
    flips = f"{told.flips} of {len(told.steps)} steps {'flips' if told.flips == 1 else 'flip'}"
    return f"{names}: {flips}"


def _sections(found: Findings, pictures: dict[str, Figure]) -> list[Section]:
    shown = {name: _figure(figure) for name, figure in pictures.items()}
    return [
        _answer(found),
        _recipe(found),
        *_steps(found, shown),
        _parting(found, shown),
        *_sites(found, shown),
        *_budget(found),
        *_step(found, shown),
    ]


def _answer(found: Findings) -> Section:
    told, run = found.comparison, found.run
    given = [("model", run.model), ("prompt", shown_prompt(prompt_of(run))), *told.heading(), *told.ending()]
    lines = [*told.sentences(), *(text for _, text in told.remarks())]
    return Section("answer", "Answer", lines, [_safe(html_labels(given))])


def _recipe(found: Findings) -> Section:
    run, reference = found.run.recipe, found.reference.recipe
    lines = [text for text in (run.about, run.evidence and f"Status {run.status}: {run.evidence.rstrip('.')}.") if text]
    parts = [
        _table(sites_table(run, reference), "What each site does, in short"),
        _table(
            expanded_table(run, reference), "The recipe in full", folded="The recipe in full: every key of every site"
        ),
    ]
    return Section("recipe", "Recipe", lines, parts)


def _steps(found: Findings, shown: dict[str, Any]) -> list[Section]:
    told = found.comparison
    if not told.steps or told.logits is None:
        return []
    ranked = sorted(told.steps, key=lambda step: (not step.is_flip, step.margin_ulp))[:MOST_STEPS]
    rows = sorted(ranked, key=lambda step: step.step)
    table = steps_table(told.steps, rows, told.format, told.logits.reference_format)
    parts = [_table(table, "Each step: what both choose, and by how much"), shown.get(figures.LADDER)]
    return [Section("steps", "Steps", [], [part for part in parts if part])]


def _parting(found: Findings, shown: dict[str, Any]) -> Section:
    told = found.comparison
    lines = [line for line in told.sentences() if line.startswith(("First ", "All "))]
    return Section("parting", "Where the two part", lines, [shown[name] for name in (figures.LINE,) if name in shown])


def _sites(found: Findings, shown: dict[str, Any]) -> list[Section]:
    taps = taps_table(found.comparison.taps, found.comparison.local).cut(MOST_TAPS, "--json")
    table = _table(taps, "Each tap", folded=f"All {len(found.comparison.taps)} taps")
    drawn = [shown[name] for name in (figures.HEAT,) if name in shown]
    return [Section("sites", "Error by site and layer", [], [*drawn, table])]


def _budget(found: Findings) -> list[Section]:
    if found.budget is None:
        return []
    return [_of_answer("budget", f"Budget of step {found.budget.step}", found.budget, ["What each move changes"])]


def _step(found: Findings, shown: dict[str, Any]) -> list[Section]:
    if found.story is None:
        return []
    missing = [f"More could be told with: {found.story.missing}"] if found.story.missing else []
    told = _of_answer("step", f"Step {found.story.step} explained", found.story, _CAPTIONS)
    parts = [*told.parts, *(shown[name] for name in (figures.PATH, figures.TREE) if name in shown)]
    return [Section(told.name, told.title, [*told.lines, *missing], parts)]


def _of_answer(name: str, title: str, told: Answer, captions: Sequence[str]) -> Section:
    """Its sentences and tables; a long table is folded."""
    parts = [
        _table(table, caption, folded=caption if len(table.rows) > MOST_OPEN else "")
        for table, caption in zip(told.tables(verbose=True), captions, strict=True)
        if table.rows
    ]
    return Section(name, title, told.sentences(), parts)


# --- markup -----------------------------------------------------------------------------------------------------------


def _table(table: Table, caption: str, folded: str = "") -> Any:
    """A table in a box of its own that scrolls, with its notes below."""
    markup = _safe(html_table(table.header, table.rows, table.right, caption))
    given = {"table": markup, "notes": table.note.splitlines(), "caption": caption, "folded": folded}
    return _safe(_environment().get_template("table.html").render(**given))


def _figure(figure: Figure) -> Any:
    svg = _safe(without_style(figure.svg))
    return _safe(_environment().get_template("figure.html").render(figure=figure, svg=svg))


def _safe(markup: str) -> Any:
    """Markup that is finished: made by `analysis.markup`, `drawing` or a template, which escape what they are given."""
    from markupsafe import Markup

    return Markup(markup)


@cache
def _environment() -> Any:
    """Jinja's: whatever is no finished markup is escaped, and `shown` spells out what cannot be printed."""
    try:
        import jinja2
    except ImportError:
        raise ReportError(
            "Making a report: jinja2 is not installed here.\n  Install what reports need: pip install '.[report]'"
        ) from None
    loader = jinja2.FileSystemLoader(_FOLDER)
    made = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters["shown"] = lambda text: _safe(escaped(str(text)))
    return made
