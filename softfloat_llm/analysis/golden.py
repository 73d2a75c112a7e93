"""Golden outputs: runs kept bit for bit, with who made them and what else confirmed them.

A golden folder holds `manifest.json` (each tensor's sha256, shape and format, `made_by`, `checked_by`) and one
.safetensors file a run. `golden_write` makes one, `golden_check` compares runs with it, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from softfloat_llm.analysis.distances import differs
from softfloat_llm.analysis.golden_report import GoldenReport, Mismatch
from softfloat_llm.analysis.taps import forward_order
from softfloat_llm.digests import array_digest
from softfloat_llm.errors import CheckpointError, GoldenError, SoftfloatError, why
from softfloat_llm.io.atomic import new_folder
from softfloat_llm.io.progress import Progress
from softfloat_llm.io.safetensors import NAMED_DTYPES, open_tensors, read_json, write_tensors
from softfloat_llm.numerics.formats import Array, decode, encode, format_of
from softfloat_llm.recipe import recipe_of
from softfloat_llm.runs import Run, simulate

SCHEMA = "softfloat-llm/golden/1"
MANIFEST = "manifest.json"


# --- writing ----------------------------------------------------------------------------------------------------------


def golden_write(
    path: str | Path,
    runs: Run | Mapping[str, Run],
    *,
    made_by: str,
    checked_by: str = "none",
    replace: bool = False,
) -> Path:
    """Keep runs as a golden folder. `made_by`: the command; `checked_by`: an independent oracle that agrees, or none.

    Raises GoldenError where the folder is there already and `replace` is not asked for, or a name is no file's name.
    """
    target, named = Path(path), named_runs(runs)
    check_target(target, replace=replace)
    with new_folder(target, replace=replace) as folder:
        entries = {name: _entry(run) for name, run in named.items()}
        for name, run in named.items():
            write_tensors(folder / _file_of(name), {tap: _stored(run, tap) for tap in run.arrays})
        manifest = {"schema": SCHEMA, "made_by": made_by, "checked_by": checked_by, "runs": entries}
        text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
        (folder / MANIFEST).write_text(text, encoding="utf-8")
    return target


def check_target(target: Path, *, replace: bool = False) -> None:
    """Raises GoldenError where golden outputs cannot be written: asked before a long run, and by `golden_write`."""
    if target.exists() and not replace:
        raise GoldenError(f"{target} is there already, and golden outputs are not overwritten. Ask for it: --replace.")
    if target.exists() and not (target / MANIFEST).is_file():
        raise GoldenError(f"{target} has no {MANIFEST}: it is no golden folder, so it is not replaced.")


def named_runs(runs: Run | Mapping[str, Run]) -> dict[str, Run]:
    """The runs by name; one run alone is named `run`."""
    if not isinstance(runs, Mapping):
        return {"run": runs}
    for name in runs:
        if not name or name.startswith(".") or any(mark in name for mark in "/\\:\0"):
            raise GoldenError(f"A golden run is named like a file; {name!r} cannot be one.")
    return dict(runs)


def _file_of(name: str) -> str:
    return f"{name}.safetensors"


def _entry(run: Run) -> dict[str, Any]:
    """What the manifest says of a run: the question that it answers, and its tensors."""
    return {
        "model": {"name": run.model, "sha256": run.model_digest},
        "recipe": {"name": run.recipe.name, "site": run.recipe.words()},
        "prompt": list(run.prompt_tokens),
        "fed": list(run.fed),
        "generated": list(run.generated),
        "is_teacher_forced": run.is_teacher_forced,
        "tensors": {tap: _tensor_entry(run, tap) for tap in run.arrays},
    }


def _tensor_entry(run: Run, tap: str) -> dict[str, Any]:
    array, fmt = run.arrays[tap], run.format_of_tap(tap)
    return {"sha256": array_digest(array, fmt), "shape": list(array.shape), "format": str(fmt)}


def _stored(run: Run, tap: str) -> Array:
    """A tap as the file holds it: its values, or their codes where a .safetensors file has no name for its dtype."""
    array = run.arrays[tap]
    return array if array.dtype in NAMED_DTYPES else encode(array, run.format_of_tap(tap))


def _values(tensor: Array, entry: Mapping[str, Any]) -> Array:
    """A tensor of the file as the values that it stands for."""
    return decode(tensor, entry["format"]) if tensor.dtype.kind == "u" else tensor


# --- checking ---------------------------------------------------------------------------------------------------------


def golden_check(path: str | Path, runs: Run | Mapping[str, Run]) -> GoldenReport:
    """Compare runs with a golden folder, bit for bit.

    A file or tensor that the manifest names and that is missing fails, as does one that it does not name, a run that it
    does not have, and one of its runs that is not given. Raises GoldenError where there is no readable manifest.
    """
    folder, given = Path(path), named_runs(runs)
    manifest = read_manifest(folder)
    entries: dict[str, Any] = manifest["runs"]
    problems = list(_file_problems(folder, entries))
    problems += [f"{name}: not given, but the golden folder has it" for name in sorted(entries.keys() - given)]
    problems += [f"{name}: the golden folder does not have it" for name in sorted(given.keys() - entries)]
    mismatches: list[Mismatch] = []
    compared = 0
    for name in sorted(entries.keys() & given.keys()):
        try:
            compared += _check_run(name, given[name], entries[name], folder, mismatches, problems)
        except (KeyError, TypeError, ValueError, AttributeError, SoftfloatError) as error:
            problems.append(f"{name}: damaged ({type(error).__name__}: {error})")
    return GoldenReport(manifest["made_by"], manifest["checked_by"], compared, tuple(mismatches), tuple(problems))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a golden folder. Raises GoldenError where it is missing, or is none."""
    try:
        manifest = read_json(folder / MANIFEST, "golden manifest")
    except (CheckpointError, OSError) as error:
        raise GoldenError(
            f"Reading the golden folder {folder}: {why(error)}. `softfloat-llm golden write` makes such a folder."
        ) from None
    kinds = {"schema": str, "made_by": str, "checked_by": str, "runs": dict}
    if manifest.get("schema") != SCHEMA or not all(isinstance(manifest.get(k), kind) for k, kind in kinds.items()):
        raise GoldenError(f"{folder / MANIFEST}: expected the schema {SCHEMA!r} with {', '.join(kinds)}.")
    return manifest


