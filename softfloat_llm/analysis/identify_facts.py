"""What the arrays of an operation say before anything is tried: formats that hold them, axes that can matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from softfloat_llm.analysis.grids import NARROW, Facts, orders, units_of
from softfloat_llm.errors import ArrayError
from softfloat_llm.numerics.carriers import widen
from softfloat_llm.numerics.formats import CARRIERS, Array, Format, f16, f32, format_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.operations import OUT, Operation, Shape, operands
from softfloat_llm.sites import SITES

SUMS = ("sum", "dot", "matmul", "linear")
CARRIED = ("bf16", "f16", "f32")  # what an array of float32 or float64 is taken to hold the values of


def real(name: str, array: Array) -> Array:
    """The array in a carrier dtype. Raises ArrayError for what is no array of real numbers."""
    values = np.asarray(array)
    if values.dtype.kind in "iub":
        return values.astype(np.float64)
    if values.dtype not in CARRIERS:
        raise ArrayError(f"{name} is an array of {values.dtype}: expected real numbers in a format of this package.")
    return values


def facts_of(
    operation: Operation, arrays: Mapping[str, Array], shape: Shape, known: Mapping[str, str] | None = None
) -> Facts:
    """What the formats of the operands and of the output can be, and which further axes can matter."""
    inputs, known = operands(operation, arrays), known or {}
    storages, outputs = storages_of(list(inputs.values())), outputs_of(arrays[OUT])
    storages = (str(format_of(known["storage"])),) if "storage" in known else storages
    outputs = (str(format_of(known["output"])),) if "output" in known else outputs
    narrow = tuple(dict.fromkeys(word for word in (*storages, *outputs) if word in NARROW))
    pairs = [pair for storage in storages for pair in units_of(storage)]
    words = {
        "@storage": storages if operation.name in SUMS else tuple(word for word in storages if word != "tf32"),
        "@output": outputs,
        "@narrow": narrow,
        "@product": tuple(dict.fromkeys("f32" if word == "tf32" else word for word in storages)),
        "@orders": orders(),
        "@units": tuple(order for order, _ in pairs),
        "@unit-acc": tuple(dict.fromkeys(acc for _, acc in pairs)),
        "@flushing": ("keep", "ftz+daz") if _has_tiny([*inputs.values(), arrays[OUT]]) else ("keep",),
        "@eps": ("",) if "eps" in arrays else ("1e-05", "1e-06"),
        "@takes": tuple(SITES["norm.input"].options["takes"].meanings) if "residual" in arrays else ("stored",),
    }
    words |= {"@table": ("",)} if operation.name == "rope" and "cos" not in arrays else {}
    return Facts(words, shape.terms)


def storages_of(inputs: Sequence[Array]) -> tuple[str, ...]:
    """The formats in which the operands can have lain: their own; of float32, those narrow ones that hold them all.

    Values that only float32 holds may have been rounded to tf32, bf16 or f16 first.
    """
    own = {str(CARRIERS[x.dtype]) for x in inputs}
    if len(own) == 1 and own <= set(NARROW):
        return (own.pop(),)
    held = [name for name in CARRIED if all(is_held(x, format_of(name)) for x in inputs)]
    narrow = tuple(name for name in held if name != "f32")
    return narrow or ("f32", "tf32", "bf16", "f16")


def outputs_of(out: Array) -> tuple[str, ...]:
    """The formats whose values the output holds."""
    own = str(CARRIERS[out.dtype])
    if own in NARROW:
        return (own,)
    return tuple(name for name in CARRIED if name == "f32" or is_held(out, format_of(name)))


def is_held(x: Array, fmt: Format) -> bool:
    """True where every element is a value of the format."""
    wide = widen(x)
    return bool(np.array_equal(widen(np.asarray(round_to(wide, fmt))), wide, equal_nan=True))


def _has_tiny(arrays: Sequence[Array]) -> bool:
    """True where a subnormal, or a product that could be one, is at hand: then flushing can matter."""
    least = 1.0
    for array in arrays:
        magnitudes = np.abs(widen(array))
        magnitudes = magnitudes[(magnitudes > 0) & np.isfinite(magnitudes)]
        smallest = float(magnitudes.min()) if magnitudes.size else 1.0
        if smallest < CARRIERS[array.dtype].smallest_normal or smallest < f32.smallest_normal:
            return True
        least *= min(smallest, 1.0)
    is_half = any(array.dtype == f16.dtype for array in arrays)
    return least < (f16 if is_half else f32).smallest_normal if is_half else least < f32.smallest_normal


def notes_on(operation: Operation, arrays: Mapping[str, Array], facts: Facts) -> tuple[str, ...]:
    found = []
    if "f32" in facts.words["@storage"] and not all(is_held(x, f32) for x in operands(operation, arrays).values()):
        found.append("The inputs have more bits than f32 holds: every candidate rounds them first.")
    if not is_held(arrays[OUT], f32):
        found.append("The output has more bits than f32 holds, so no candidate can fit.")
    return tuple(found)
