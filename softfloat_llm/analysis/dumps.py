"""Tensors that another tool dumped, held against a run of ours or against each other.

A .npy, .npz or .safetensors file, or a folder of them, is one side of a comparison: its tensors get the names of our
taps (`io.tensor_names`), a batch axis of 1 is dropped, and a shape that does not fit is told with both shapes. Nothing
is known of how they were made: no recipe, no tokens. Start reading at `compare_tensors`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from softfloat_llm.analysis.compare import Extent, compare_sides
from softfloat_llm.analysis.comparison import Comparison
from softfloat_llm.analysis.sides import Side, side_of
from softfloat_llm.digests import array_digest
from softfloat_llm.errors import ArrayError
from softfloat_llm.io.arrays import KINDS, read_tensors
from softfloat_llm.io.tensor_names import ATTENTIONS, HIDDEN_STATES, read_map, tap_names
from softfloat_llm.numerics.carriers import widen
from softfloat_llm.numerics.formats import FORMATS, Array, Format, bf16, f16, f32
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.runs import Run
from softfloat_llm.sites import LOGITS

SHOWN = 4
_NARROW = (bf16, f16, f32)


def is_tensors(word: str | Path | None) -> bool:
    """True for a file of arrays, and for a folder of such files that is no saved run."""
    try:
        path = Path(word or "")
        if path.suffix in KINDS:
            return True
        is_folder = path.is_dir() and not (path / "run.json").is_file()
        return is_folder and any(file.suffix in KINDS for file in path.iterdir())
    except (OSError, ValueError):
        return False


def compare_tensors(
    run: Run | str | Path,
    reference: Run | str | Path,
    *,
    names: Mapping[str, str] | str | Path | None = None,
    taps: Sequence[str] | None = None,
    local: Run | None = None,
) -> Comparison:
    """The comparison of two sides of which at least one is a file (or folder) of tensors; the other may be a run.

    `names`: our tap names -> theirs, or a TOML or JSON file that says so; what it does not name goes by the usual names
    (`io.tensor_names.HUGGING_FACE`). `taps`: shell-style patterns of the taps to compare. `local`: the pass of
    `site_runs.local_run`, in which each site of the run was fed the tensors (see `taps_of`).
    **Raises** ArrayError for files that cannot be read, and names or shapes that do not fit.
    """
    given = _map_of(names)
    opened = [_opened(side) for side in (run, reference)]
    ours = next((side for side in opened if isinstance(side, Run)), None)
    notes: list[str] = []
    one, other = (side_of(side) if isinstance(side, Run) else _dump(*side, given, ours, notes) for side in opened)
    if ours is None:
        one, other = _paired(one, other, notes)
    own = None if local is None else side_of(local)
    return compare_sides(one, other, _extent(ours, one, other, notes), names=taps, local=own)


def taps_of(
    tensors: str | Path, run: Run, *, names: Mapping[str, str] | str | Path | None = None
) -> Mapping[str, Array]:
    """The tensors of a file as taps of a run: what `site_runs.local_run` can feed it."""
    return _dump(str(tensors), read_tensors(tensors), _map_of(names), run, []).arrays


def _map_of(names: Mapping[str, str] | str | Path | None) -> Mapping[str, str]:
    return read_map(names) if isinstance(names, (str, Path)) else names or {}


def _opened(side: Run | str | Path) -> Run | tuple[str, dict[str, Array]]:
    if isinstance(side, Run):
        return side
    return (str(side), read_tensors(side)) if is_tensors(side) else Run.load(side)


# --- a dump as a side -------------------------------------------------------------------------------------------------


def _dump(
    where: str, tensors: Mapping[str, Array], names: Mapping[str, str], run: Run | None, notes: list[str]
) -> Side:
    """The tensors under our names, in the shapes that the run has. What is to be said of them goes to the notes."""
    numbers = _numbers(where, tensors)
    layers = None if run is None else int(run.config["num_hidden_layers"])
    known = tap_names(numbers, names, layers)
    left = [name for name in numbers if name not in known]
    arrays = {tap: _by_position(name, numbers[name]) for name, tap in known.items()}
    if run is None:
        arrays |= {name: numbers[name] for name in left}
    else:
        arrays = {tap: _fitted(where, tap, array, run) for tap, array in arrays.items() if tap in run}
    formats = _formats(where, arrays, notes)
    if left and run is not None:
        notes.append(f"{len(left)} tensors of {where} are no taps: {_few(left)}. Name them with --names.")
    arrays = {tap: _in_format(array, formats[tap]) for tap, array in arrays.items()}
    return Side(where, arrays, formats, None, _digest(arrays, formats), pieces={} if run is None else run.pieces)


def _digest(arrays: Mapping[str, Array], formats: Mapping[str, Format]) -> str | None:
    """That of the logits, if they are there."""
    return array_digest(arrays[LOGITS], formats[LOGITS]) if LOGITS in arrays else None


def _numbers(where: str, tensors: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of floating numbers, stacks of hidden states taken apart.

    Raises ArrayError where there are none, and for a name that cannot be shown.
    """
    found: dict[str, Array] = {}
    for name, array in tensors.items():
        if not name.isprintable():
            raise ArrayError(f"Reading {where}: a tensor is named {name!r}, which cannot be shown.")
        if array.dtype.kind in "iub":  # ids, masks
            continue
        if name in (HIDDEN_STATES, ATTENTIONS) and array.ndim >= 3:
            found |= {f"{name}.{place}": part for place, part in enumerate(array)}
        else:
            found[name] = array if array.ndim else array.reshape(1)
    if not found:
        raise ArrayError(f"Reading {where}: it holds no array of floating numbers.")
    return found


