"""explain and identify on the command line: what is read, what is refused, exit codes, schemas, short answers."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from softfloat_llm.io.arrays import read_array, read_arrays
from softfloat_llm.io.safetensors import write_tensors
from softfloat_llm.operations import evaluate
from softfloat_llm.runs import Run
from tests.cli.test_schemas import problems
from tests.console import Console

ANSWERS = {
    "explain, a tie": ["explain", "round", "257", "--to", "bf16"],
    "explain, a negative number": ["explain", "round", "-0.1", "--to", "e4m3fn", "--mode", "toward_negative"],
    "explain, nan": ["explain", "round", "nan", "--to", "e2m1fn"],
    "explain, overflow": ["explain", "round", "70000", "--to", "f16"],
    "explain, a subnormal": ["explain", "round", "1e-8", "--to", "f16", "--subnormals", "ftz"],
    "explain, a sum": ["explain", "sum", "256", "1", "-1", "--at", "acc=bf16,order=seq"],
    "explain, an infinite sum": ["explain", "sum", "60000,60000,-60000", "--at", "storage=f16,acc=f16"],
    "explain, nothing to sum": ["explain", "sum", "nan", "--at", "acc=exact"],
    "explain, a dot": ["explain", "dot", "0.1,0.2,0.3", "3,-2,1", "--at", "F16_F16_F16", "--init", "1"],
    "explain, a unit": ["explain", "dot", "1e4,2,3", "1,1e-3,1", "--at", "order=fused:nvidia-hopper-bf16,acc=f32"],
    "explain, a step": ["explain", "step", "bf16", "0", "--prompt", "The coin shows heads. The coin shows"],
    "explain, a step alone": ["explain", "step", "f16,acc=f16", "1", "--against", "f16", "--prompt", "The cup is"],
    "identify, a dot": ["identify", "dot", "a=256,1,1", "b=1,1,1", "out=256", "--at", "acc=bf16"],
    "identify, nothing": ["identify", "sum", "x=1,1", "out=7"],
    "identify, logits": ["identify", "logits", "-0.5", "-11.0625", "-8.9375,-12.125", "nan"],
    "identify, format": ["identify", "format", "257=256", "-257=-256", "0.1=0.10009765625"],
    "identify, no format": ["identify", "round", "1=2"],
    "identify, silu": ["identify", "silu", "x=-1.6015625,2.265625,-1.1015625", "out=-0.26953125,2.046875,-0.2734375"],
    "identify, no silu": ["identify", "silu", "x=1,2,3;4,5,6", "out=0,0,0;0,0,0"],
}
FAILING = ("identify, nothing", "identify, no format", "identify, no silu")


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_short_and_its_json_is_what_the_schema_says(console: Console, name: str) -> None:
    text, told = console(*ANSWERS[name]), console(*ANSWERS[name], "--json")
    assert text.code == told.code == (1 if name in FAILING else 0), text.err
    assert text.err == told.err == ""
    assert problems(name.split(",", maxsplit=1)[0], json.loads(told.out)) == []
    assert len(text.out.splitlines()) < 25
    for row in (line for line in text.out.splitlines() if line.startswith("|")):
        assert len(re.findall(r"(?<!\\)\|", row)) - 1 <= 7
    quiet = console(*ANSWERS[name], "-q").out
    assert "|" not in quiet
    assert all(line in text.out for line in quiet.splitlines())


@pytest.mark.parametrize("name", ["explain, a tie", "explain, a step", "identify, a dot"])
def test_what_to_run_next_runs(console: Console, name: str) -> None:
    told = re.search(r"^next +(.*)$", console(*ANSWERS[name]).out, re.M)
    assert told is not None
    answer = console(*shlex.split(told[1].removeprefix("softfloat-llm ")))
    assert answer.code == 0, answer.err


WRONG_WORDS = {
    "no number": (["explain", "round", "abc"], "'abc' is no number. Expected a decimal"),
    "no format": (["explain", "round", "1", "--to", "bf61"], "Did you mean 'bf16'"),
    "no mode": (["explain", "round", "1", "--mode", "up"], "Unknown rounding mode 'up'"),
    "two lengths": (["explain", "dot", "1,2", "1"], "a has 2 numbers, b has 1"),
    "no key": (["explain", "sum", "1", "--at", "accu=f16"], "Unknown precision key 'accu'"),
    "no recipe": (["explain", "step", "bf61", "0"], "Unknown recipe 'bf61'. Did you mean 'bf16'"),
    "no step": (["explain", "step", "bf16", "-1"], "-1"),
    "no verb": (["explain", "rond", "1"], "rond"),
    "no operation": (["identify", "sofmax"], "Did you mean 'softmax'"),
    "pairs elsewhere": (["identify", "dot", "--pairs", "x"], "--pairs goes with"),
    "known elsewhere": (["identify", "logits", "1", "--at", "acc=f32"], "--at goes with"),
    "half a word": (["identify", "dot", "--at", "acc"], "expected KEY=WORD"),
    "no such word": (["identify", "sum", "x=1,1", "out=2", "--at", "acc=f23"], "No candidate has acc=f23"),
    "a pair of three": (["identify", "format", "1=2=3"], "is no pair of numbers"),
    "values that are none": (["identify", "sum", "x=1,two", "out=2"], "'two' is no number"),
    "a tensor without a file": (["identify", "tensor"], "takes one array"),
}


@pytest.mark.parametrize(("words", "said"), WRONG_WORDS.values(), ids=WRONG_WORDS)
def test_wrong_words_give_2_and_what_would_be_right(console: Console, words: list[str], said: str) -> None:
    answer = console(*words)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert "Traceback" not in answer.err


UNUSABLE = {
    "no such file": (["identify", "dot", "nowhere.npz"], "nowhere.npz"),
    "another kind": (["identify", "dot", "arrays.txt"], "expected a file of the kind .npy, .npz, .safetensors"),
    "a missing array": (["identify", "dot", "a=1", "out=1"], "needs an array 'b'"),
    "ragged rows": (["identify", "matmul", "a=1,2;3", "b=1", "out=1"], "its rows have 2, 1 numbers"),
    "no run": (["explain", "step", "./nowhere", "0"], "holds no saved run"),
    "no file of terms": (["explain", "sum", "@nowhere.npy"], "nowhere.npy"),
    "no pairs": (["identify", "format"], "0 pairs are given"),
    "no numbers": (["identify", "logits"], "no grid"),
    "a file of pairs": (["identify", "format", "--pairs", "nowhere.txt"], "nowhere.txt"),
}


@pytest.mark.parametrize(("words", "said"), UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_input_gives_3_and_says_why(console: Console, words: list[str], said: str) -> None:
    answer = console(*words)
    assert (answer.code, answer.out) == (3, "")
    assert said in answer.err
    assert "Traceback" not in answer.err


# --- saved runs -------------------------------------------------------------------------------------------------------


def test_a_step_of_a_saved_run_against_words_or_another_run(console: Console, saved: dict[str, Path]) -> None:
    by_words = console("explain", "step", saved["flip"], "0", "--json")
    by_run = console("explain", "step", saved["flip"], "0", "--against", saved["flip ref"], "--json")
    assert by_words.code == by_run.code == 0
    told, other = json.loads(by_words.out), json.loads(by_run.out)
    assert told["verdict"] == other["verdict"]
    assert told["kind"] in ("tie", "margin under an ulp", "error above the margin")
    assert problems("explain", told) == problems("explain", other) == []


def test_a_saved_run_without_taps_says_what_keeps_them_and_that_runs(
    console: Console, saved: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = console("explain", "step", saved["flip"], "0")
    told = re.search(r"^next +(.*)$", answer.out, re.M)
    assert told is not None
    assert console(*shlex.split(told[1].removeprefix("softfloat-llm "))).code == 0
    again = console("explain", "step", "RUN", "0", "--json")
    body = json.loads(again.out)
    assert body["missing"] == ""
    assert body["digest"] == Run.load(saved["flip"]).digest
    assert body["decider"] is not None


def test_a_saved_run_has_its_own_prompt(console: Console, saved: dict[str, Path]) -> None:
    answer = console("explain", "step", saved["flip"], "0", "--prompt", "Hello")
    assert (answer.code, "it has its own" in answer.err) == (2, True)
    assert console("explain", "step", saved["flip"], "7").code == 3


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    x, weight = (rng.normal(size=s).astype(ml_dtypes.bfloat16) for s in ((3, 16), (5, 16)))
    out = evaluate("linear", {"x": x, "weight": weight}, {"storage": "bf16", "acc": "bf16", "output": "bf16"})
    return {"x": x, "weight": weight, "out": out}


def test_a_file_of_arrays_is_read_whatever_its_kind(
    console: Console, arrays: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", **arrays)
    write_tensors(tmp_path / "a.safetensors", arrays)
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    parts = [f"{name}=@{name}.npy" for name in arrays]
    told = [console("identify", "linear", *words, "--json") for words in (["a.npz"], ["a.safetensors"], parts)]
    assert [answer.code for answer in told] == [0, 0, 0]
    assert told[0].out == told[1].out == told[2].out
    body = json.loads(told[0].out)
    assert any(fit["words"]["acc"] == "bf16" for fit in body["fits"])
    assert console("identify", "logits", "a.npz", "--json").out == told[0].out  # logits are a linear layer
    named = console("identify", "linear", "x=@a.npz:x", "weight=@a.npz:weight", "out=@a.npz:out", "--json")
    assert named.out == told[0].out


def test_decimals_that_are_typed_are_the_float32_that_prints_so(console: Console) -> None:
    given = ["x=0.1,0.7,1.3", "out=2.1", "--at", "storage=f32", "--at", "output=f32"]
    told = json.loads(console("identify", "sum", *given, "--json").out)
    assert {fit["words"]["acc"] for fit in told["fits"]} >= {"f32"}
    assert told["notes"] == []


def test_rows_of_a_file_are_terms(
    console: Console, arrays: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", **arrays)
    answer = console("explain", "dot", "@a.npz:x[1]", "@a.npz:weight[2]", "--at", "acc=bf16", "--json")
    assert answer.code == 0
    assert json.loads(answer.out)["result"] == float(arrays["out"][1, 2])
    assert console("explain", "dot", "@a.npz:x", "@a.npz:weight[2]").code == 2
    for wrong in ("@a.npz:y", "@a.npz", "@a.npz:x[9]", "@a.npz:x[one]"):
        assert console("explain", "sum", wrong).code == 3


def test_pairs_are_read_from_text_and_from_arrays(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.txt").write_text("# a cast\n257, 256\n259 -> 260   # ties to even\n\n0x1.8p0 0x1.8p0\n")
    np.savez("pairs.npz", x=np.array([257.0, 259.0, 1.5]), out=np.array([256.0, 260.0, 1.5]))
    np.save("pairs.npy", np.array([[257.0, 256.0], [259.0, 260.0], [1.5, 1.5]]))
    told = [console("identify", "format", "--pairs", f"pairs.{kind}", "--json") for kind in ("txt", "npz", "npy")]
    assert [answer.code for answer in told] == [0, 0, 0]
    assert told[0].out == told[1].out == told[2].out
    assert console("identify", "round", "pairs.npz", "--json").out == told[0].out
    np.save("odd.npy", np.ones((3, 3)))
    assert console("identify", "format", "--pairs", "odd.npy").code == 3


def test_a_misread_tensor_is_told(console: Console, tmp_path: Path) -> None:
    weights = (np.random.default_rng(2).normal(size=(64, 32)) * 0.02).astype(np.float16)
    write_tensors(tmp_path / "w.safetensors", {"w": weights.view(ml_dtypes.bfloat16), "v": weights})
    answer = console("identify", "tensor", f"{tmp_path}/w.safetensors:w")
    assert answer.code == 0
    assert "read in the wrong format: its bits are f16" in answer.out
    told = json.loads(console("identify", "tensor", f"{tmp_path}/w.safetensors:v", "--json").out)
    assert told["is_misread"] is False
    assert problems("identify", told) == []
    assert console("identify", "logits", f"{tmp_path}/w.safetensors:v").code == 0


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.npy", b""), ("cut.npz", b"PK\x03\x04 not a zip"), ("text.npy", b"hello, world, this is no array"),
        ("cut.safetensors", b"\xff" * 20), ("pickle.npy", None), ("bytes.npy", "V1"), ("words.npy", "U"),
    ],
)  # fmt: skip
def test_hostile_files_are_refused_by_name(console: Console, tmp_path: Path, name: str, content: object) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is None:
        np.save(path, np.array([{"a": 1}], object), allow_pickle=True)
    else:
        np.save(path, np.ones(3, ml_dtypes.float8_e4m3fn) if content == "V1" else np.array(["a", "b"]))
    answer = console("identify", "tensor", path)
    assert (answer.code, answer.out) == (3, "")
    assert name in answer.err


def test_arrays_come_in_dtypes_of_this_package(tmp_path: Path) -> None:
    np.save(tmp_path / "big.npy", np.array([1.5, 2.5], ">f4"))
    np.save(tmp_path / "half.npy", np.ones((2, 2), ml_dtypes.bfloat16))
    assert read_array(f"{tmp_path}/big.npy").dtype == np.dtype("=f4")
    assert read_array(f"{tmp_path}/half.npy[1]").dtype == ml_dtypes.bfloat16
    assert list(read_arrays(tmp_path / "half.npy")) == ["values"]
