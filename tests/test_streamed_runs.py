"""simulate(save=...): taps go to the disk as they come; the folder is the one that Run.save writes, or none."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from softfloat_llm.errors import RunError
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.runs import Run, simulate

FILES = ("run.json", "tensors.safetensors")


@pytest.fixture(scope="module")
def tiny():
    return open_model("tiny")


def asked(tiny, recipe="bf16", **words):
    return {"prompt": "The capital", "model": tiny, "recipe": recipe, "taps": "*", "steps": 3} | words


@pytest.mark.parametrize(
    "recipe", ["bf16", "storage=e4m3fn,acc=f16", "storage=e3m2fn", "f16,attn.mask.value=add-lowest"]
)
def test_the_folder_has_the_bytes_that_save_writes(tiny, recipe, tmp_path):
    simulate(**asked(tiny, recipe)).save(tmp_path / "at-once")
    run = simulate(**asked(tiny, recipe), save=tmp_path / "streamed")
    for name in FILES:
        assert (tmp_path / "streamed" / name).read_bytes() == (tmp_path / "at-once" / name).read_bytes(), name
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted([*FILES, *FILES, "at-once", "streamed"])
    loaded = Run.load(tmp_path / "streamed")
    assert (run.names, run.digest, run.tokens) == (loaded.names, loaded.digest, loaded.tokens)
    assert run["layers.1.attn.scores.acc"].tobytes() == loaded["layers.1.attn.scores.acc"].tobytes()


def test_an_interruption_leaves_what_was_there_before(tiny, tmp_path):
    def stop(what, done, total):
        if done == total - 1:
            assert list(tmp_path.glob(".run.*.partial/taps/*"))  # it has begun to write
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(**asked(tiny), progress=stop, save=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    before = simulate(**asked(tiny, "f16"), save=tmp_path / "run").digest
    with pytest.raises(KeyboardInterrupt):
        simulate(**asked(tiny), progress=stop, save=tmp_path / "run", replace=True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert Run.load(tmp_path / "run").digest == before
    assert (
        simulate(**asked(tiny), save=tmp_path / "run", replace=True).digest
        == Run.load(tmp_path / "run").digest
        != before
    )


def test_a_place_that_is_taken_is_refused_before_anything_is_computed(tiny, tmp_path):
    (tmp_path / "run").mkdir()
    for words in ({}, {"replace": True}):
        with pytest.raises(RunError, match=r"is there already|is no saved run"):
            simulate(**asked(tiny), **words, save=tmp_path / "run", progress=lambda *_: pytest.fail("it computes"))


def test_memory_does_not_hold_the_taps(tiny, tmp_path):
    """200 positions: the taps take 26 MB; what is there at once, less than half of that."""
    tokens = np.random.default_rng(0).integers(0, 900, 200).tolist()
    words = asked(tiny, prompt=None, tokens=tokens, steps=1)
    simulate(**words, save=tmp_path / "first")  # what is made once and kept
    size = (tmp_path / "first" / "tensors.safetensors").stat().st_size
    tracemalloc.start()
    simulate(**words, save=tmp_path / "run")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < size / 2
