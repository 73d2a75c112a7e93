"""The band of the sums that one place of a run makes: its own operands, summed in other orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from softfloat_llm.analysis.bands import SEEDED, SumBand, sum_band
from softfloat_llm.analysis.taps import tap_of
from softfloat_llm.analysis.what_if import operands
from softfloat_llm.errors import RunError, nearest
from softfloat_llm.io.checkpoint import Model
from softfloat_llm.sites import LINEAR

if TYPE_CHECKING:
    from softfloat_llm.runs import Run


def site_band(run: Run, place: str, model: Model, *, orders: int | Sequence[str] = SEEDED) -> SumBand:
    """The band of a linear layer's sums, such as `layers.0.mlp.down_proj` or `lm_head`, for all positions of a run.

    The run keeps what the place took (`PLACE.in`). **Raises** RunError where it did not, or the place is no linear
    layer; and as `sum_band`.
    """
    tap = tap_of(f"{place}.in")
    if tap.site not in LINEAR:
        raise RunError(f"{place!r} is no linear layer.{nearest(place, LINEAR)} They are {', '.join(LINEAR)}.")
    if tap.name not in run.arrays:
        held = [name.removesuffix(".in") for name in run.arrays if name.endswith(".in")]
        raise RunError(f"The run does not keep {tap.name}.{nearest(place, held)} Run it with --taps '{tap.name}'.")
    ((left, right),) = operands(tap, run, model)
    spec = run.recipe.at(tap.site).shaped(M=left.shape[0], N=right.shape[1], K=left.shape[1])
    return sum_band(
        left, right, spec.precision, orders=orders, what=f"{place} of {run.model}: {left.shape} times {right.shape}"
    )
