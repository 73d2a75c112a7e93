"""The built-in model: its files are whole and small, its text is what the training script says, its ties are ties."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import subprocess
import sys
from collections import Counter
from math import prod
from typing import Any

import pytest

from softfloat_llm import tiny
from softfloat_llm.tiny import train

WEIGHTS = tiny.FOLDER / "model.safetensors"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    return tokenizers.Tokenizer.from_file(str(tiny.FOLDER / "tokenizer.json"))


def header() -> dict[str, Any]:
    """The JSON header of the weights' file, read by hand: 8 bytes of length, then the text."""
    data = WEIGHTS.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    found: dict[str, Any] = json.loads(data[8 : 8 + length])
    found.pop("__metadata__")
    return found


def test_the_weights_take_at_most_one_million_bytes() -> None:
    assert WEIGHTS.stat().st_size <= 1_000_000


def test_the_shipped_config_is_the_one_of_the_script() -> None:
    assert json.loads((tiny.FOLDER / "config.json").read_text()) == train.CONFIG


def test_the_config_has_the_keys_of_a_hugging_face_llama() -> None:
    config = json.loads((tiny.FOLDER / "config.json").read_text())
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": 256,
    }
    assert expected == {key: config[key] for key in expected}
    assert config["num_attention_heads"] * config["head_dim"] == config["hidden_size"]
    assert 1 < config["num_key_value_heads"] < config["num_attention_heads"]  # grouped, neither shared nor full


def test_every_tensor_is_there_in_bf16_with_its_shape_and_no_other() -> None:
    assert {name: tuple(entry["shape"]) for name, entry in header().items()} == train.shapes()
    assert {entry["dtype"] for entry in header().values()} == {"BF16"}


def test_the_data_of_the_tensors_fill_the_file() -> None:
    sizes = [2 * prod(shape) for shape in train.shapes().values()]
    (length,) = struct.unpack("<Q", WEIGHTS.read_bytes()[:8])
    assert WEIGHTS.stat().st_size == 8 + length + sum(sizes)


def test_every_weight_is_finite() -> None:
    data = WEIGHTS.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    codes = struct.unpack(f"<{(len(data) - 8 - length) // 2}H", data[8 + length :])
    assert all(code & 0x7F80 != 0x7F80 for code in codes)  # the exponent of all ones is infinity or NaN


def test_the_readme_names_the_sha256_of_the_shipped_weights() -> None:
    assert hashlib.sha256(WEIGHTS.read_bytes()).hexdigest() in (tiny.FOLDER / "README.md").read_text()


