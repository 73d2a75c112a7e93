"""The text of every token of a run: a run itself knows the texts of the tokens that were fed and chosen only.

An answer also names tokens that were nearly chosen. Where the model lies on this machine, `named` finds their texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from softfloat_llm.errors import SoftfloatError
from softfloat_llm.io.checkpoint import Model, open_model
from softfloat_llm.io.fetch import cached_smollm2

if TYPE_CHECKING:
    from softfloat_llm.runs import Run


class Pieces(Mapping[int, str]):
    """Token id -> text, for every id of a model, each looked up when it is asked for."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __getitem__(self, token: int) -> str:
        if self._model.tokenizer is None or not 0 <= token < len(self):
            raise KeyError(token)
        return self._model.tokenizer.token(token)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return self._model.config.vocab_size


def named(run: Run, model: Model | None = None) -> Run:
    """The run with the text of every token, where its model has a tokenizer and nothing must be fetched for it."""
    found = model_at_hand(run.model) if model is None else model
    return run if found is None or found.tokenizer is None else replace(run, pieces=Pieces(found))


def model_at_hand(name: str) -> Model | None:
    """The model of that name, if it lies on this machine."""
    if name == "smollm2" and cached_smollm2() is None:
        return None
    try:
        return open_model(name)
    except (SoftfloatError, OSError):
        return None
