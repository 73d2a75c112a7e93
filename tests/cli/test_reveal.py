"""`reveal` on the command line: one kernel, a site of a recipe, what is kept, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import softfloat_llm
from softfloat_llm.numerics.orders import Order
from softfloat_llm.numerics.trees import read_tree
from tests.console import Console

SCHEMA = json.loads((Path(softfloat_llm.__file__).parent / "schemas" / "reveal.json").read_text())


def is_of_schema(text: str) -> bool:
    return Draft202012Validator(SCHEMA).is_valid(json.loads(text))


def test_numpys_sum(console: Console) -> None:
    answer = console("reveal", "numpy", "sum", "--n", "300")
    assert answer.code == 0
    assert answer.out.splitlines()[:2] == [
        "kernel   numpy sum of (1, 300): 300 terms of f32, results in f32",
        "order    pairwise:8",
    ]
    assert "0 differ in a bit" in answer.out
    assert len(answer.out.splitlines()) < 25
    assert console("reveal", "numpy", "sum", "--n", "300", "-q").out == "pairwise:8\n"


def test_a_site_of_a_recipe(console: Console) -> None:
    out = console("reveal", "recipe", "nvidia-hopper-bf16/mlp.up_proj", "--n", "40").out
    assert "order    fused:16:25   (the same here: " in out
    assert "fused:nvidia-hopper-bf16" in out
    assert console("reveal", "recipe", "f16,order=lanes:4/lm_head", "--shape", "2,3,12", "-q").out == "lanes:4\n"


def test_a_tree_is_kept(console: Console, tmp_path: Path) -> None:
    path = tmp_path / "tree.json"
    answer = console("reveal", "recipe", "f32,order=perm:3/lm_head", "--n", "12", "--save", path)
    assert answer.code == 0
    assert f"order=tree:@{path}" in answer.out
    assert read_tree(path).n == 12
    assert sorted(Order(f"tree:@{path}").tree(12).leaves) == list(range(12))
    refused = console("reveal", "numpy", "sum", "--n", "4", "--save", path)
    assert (refused.code, "add --replace" in refused.err) == (2, True)
    assert console("reveal", "numpy", "sum", "--n", "4", "--save", path, "--replace").code == 0
    assert read_tree(path).n == 4


@pytest.mark.parametrize(
    "words",
    [
        ["numpy", "sum", "--n", "19"], ["numpy", "matmul", "--shape", "1,4,20", "--format", "f64"],
        ["recipe", "exact/lm_head", "--n", "5"], ["recipe", "nvidia-volta-f16/lm_head", "--n", "9"],
    ],
)  # fmt: skip
def test_the_json_is_of_the_schema(console: Console, words: list[str]) -> None:
    answer = console("reveal", *words, "--json")
    assert answer.code == 0
    assert is_of_schema(answer.out)


def test_what_cannot_be_computed_here_is_no_confirmed_order(console: Console) -> None:
    """Kahan's sums are no tree, and are told by what they give."""
    body = json.loads(console("reveal", "recipe", "f32,acc=f32+kahan/lm_head", "--n", "9", "--json").out)
    assert body["found"][0]["stages"]["acc"] == "f32+kahan"
    assert body["found"][0]["confirmed"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "say a kernel"), (["numpy", "sum"], 2, "--n 1000"),
        (["numpy", "sum", "--n", "4", "--shape", "4"], 2, "--n"), (["numpi", "sum", "--n", "4"], 2, "mean 'numpy'"),
        (["numpy", "summ", "--n", "4"], 3, "mean 'sum'"), (["numpy", "matmul", "--shape", "3,x"], 2, "sizes such as"),
        (["recipe", "f16", "--n", "4"], 2, "f16/mlp.down_proj"),
        (["recipe", "f16/lm_hed", "--n", "4"], 2, "lm_head"), (["--engine", "jax"], 2, "--engine torch"),
        (["--engine", "torch", "--check"], 2, "--save"), (["--engine", "torch", "--tokens", "x"], 2, "1..40"),
        (["numpy", "sum", "--n", "4", "--format", "bf16"], 3, "not bf16"),
    ],
)  # fmt: skip
def test_wrong_words_are_refused(console: Console, words: list[str], code: int, says: str) -> None:
    answer = console("reveal", *words)
    assert (answer.code, says in answer.err) == (code, True), answer.err
    assert answer.out == ""


@pytest.mark.torch
def test_a_whole_model_is_revealed_kept_and_held_against_pytorch(console: Console, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    words = ["reveal", "--engine", "torch", "--model", "tiny", "--tokens", "2..4", "--threads", "1", "--save", path]
    answer = console(*words, "--check")
    assert answer.code == 0, answer.err
    assert "0 differ in a bit from PyTorch" in answer.out
    assert "| norm " in answer.out
    assert path.read_text().startswith('name = "mine"')
    told = console(*words, "--replace", "--json")
    assert is_of_schema(told.out)
    assert console("recipes", path).code == 0
