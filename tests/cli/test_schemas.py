"""Each verb's JSON is what its schema says, and each schema is one of the draft that it names.

The text and the HTML of an answer are made of the same fields; that is held by the tests of each analysis.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import softfloat_llm
from tests.console import Console, output

FOLDER = Path(softfloat_llm.__file__).parent / "schemas"
SCHEMAS = sorted(path.stem for path in FOLDER.glob("*.json"))

ANSWERS = {
    "simulate": ["simulate"],
    "simulate, flips": ["simulate", "The cup is", "--fail-on", "differs"],
    "simulate, alone": ["simulate", "--against", "none"],
    "simulate, not finite": ["simulate", "--storage", "e3m4", "--acc", "e3m4", "--steps", "0"],
    "simulate-prompts": ["simulate", "--prompts", "default"],
    "simulate-prompts, alone": ["simulate", "--prompts", "default", "--against", "none", "--steps", "0"],
    "formats": ["formats"],
    "formats, one": ["formats", "e5m7"],
    "formats, unsigned": ["formats", "e8m0fnu"],
    "formats-promote": ["formats", "promote", "bf16", "f32", "--op", "matmul"],
    "formats-promote, a scalar": ["formats", "promote", "bf16", "0.5", "--op", "mul"],
    "formats-promote, all": ["formats", "promote", "fp8"],
    "recipes": ["recipes"],
    "recipes, one": ["recipes", "exact"],
    "recipes-check": ["recipes", "check"],
    "recipes-check, refused": ["recipes", "check", "candle-cpu", "--storage", "bf16"],
    "recipes-check, run": ["recipes", "check", "candle-cpu", "--storage", "f16"],
    "recipes-sites": ["recipes", "--sites"],
    "recipes-units": ["recipes", "--units"],
    "taps": ["taps"],
    "inspect": ["inspect", "tiny"],
    "margins": ["margins", "The cup is", "--steps", "3", "--format", "bf16"],
    "margins, positions": ["margins", "--steps", "0"],
    "margins, none": ["margins", "--within", "0"],
    "margins, last of equals": ["margins", "The light is on. The light is", "--recipe", "bf16,choice.ties=last"],
    "ties": ["ties", "The cup is", "--steps", "11", "--recipe", "bf16"],
    "ties, none": ["ties", "--format", "f32"],
    "budget": ["budget", "The cup is"],
    "budget, not finite": ["budget", "The cup is", "--storage", "e3m4", "--acc", "e3m4"],
    "budget, no change": ["budget", "--recipe", "f32"],
    "bisect": ["bisect", "The cup is", "--fast", "--recipe", "f32,lm_head.output=bf16"],
    "ranges": ["ranges", "--format", "e4m3fn", "--kv-scales", "e2m1fn", "--what-if", "acc=e3m4"],
    "ranges, not finite": ["ranges", "--storage", "e3m4", "--acc", "e3m4", "--steps", "0"],
    "reveal": ["reveal", "numpy", "sum", "--n", "19"],
    "report": ["report", "The cup is", "--budget"],
    "report, no step": ["report", "--steps", "0"],
    "report, not finite": ["report", "--storage", "e3m4", "--acc", "e3m4", "--steps", "0"],
    "lesson": ["lesson"],
    "lesson, one": ["lesson", "ties"],
    "bound": ["bound", "The cup is", "--orders", "2"],
    "bound, sums": ["bound", "--sums", "layers.0.mlp.up_proj", "--storage", "f16", "--acc", "f16", "--orders", "2"],
    "bound, infinite": ["bound", "--dot", "6e4,6e4,-6e4", "1,1,1", "--storage", "f16", "--acc", "f16"],
    "bound, a unit": ["bound", "--dot", "1,2,3", "1,1,1", "--recipe", "nvidia-hopper-bf16"],
}


def validator(verb: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((FOLDER / f"{verb}.json").read_text()))


def problems(verb: str, body: dict[str, Any]) -> list[str]:
    """What the schema finds wrong: messages with their places."""
    return [f"{list(error.path)}: {error.message[:200]}" for error in validator(verb).iter_errors(body)]


@pytest.mark.parametrize("verb", SCHEMAS)
def test_a_schema_is_one_and_names_its_verb(verb: str) -> None:
    body = json.loads((FOLDER / f"{verb}.json").read_text())
    Draft202012Validator.check_schema(body)
    assert body["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert body["$id"] == f"softfloat-llm/{verb}/1"
    commands = (verb.replace("-", " "), verb.replace("-", " --"))
    assert any(f"softfloat-llm {command}" in body["title"] for command in commands)


def test_whatever_is_printed_as_json_has_a_schema() -> None:
    sources = (Path(softfloat_llm.__file__).parent / "cli").glob("*.py")
    verbs = {verb for path in sources for verb in re.findall(r'show_json\(\s*"([a-z-]+)"', path.read_text())}
    assert verbs <= set(SCHEMAS)
    assert len(verbs) > 20


@pytest.mark.parametrize("name", ANSWERS)
def test_the_json_of_a_verb_is_what_its_schema_says(console: Console, name: str) -> None:
    answer = console(*ANSWERS[name], "--json")
    assert answer.code in (0, 1), answer.err  # 1: a claim does not hold, which is an answer too
    assert problems(name.split(",", maxsplit=1)[0], json.loads(answer.out)) == []


def test_the_json_of_what_is_written(console: Console, tmp_path: Path) -> None:
    vectors = tmp_path / "add.txt"
    written = console("vectors", "write", vectors, "--op", "add", "--format", "bf16", "--count", "20", "--json")
    assert problems("vectors-write", json.loads(written.out)) == []
    assert problems("vectors", json.loads(console("vectors", "run", vectors, "--json").out)) == []
    words = ["--recipe", "bf16", "--recipe", "bf16,lm_head.output=e2m1fn", "--prompt", "The cup is"]
    swept = console("sweep", *words, "--out", tmp_path / "sweep", "--json")
    assert problems("sweep", json.loads(swept.out)) == []


def test_the_json_of_saved_runs_and_golden_outputs(console: Console, saved: dict[str, Path], tmp_path: Path) -> None:
    for words in ([saved["flip"], saved["flip ref"]], [saved["same"], saved["ref"], "--within", "tokens"]):
        assert problems("compare", json.loads(console("compare", *words, "--json").out)) == []
    written = console("golden", "write", tmp_path / "golden", "--json").out
    assert problems("golden-write", json.loads(written)) == []
    for words in ([], [saved["bf16"]]):
        told = json.loads(console("golden", "check", tmp_path / "golden", *words, "--json").out)
        assert problems("golden-check", told) == []


@pytest.mark.parametrize("verb", ["margins", "ties", "budget", "bisect"])
def test_an_answer_with_a_key_too_many_or_too_few_is_refused(verb: str) -> None:
    body = json.loads(output(*ANSWERS[verb], "--json"))
    assert problems(verb, body) == []
    assert problems(verb, body | {"more": 1})
    assert problems(verb, body | {"schema": "softfloat-llm/other/1"})
    for key in body:
        assert problems(verb, {k: v for k, v in body.items() if k != key}), key
