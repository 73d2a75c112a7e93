"""Several prompts under one recipe: each gives the run that it gives alone, bit for bit; passes are shared if possible.

Shorter prompts are padded at the left, which no other row sees. Where a bit of a row could depend on the rows beside it
(rules for shapes, random words, scales of a whole tensor), each prompt has passes of its own. Start reading at
`simulate_batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from softfloat_llm.errors import RunError, TokenError, why
from softfloat_llm.io.atomic import new_folder
from softfloat_llm.io.checkpoint import Model, open_model
from softfloat_llm.io.progress import Progress
from softfloat_llm.llama.config import Config
from softfloat_llm.llama.decode import check_length, decode_together
from softfloat_llm.llama.stored_weights import StoredWeights
from softfloat_llm.numerics.crew import Crew
from softfloat_llm.prompts import chat_tokens, what_to_feed
from softfloat_llm.recipe import Recipe, recipe_of
from softfloat_llm.runs import Run, check_target, check_workers, mapped, patterns_of, run_of, spooled
from softfloat_llm.sites import LINEAR, SITES
from softfloat_llm.trace import Trace

ROWS_TOGETHER = 1024
"""Positions, padding too, of a shared pass: beyond it the kernels are no faster, and memory grows with it."""
MOST_PADDED = 1.25
"""Positions, padding too, over tokens. Sharing saves from a seventh of the time (f16 accumulators) to a half (f32)."""


class _Asked(NamedTuple):
    """One prompt: its place, its ids, the tokens that a teacher feeds, and the steps."""

    place: int
    ids: list[int]
    forced: tuple[int, ...] | None
    steps: int

    @property
    def name(self) -> str:
        return f"Prompt {self.place + 1}: "


def simulate_batch(
    prompts: Sequence[str] | None = None,
    *,
    tokens: Sequence[Sequence[int]] | None = None,
    model: str | Path | Model = "tiny",
    recipe: str | Path | Recipe = "f32",
    steps: int = 1,
    teachers: Sequence[Run] | None = None,
    taps: str | Sequence[str] = ("*.out",),
    workers: int = 1,
    backend: str = "numpy",
    crew: Crew | None = None,
    progress: Progress | None = None,
    chat: bool = False,
    system: str | None = None,
    save: str | Path | None = None,
    replace: bool = False,
) -> list[Run]:
    """`simulate` of several prompts, or of several sequences of `tokens`: a run of each, the one that it gives alone.

    The arguments are those of `runs.simulate`; `teachers` are as many runs as there are prompts; `save` is a folder in
    which run 1, 2, ... is a folder each, written as they come.
    **Raises** what `simulate` raises, saying of which prompt; RunError where there are no prompts.
    """
    if crew is None:
        check_workers(workers)
    opened = model if isinstance(model, Model) else open_model(model, progress)
    chosen, patterns = recipe_of(recipe), patterns_of(taps, opened.config)
    asked = _asked(opened, prompts, tokens, steps, teachers, chat, system)
    groups = _groups(asked, can_share(chosen, opened.config))
    report = _reported(groups, opened.config.num_hidden_layers, chosen.name, progress)
    with _folder(save, replace) as folder, nullcontext(crew) if crew is not None else Crew(workers, backend) as hands:
        runs: dict[int, Run] = {}
        weights = StoredWeights(opened.weights, chosen)
        for group in groups:
            traces = [_trace(patterns, folder, one.place) for one in group]
            decoded = decode_together(
                weights, [one.ids for one in group], chosen, group[0].steps,
                teachers=None if teachers is None else [one.forced or () for one in group],
                traces=traces, names=[one.name for one in group], crew=hands, step=report(group),
            )  # fmt: skip
            for one, trace, (generated, fed) in zip(group, traces, decoded, strict=True):
                run = run_of(opened, chosen, one.ids, generated, fed, trace, weights, is_forced=teachers is not None)
                if folder is not None:
                    run.describe(folder / str(one.place + 1))
                runs[one.place] = run
    ordered = [runs[place] for place in range(len(asked))]
    return ordered if save is None else [mapped(run, Path(save) / str(i + 1)) for i, run in enumerate(ordered)]


def can_share(recipe: Recipe, config: Config) -> bool:
    """True where no bit of a sequence depends on what is beside it in a pass, nor anything that is told of it."""
    specs = [recipe.at(site) for site in SITES]
    if any(spec.rules or spec.precision.is_stochastic for spec in specs):
        return False
    if any(recipe.at(site).options["activations"] != "plain" for site in LINEAR):
        return False
    given = {"kv.k": recipe.at("attn.rope").output, "kv.v": recipe.at("attn.v_proj").output}
    for site, fmt in given.items():  # what a cache loses is counted of all rows together
        if recipe.at(site).options["blocks"] != "plain" or not fmt.is_subset_of(recipe.at(site).storage):
            return False
    return config.rope_scaling is None or config.rope_scaling.rope_type != "dynamic"


# --- what was asked ---------------------------------------------------------------------------------------------------


def _asked(
    model: Model,
    prompts: Sequence[str] | None,
    tokens: Sequence[Sequence[int]] | None,
    steps: int,
    teachers: Sequence[Run] | None,
    chat: bool,
    system: str | None,
) -> list[_Asked]:
    """Each prompt's ids. Raises RunError where there are none, or teachers of another number."""
    if prompts is not None and tokens is not None:
        raise TokenError("Give the prompts as texts or as token ids, not both.")
    if isinstance(prompts, str):
        raise TokenError(f"The prompts are one text, {prompts[:40]!r}. Give a list of texts, or take `simulate`.")
    given = max((len(words) for words in (prompts, tokens, teachers) if words is not None), default=0)
    if not given:
        raise RunError("There are no prompts to run. Give at least one (a file with one on a line).")
    if teachers is not None and len(teachers) != given:
        raise RunError(f"There are {given} prompts and {len(teachers)} teachers: each prompt takes its own.")
    asked = []
    for place in range(given):
        prompt = None if prompts is None else prompts[place]
        ids = None if tokens is None else tokens[place]
        teacher = None if teachers is None else teachers[place]
        try:
            if chat or system is not None:
                ids, prompt = chat_tokens(model, prompt, ids, system, chat), None
            one = _Asked(place, *what_to_feed(model, prompt, ids, steps, teacher))
            check_length(len(one.ids), one.steps, model.config.position_limit)
            asked.append(one)
        except TokenError as error:
            raise TokenError(f"Prompt {place + 1}: {error}") from None
    return asked


