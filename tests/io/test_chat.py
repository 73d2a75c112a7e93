"""Chat templates: where they stand, what they write (as transformers has it), and how hostile ones are stopped."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from softfloat_llm import tiny
from softfloat_llm.errors import CheckpointError, TokenError
from softfloat_llm.io.chat import ChatTemplate, chat_template_of
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.runs import simulate
from tests.checkpoints import random_tensors, write_checkpoint
from tests.console import Console

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
  {% set ns = namespace(text='<<SYS>>' + messages[0]['content'] | trim + '<</SYS>>') %}
  {% set rest = messages[1:] %}
{% else %}
  {% set ns = namespace(text='') %}
  {% set rest = messages %}
{% endif %}
{% for m in rest %}
  {% if m['role'] not in ['user', 'assistant'] %}{{ raise_exception('roles!') }}{% endif %}
  {% generation %}[INST] {{ ns.text }}{{ m.content }} [/INST]{% endgeneration %}
  {% if loop.index > 3 %}{% break %}{% endif %}
{% endfor %}
{{ {'b': ['é', 1], 'a': none} | tojson }}"""
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
_TOO_LONG = "more than 5 seconds|within 15 seconds"  # the latter where others have the core


def template(text: str) -> ChatTemplate:
    return ChatTemplate(text, "test", TOKENS)


@pytest.fixture
def console(capsys: pytest.CaptureFixture[str]) -> Console:
    return Console(capsys)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the tiny model with a template."""
    target = tmp_path / "model"
    target.mkdir()
    for path in Path(tiny.FOLDER).iterdir():
        if path.suffix in (".json", ".safetensors"):
            (target / path.name).write_bytes(path.read_bytes())
    (target / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML} | TOKENS))
    return target


def test_a_prompt_and_a_system_text_are_written() -> None:
    assert template(CHATML).rendered("Hi") == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert template(LLAMA2).rendered("Hi", " Be kind ") == (
        '<s>[INST] <<SYS>>Be kind<</SYS>>Hi [/INST]{"b": ["é", 1], "a": null}'
    )


@pytest.mark.torch
@pytest.mark.parametrize("text", [CHATML, LLAMA2, "  {{ messages | tojson(indent=2) }}\n{{ eos_token }}\n"])
def test_what_is_written_is_what_transformers_writes(text: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": "system", "content": "S <&>"}, {"role": "user", "content": "Ü\n"}]
    theirs, _ = render_jinja_template([messages], chat_template=text, add_generation_prompt=True, **TOKENS)
    assert template(text).rendered("Ü\n", "S <&>") == theirs[0]


@pytest.mark.parametrize(
    ("config", "file", "text"),
    [
        ({"chat_template": "A"}, None, "A"),
        ({"chat_template": "A"}, "B", "B"),
        ({"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}, None, "D"),
        ({"chat_template": [{"name": "tool_use", "template": "T"}]}, None, None),
        ({}, None, None),
        (None, "B", "B"),
        (None, None, None),
    ],
)
def test_where_a_template_stands(tmp_path: Path, config: Any, file: str | None, text: str | None) -> None:
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": {"content": "<s>"}}))
    if file is not None:
        (tmp_path / "chat_template.jinja").write_text(file)
    found = chat_template_of(tmp_path)
    assert (found and found.text) == text
    assert found is None or dict(found.tokens) == ({"bos_token": "<s>"} if config is not None else {})


def test_a_template_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": 3}))
    with pytest.raises(CheckpointError, match="chat_template is a int"):
        chat_template_of(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="no text in UTF-8"):
        chat_template_of(tmp_path)
    with open(tmp_path / "chat_template.jinja", "wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(CheckpointError, match="at most 1048576"):
        chat_template_of(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", _TOO_LONG),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{{ 'a' * 10**10 }}", "512 MB"),
        ("{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
         "512 MB"),
        ("{% for i in range(99999) %}{{ 'aaaaaaaaaaaaaaaaaaaa' }}{% endfor %}", "more than 1000000 characters"),
        ("{{ 9**(9**9) }}", _TOO_LONG),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "without end"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ raise_exception.__globals__['x'] }}", "SecurityError"),
        ("{{ cycler.__init__.__globals__.os }}", "SecurityError|UndefinedError"),
        ("{% include '/etc/passwd' %}", "no loader|TypeError"),
        ("{{ strftime_now('%Y') }}", "today's date"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ messages[0].content.no.such }}", "UndefinedError"),
    ],
)  # fmt: skip
def test_a_hostile_template_is_stopped(text: str, words: str) -> None:
    before = time.monotonic()
    with pytest.raises(TokenError, match=words):
        template(text).rendered("Hi")
    assert time.monotonic() - before < 30


def test_a_chat_is_fed_as_the_template_writes_it(folder: Path) -> None:
    model = open_model(folder)
    assert model.tokenizer is not None
    run = simulate("The cup is", model=model, recipe="bf16", chat=True, system="Be kind.")
    text = template(CHATML).rendered("The cup is", "Be kind.")
    assert list(run.prompt_tokens) == model.tokenizer.encode(text, adds_special=False)


def test_a_model_without_a_template_and_wrong_requests_are_told_so(tmp_path: Path) -> None:
    with pytest.raises(TokenError, match=r"tiny has no chat template .*without --chat"):
        simulate("Hi", chat=True)
    with pytest.raises(TokenError, match="part of a chat"):
        simulate("Hi", system="Be kind.")
    with pytest.raises(TokenError, match="not token ids"):
        simulate(tokens=[1], chat=True)
    bare = write_checkpoint(tmp_path / "bare", tensors=random_tensors())
    (bare / "chat_template.jinja").write_text(CHATML)
    with pytest.raises(TokenError, match=r"no tokenizer\.json"):
        simulate("Hi", model=bare, chat=True)


def test_the_command_line_chats(folder: Path, console: Console) -> None:
    words = ("simulate", "The cup is", "--model", folder, "--chat", "--system", "Be kind.")
    answer = console(*words)
    assert answer.code == 0, answer.err
    assert "--chat --system 'Be kind.'" in answer.out
    told = json.loads(console(*words, "--json").out)
    assert told["run"]["prompt_tokens"] == open_model(folder).encode_chat("The cup is", "Be kind.")
    refused = console("simulate", "Hi", "--chat")
    assert (refused.code, "has no chat template" in refused.err) == (3, True)