def _file_problems(folder: Path, entries: Mapping[str, Any]) -> Iterator[str]:
    expected = {_file_of(name) for name in entries} | {MANIFEST}
    present = {item.name for item in folder.iterdir()}
    yield from (f"{name}: the manifest names it, but it is missing" for name in sorted(expected - present))
    yield from (f"{name}: an unused file, the manifest does not name it" for name in sorted(present - expected))


def _check_run(
    name: str, run: Run, entry: Mapping[str, Any], folder: Path, mismatches: list[Mismatch], problems: list[str]
) -> int:
    """Add what fails of one run to the lists; the number of tensors compared."""
    questions = list(_other_questions(run, entry))
    problems += [f"{name}: {question}" for question in questions]
    if questions or not (folder / _file_of(name)).is_file():
        return 0
    tensors = open_tensors(folder / _file_of(name))
    problems += [f"{name}: {word}" for word in _tensor_problems(run, entry["tensors"], tensors)]
    shared = [tap.name for tap in forward_order(entry["tensors"]) if _is_comparable(tap.name, run, entry, tensors)]
    mismatch = _first_mismatch(name, run, entry["tensors"], tensors, shared)
    if mismatch is not None:
        mismatches.append(mismatch)
        problems += [f"{name}: {word}" for word in _other_recipe(run, entry)]
    elif list(run.generated) != entry["generated"]:
        problems.append(f"{name}: chose {list(run.generated)}, the golden run {entry['generated']}")
    return len(shared)


def _other_questions(run: Run, entry: Mapping[str, Any]) -> Iterator[str]:
    """Another model, or other tokens fed: then no value says anything."""
    if run.model_digest != entry["model"]["sha256"]:
        yield f"another model: sha256 {run.model_digest}, the golden run's {entry['model']['sha256']}"
    if list(run.fed) != entry["fed"]:
        yield f"another question: fed {list(run.fed)}, the golden run {entry['fed']}"


