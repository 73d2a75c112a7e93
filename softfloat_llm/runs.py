"""Runs: what one model, one recipe and one prompt give. `simulate` makes a Run, which can be saved and digested.

What the command line and a notebook call, with the same argument names. Nothing prints; nothing is drawn at random.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from functools import reduce as reduce_counts
from pathlib import Path
from typing import Any

import numpy as np

from softfloat_llm.digests import array_digest
from softfloat_llm.errors import CheckpointError, RunError, WordError, nearest, why
from softfloat_llm.io.atomic import new_folder
from softfloat_llm.io.checkpoint import Model, open_model
from softfloat_llm.io.progress import Progress
from softfloat_llm.io.safetensors import NAMED_DTYPES, open_tensors, storable, write_tensors
from softfloat_llm.io.spool import Spool
from softfloat_llm.llama.config import Config
from softfloat_llm.llama.decode import decode
from softfloat_llm.llama.stored_weights import StoredWeights
from softfloat_llm.numerics.crew import Crew
from softfloat_llm.numerics.formats import Array, Format, format_of
from softfloat_llm.numerics.scaled import Counts
from softfloat_llm.prompts import chat_tokens, pieces_of, what_to_feed
from softfloat_llm.recipe import Recipe, recipe_of
from softfloat_llm.sites import LINEAR, LOGITS, OF_SOME_MODELS, OUTSIDE, TAPPED
from softfloat_llm.trace import Event, Trace

RUN_SCHEMA = "softfloat-llm/run/1"
TENSORS = "tensors.safetensors"


@dataclass(frozen=True, eq=False)
class Run:
    """One run: the tokens fed and chosen, the taps kept, and the first values that were not finite.

    `run["logits"]` (T, V) has the dtype of the logits' format; T = len(fed): the prompt, then what was fed at each
    further step. `run["layers.3.mlp.down_proj.out"]` is a tap (T, ...). `generated` are the tokens that it chose.
    """

    model: str
    model_digest: str
    config: Mapping[str, Any]
    recipe: Recipe
    prompt_tokens: tuple[int, ...]
    generated: tuple[int, ...]
    fed: tuple[int, ...]
    is_teacher_forced: bool
    arrays: Mapping[str, Array]
    formats: Mapping[str, Format]
    events: tuple[Event, ...] = ()
    pieces: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        chosen = f"{len(self.prompt_tokens)} tokens of a prompt, {self.steps} chosen"
        return f"<Run of {self.model} by {self.recipe.name}: {chosen}, {len(self.arrays)} taps>"

    def __getitem__(self, name: str) -> Array:
        key = LOGITS if name == "logits" else name
        if key not in self.arrays:
            raise RunError(
                f"This run has no tap {name!r}.{nearest(key, self.arrays)} It keeps {len(self.arrays)} taps; see"
                " `softfloat-llm taps`, and choose with simulate(taps=[...]) or --taps."
            )
        return self.arrays[key]

    def __contains__(self, name: object) -> bool:
        return (LOGITS if name == "logits" else name) in self.arrays

    @property
    def names(self) -> tuple[str, ...]:
        """The taps that were kept, in the order of the forward pass."""
        return tuple(self.arrays)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prompt and the tokens chosen."""
        return self.prompt_tokens + self.generated

    @property
    def steps(self) -> int:
        return len(self.generated)

    @property
    def step_logits(self) -> Array:
        """(steps, V): the rows from which `generated` was chosen."""
        return self["logits"][len(self.fed) - max(self.steps, 1) :][: self.steps]

    @property
    def logits_format(self) -> Format:
        return self.format_of_tap("logits")

    def format_of_tap(self, name: str) -> Format:
        """The format whose values a tap holds."""
        self[name]
        return self.formats[LOGITS if name == "logits" else name]

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text of tokens of this run; an id in brackets where its text is unknown."""
        return "".join(self.piece(token) for token in tokens)

    def piece(self, token: int) -> str:
        """The text of one token, or `<id>` where the run does not know it."""
        return self.pieces.get(int(token), f"<{int(token)}>")

    @cached_property
    def digest(self) -> str:
        """sha256 over the logits: little-endian C-order bytes of their codes, shape and format."""
        return array_digest(self["logits"], self.logits_format)

    def save(self, path: str | Path, *, replace: bool = False) -> Path:
        """Write a folder with run.json and tensors.safetensors; nothing half-written stays behind.

        Raises RunError where the folder is there already and `replace` is not asked for.
        """
        target = Path(path)
        check_target(target, replace=replace)
        try:
            return self._write(target, replace)
        except OSError as error:
            raise RunError(f"Saving the run {target}: {why(error)}. Choose a place that can be written.") from None

    def _write(self, target: Path, replace: bool) -> Path:
        with new_folder(target, replace=replace) as folder:
            write_tensors(folder / TENSORS, {name: storable(a) for name, a in self.arrays.items()})
            self.describe(folder)
        return target

    def describe(self, folder: Path) -> None:
        """Write run.json, beside the tensors that are there."""
        (folder / "run.json").write_text(json.dumps(self._to_json(), indent=1) + "\n")

    def _to_json(self) -> dict[str, Any]:
        recipe = {key: getattr(self.recipe, key) for key in ("name", "about", "source", "status", "evidence")}
        return {
            "schema": RUN_SCHEMA,
            "package": package_version(),
            "model": {"name": self.model, "sha256": self.model_digest, "config": dict(self.config)},
            "recipe": recipe | {"site": self.recipe.words()},
            "tokens": {"prompt": self.prompt_tokens, "generated": self.generated, "fed": self.fed},
            "is_teacher_forced": self.is_teacher_forced,
            "taps": {name: str(fmt) for name, fmt in self.formats.items()},
            "events": [asdict(event) | {"value": str(event.value)} for event in self.events],
            "pieces": {str(token): piece for token, piece in self.pieces.items()},
            "notes": self.notes,
            "digest": self.digest,
        }

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read what `save` wrote. Raises RunError where a file is missing, malformed, or does not fit its digest."""
        folder = Path(path)
        try:
            body = json.loads((folder / "run.json").read_text())
        except (OSError, ValueError, RecursionError) as error:
            expected = runs_within(folder) or "Expected a folder that --save wrote."
            raise RunError(f"Reading the run {folder}: {why(error, with_file=True)}. {expected}") from None
        if not isinstance(body, dict) or body.get("schema") != RUN_SCHEMA:
            raise RunError(f"Reading the run {folder}: run.json has not the schema {RUN_SCHEMA!r}.")
        try:
            run = _from_json(body, open_tensors(folder / TENSORS))
            digest, written = run.digest, body["digest"]
        except CheckpointError as error:
            raise RunError(f"Reading the run {folder}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError, WordError) as error:
            what = f"{type(error).__name__}: {error}"
            raise RunError(f"Reading the run {folder}: run.json is damaged ({what}).") from None
        if digest != written:
            raise RunError(f"Reading the run {folder}: its logits have {digest}, but run.json says {written}.")
        return run


def runs_within(folder: Path) -> str:
    """What to say of a folder that `--prompts --save` wrote: several runs, 1, 2, ...; nothing of any other."""
    is_several = (folder / "1" / "run.json").is_file()
    return f"It holds a run of each prompt: give one of them, such as {folder / '1'}." if is_several else ""


def check_target(target: Path, *, replace: bool = False, mark: str = "run.json") -> None:
    """Raises RunError where a run cannot be saved: asked before a long run, and again by `Run.save`.

    `mark`: the file by which a folder that may be replaced is known.
    """
    if target.exists() and not replace:
        raise RunError(f"{target} is there already. Choose another place, or ask to replace it (--replace).")
    if target.exists() and not (target / mark).is_file():
        raise RunError(f"{target} is no saved run, so it is not replaced.")
    if not target.absolute().parent.is_dir():
        raise RunError(f"{target} cannot be written: {target.parent} is no folder.")


def _from_json(body: dict[str, Any], tensors: dict[str, Array]) -> Run:
    recipe, tokens, model = dict(body["recipe"]), body["tokens"], body["model"]
    return Run(
        model=model["name"],
        model_digest=model["sha256"],
        config=model["config"],
        recipe=recipe_of(recipe),
        prompt_tokens=tuple(tokens["prompt"]),
        generated=tuple(tokens["generated"]),
        fed=tuple(tokens["fed"]),
        is_teacher_forced=bool(body["is_teacher_forced"]),
        arrays={name: _as_format(tensors[name], format_of(word), name) for name, word in body["taps"].items()},
        formats={name: format_of(word) for name, word in body["taps"].items()},
        events=tuple(_event(event) for event in body["events"]),
        pieces={int(token): piece for token, piece in body["pieces"].items()},
        notes=tuple(body["notes"]),
    )


def _as_format(tensor: Array, fmt: Format, name: str) -> Array:
    if tensor.dtype == np.uint8 and fmt.dtype not in NAMED_DTYPES:
        return tensor.view(fmt.dtype)
    if tensor.dtype != fmt.dtype:
        raise ValueError(f"tap {name} is said to hold {fmt}, but its tensor is {tensor.dtype}")
    return tensor


def _event(body: dict[str, Any]) -> Event:
    return Event(**body | {"index": tuple(body["index"]), "value": float(body["value"])})


def simulate(
    prompt: str | None = None,
    *,
    tokens: Sequence[int] | None = None,
    model: str | Path | Model = "tiny",
    recipe: str | Path | Recipe = "f32",
    steps: int = 1,
    teacher: Run | str | Path | None = None,
    taps: str | Sequence[str] = ("*.out",),
    workers: int = 1,
    backend: str = "numpy",
    crew: Crew | None = None,
    progress: Progress | None = None,
    chat: bool = False,
    system: str | None = None,
    save: str | Path | None = None,
    replace: bool = False,
) -> Run:
    """Run a model on a prompt under a recipe.

    prompt: a text (default "The capital of France is"), or `tokens`: ids (T,). `steps` tokens are chosen greedily, the
    lowest id among equals unless the recipe's site `choice` says the last; each but the last is fed in turn through the
    key and value cache. An end-of-text token is a token like any other. With `teacher`, a run of the same prompt (or
    the folder of a saved one), the teacher's tokens are fed instead of the run's own, for as many steps as it has.
    `taps`: shell-style patterns of the values to keep (`*.out`, `layers.3.*`); the logits are always kept. The bits
    depend neither on `workers` (processes or threads) nor on the `backend` (`numpy` or `numba`). `crew`: one
    that serves several runs, in place of both. `chat`: the prompt as the model's chat template writes it, after a
    `system` text where there is one. `save`: a folder to which the taps go as they come, so that memory holds none of
    them; the run that is given back has them mapped from there. It is what `Run.save` would write.
    **Raises** TokenError for an empty prompt, ids out of range or too many positions; RecipeError, CheckpointError,
    ConfigError or FetchError; NonFiniteError where a token would be taken from a row with NaN.
    """
    if crew is None:
        check_workers(workers)
    opened = model if isinstance(model, Model) else open_model(model, progress)
    chosen = recipe_of(recipe)
    reference = Run.load(teacher) if isinstance(teacher, (str, Path)) else teacher
    if chat or system is not None:
        tokens, prompt = chat_tokens(opened, prompt, tokens, system, chat), None
    ids, forced, steps = what_to_feed(opened, prompt, tokens, steps, reference)
    patterns = patterns_of(taps, opened.config)
    step = None if progress is None else lambda done, total: progress(chosen.name, done, total)
    with nullcontext(crew) if crew is not None else Crew(workers, backend) as hands:

        def run(trace: Trace) -> Run:
            weights = StoredWeights(opened.weights, chosen)
            generated, fed = decode(weights, ids, chosen, steps, teacher=forced, trace=trace, crew=hands, step=step)
            return run_of(opened, chosen, ids, generated, fed, trace, weights, is_forced=teacher is not None)

        return run(Trace(patterns)) if save is None else _written(Path(save), patterns, run, replace)


def run_of(
    model: Model,
    recipe: Recipe,
    prompt: Sequence[int],
    generated: tuple[int, ...],
    fed: tuple[int, ...],
    trace: Trace,
    weights: StoredWeights,
    *,
    is_forced: bool = False,
) -> Run:
    """The run of what a pass left behind."""
    return Run(
        model=model.name,
        model_digest=model.weights.digest,
        config=json.loads(json.dumps(asdict(model.config))),
        recipe=recipe,
        prompt_tokens=tuple(prompt),
        generated=generated,
        fed=fed,
        is_teacher_forced=is_forced,
        arrays=trace.arrays,
        formats=trace.formats,
        events=tuple(trace.events),
        pieces=pieces_of(model, {*prompt, *generated, *fed}),
        notes=(*model.notes, *_losses(recipe, weights, trace)),
    )


def _written(target: Path, patterns: Sequence[str], make: Callable[[Trace], Run], replace: bool) -> Run:
    """The run that `make` makes, its taps written to the folder as they come. Raises as `Run.save`."""
    check_target(target, replace=replace)
    try:
        with new_folder(target, replace=replace) as folder:
            run = make(spooled(patterns, folder))
            run.describe(folder)
    except OSError as error:
        raise RunError(f"Saving the run {target}: {why(error)}. Choose a place that can be written.") from None
    return mapped(run, target)


def spooled(patterns: Sequence[str], folder: Path) -> Trace:
    """A trace whose taps go to the folder of a run as they come."""
    return Trace(patterns, Spool(folder / "taps", folder / TENSORS))


def mapped(run: Run, folder: Path) -> Run:
    """The run with its taps mapped from the folder where it lies."""
    tensors = open_tensors(folder / TENSORS)
    arrays = {name: _as_format(tensors[name], fmt, name) for name, fmt in run.formats.items()}
    return dataclasses.replace(run, arrays=arrays)


def _losses(recipe: Recipe, weights: StoredWeights, trace: Trace) -> list[str]:
    """What scaled and narrow storage lost, a line each: of all weights, and of each site's activations or cache."""
    lines = []
    if weights.lost:
        total = reduce_counts(Counts.plus, weights.lost.values())
        words = sorted({recipe.at(site).options["weights"] for site in LINEAR} - {"plain"})
        lines.append(f"Weights as {', '.join(words)}: {total}.")
    return lines + [f"{site}: {lost}." for site, lost in trace.lost.items()]


def model_of(run: Run, model: str | Path | Model | None = None, progress: Progress | None = None) -> Model:
    """The model of a run, opened again. `model`: where its weights lie now, if not under the name that the run has.

    Raises RunError where it has other weights.
    """
    opened = model if isinstance(model, Model) else open_model(run.model if model is None else model, progress)
    if opened.weights.digest != run.model_digest:
        raise RunError(
            f"The run's model {run.model!r} has other weights now: they had sha256 {run.model_digest}, and have"
            f" {opened.weights.digest}. Say where the right ones are (--model)."
        )
    return opened


def check_workers(workers: int) -> None:
    """Raises RunError where nobody would do the work."""
    if not isinstance(workers, int) or workers < 1:
        raise RunError(f"workers is {workers!r}: at least 1 does the work.")


def tap_names(layers: int, *, qk_norm: bool = True) -> list[str]:
    """Every name that a tap can have in a model of so many layers, in the order of the forward pass.

    `qk_norm`: False for a model that does not normalise its queries and keys.
    """
    absent = OUTSIDE if qk_norm else (*OUTSIDE, *OF_SOME_MODELS)
    inside = [f"layers.{i}.{site}" for i in range(layers) for site in TAPPED if site not in absent]
    places = [*OUTSIDE[:2], *inside, *OUTSIDE[2:]]
    return [f"{place}.{stage}" for place in places for stage in ("in", "acc", "out")]


def patterns_of(taps: str | Sequence[str], config: Config) -> tuple[str, ...]:
    """The patterns of the taps to keep, the logits always. Raises RunError where one names no tap of such a model."""
    patterns = (taps,) if isinstance(taps, str) else tuple(taps)
    names = tap_names(config.num_hidden_layers, qk_norm=config.qk_norm)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise RunError(f"No tap fits {pattern!r}.{nearest(pattern, names)} List them: softfloat-llm taps.")
    return (*patterns, LOGITS)


def package_version() -> str:
    """The version of this package, as its metadata says."""
    from importlib.metadata import version

    return version("softfloat-llm")
