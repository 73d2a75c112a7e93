"""Files that lie: each is refused with a typed error, in little memory, nothing run and nothing written.

The odd but good ones beside them open, run and can be inspected.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softfloat_llm.analysis.inspect import inspect
from softfloat_llm.errors import CheckpointError, ConfigError, SoftfloatError
from softfloat_llm.io.checkpoint import load_checkpoint, open_model
from softfloat_llm.io.gguf import load_gguf, read_gguf
from softfloat_llm.io.safetensors import map_tensors, read_header
from softfloat_llm.llama.config import config_from_dict
from softfloat_llm.llama.rope import inverse_frequencies
from softfloat_llm.numerics.formats import f32
from softfloat_llm.runs import simulate
from tests.checkpoints import config_dict, random_tensors, write_checkpoint, write_gguf
from tests.odd_checkpoints import HOSTILE, ODD
from tests.relatives import RELATIVES

MOST_MEGABYTES = 100
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ODD)
def test_an_odd_checkpoint_opens_runs_and_is_inspected(name: str, tmp_path: Path) -> None:
    path = ODD[name](tmp_path / name)
    model = open_model(path)
    assert len(inspect(model).tensors) == len(model.weights)
    assert simulate(tokens=[1, 5, 9], model=model, recipe="bf16").steps == 1


def test_what_was_ignored_of_the_odd_ones_is_said(tmp_path: Path) -> None:
    notes = {name: " ".join(open_model(make(tmp_path / name)).notes) for name, make in ODD.items()}
    assert "adapter.safetensors: ignored" in notes["mixed-shards-without-prefix"]
    assert "agrees with the computed frequencies" in notes["smollm3-with-leftovers"]
    assert "lm_head.weight is ignored: it equals the embeddings" in notes["smollm3-with-leftovers"]
    assert "1 as Q4_0, 1 as Q4_1, 1 as Q8_0" in notes["gguf-of-many-types"]


CHILD = """
import json, resource, sys
import gguf
from benchmarks.peaks import peak_gigabytes
from softfloat_llm.analysis.inspect import inspect
from softfloat_llm.errors import SoftfloatError
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
for name, path in json.loads(sys.stdin.read()).items():
    before = peak_gigabytes()
    try:
        inspect(path)
        told = "opened"
    except SoftfloatError as error:
        told = type(error).__name__
    except BaseException as error:
        told = f"crashed: {error!r}"
    print(json.dumps([name, told, round(1e3 * (peak_gigabytes() - before))]), flush=True)