def _groups(asked: Sequence[_Asked], is_shared: bool) -> list[list[_Asked]]:
    """Which prompts share their passes: those of as many steps and about as many tokens, so that little is padding."""
    groups: list[list[_Asked]] = []
    for one in sorted(asked, key=lambda one: (one.steps, len(one.ids))) if is_shared else asked:
        if is_shared and groups and _fits(one, groups[-1]):
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def _fits(one: _Asked, group: Sequence[_Asked]) -> bool:
    """True where a prompt, none shorter than those of the group, goes with them."""
    rows = (len(group) + 1) * len(one.ids)
    tokens = sum(len(other.ids) for other in (*group, one))
    return one.steps == group[0].steps and rows <= min(ROWS_TOGETHER, MOST_PADDED * tokens)


# --- where it goes ----------------------------------------------------------------------------------------------------


@contextmanager
def _folder(save: str | Path | None, replace: bool) -> Iterator[Path | None]:
    """The folder to fill with runs, which becomes `save` when all is done; None where nothing is saved."""
    if save is None:
        yield None
        return
    check_target(Path(save), replace=replace, mark="1/run.json")
    try:
        with new_folder(save, replace=replace) as folder:
            yield folder
    except OSError as error:
        raise RunError(f"Saving the runs {save}: {why(error)}. Choose a place that can be written.") from None


def _trace(patterns: Sequence[str], folder: Path | None, place: int) -> Trace:
    if folder is None:
        return Trace(patterns)
    own = folder / str(place + 1)
    own.mkdir()
    return spooled(patterns, own)


def _reported(
    groups: Sequence[Sequence[_Asked]], layers: int, name: str, progress: Progress | None
) -> Callable[[Sequence[_Asked]], Callable[[int, int], None] | None]:
    """For each group what is to be called with the layers done: `progress`, with those of all groups."""
    work = [max(group[0].steps, 1) * layers for group in groups]

    def report(group: Sequence[_Asked]) -> Callable[[int, int], None] | None:
        if progress is None:
            return None
        before = sum(work[: list(groups).index(group)])
        return lambda done, _: progress(name, before + done, sum(work))

    return report
