"""Llama .gguf files: names, rows, types and tokenizer; and files that lie."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from softfloat_llm.errors import CheckpointError
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.io.gguf import config_entries, half_split_rows, read_gguf, tokenizer_json
from softfloat_llm.io.tokenizer import Tokenizer
from tests.checkpoints import config_dict, random_tensors, write_gguf
from tests.odd_checkpoints import k_quant_blocks


def entries(**changes: Any) -> dict[str, Any]:
    return config_dict(**{"vocab_size": 260, "hidden_size": 32, "intermediate_size": 64, "head_dim": 8, **changes})


def small(path: Path, kinds: dict[str, str] | None = None, **changes: Any) -> Path:
    return write_gguf(path, entries(**changes), random_tensors(entries(**changes), np.float32), kinds)


def test_every_tensor_comes_back_under_its_name_and_in_its_rows(tmp_path: Path) -> None:
    model = open_model(small(tmp_path / "a.gguf"))
    expected = random_tensors(entries(), np.float32)
    assert set(model.weights) == set(expected)
    for name, tensor in expected.items():
        assert np.array_equal(model.weights[name], tensor), name


def test_config_comes_from_the_metadata(tmp_path: Path) -> None:
    config = open_model(small(tmp_path / "a.gguf")).config
    assert (config.hidden_size, config.num_key_value_heads, config.head_dim, config.vocab_size) == (32, 2, 8, 260)
    assert config.rms_norm_eps == 1e-5  # the file has the float32 next to it
    assert config.eos_token_ids == (1,)
    assert not config.tie_word_embeddings
    assert config.notes == ()


def test_without_output_weight_the_embeddings_are_tied(tmp_path: Path) -> None:
    model = open_model(small(tmp_path / "a.gguf", tie_word_embeddings=True))
    assert model.config.tie_word_embeddings
    assert "lm_head.weight" not in model.weights


def test_the_tokenizer_comes_with_it(tmp_path: Path) -> None:
    model = open_model(small(tmp_path / "a.gguf"))
    assert model.tokenizer is not None
    assert model.tokenizer.decode(model.encode("a 12 é")) == "a 12 é"


def test_half_split_rows_undoes_the_permutation() -> None:
    """Row (2i + j) of the file is row (j*C/2 + i) of the checkpoint; two heads of size 6."""
    stored = np.arange(12)[:, None]
    found = half_split_rows(stored, 2, Path("x"), "q")[:, 0]
    for head in range(2):
        for i in range(3):
            for j in range(2):
                assert found[6 * head + 3 * j + i] == stored[6 * head + 2 * i + j, 0]


@pytest.mark.parametrize(("kind", "dtype"), [("F16", "float16"), ("BF16", "bfloat16"), ("F32", "float32")])
def test_plain_types_stay_in_their_format(tmp_path: Path, kind: str, dtype: str) -> None:
    model = open_model(small(tmp_path / "a.gguf", {"blk.0.ffn_up.weight": kind}))
    assert model.weights["model.layers.0.mlp.up_proj.weight"].dtype == dtype


def test_q8_0_is_d_times_q_in_float32(tmp_path: Path) -> None:
    file = read_gguf(small(tmp_path / "a.gguf", {"blk.0.ffn_up.weight": "Q8_0"}))
    blocks = file.stored["blk.0.ffn_up.weight"].reshape(-1, 34)
    expected = blocks[:, :2].copy().view(np.float16).astype(np.float32) * blocks[:, 2:].view(np.int8).astype(np.float32)
    assert np.array_equal(file.tensor("blk.0.ffn_up.weight").ravel(), expected.ravel())


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_q4_blocks_hold_the_low_nibbles_first(tmp_path: Path, kind: str) -> None:
    file = read_gguf(small(tmp_path / "a.gguf", {"blk.0.ffn_up.weight": kind}))
    scales = 1 if kind == "Q4_0" else 2
    blocks = file.stored["blk.0.ffn_up.weight"].reshape(-1, 2 * scales + 16)
    head = blocks[:, : 2 * scales].copy().view(np.float16).astype(np.float32)
    codes = np.concatenate([blocks[:, 2 * scales :] & 15, blocks[:, 2 * scales :] >> 4], axis=1).astype(np.float32)
    expected = head[:, :1] * (codes - np.float32(8)) if kind == "Q4_0" else head[:, :1] * codes + head[:, 1:]
    assert np.array_equal(file.tensor("blk.0.ffn_up.weight").ravel(), expected.ravel())


def test_a_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    path = raw(tmp_path / "a.gguf", place(b"blk.0.ffn_up.weight", (256,), 35, 0), tensors=1)
    with pytest.raises(CheckpointError, match=r"'blk\.0\.ffn_up\.weight' is of type TQ2_0, expected one of F32"):
        open_model(path)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = small(tmp_path / "a.gguf")
    whole = path.read_bytes()
    for length in {*range(200), *range(200, len(whole), 997), len(whole) - 33}:
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="truncated"):
            read_gguf(path)


def raw(path: Path, *parts: bytes, version: int = 3, tensors: int = 0, keys: int = 0) -> Path:
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts) + bytes(64))
    return path


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def place(name: bytes, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


@pytest.mark.parametrize(
    ("parts", "options", "words"),
    [
        ((), {"version": 1}, "version 1"),
        ((), {"version": 4}, "version 4"),
        ((struct.pack("<Q", 2**60),), {"keys": 1}, "truncated or damaged"),
        ((text(b"k"), struct.pack("<I", 77)), {"keys": 1}, "unknown kind of value 77"),
        ((text(b"k"), struct.pack("<IIQ", 9, 4, 2**61)), {"keys": 1}, "truncated or damaged"),
        ((text(b"k"), struct.pack("<IIQ", 9, 8, 2**61)), {"keys": 1}, "truncated or damaged"),
        ((text(b"k"), struct.pack("<IIQ", 9, 9, 2)), {"keys": 1}, "array of kind 9"),
        ((text(b"\xff"), struct.pack("<IB", 0, 1)), {"keys": 1}, "no UTF-8"),
        ((text(b"k"), struct.pack("<IB", 0, 1)) * 2, {"keys": 2}, "'k' stands twice"),
        ((text(b"general.alignment"), struct.pack("<II", 4, 3)), {"keys": 1}, "general.alignment is 3"),
        ((place(b"a", (4,), 0, 0), place(b"a", (4,), 0, 16)), {"tensors": 2}, "'a' is there twice"),
        ((place(b"a", (4,), 0, 0), place(b"b", (4,), 0, 8)), {"tensors": 2}, "overlap"),
        ((place(b"a", (2**40, 2**40), 0, 0),), {"tensors": 1}, "larger than any memory"),
        ((place(b"a", (4,), 0, 2**63),), {"tensors": 1}, "truncated or damaged"),
        ((place(b"a", (33,), 8, 0),), {"tensors": 1}, "multiple of 32"),
        ((place(b"a", (4,), 999, 0),), {"tensors": 1}, "type 999"),
        ((text(b"a"), struct.pack("<I", 2**31)), {"tensors": 1}, "axes"),
        ((), {"tensors": 2**60}, "axes|truncated"),
    ],
)
def test_files_that_lie_are_refused(tmp_path: Path, parts: tuple[bytes, ...], options: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read_gguf(raw(tmp_path / "a.gguf", *parts, **options))


def test_other_kinds_of_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(bytes(100))
    with pytest.raises(CheckpointError, match="does not begin with GGUF"):
        open_model(tmp_path / "a.gguf")
    with pytest.raises(CheckpointError, match="no such file"):
        open_model(tmp_path / "b.gguf")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("general.architecture", "qwen2", "general.architecture is 'qwen2'"),
        ("llama.rope.scaling.type", "yarn", "llama.rope.scaling.type is 'yarn'"),
        ("llama.attention.key_length", 16, "llama.rope.dimension_count is 8, llama.attention.key_length 16"),
    ],
)
def test_metadata_that_is_refused(tmp_path: Path, key: str, value: Any, words: str) -> None:
    file = read_gguf(small(tmp_path / "a.gguf"))
    file.metadata[key] = value
    with pytest.raises(CheckpointError, match=words):
        config_entries(file)


def test_llama3_factors_without_their_parameters_are_refused(tmp_path: Path) -> None:
    file = read_gguf(small(tmp_path / "a.gguf"))
    file.shapes["rope_freqs.weight"] = (4,)
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        config_entries(file)


def test_linear_scaling_is_read(tmp_path: Path) -> None:
    file = read_gguf(small(tmp_path / "a.gguf"))
    file.metadata.update({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0})
    assert config_entries(file)["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


def test_the_reader_agrees_with_the_gguf_package(tmp_path: Path) -> None:
    path = small(tmp_path / "a.gguf", {"blk.0.ffn_up.weight": "Q4_1", "token_embd.weight": "Q8_0"})
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    for tensor in theirs.tensors:
        assert ours.shapes[tensor.name] == tuple(reversed(tensor.shape.tolist()))
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(ours.tensor(tensor.name), expected.reshape(ours.shapes[tensor.name])), tensor.name
    for key, value in ours.metadata.items():
        field = theirs.get_field(key)
        assert field is not None
        assert field.contents() == value


def test_every_byte_has_a_token(tmp_path: Path) -> None:
    file = read_gguf(small(tmp_path / "a.gguf"))
    tokenizer = Tokenizer("x", text=lambda: tokenizer_json(file))
    for code in [*range(0x250), 0x20AC, 0x65E5, 0x1F389]:
        assert tokenizer.decode(tokenizer.encode(chr(code))) == chr(code)


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_other_blocks_are_decoded_as_the_gguf_package_does(tmp_path: Path, kind: str) -> None:
    member = gguf.GGMLQuantizationType[kind]
    blocks = k_quant_blocks((6, 512), member)
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor("token_embd.weight", blocks, raw_dtype=member)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_gguf(tmp_path / "a.gguf").tensor("token_embd.weight")
    assert found.shape == (6, 512)
    assert found.dtype == np.float32
    assert np.array_equal(found, gguf.quants.dequantize(blocks, member), equal_nan=True)