"""


def test_hostile_files_are_refused_in_little_memory_and_write_nothing(tmp_path: Path) -> None:
    """In a process of its own, which may not write a byte (RLIMIT_FSIZE) and may take a minute."""
    paths = {name: str(make(tmp_path / str(i))) for i, (name, make) in enumerate(HOSTILE.items())}
    before = sorted(map(str, tmp_path.rglob("*")))
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input=json.dumps(paths), capture_output=True, text=True, check=False, cwd=ROOT
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, *_ in answers] == list(HOSTILE), done.stderr
    assert [(name, told) for name, told, _ in answers if told not in ("CheckpointError", "ConfigError")] == []
    assert [(name, taken) for name, _, taken in answers if taken > MOST_MEGABYTES] == []
    assert sorted(map(str, tmp_path.rglob("*"))) == before
    assert not Path("/tmp/softfloat-llm-was-here").exists()  # what the pickles would have made


def test_a_checkpoint_of_2_gigabytes_is_not_read_to_be_opened(tmp_path: Path) -> None:
    """A sparse file: opened, its first row read, in less than a tenth of its size."""
    vocabulary = 1 << 23
    entries = config_dict(vocab_size=vocabulary, hidden_size=128, tie_word_embeddings=True, num_hidden_layers=1)
    small = random_tensors(entries | {"vocab_size": 32})
    shapes = {name: tensor.shape for name, tensor in small.items()} | {"model.embed_tokens.weight": (vocabulary, 128)}
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    (tmp_path / "config.json").write_text(json.dumps(entries))
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    assert offset > 2 << 30
    code = (
        "import sys; from benchmarks.peaks import peak_gigabytes; from softfloat_llm.io.checkpoint import open_model;"
        "before = peak_gigabytes();"
        "model = open_model(sys.argv[1]); model.weights['model.embed_tokens.weight'][7].tolist();"
        "print(round(1e3 * (peak_gigabytes() - before)))"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    assert int(done.stdout) < MOST_MEGABYTES


# --- fuzzing: 2,100 cases in all --------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
ODD_VALUES = JSON | st.sampled_from([0, -1, 2**31, 2**63, 2**64, 10**400, 1e308, 1e-308, "silu", [], {}])
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F8_E4M3", "I8", "F4", ""]) | ODD_VALUES,
        "shape": st.lists(st.integers(-1, 2**62), max_size=4) | ODD_VALUES,
        "data_offsets": st.lists(st.integers(-8, 2**62), max_size=3) | ODD_VALUES,
    }
)


@settings(max_examples=500, deadline=None)
@given(st.dictionaries(st.text(max_size=6), ENTRY | ODD_VALUES, max_size=3), st.integers(0, 64), st.integers(-3, 3))
def test_a_safetensors_header_of_any_content_opens_or_is_refused(header: Any, data: int, more: int) -> None:
    text = json.dumps(header).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        path.write_bytes(struct.pack("<Q", max(len(text) + more, 0)) + text + bytes(data))
        try:
            arrays = map_tensors(read_header(path))
        except CheckpointError:
            return
        assert sum(array.nbytes for array in arrays.values()) <= data + 8


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("fuzz") / "sharded", shards=2)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_an_index_of_any_content_opens_or_is_refused(sharded: Path, data: st.DataObject) -> None:
    path = sharded / "model.safetensors.index.json"
    good = path.read_bytes()
    index = json.loads(good)
    names = [*index["weight_map"], "new"]
    files = st.sampled_from([*set(index["weight_map"].values()), "../x", "/etc/passwd", "config.json", "", ".", "\0"])
    changes = data.draw(st.dictionaries(st.sampled_from(names), files | ODD_VALUES, max_size=3))
    index["weight_map"] |= changes
    index |= data.draw(st.dictionaries(st.sampled_from(["weight_map", "metadata"]), ODD_VALUES, max_size=1))
    try:
        path.write_text(json.dumps(index))
        load_checkpoint(sharded)
    except CheckpointError:
        pass
    finally:
        path.write_bytes(good)


@settings(max_examples=700, deadline=None)
@given(st.data())
def test_a_config_of_any_content_is_read_or_refused(data: st.DataObject) -> None:
    entries = data.draw(st.sampled_from([config_dict(), *RELATIVES.values()]))
    more = ["rope_scaling", "rope_parameters", "sliding_window", "use_sliding_window", "layer_types", "dtype"]
    keys = st.sampled_from([*entries, *more])
    scaling = st.fixed_dictionaries(
        {"rope_type": st.sampled_from(["linear", "dynamic", "llama3", "yarn", "longrope"])},
        optional={
            key: st.integers(-1, 100) | st.floats(0, 1e300) | ODD_VALUES
            for key in ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "attention_factor", "truncate")
        },
    )
    entries = entries | data.draw(st.dictionaries(keys, ODD_VALUES | scaling, max_size=3))
    try:
        config = config_from_dict(entries)
        if config.head_dim <= 1024:
            assert inverse_frequencies(config, f32).shape == (config.head_dim // 2,)
    except ConfigError:
        pass


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    entries = config_dict(hidden_size=32, intermediate_size=32, head_dim=8, vocab_size=260)
    path = tmp_path_factory.mktemp("fuzz") / "good.gguf"
    return write_gguf(path, entries, random_tensors(entries), {"blk.0.ffn_up.weight": "Q8_0"}).read_bytes()


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_a_gguf_file_with_damaged_bytes_opens_or_is_refused(gguf_bytes: bytes, data: st.DataObject) -> None:
    content = bytearray(gguf_bytes)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 11000))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.none() | st.integers(0, len(content)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        path.write_bytes(content[:cut])
        try:
            read_gguf(path)
            load_gguf(path)
        except SoftfloatError:
            pass
