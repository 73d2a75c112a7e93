"""A live run is transformers' own: equal to what it gives without us, and shaped as a run of ours."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import softfloat_llm
from softfloat_llm import tiny
from softfloat_llm.analysis.compare import compare
from softfloat_llm.errors import LiveError, RunError, TokenError
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.live.comparison import compare_live
from softfloat_llm.live.transformers_run import run_like, run_transformers
from softfloat_llm.runs import Run, simulate
from tests.checkpoints import config_dict, write_checkpoint

pytestmark = pytest.mark.torch

PROMPT = (1, 5, 9, 30, 2, 7)
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def as_arrays(tensor):
    from softfloat_llm.live.transformers_model import from_torch

    return from_torch(tensor)


def loaded(folder, fmt, attention):
    """The model as transformers itself loads it from its folder."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, DTYPES[fmt])
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention).eval()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("fmt", ["bf16", "f16", "f32"])
def test_a_live_run_is_what_transformers_loads_from_the_folder_gives(fmt, attention):
    import torch

    model = loaded(tiny.FOLDER, fmt, attention)
    with torch.inference_mode():
        theirs = model(torch.tensor([PROMPT]), output_hidden_states=True)
    run = run_transformers(tokens=PROMPT, format=fmt, attention=attention)
    np.testing.assert_array_equal(run["logits"], as_arrays(theirs.logits[0]))
    names = ["embed.out", *(f"layers.{i}.mlp.residual.out" for i in range(3)), "norm.final.out"]
    for name, hidden in zip(names, theirs.hidden_states, strict=True):
        np.testing.assert_array_equal(run[name], as_arrays(hidden[0]))


