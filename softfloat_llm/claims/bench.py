"""A model on which claims are checked, and the runs of it that several claims look at, each made once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from softfloat_llm.analysis.compare import compare
from softfloat_llm.analysis.comparison import Comparison
from softfloat_llm.io.checkpoint import Model
from softfloat_llm.io.fetch import recorded_sha256
from softfloat_llm.io.progress import Progress
from softfloat_llm.llama.weights import tensor_bytes
from softfloat_llm.numerics.formats import Float64Array
from softfloat_llm.runs import Run, simulate
from softfloat_llm.tiny import DEFAULT_PROMPT, NEAR_TIES

FRANCE = (504, 3575, 282, 4649, 314)
"""`The capital of France is` as SmolLM2 has it."""
SMOLLM2 = {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": 49152,
}  # fmt: skip
"""The shape of SmolLM2-135M: config.json of HuggingFaceTB/SmolLM2-135M-Instruct."""
Asked = str | tuple[int, ...]


class Bench:
    """A model and its runs. `kind` says what can be expected of it.

    `tiny`: the built-in one, whose prompts end in near-ties. `smollm2`: the conversion that `fetch` makes. `original`:
    another model of SmolLM2-135M's shape, taken for the original weights. `other`: any other.
    """

    def __init__(
        self, model: Model, *, progress: Progress | None = None, workers: int = 1, backend: str = "numpy"
    ) -> None:
        self.model, self.progress = model, progress
        self._how: dict[str, Any] = {"workers": workers, "backend": backend, "progress": progress}
        self._runs: dict[Any, Run] = {}
        self.kind = _kind(model)

    @property
    def prompt(self) -> Asked:
        """What the experiments ask."""
        return FRANCE if self.kind in ("smollm2", "original") else DEFAULT_PROMPT

    @property
    def steps(self) -> int:
        """How many tokens they choose."""
        return 4 if self.kind == "tiny" else 20

    @property
    def prompts(self) -> tuple[Asked, ...]:
        """The prompts on which margins are looked at."""
        return (self.prompt, *NEAR_TIES[:8]) if self.kind == "tiny" else (self.prompt,)

    def run(
        self,
        recipe: str,
        prompt: Asked | None = None,
        *,
        steps: int = 1,
        taps: Sequence[str] = (),
        teacher: Run | None = None,
    ) -> Run:
        """A run of the model, the same object for the same words."""
        asked = self.prompt if prompt is None else prompt
        key = (recipe, asked, steps, tuple(taps), teacher and teacher.digest)
        if key not in self._runs:
            given = {"prompt": asked} if isinstance(asked, str) else {"tokens": asked}
            given = {} if teacher is not None else given
            self._runs[key] = simulate(
                **given, model=self.model, recipe=recipe, steps=steps, taps=taps, teacher=teacher, **self._how
            )
        return self._runs[key]

    def reference(self, prompt: Asked | None = None) -> Run:
        """The greedy run in f32."""
        return self.run("f32", prompt, steps=self.steps)

    def taught(self, recipe: str, prompt: Asked | None = None) -> Run:
        """A run that is fed the reference's tokens."""
        return self.run(recipe, prompt, steps=self.steps, teacher=self.reference(prompt))

    def compared(self, recipe: str, prompt: Asked | None = None) -> Comparison:
        """A taught run against the reference."""
        return compare(self.taught(recipe, prompt), self.reference(prompt))


def wide(run: Run) -> Float64Array:
    """The logits (T, V) of a run as float64."""
    values: Float64Array = run["logits"].astype(np.float64)
    return values


def largest_error(run: Run, reference: Run, position: int = -1) -> float:
    """The largest |run - reference| of a logit at a position."""
    return float(np.abs(wide(run)[position] - wide(reference)[position]).max())


_TELLING = "model.layers.0.self_attn.k_proj.weight"
"""A tensor that the conversion from four bits has changed (norms and the like it has not)."""


def _kind(model: Model) -> str:
    if model.name == "tiny":
        return "tiny"
    if not all(getattr(model.config, key) == value for key, value in SMOLLM2.items()):
        return "other"
    digest = hashlib.sha256(tensor_bytes(model.weights[_TELLING])).hexdigest()
    return "smollm2" if digest == recorded_sha256()[_TELLING] else "original"
