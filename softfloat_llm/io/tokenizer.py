"""Text to token ids and back. The `tokenizers` library is loaded when text is first used, not before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from softfloat_llm.errors import TokenError, why


class Tokenizer:
    """The tokenizer of a checkpoint, read from `path` when it is first needed.

    `text` gives the contents of a tokenizer.json that is not there as a file of its own; `path` then names its source.
    """

    def __init__(self, path: str | Path, *, text: Callable[[], str] | None = None) -> None:
        self.path = Path(path)
        self._text = text or self._read

    @cached_property
    def _library(self) -> Any:
        from tokenizers import Tokenizer as Library

        text = self._text()
        try:
            return Library.from_str(text)
        except Exception as error:  # the library raises bare Exception
            raise TokenError(f"{self.path} cannot be read as a tokenizer: {why(error)}.") from None

    def _read(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise missing(self.path.parent) from None
        except (OSError, ValueError) as error:
            raise TokenError(f"{self.path} cannot be read as a tokenizer: {why(error)}.") from None

    @cached_property
    def size(self) -> int:
        """Number of tokens, special ones included."""
        return int(self._library.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, adds_special: bool = True) -> list[int]:
        """The ids of a text, with those that the tokenizer itself puts around it (often a first token, or none)."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise TokenError(
                f"The text has a lone surrogate at {error.start}: {text[error.start]!r} is not a character."
            ) from None
        return [int(i) for i in self._library.encode(text, add_special_tokens=adds_special).ids]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens shown as they are. An id without a token appears as <id>."""
        parts = []
        for is_known, group in groupby([int(i) for i in ids], key=self._is_known):
            run = list(group)
            parts.append(
                self._library.decode(run, skip_special_tokens=False) if is_known else "".join(f"<{i}>" for i in run)
            )
        return "".join(parts)

    def token(self, token_id: int) -> str:
        """What one token says, with its leading space; where it is part of a character, its name in the vocabulary."""
        token_id = int(token_id)
        if not self._is_known(token_id):
            return f"<{token_id}>"
        name = str(self._library.id_to_token(token_id))
        if name.startswith("▁"):  # the mark of a space in SentencePiece vocabularies, whose decoder drops it
            return name.replace("▁", " ")
        text = str(self._library.decode([token_id], skip_special_tokens=False))
        return name if "\ufffd" in text or not text else text

    def _is_known(self, token_id: int) -> bool:
        if token_id < 0:
            raise TokenError(f"Token id {token_id} is below 0.")
        return token_id < 2**32 and self._library.id_to_token(token_id) is not None


def missing(folder: Path) -> TokenError:
    """The error for text that is given to a model without a tokenizer."""
    return TokenError(
        f"{folder} has no tokenizer.json, so text cannot be used with this model. Give token ids instead, "
        "or put the model's tokenizer.json there."
    )
