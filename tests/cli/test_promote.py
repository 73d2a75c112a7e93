"""`formats promote`, verbs within verbs, and `--version`."""

from __future__ import annotations

import json

import pytest

from softfloat_llm.promotion import RULES, promote, types
from softfloat_llm.runs import package_version
from tests.console import Console


def rows(out: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if line.startswith("|")]


def test_a_pair_of_types_has_a_row_for_each_library(console: Console) -> None:
    header, _, *body = rows(console("formats", "promote", "bfloat16", "f32").out)
    assert header == ["rules", "bf16 + f32"]
    assert body == [[rules, "f32"] for rules in RULES]


def test_a_number_is_a_python_scalar_and_it_is_said_how_its_value_enters(console: Console) -> None:
    _, _, *body = rows(console("formats", "promote", "bf16", "0.5", "--op", "mul").out)
    assert body == [
        ["torch", "bf16", "the scalar stays f32; the result is rounded to bf16 once"],
        ["numpy", "f32", "the scalar is rounded to f32 first"],
        ["jax", "bf16", "the scalar is rounded to bf16 first"],
    ]


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (["bf16", "f32", "--scalar"], "bf16"),
        (["i64", "0.5"], "f32"),
        (["bool", "3"], "i64"),
        (["True", "u8"], "u8"),
        (["i32", "i64", "--op", "div"], "f32"),
        (["half", "--op", "mean"], "f16"),
    ],
)
def test_operands_may_be_scalars_and_operations_others_than_addition(
    console: Console, words: list[str], result: str
) -> None:
    assert rows(console("formats", "promote", *words, "--rules", "torch").out)[2][1] == result


def test_a_refusal_is_given_in_the_library_s_words(console: Console) -> None:
    out = console("formats", "promote", "bf16", "f32", "--rules", "torch", "--op", "matmul").out
    assert "| torch | refused    | expected m1 and m2 to have the same dtype, but got: c10::BFloat16 != float |" in out


def test_one_type_is_shown_with_every_other(console: Console) -> None:
    body = rows(console("formats", "promote", "f16").out)[2:]
    assert [row[0] for row in body] == [f"f16 + {name}" for name in types()]
    assert [row[1] for row in body] == [promote("f16", name).result or "refused" for name in types()]


def test_json_has_every_field_of_each_promotion(console: Console) -> None:
    answer = json.loads(console("formats", "promote", "bf16", "0.5", "--op", "div", "--json").out)
    assert answer["schema"] == "softfloat-llm/formats-promote/1"
    assert [(p["rules"], p["result"], p["scalar_format"]) for p in answer["promotions"]] == [
        ("torch", "bf16", "f32"), ("numpy", "f32", "f32"), ("jax", "bf16", "bf16")
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [["bf61", "f32"], ["bf16", "f32", "--rules", "mlx"], ["0.5", "3"], ["bf16", "f32", "--scalar", "--op", "matmul"]],
)
def test_wrong_words_are_exit_2(console: Console, words: list[str]) -> None:
    answer = console("formats", "promote", *words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err


def test_a_verb_with_further_ones_keeps_its_own_arguments_and_flags(console: Console) -> None:
    assert console("formats", "--json", "bf16").out == console("formats", "bf16", "--json").out
    assert console("formats", "-h").out.split("\n")[1].strip().startswith("Usage: softfloat-llm formats  [OPTIONS]")
    assert "See: softfloat-llm formats --help" in console("formats", "--nope").err


def test_the_program_tells_its_version(console: Console) -> None:
    assert console("--version").out == f"softfloat-llm {package_version()}\n"
