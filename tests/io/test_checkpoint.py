"""Folders and names that are models, and those that are not."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from softfloat_llm.errors import CheckpointError, ConfigError, SoftfloatError, TokenError
from softfloat_llm.io.checkpoint import load_checkpoint, open_model
from softfloat_llm.io.safetensors import write_tensors
from tests.checkpoints import config_dict, random_tensors, write_checkpoint

INDEX = "model.safetensors.index.json"


def refusal(folder: Path) -> str:
    with pytest.raises(SoftfloatError) as caught:
        load_checkpoint(folder)
    assert isinstance(caught.value, CheckpointError | ConfigError)
    return str(caught.value)


def change_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def shard(number: int, total: int = 3) -> str:
    return f"model-{number:05d}-of-{total:05d}.safetensors"


def test_a_single_file_is_read(tmp_path: Path) -> None:
    model = open_model(write_checkpoint(tmp_path))
    assert model.name == str(tmp_path)
    assert model.config.hidden_size == 16
    assert model.notes == ()
    assert model.tokenizer is None
    expected = random_tensors()
    assert all(np.array_equal(model.weights[name], expected[name]) for name in expected)


def test_shards_and_a_single_file_are_the_same_model(tmp_path: Path) -> None:
    single, _ = load_checkpoint(write_checkpoint(tmp_path / "single"))
    sharded, _ = load_checkpoint(write_checkpoint(tmp_path / "sharded", shards=3))
    assert sharded.digest == single.digest
    assert sharded.notes == ()


def test_names_without_the_prefix_are_the_same_model(tmp_path: Path) -> None:
    tensors = {name.removeprefix("model."): tensor for name, tensor in random_tensors().items()}
    bare, _ = load_checkpoint(write_checkpoint(tmp_path / "bare", tensors=tensors))
    full, _ = load_checkpoint(write_checkpoint(tmp_path / "full"))
    assert bare.digest == full.digest


def test_the_digest_is_what_its_definition_says(tmp_path: Path) -> None:
    weights, _ = load_checkpoint(write_checkpoint(tmp_path, shards=2))
    total = hashlib.sha256()
    for name, tensor in sorted(random_tensors().items()):
        total.update(f"{name} bf16 ({','.join(map(str, tensor.shape))})\n".encode() + tensor.tobytes())
    assert weights.digest == total.hexdigest()


def test_a_missing_folder_and_a_missing_config(tmp_path: Path) -> None:
    assert "is not a folder" in refusal(tmp_path / "nothing")
    (tmp_path / "readme.md").write_text("x")
    assert "has no config.json; it holds readme.md" in refusal(tmp_path)


def test_metas_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text("{}")
    assert "params.json, Meta's own format" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "a JSON list, expected an object"),
        ('{"vocab_size": 32, "vocab_size": 40}', "'vocab_size' stands twice"),
        ("version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    ],
)
def test_a_config_that_is_no_config(tmp_path: Path, text: str, words: str) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(text)
    assert words in refusal(tmp_path)


def test_a_config_that_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config_dict(hidden_act="gelu")))
    assert "hidden_act is 'gelu'" in refusal(tmp_path)


def test_no_tensors_at_all(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert f"neither model.safetensors nor {INDEX}; it holds config.json" in refusal(tmp_path)


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin is a PyTorch pickle" in refusal(tmp_path)


def test_an_lfs_pointer_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    assert "Git LFS pointer" in refusal(tmp_path)


def test_shards_without_an_index_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, shards=3)
    (tmp_path / INDEX).unlink()
    assert f"holds shards, but not {INDEX}" in refusal(tmp_path)


def test_a_missing_shard_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, shards=3)
    (tmp_path / shard(2)).unlink()
    assert f"{shard(2)} is missing: the index names it for 7 tensors" in refusal(tmp_path)


def test_a_truncated_shard_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, shards=3)
    path = tmp_path / shard(2)
    path.write_bytes(path.read_bytes()[:-1])
    assert f"{shard(2)} is truncated" in refusal(tmp_path)


def test_a_stale_shard_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, shards=3)
    write_tensors(tmp_path / shard(3), {"model.norm.weight": random_tensors()["model.norm.weight"]})
    assert f"{shard(3)} does not hold" in refusal(tmp_path)


def test_a_stale_shard_that_holds_more_than_the_index_names_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, shards=3)
    change_index(tmp_path, lambda placed: placed.pop("model.norm.weight"))
    assert "holds 'model.norm.weight', but the index does not name it" in refusal(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, shards=3)
    change_index(tmp_path, lambda placed: placed.update({"model.norm.weight": shard(1)}))
    assert "'model.norm.weight'" in refusal(tmp_path)


def test_shards_beside_the_index_are_noted(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, shards=3)
    write_tensors(tmp_path / "model.safetensors", random_tensors(seed=1))
    weights, _ = load_checkpoint(tmp_path)
    assert weights.notes == ("model.safetensors: ignored, the index does not name it",)


def test_a_total_size_that_is_not_the_sum_is_noted(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, shards=3)
    index = json.loads((tmp_path / INDEX).read_text())
    index["metadata"]["total_size"] += 1
    (tmp_path / INDEX).write_text(json.dumps(index))
    weights, _ = load_checkpoint(tmp_path)
    assert "total_size" in weights.notes[0]


@pytest.mark.parametrize("file", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "a\\b", "C:x"])
def test_an_index_that_leads_out_of_the_folder_is_refused(tmp_path: Path, file: str) -> None:
    write_checkpoint(tmp_path, shards=3)
    change_index(tmp_path, lambda placed: placed.update({"model.norm.weight": file}))
    assert f"places 'model.norm.weight' in {file!r}, expected a file in the same folder" in refusal(tmp_path)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": []}, {"weight_map": {"a": 1}}])
def test_an_index_without_a_map_is_refused(tmp_path: Path, index: object) -> None:
    write_checkpoint(tmp_path, shards=3)
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert "has no weight_map" in refusal(tmp_path)


def test_vocab_size_against_rows_names_both(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, config_dict(), random_tensors(config_dict(vocab_size=40)))
    message = refusal(tmp_path)
    assert "vocab_size is 32" in message
    assert "40 rows" in message


@pytest.mark.parametrize(("name", "near"), [("smolm2", "smollm2"), ("tinny", "tiny")])
def test_an_unknown_name_suggests_the_nearest(name: str, near: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_model(name)
    assert f"Did you mean '{near}'?" in str(caught.value)
    for word in ("tiny", "smollm2", "folder", ".gguf", "owner/name"):
        assert word in str(caught.value)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(CheckpointError, match="is a file, not a folder"):
        open_model(tmp_path / "a.txt")


def test_owner_and_name_in_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    hub = tmp_path / "models--owner--name"
    write_checkpoint(hub / "snapshots" / "abc")
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("abc\n")
    assert open_model("owner/name").config.hidden_size == 16
    with pytest.raises(CheckpointError, match="'owner/other' is neither"):
        open_model("owner/other")


def test_the_built_in_model_opens_without_a_network() -> None:
    model = open_model("tiny")
    assert model.config.notes == ()
    assert model.tokenizer is not None
    assert model.tokenizer.decode(model.encode("a b")) == "a b"


def test_text_without_a_tokenizer_is_a_token_error(tmp_path: Path) -> None:
    model = open_model(write_checkpoint(tmp_path))
    with pytest.raises(TokenError, match=r"has no tokenizer\.json.*Give token ids"):
        model.encode("a")


def test_opening_a_model_loads_no_heavy_library(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, tokenizer="{}")
    code = (
        "import sys; from softfloat_llm.io.checkpoint import open_model; open_model(sys.argv[1]);"
        "print([m for m in ('tokenizers', 'safetensors', 'gguf', 'platformdirs', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.smollm2
def test_smollm2_has_the_recorded_tensors(smollm2_folder: Path) -> None:
    from softfloat_llm.io.fetch import verify_smollm2

    verify_smollm2(smollm2_folder)
    weights, tokenizer = load_checkpoint(smollm2_folder)
    assert len(weights) == 272
    assert weights.formats == ("bf16",)
    assert weights.digest == "a23aed4dc07a543ccd6457de7a6a2483e13930c3afb826fddb6e19d3640c4f88"
    assert tokenizer is not None
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    config = weights.config
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (576, 1536, 30)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (9, 3, 64)
    assert (config.rms_norm_eps, config.rope_theta) == (1e-5, 100000.0)
    assert (config.vocab_size, config.max_position_embeddings) == (49152, 8192)
    assert config.tie_word_embeddings
    assert config.notes == ()
