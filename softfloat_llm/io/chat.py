"""The chat template of a checkpoint: where it stands, and a prompt as it writes it.

Start at `chat_template_of`. Rendering happens in a process of its own (`chat_child`): a template is a program.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from softfloat_llm.errors import CheckpointError, TokenError, why
from softfloat_llm.io.safetensors import read_json

TEMPLATE_FILE, CONFIG_FILE = "chat_template.jinja", "tokenizer_config.json"
MOST_BYTES = 1 << 20  # of a template: the longest that are in use have some 20,000
PATIENCE_SECONDS = 15  # the child has 5 seconds of CPU


@dataclass(frozen=True)
class ChatTemplate:
    """A template, the file that it stands in, and the special tokens that it may write (bos_token, eos_token)."""

    text: str
    source: str
    tokens: Mapping[str, str]

    def rendered(self, prompt: str, system: str | None = None) -> str:
        """The prompt as a user's message (after a system's), and the beginning of the answer.

        Raises TokenError where the template fails, takes too long or too much memory, or jinja2 is not installed.
        """
        if find_spec("jinja2") is None:
            raise TokenError("Chat templates need jinja2. Install it: pip install '.[chat]'.")
        messages = [] if system is None else [{"role": "system", "content": system}]
        messages.append({"role": "user", "content": prompt})
        variables = dict(self.tokens) | {"messages": messages, "add_generation_prompt": True}
        answer = _answer({"template": self.text, "variables": variables})
        if "text" not in answer:
            raise TokenError(f"The chat template of {self.source} cannot be used: {answer['error']}.")
        return str(answer["text"])


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    """What the child says; an error in its place where it was stopped."""
    child = [sys.executable, "-I", str(Path(__file__).with_name("chat_child.py"))]
    try:
        done = subprocess.run(
            child, input=json.dumps(asked), capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"error": f"it did not end within {PATIENCE_SECONDS} seconds"}
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return {"error": "it was stopped: it takes more than 5 seconds or 512 MB"}
    return answer if isinstance(answer, dict) else {"error": "it gave no text"}


def chat_template_of(folder: Path) -> ChatTemplate | None:
    """The template of a Hugging Face folder: chat_template.jinja, or the key in tokenizer_config.json; or None.

    Raises CheckpointError where such a file is damaged.
    """
    config = read_json(folder / CONFIG_FILE, "the tokenizer's config") if (folder / CONFIG_FILE).is_file() else {}
    own = folder / TEMPLATE_FILE
    if own.is_file():
        return _template(_text_of(own), str(own), config)
    return _template(_default_of(config.get("chat_template"), folder), str(folder / CONFIG_FILE), config)


def _template(text: str | None, source: str, config: Mapping[str, Any]) -> ChatTemplate | None:
    if text is None:
        return None
    if len(text) > MOST_BYTES:
        raise CheckpointError(f"{source}: the chat template has {len(text)} characters, expected at most {MOST_BYTES}.")
    return ChatTemplate(text, source, special_tokens(config))


def _text_of(path: Path) -> str:
    if path.stat().st_size > MOST_BYTES:
        raise CheckpointError(f"{path} has {path.stat().st_size} bytes, expected at most {MOST_BYTES}.")
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {why(error)}.") from None


def _default_of(value: Any, folder: Path) -> str | None:
    """One template, or that named `default` of a list of them."""
    if isinstance(value, list):
        named = {one.get("name"): one.get("template") for one in value if isinstance(one, dict)}
        value = named.get("default")
    if value is not None and not isinstance(value, str):
        raise CheckpointError(f"{folder / CONFIG_FILE}: chat_template is a {type(value).__name__}, expected a text.")
    return value


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token and its like: a text, or an object with it as `content`."""
    found = {}
    for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = config.get(key)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[key] = text
    return found
