"""What is fed to a model: the ids of a prompt, of a chat, or those that a teacher was fed.

Start reading at `what_to_feed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from softfloat_llm.errors import TokenError
from softfloat_llm.io.checkpoint import Model
from softfloat_llm.llama.forward import checked_tokens
from softfloat_llm.tiny import DEFAULT_PROMPT


class Teacher(Protocol):
    """What is asked of a run that teaches: the tokens of its prompt, those that it chose, and both together."""

    @property
    def prompt_tokens(self) -> tuple[int, ...]: ...
    @property
    def generated(self) -> tuple[int, ...]: ...
    @property
    def tokens(self) -> tuple[int, ...]: ...
    @property
    def steps(self) -> int: ...


def chat_tokens(
    model: Model, prompt: str | None, tokens: Sequence[int] | None, system: str | None, chat: bool
) -> list[int]:
    """The ids of the prompt as a chat. Raises TokenError where there is nothing to write."""
    if not chat:
        raise TokenError("A system text is part of a chat: ask for that too (chat=True, --chat).")
    if tokens is not None:
        raise TokenError("A chat is written from a text: give the prompt, not token ids.")
    return model.encode_chat(DEFAULT_PROMPT if prompt is None else prompt, system)


def what_to_feed(
    model: Model, prompt: str | None, tokens: Sequence[int] | None, steps: int, teacher: Teacher | None
) -> tuple[list[int], tuple[int, ...] | None, int]:
    """The prompt's ids, the tokens that a teacher feeds, and the number of steps."""
    if prompt is not None and tokens is not None:
        raise TokenError("Give the prompt as a text or as token ids, not both.")
    if not isinstance(prompt, str | None):
        raise TokenError(f"A prompt is one text, not a {type(prompt).__name__}; several: `batches.simulate_batch`.")
    if not isinstance(steps, int) or steps < 0:
        raise TokenError(f"steps is {steps!r}: a run has 0 or more steps.")
    ids = None if tokens is None else _one_sequence(tokens, model)
    if ids is None and not (prompt is None and teacher is not None):
        ids = _one_sequence(model.encode(DEFAULT_PROMPT if prompt is None else prompt), model)
    if teacher is not None:
        if ids is not None and tuple(ids) not in (teacher.prompt_tokens, teacher.tokens):
            raise TokenError(
                f"The teacher's prompt has the tokens {list(teacher.prompt_tokens)}, this one {ids}: they must agree."
            )
        return list(teacher.prompt_tokens), teacher.generated, teacher.steps
    assert ids is not None
    return ids, None, steps


def _one_sequence(tokens: Sequence[int], model: Model) -> list[int]:
    """The ids as a list. Raises TokenError where they are none of the model's, or several sequences."""
    rows = checked_tokens(tokens, model.config)
    if np.ndim(tokens) != 1:
        raise TokenError(f"A run takes one sequence of token ids; found an array of shape {np.shape(tokens)}.")
    ids: list[int] = rows[0].tolist()
    return ids


def pieces_of(model: Model, tokens: set[int]) -> dict[int, str]:
    """The text of each token, where the model has a tokenizer and it can be read."""
    if model.tokenizer is None:
        return {}
    return {token: model.tokenizer.token(token) for token in sorted(tokens)}