def _other_recipe(run: Run, entry: Mapping[str, Any]) -> Iterator[str]:
    """The first setting in which the recipes differ: said only where values differ, for that alone is no failure.

    What the golden run does not say, because an option is younger, is the usual.
    """
    golden = recipe_of({"name": "golden", "site": entry["recipe"]["site"]}).words()
    for site, words in run.recipe.words().items():
        for key in sorted({*words, *golden.get(site, {})}):
            found, kept = words.get(key), golden.get(site, {}).get(key)
            if found != kept:
                yield f"the recipes differ: {site}.{key} is {found}, in the golden run {kept}"
                return


def _tensor_problems(run: Run, entries: Mapping[str, Any], tensors: Mapping[str, Array]) -> Iterator[str]:
    yield from (f"{tap}: the manifest names it, but the file lacks it" for tap in sorted(entries.keys() - tensors))
    yield from (f"{tap}: an unused tensor, the manifest does not name it" for tap in sorted(tensors.keys() - entries))
    for tap, entry in sorted(entries.items()):
        if tap not in run:
            yield f"{tap}: the run does not keep this tap"
            continue
        found = [str(run.format_of_tap(tap)), list(run.arrays[tap].shape)]
        if found != [entry["format"], entry["shape"]]:
            yield f"{tap}: {found[0]} {found[1]}, the golden run {entry['format']} {entry['shape']}"
        if tap in tensors and array_digest(_values(tensors[tap], entry), format_of(entry["format"])) != entry["sha256"]:
            yield f"{tap}: the file does not have the sha256 of the manifest"


def _is_comparable(tap: str, run: Run, entry: Mapping[str, Any], tensors: Mapping[str, Array]) -> bool:
    if tap not in run or tap not in tensors:
        return False
    found = (str(run.format_of_tap(tap)), list(run.arrays[tap].shape))
    return found == (entry["tensors"][tap]["format"], entry["tensors"][tap]["shape"])


def _first_mismatch(
    name: str, run: Run, entries: Mapping[str, Any], tensors: Mapping[str, Array], taps: Sequence[str]
) -> Mismatch | None:
    before = ""
    for tap in taps:
        found = run.arrays[tap].astype(np.float64)
        golden = _values(tensors[tap], entries[tap]).astype(np.float64)
        places = np.flatnonzero(differs(found, golden))
        if len(places):
            index = tuple(int(i) for i in np.unravel_index(places[0], found.shape))
            values = float(found[index]), float(golden[index])
            return Mismatch(name, tap, index, *values, run.format_of_tap(tap), len(places), before)
        before = tap
    return None


# --- making the runs again --------------------------------------------------------------------------------------------


def golden_again(
    path: str | Path, *, model: str | Path | None = None, workers: int = 1, progress: Progress | None = None
) -> dict[str, Run]:
    """The runs that a golden folder holds, made anew from what its manifest says, for `golden_check`.

    `model`: where the weights are, if not under the name that the manifest has. Raises GoldenError for a manifest that
    cannot be followed, and what `simulate` raises.
    """
    folder = Path(path)
    runs = {}
    for name, entry in read_manifest(folder)["runs"].items():
        try:
            question = _question(entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise GoldenError(f"{folder / MANIFEST}: run {name!r} is damaged ({what}).") from None
        weights = entry["model"]["name"] if model is None else model
        runs[name] = simulate(model=weights, workers=workers, progress=progress, **question)
    return runs


def _question(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `simulate` that make a run of the manifest again."""
    words = {"name": entry["recipe"]["name"], "site": entry["recipe"]["site"]}
    question: dict[str, Any] = {"recipe": recipe_of(words), "taps": tuple(entry["tensors"])}
    if entry["is_teacher_forced"]:
        return question | {"teacher": _teacher(entry)}
    return question | {"tokens": list(entry["prompt"]), "steps": len(entry["generated"])}


def _teacher(entry: Mapping[str, Any]) -> Run:
    """A run without values that feeds what was fed. Its last token is fed to nobody."""
    prompt, fed = tuple(entry["prompt"]), tuple(entry["fed"])
    return Run(
        model=entry["model"]["name"],
        model_digest=entry["model"]["sha256"],
        config={},
        recipe=recipe_of("f32"),
        prompt_tokens=prompt,
        generated=(*fed[len(prompt) :], 0),
        fed=fed,
        is_teacher_forced=False,
        arrays={},
        formats={},
    )