ODD = {
    "untied, biases": config_dict(attention_bias=True, mlp_bias=True),
    "llama3": config_dict(
        rope_scaling={
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    ),
    "linear, heads of 8": config_dict(rope_scaling={"rope_type": "linear", "factor": 2.0}, head_dim=8),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_biases_scaled_frequencies_and_other_heads_are_carried_over(tmp_path, name):
    import torch

    folder = write_checkpoint(tmp_path / "model", ODD[name])
    theirs = loaded(folder, "bf16", "eager")
    with torch.inference_mode():
        logits = as_arrays(theirs(torch.tensor([PROMPT])).logits[0])
    np.testing.assert_array_equal(run_transformers(tokens=PROMPT, model=folder)["logits"], logits)


def test_greedy_steps_are_those_of_generate():
    import torch

    ids = torch.tensor([PROMPT])
    theirs = loaded(tiny.FOLDER, "bf16", "eager").generate(
        ids, max_new_tokens=6, min_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    run = run_transformers(tokens=PROMPT, steps=6)
    assert run.tokens == tuple(theirs[0].tolist())
    assert run["layers.2.attn.scores.out"].shape == (11, 6, 11)


def test_a_live_run_has_the_taps_of_a_run_of_ours_in_the_same_shapes():
    ours = simulate(tokens=PROMPT, recipe="transformers-eager", steps=3)
    live = run_like(ours)
    for name in live.names:
        assert live[name].shape == ours[name].shape, name
        assert live[name].dtype == ours[name].dtype, name
        assert live.format_of_tap(name) == ours.format_of_tap(name), name
    assert {name for name in ours.names if name not in live} == {
        f"layers.{i}.{site}.out" for i in range(4) for site in ("kv.k", "kv.v")
    }
    hidden = np.isneginf(ours["layers.0.attn.scores.out"])
    np.testing.assert_array_equal(np.isneginf(live["layers.0.attn.scores.out"]), hidden)


@pytest.mark.parametrize("attention", ["sdpa", "math"])
def test_of_fused_attention_the_weighted_values_can_be_seen(attention):
    run = run_transformers(tokens=PROMPT, attention=attention, taps=["layers.1.attn.*"])
    inside = {name.split(".attn.")[1] for name in run.names if ".attn." in name}
    assert inside == {
        f"{site}.out" for site in ("q_proj", "k_proj", "v_proj", "rope", "pv", "o_proj", "residual")
    }  # fmt: skip
    o_proj, pv = run["layers.1.attn.o_proj.out"], run["layers.1.attn.pv.out"]
    assert pv.shape == (6, 6, 16)
    assert o_proj.shape == (6, 96)


def test_the_taps_that_are_kept_change_no_bit():
    assert run_transformers(tokens=PROMPT, taps=()).digest == run_transformers(tokens=PROMPT).digest


def test_oneDNN_and_threads_are_as_asked_and_afterwards_as_before():  # noqa: N802
    import torch

    before = torch.get_num_threads(), torch.backends.mkldnn.enabled
    run = run_transformers(tokens=PROMPT, mkldnn=False, threads=1)
    assert "1 threads, oneDNN off" in run.notes[-1]
    assert "1 threads, oneDNN off" in run.recipe.about
    assert (torch.get_num_threads(), torch.backends.mkldnn.enabled) == before
    assert torch.is_grad_enabled()


def test_a_live_run_is_saved_and_read_back(tmp_path):
    run = run_transformers(tokens=PROMPT, format="f16", steps=2)
    again = Run.load(run.save(tmp_path / "run"))
    assert again.digest == run.digest
    assert again.notes == run.notes
    assert again.recipe.about.startswith("A live run, not an emulation")
    assert compare(again, run).is_identical


def test_what_a_run_was_fed_is_fed_again():
    teacher = simulate(tokens=PROMPT, recipe="f32", steps=4)
    ours = simulate(tokens=PROMPT, recipe="transformers-eager", teacher=teacher)
    assert run_like(ours).fed == ours.fed == teacher.fed
    taught = run_transformers(tokens=PROMPT, teacher=teacher)
    assert taught.fed == teacher.fed
    assert taught.digest == run_like(ours).digest


def test_a_model_that_changed_since_is_refused(tmp_path):
    folder = write_checkpoint(tmp_path / "model")
    run = simulate(tokens=PROMPT, model=folder, recipe="bf16")
    other = open_model(write_checkpoint(tmp_path / "other", config_dict(vocab_size=40)))
    with pytest.raises(RunError, match="sha256"):
        run_like(run, model=other)


@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        ({"attention": "flash"}, LiveError, "eager, sdpa, math"),
        ({"format": "e4m3fn"}, LiveError, "bf16, f16, f32"),
        ({"threads": 0}, LiveError, "at least 1"),
        ({"steps": 900}, TokenError, "256"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(words, error, says):
    with pytest.raises(error, match=says):
        run_transformers(tokens=PROMPT, **words)


def test_a_recipe_of_other_orders_differs_and_the_first_value_of_both_is_told():
    ids = np.random.default_rng(3).integers(0, 960, 40).tolist()
    ours = simulate(tokens=ids, recipe="transformers-eager,storage=f16,attn.softmax.exp=sleef-u10")
    found = compare_live(ours, mkldnn=False)
    assert 0 < found.differing < found.compared
    first = found.found.first_divergence
    assert first is not None
    live = run_like(ours, mkldnn=False)
    assert first.at.run == float(ours[first.tap.name][first.at.index])
    assert first.at.reference == float(live[first.tap.name][first.at.index])
    text = found.text()
    assert f"{found.differing:,} of {found.compared:,} values differ" in text
    assert f"First different value: {first.tap.name}" in text
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert table[1].split()[1] == first.tap.site
    assert len(text.splitlines()) < 25
    assert found.to_dict()["live"]["differing"] == found.differing


def test_the_command_runs_both_and_says_whether_they_are_equal(console):
    answer = console("compare", "The cup is", "--live", "torch", "--no-mkldnn", "--within", "identical")
    assert answer.code == 0, answer.out + answer.err
    assert "Equal to PyTorch in every bit: 0 of 28,176 values differ, in 80 taps." in answer.out
    assert "transformers-eager-bf16-cpu-native" in answer.out


def test_the_json_of_a_live_comparison_is_what_its_schema_says(console):
    jsonschema = pytest.importorskip("jsonschema")
    body = json.loads(console("compare", "The cup is", "--live", "torch", "--json").out)
    schema = json.loads((Path(softfloat_llm.__file__).parent / "schemas" / "compare.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(body)
    assert body["live"]["compared"] == 28_176
    assert body["live"]["attention"] == "eager"
