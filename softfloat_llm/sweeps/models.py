"""The models of a sweep: opened once, and what of them decides a cell.

Weights are known by the digest of all their bytes, made anew by every process that opens them: no date or size stands
for them. That is about one second for each gigabyte (0.24 s for SmolLM2), where a pass of such a model takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from softfloat_llm.errors import SoftfloatError, why
from softfloat_llm.io.checkpoint import Model, open_model

Opened = Model | str
"""A model, or the error that opening it ended in."""


def opened(names: Iterable[str]) -> dict[str, Opened]:
    """Each model, opened and its weights read once; or the words of the error."""
    return {name: _opened(name) for name in dict.fromkeys(names)}


def _opened(name: str) -> Opened:
    try:
        model = open_model(name)
        _ = model.weights.digest  # kept with the weights, also where they are sent to other processes
    except (SoftfloatError, OSError, MemoryError) as error:
        return told(error)
    return model


def told(error: BaseException) -> str:
    """An error as a row has it: ours in all its lines, the system's in words and with the file that it refused."""
    name = type(error).__name__
    words = str(error) if isinstance(error, SoftfloatError) else why(error, with_file=True)
    return name if words == name else f"{name}: {words}"


def facts_of(model: Opened, prompt: str) -> tuple[str | None, str | None]:
    """The digest of a model's weights; and its config with the token ids of a prompt, which its tokenizer decides."""
    if isinstance(model, str):
        return None, None
    try:
        ids: list[int] | None = model.encode(prompt)
    except SoftfloatError:
        ids = None
    return model.weights.digest, f"{asdict(model.config)} {ids}"
