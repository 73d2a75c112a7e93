"""Every claim of a header is checked; what is written is what the safetensors library reads."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from softfloat_llm.errors import CheckpointError
from softfloat_llm.io.safetensors import DTYPES, MAX_HEADER_BYTES, Array, open_tensors, read_header, write_tensors

GOOD = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
TWICE = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
OVERLAPPING = {
    "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
    "b": {"dtype": "F16", "shape": [3], "data_offsets": [2, 8]},
}


def write_raw(path: Path, header: Any, data: bytes = bytes(8), length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_each_dtype_round_trips_bit_for_bit(path: Path, dtype: str) -> None:
    codes = np.arange(24 * DTYPES[dtype].itemsize, dtype=np.uint8) % (2 if dtype == "BOOL" else 251)
    array = codes.view(DTYPES[dtype]).reshape(2, 3, 4)
    write_tensors(path, {"x": array})
    found = open_tensors(path)["x"]
    assert found.dtype == DTYPES[dtype]
    assert found.shape == (2, 3, 4)
    assert found.tobytes() == array.tobytes()


def test_the_safetensors_library_reads_what_is_written(path: Path) -> None:
    tensors: dict[str, Array] = {
        "b": np.arange(3, dtype=np.float16),
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "c": np.array([[1.5]]),
    }
    write_tensors(path, tensors, {"format": "pt"})
    found = safetensors.numpy.load_file(path)
    assert {name: (t.dtype, t.tolist()) for name, t in found.items()} == {
        name: (t.dtype, t.tolist()) for name, t in tensors.items()
    }


def test_what_the_safetensors_library_writes_is_read(path: Path) -> None:
    tensors: dict[str, Array] = {"b": np.arange(3, dtype=np.float16), "a": np.arange(6, dtype=np.float32).reshape(2, 3)}
    safetensors.numpy.save_file(tensors, path, {"format": "pt"})
    found = open_tensors(path)
    assert {name: t.tolist() for name, t in found.items()} == {name: t.tolist() for name, t in tensors.items()}
    assert read_header(path).metadata == {"format": "pt"}


def test_the_bytes_do_not_depend_on_the_order_of_writing(tmp_path: Path) -> None:
    tensors: dict[str, Array] = {"a": np.ones(2, np.float32), "b": np.ones(2, np.float16)}
    write_tensors(tmp_path / "1", tensors)
    write_tensors(tmp_path / "2", {name: tensors[name] for name in ("b", "a")})
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_strided_and_big_endian_arrays_are_written_by_value(path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    write_tensors(path, {"t": array.T, "b": array.astype(">f4")})
    found = open_tensors(path)
    assert found["t"].tolist() == array.T.tolist()
    assert found["b"].tolist() == array.tolist()


def test_empty_and_scalar_tensors(path: Path) -> None:
    write_tensors(path, {"empty": np.zeros((0, 4), np.float32), "scalar": np.array(3, np.float32)})
    found = open_tensors(path)
    assert found["empty"].shape == (0, 4)
    assert found["scalar"].shape == ()
    assert found["scalar"] == 3


def test_arrays_are_memory_mapped_and_read_only(path: Path) -> None:
    write_tensors(path, {"x": np.ones(4, np.float32)})
    found = open_tensors(path)["x"]
    assert not found.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 2


def test_bf16_files_open_in_a_fresh_process(path: Path) -> None:
    write_tensors(path, {"x": np.array([1.5, -2], np.float32).astype(ml_dtypes.bfloat16)})
    code = (
        "import sys; from softfloat_llm.io.safetensors import open_tensors;"
        "x = open_tensors(sys.argv[1])['x']; print(x.dtype, x.tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "bfloat16 [1.5, -2.0]"


def test_f8_files_open_in_a_fresh_process(path: Path) -> None:
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        write_tensors(path, {"x": np.array([1.5, -2], np.float32).astype(dtype)})
        code = (
            "import sys; from softfloat_llm.io.safetensors import open_tensors; print(open_tensors(sys.argv[1])['x'])"
        )
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[1.5 -2]"


def test_a_header_of_640_bytes_is_no_pickle(path: Path) -> None:
    text = json.dumps(GOOD).encode().ljust(0x280)
    write_raw(path, text)
    assert path.read_bytes()[:2] == b"\x80\x02"
    assert open_tensors(path)["a"].shape == (2,)


def test_a_dtype_without_a_name_is_not_written(path: Path) -> None:
    with pytest.raises(CheckpointError, match="complex64"):
        write_tensors(path, {"x": np.zeros(1, np.complex64)})
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 bytes: it is truncated"),
        (b"\x01\x02\x03", "3 bytes: it is truncated"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n", "Git LFS pointer"),
        (b"PK\x03\x04" + bytes(60), "PyTorch pickle"),
        (b"\x80\x02}q\x00." + bytes(60), "PyTorch pickle"),
        (b"GGUF\x03\x00\x00\x00" + bytes(60), "GGUF"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (struct.pack("<Q", 1000) + b"{}", "truncated: its header has 1000 bytes, the file only 2"),
        (struct.pack("<Q", 2**63) + b"{}", "above the limit"),
        (struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}", "above the limit"),
        (struct.pack("<Q", 0), "does not begin with"),
        (struct.pack("<Q", 2) + b"[]", "does not begin with"),
        (struct.pack("<Q", 2) + b"{!", "not JSON"),
        (struct.pack("<Q", 4) + b'{"\xff"', "not JSON in UTF-8"),
    ],
)
def test_files_of_another_kind_are_told_apart(path: Path, content: bytes, words: str) -> None:
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        read_header(path)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "spans 4 bytes, but F32 .* takes 8"),
        ({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}}, "spans 8 bytes"),
        ({"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 0]}}, "spans 0 bytes"),
        ({"a": {"dtype": "F32", "shape": [2**70], "data_offsets": [0, 8]}}, "shape"),
        ({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, "shape"),
        ({"a": {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}}, "shape"),
        ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, "shape"),
        ({"a": {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]}}, "shape"),
        ({"a": {"dtype": "F32", "shape": [1] * 40, "data_offsets": [0, 4]}}, "shape"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}}, "data_offsets"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}, "data_offsets"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}, "data_offsets"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": {"0": 8}}}, "data_offsets"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "b": GOOD["a"]}, "overlap"),
        (OVERLAPPING, "'b' overlap those of 'a'"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, "4 bytes before 'a' belong to no tensor"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, "4 bytes after the last tensor"),
        ({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}, "truncated: its tensors take 12 bytes, 8"),
        ({"a": {"dtype": "F4", "shape": [16], "data_offsets": [0, 8]}}, "dtype 'F4', expected one of"),
        ({"a": {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}}, "dtype"),
        ({"a": {"shape": [2], "data_offsets": [0, 8]}}, "expected dtype, shape and data_offsets"),
        ({"a": GOOD["a"] | {"more": 1}}, "expected dtype, shape and data_offsets"),
        ({"a": 3}, "expected dtype, shape and data_offsets"),
        (GOOD | {"__metadata__": {"a": 1}}, "__metadata__"),
        (GOOD | {"__metadata__": []}, "__metadata__"),
        (TWICE, "'a' stands twice"),
        (b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', "'dtype' stands twice"),
        (b'{"a":' * 100_000, "not JSON"),
        (b'{"a":' + b"9" * 5000 + b"}", "not JSON"),
    ],
)  # fmt: skip
def test_headers_that_lie_are_refused(path: Path, header: Any, words: str) -> None:
    write_raw(path, header)
    with pytest.raises(CheckpointError, match=words):
        read_header(path)


def test_a_file_cut_anywhere_is_refused(path: Path) -> None:
    write_tensors(path, {"a": np.ones(5, np.float32), "b": np.ones(3, np.float16)})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="truncated"):
            read_header(path)


def test_no_such_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        read_header(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="not a file"):
        read_header(tmp_path)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_byte_gives_the_same_answer_as_the_library_or_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x"
    write_tensors(path, {"a": np.ones(5, np.float32), "b": np.ones(3, np.float16)})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        found = open_tensors(path)
    except CheckpointError:
        return
    expected = safetensors.numpy.load_file(path)
    assert {n: t.tobytes() for n, t in found.items()} == {n: t.tobytes() for n, t in expected.items()}


def test_an_empty_tensor_of_huge_dimensions_is_refused(tmp_path):
    path = tmp_path / "huge.safetensors"
    header = b'{"x":{"dtype":"F32","shape":[0,4611686018427387904,4611686018427387904],"data_offsets":[0,0]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointError, match="larger than any memory"):
        open_tensors(path)