def _by_position(name: str, array: Array) -> Array:
    """transformers' attentions (..., H, T, S) as (..., T, H, S), like our taps."""
    is_attention = f".{name}".rpartition(f".{ATTENTIONS}")[1] and array.ndim >= 3
    return array.swapaxes(-3, -2) if is_attention else array


def _fitted(where: str, tap: str, array: Array, run: Run) -> Array:
    """The array in the shape of the run's tap: without a batch axis of 1, heads apart or together."""
    wanted, found = run[tap].shape, array
    if found.shape[0] == 1 and (found.ndim > len(wanted) or found.shape[1:2] == wanted[:1]):
        found = found[0]
    if tap.endswith("attn.softmax.out") and found.shape == (wanted[1], wanted[0], *wanted[2:]) != wanted:
        found = found.swapaxes(0, 1)  # (H, T, S)
    is_same_row = found.shape[:1] == wanted[:1] and math.prod(found.shape) == math.prod(wanted)
    if found.shape != wanted and not is_same_row:
        raise ArrayError(
            f"{tap} has the shape {wanted} in the run of {run.recipe.name}, but {array.shape} in {where}. Dump the"
            f" {len(run.fed)} positions that the run was fed, one sequence."
        )
    return found.reshape(wanted)


def _formats(where: str, arrays: Mapping[str, Array], notes: list[str]) -> dict[str, Format]:
    """The format of each array: that of its dtype; or a narrower one that holds most of the dump's values as they are.

    NumPy has no bf16, so bf16 values are often dumped as f32.
    """
    formats = {tap: _format_of(where, tap, array) for tap, array in arrays.items()}
    wide = [tap for tap, fmt in formats.items() if fmt.precision >= f32.precision]
    for fmt in _NARROW:
        fits = [tap for tap in wide if fmt.precision < formats[tap].precision and _is_in(arrays[tap], fmt)]
        if 2 * len(fits) > len(wide):
            told = ", ".join(sorted({str(formats[tap]) for tap in fits}))
            notes.append(f"{where} holds {told}, but {len(fits)} of {len(formats)} taps are {fmt} values: so taken.")
            return formats | dict.fromkeys(fits, fmt)
    return formats


def _format_of(where: str, tap: str, array: Array) -> Format:
    known = next((fmt for fmt in FORMATS.values() if fmt.has_own_dtype and fmt.dtype == array.dtype), None)
    if known is None:
        raise ArrayError(f"Reading {where}: {tap} is {array.dtype}, which is no format here.")
    return known


def _is_in(array: Array, fmt: Format) -> bool:
    wide = widen(array)
    return bool(np.array_equal(widen(round_to(wide, fmt)), wide, equal_nan=True))


def _in_format(array: Array, fmt: Format) -> Array:
    return array if array.dtype == fmt.dtype else round_to(array, fmt)


# --- what is compared -------------------------------------------------------------------------------------------------


def _paired(run: Side, reference: Side, notes: list[str]) -> tuple[Side, Side]:
    """Two dumps: what both have. Raises ArrayError where a tensor has two shapes (but for a batch axis of 1)."""
    shared = [name for name in run.arrays if name in reference.arrays]
    if not shared:
        raise ArrayError(
            f"{run.name} and {reference.name} have no tensor in common. The first holds {_few(run.arrays)}; the second"
            f" {_few(reference.arrays)}. Say which is which: --names."
        )
    made = []
    for side, other in ((run, reference), (reference, run)):
        arrays = {name: _unbatched(side.arrays[name], other.arrays[name]) for name in shared}
        made.append(Side(side.name, arrays, side.formats, None, _digest(arrays, side.formats)))
    for name in shared:
        if made[0].arrays[name].shape != made[1].arrays[name].shape:
            shapes = " and ".join(f"{side.arrays[name].shape} in {side.name}" for side in (run, reference))
            raise ArrayError(f"{name} cannot be compared: it has the shape {shapes}.")
    if alone := [f"{name} of {side.name}" for side in (run, reference) for name in side.arrays if name not in shared]:
        notes.append(f"Not in both, so not compared: {_few(alone)}.")
    return made[0], made[1]


def _unbatched(array: Array, other: Array) -> Array:
    is_batch = array.ndim == other.ndim + 1 and array.shape[0] == 1
    both = array.ndim == other.ndim >= 3 and array.shape[0] == other.shape[0] == 1
    return array[0] if is_batch or both else array


def _few(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:SHOWN]) + (", ..." if len(every) > SHOWN else "")


def _extent(run: Run | None, one: Side, other: Side, notes: Sequence[str]) -> Extent:
    """All positions; where no run says which of them chose a token, each of them does."""
    told = tuple(notes)
    if run is not None:
        start = len(run.prompt_tokens) - 1
        places = tuple((step, start + step) for step in range(run.steps))
        return Extent(len(run.fed), places, told, model=run.model, model_digest=run.model_digest)
    if one.has_logits and other.has_logits:
        length = len(one.arrays[LOGITS])
        return Extent(length, tuple((place, place) for place in range(length)), told, are_positions=True)
    return Extent(max(len(array) for array in one.arrays.values()), (), told)
