"""The audit of a checkpoint: what it counts, what it says, and that it takes no more memory than a piece."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from softfloat_llm.analysis.inspect import content_of, inspect
from softfloat_llm.analysis.rounding_counts import counts_in
from softfloat_llm.audit import site_of
from softfloat_llm.numerics.formats import bf16, f16
from softfloat_llm.sites import SITES
from tests.checkpoints import random_tensors, write_checkpoint
from tests.console import Console
from tests.relatives import RELATIVES


@pytest.fixture
def console(capsys: pytest.CaptureFixture[str]) -> Console:
    return Console(capsys)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_counting_by_codes_is_counting_value_by_value(dtype: type) -> None:
    codes = np.random.default_rng(0).integers(0, 1 << (8 * np.dtype(dtype).itemsize), 5000)
    tensor = codes.astype(f"u{np.dtype(dtype).itemsize}").view(dtype).reshape(50, 100)
    with np.errstate(invalid="ignore"):  # signalling NaN
        wide, found = tensor.astype(np.float64), content_of("x", "embed", tensor)
    assert found.zeros == np.count_nonzero(wide == 0)
    assert found.not_finite == np.count_nonzero(~np.isfinite(wide))
    assert found.subnormal == np.count_nonzero(
        (wide != 0) & (np.abs(wide) < float(ml_dtypes.finfo(dtype).smallest_normal))
    )
    assert found.largest == np.abs(wide[np.isfinite(wide)]).max()
    assert (found.in_f16, found.in_bf16) == (counts_in(wide, f16), counts_in(wide, bf16))


def test_what_f32_values_would_lose() -> None:
    x = np.array([0.0, 1.0, 65520.0, 1e-5, 1e-9, 3.4e38, 1e-40, 1e-45, np.inf, np.nan], np.float32)
    found = content_of("x", "embed", x)
    assert (found.zeros, found.subnormal, found.not_finite) == (1, 2, 2)
    assert (found.in_f16.clipped, found.in_f16.subnormal, found.in_f16.flushed) == (2, 1, 3)
    assert (found.in_bf16.clipped, found.in_bf16.subnormal, found.in_bf16.flushed) == (1, 1, 1)  # 3.4e38: above its max


@pytest.mark.parametrize("name", RELATIVES)
def test_every_tensor_of_every_family_has_a_site(name: str) -> None:
    assert {site_of(tensor) for tensor in random_tensors(RELATIVES[name])} <= set(SITES)


def test_the_answer_names_defaults_ignored_tensors_and_formats(tmp_path: Path, console: Console) -> None:
    entries = {k: v for k, v in RELATIVES["smollm3"].items() if k not in ("rope_theta", "eos_token_id")}
    tensors = random_tensors(entries)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.float32)
    tensors["model.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    folder = write_checkpoint(tmp_path / "model", entries, tensors)
    text = console("inspect", folder).out
    assert len(text.splitlines()) <= 25
    for words in (
        "smollm3, 4 layers", "theta 2e+06", "none in 2 layers", "bf16, f32", "rope_theta is not given: 2000000.0",
        " further note", "no tokenizer",
    ):  # fmt: skip
        assert words in text, words
    told = json.loads(console("inspect", folder, "--json").out)
    assert len(told["tensors"]) == len(tensors) - 1
    assert told["config"]["layers_without_rope"] == told["rope"]["layers_without"] == [1, 3]
    assert told["notes"] == list(inspect(folder).understood.notes)
    whole = console("inspect", folder, "-v").out
    assert all(name in whole for name in tensors if "inv_freq" not in name)


def test_a_checkpoint_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path, console: Console) -> None:
    write_checkpoint(tmp_path / "model", RELATIVES["qwen3"] | {"hidden_act": "gelu"}, random_tensors())
    answer = console("inspect", tmp_path / "model")
    assert answer.code == 3
    assert "hidden_act is 'gelu'" in answer.err