@pytest.mark.parametrize(
    "text",
    [
        "".join(map(chr, range(32, 127))),
        "The capital of France is Paris.",
        "  two  spaces, a\ttab and a\nnew line ",
        "12 + 345 = 357.",
        "Zürich, 東京",
        "",
    ],
)
def test_the_tokenizer_round_trips(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_vocabulary_has_the_size_of_the_config_and_the_end_at_0(tokenizer: Any) -> None:
    assert tokenizer.get_vocab_size() == train.CONFIG["vocab_size"]
    assert tokenizer.token_to_id(train.END) == train.CONFIG["eos_token_id"] == 0


def test_the_shipped_tokenizer_is_the_one_of_the_script(tokenizer: Any) -> None:
    made = train.make_tokenizer(train.corpus(train.SEED))
    assert made.get_vocab() == tokenizer.get_vocab()


def test_each_end_of_a_tie_is_one_token(tokenizer: Any) -> None:
    ends = [f" {end}" for ends in train.TIES.values() for end in ends]
    assert [end for end in ends if len(tokenizer.encode(end).ids) != 1] == []


def test_the_default_prompt_is_answered_by_one_token(tokenizer: Any) -> None:
    assert len(tokenizer.encode(" Paris").ids) == 1


def test_the_text_is_a_function_of_the_seed() -> None:
    assert train.corpus(7) == train.corpus(7)
    assert train.corpus(7) != train.corpus(8)


@pytest.mark.parametrize("seed", [train.SEED, 0, 12345])
def test_every_end_follows_its_beginning_equally_often(seed: int) -> None:
    text = " ".join(train.corpus(seed))
    for beginning, ends in train.TIES.items():
        counts = Counter(re.findall(rf"{beginning} (\w+)\.", text))
        assert set(counts) == set(ends)
        assert len(set(counts.values())) == 1, (beginning, counts)


def test_every_end_begins_a_text_equally_often() -> None:
    texts = train.corpus(train.SEED)
    for beginning, ends in train.TIES.items():
        counts = Counter(end for end in ends for text in texts if text.startswith(f"{beginning} {end}."))
        assert len(set(counts.values())) == 1, (beginning, counts)


def test_the_choices_of_the_stories_are_balanced() -> None:
    text = " ".join(train.stories())
    assert text.count("The cat is black.") == text.count("The cat is white.") > 0
    assert "{" not in text  # every field was filled
    for name in ("Anna", "Mia", "Tom", "Ben"):
        assert text.count(f"{name} has a cat.") == text.count(f"{name} has a dog.") > 0


def test_the_sums_are_true() -> None:
    found = re.findall(r"(\d+) ([+-]) (\d+) = (\d+)\.", " ".join(train.corpus(train.SEED)))
    assert len(found) > 1000
    assert all(int(c) == (int(a) + int(b) if sign == "+" else int(a) - int(b)) for a, sign, b, c in found)


def test_the_near_ties_fit_the_positions_and_are_different(tokenizer: Any) -> None:
    assert len(set(tiny.NEAR_TIES)) == len(tiny.NEAR_TIES) >= 4
    lengths = [len(tokenizer.encode(prompt).ids) for prompt in tiny.NEAR_TIES]
    assert max(lengths) < train.CONFIG["max_position_embeddings"] // 2


def test_the_script_imports_without_pytorch() -> None:
    code = "import sys; sys.modules['torch'] = None; import softfloat_llm.tiny.train as t; print(len(t.corpus(1)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 1000


def shipped_weights() -> Any:
    """The shipped weights as PyTorch float32 tensors."""
    pytest.importorskip("torch")
    loaded = pytest.importorskip("safetensors.torch").load_file(WEIGHTS)
    return {name: weight.float() for name, weight in loaded.items()}


@pytest.mark.torch
def test_the_function_that_was_trained_is_the_llama_of_transformers(tokenizer: Any) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM.from_pretrained(tiny.FOLDER, dtype=torch.float32).eval()
    tokens = torch.tensor([tokenizer.encode(" ".join(train.corpus(1)[:40])).ids[:256]])
    with torch.no_grad():
        difference = (model(tokens).logits - train.forward(shipped_weights(), tokens)).abs().max().item()
    # Both sum at most 256 terms in float32, in their own orders: 256 * 2^-24 of sums below 16, over 4 layers, is 1e-3
    # at worst; errors of both signs leave far less.
    assert difference < 1e-4


@pytest.mark.torch
@pytest.mark.parametrize("prompt", tiny.NEAR_TIES)
def test_a_near_tie_has_a_margin_below_one_bf16_ulp(tokenizer: Any, prompt: str) -> None:
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        logits = train.forward(shipped_weights(), torch.tensor([tokenizer.encode(prompt).ids]))[0, -1]
    top, second = logits.topk(2).values.tolist()
    assert 8 <= top < 16
    assert top - second < 2**-4  # one bf16 ulp in [8, 16)


@pytest.mark.torch
def test_the_default_prompt_is_continued_with_paris(tokenizer: Any) -> None:
    torch = pytest.importorskip("torch")
    ids, weights = tokenizer.encode(tiny.DEFAULT_PROMPT).ids, shipped_weights()
    with torch.no_grad():
        for _ in range(9):
            ids.append(int(train.forward(weights, torch.tensor([ids]))[0, -1].argmax()))
    assert tokenizer.decode(ids) == "The capital of France is Paris. The capital of Spain is Madrid."
