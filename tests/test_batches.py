"""Several prompts: each gives the run that it gives alone, whatever is beside it; what is refused, where it goes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from softfloat_llm import batches
from softfloat_llm.batches import can_share, simulate_batch
from softfloat_llm.errors import NonFiniteError, RunError, TokenError
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.llama.config import RopeScaling
from softfloat_llm.recipe import Recipe, recipe_of
from softfloat_llm.runs import Run, simulate

RULE = {"attn.pv.order if K >= 6": "reverse"}
PROMPTS = ["The capital of France is", "The cup", "The light is on. The light is", "The cup is"]


@pytest.fixture(scope="module")
def tiny():
    return open_model("tiny")


def facts(run):
    """All that a run is, comparable."""
    arrays = {name: (array.dtype, array.shape, array.tobytes()) for name, array in run.arrays.items()}
    plain = {f.name: getattr(run, f.name) for f in dataclasses.fields(run) if f.name not in ("arrays", "events")}
    return arrays, [str(event) for event in run.events], plain


@pytest.mark.parametrize("recipe", [
    "bf16", "storage=f16,acc=f16,order=pairwise", "bf16,attn.mask.value=add-lowest", "f32,attn.scale.on=query",
    Recipe("bf16", at=RULE), "bf16,kv=e4m3fn", "storage=e3m2fn,attn.softmax.online=4,attn.softmax.normalise=after",
])  # fmt: skip
def test_each_run_is_the_one_that_its_prompt_gives_alone(tiny, recipe):
    together = simulate_batch(PROMPTS, model=tiny, recipe=recipe, steps=2, taps="*")
    for prompt, run in zip(PROMPTS, together, strict=True):
        assert facts(run) == facts(simulate(prompt, model=tiny, recipe=recipe, steps=2, taps="*"))


def test_events_are_those_of_the_prompt_alone(tiny):
    recipe = "bf16,attn.scores.output=e3m2,attn.scale.output=bf16"
    tokens = [[5, 9], [7, 100, 3], [11]]
    together = simulate_batch(tokens=tokens, model=tiny, recipe=recipe, steps=0, taps=())
    alone = [simulate(tokens=ids, model=tiny, recipe=recipe, steps=0, taps=()) for ids in tokens]
    assert [facts(run) for run in together] == [facts(run) for run in alone]
    assert any(run.events for run in together)


def test_prompts_share_passes_where_they_can(tiny, monkeypatch):
    passes = []
    whole = batches.decode_together

    def counted(weights, prompts, *rest, **words):
        passes.append(prompts)
        return whole(weights, prompts, *rest, **words)

    monkeypatch.setattr(batches, "decode_together", counted)
    simulate_batch(PROMPTS, model=tiny, recipe="bf16", taps=())
    simulate_batch(PROMPTS, model=tiny, recipe=Recipe("bf16", at=RULE), taps=())
    assert [[len(ids) for ids in prompts] for prompts in passes] == [[2, 3], [5, 8], [5], [2], [8], [3]]
    passes.clear()
    monkeypatch.setattr(batches, "ROWS_TOGETHER", 10)
    simulate_batch(tokens=[[1] * 5, [2] * 6, [3] * 4, [4]], model=tiny, recipe="bf16", taps=())
    assert passes == [[[4]], [[3] * 4, [1] * 5], [[2] * 6]]


@pytest.mark.parametrize(("words", "is_shared"), [
    ("bf16", True), ("f16,attn.queries=flash", True), ("bf16,rounding=stochastic", False), ("bf16,kv=e4m3fn", False),
    ("bf16,kv=f32", True), ("bf16,linear.activations=mxfp8-e4m3", False), ("transformers-sdpa-f32-cpu-mkl", False),
])  # fmt: skip
def test_passes_are_shared_only_where_no_row_tells_of_another(tiny, words, is_shared):
    assert can_share(recipe_of(words), tiny.config) == is_shared


def test_a_table_of_angles_that_goes_by_the_longest_prompt_is_not_shared(tiny):
    for kind, is_shared in (("dynamic", False), ("linear", True)):
        config = dataclasses.replace(tiny.config, rope_scaling=RopeScaling(kind, 2.0))
        assert can_share(recipe_of("bf16"), config) == is_shared


def test_each_prompt_has_a_teacher_of_its_own(tiny):
    teachers = [
        simulate(prompt, model=tiny, recipe="f32", steps=n) for prompt, n in zip(PROMPTS, (3, 1, 3, 2), strict=True)
    ]
    runs = simulate_batch(model=tiny, recipe="f16", teachers=teachers, taps=())
    alone = [simulate(model=tiny, recipe="f16", teacher=teacher, taps=()) for teacher in teachers]
    assert [facts(run) for run in runs] == [facts(run) for run in alone]


@pytest.mark.parametrize(("words", "error", "message"), [
    ({"prompts": "The cup is"}, TokenError, "Give a list of texts"),
    ({}, RunError, "There are no prompts to run"), ({"prompts": []}, RunError, "There are no prompts to run"),
    ({"prompts": ["a"], "tokens": [[1]]}, TokenError, "not both"),
    ({"tokens": [[1], [2, 5000]]}, TokenError, r"^Prompt 2: Token id 5000 lies outside"),
    ({"tokens": [[1], []]}, TokenError, r"^Prompt 2: There are no tokens"),
    ({"prompts": ["a", "b"], "teachers": []}, RunError, "2 prompts and 0 teachers"),
    ({"tokens": [[1], [1] * 300, [1]]}, TokenError, r"^Prompt 2: 300 .* exceed max_position_embeddings = 256"),
    ({"prompts": ["a"], "workers": 0}, RunError, "at least 1"),
    ({"tokens": [[9], [7, 100, 3]], "recipe": "storage=e3m4,acc=e3m4"}, NonFiniteError, r"^Prompt \d: The logits hold"),
])  # fmt: skip
def test_what_cannot_be_run_is_refused_by_its_number(tiny, words, error, message):
    with pytest.raises(error, match=message):
        simulate_batch(model=tiny, taps=(), **words)


def test_saved_runs_lie_in_one_folder_and_are_those_that_save_writes(tiny, tmp_path):
    runs = simulate_batch(PROMPTS[:3], model=tiny, recipe="bf16", save=tmp_path / "runs")
    for i, prompt in enumerate(PROMPTS[:3], 1):
        simulate(prompt, model=tiny, recipe="bf16").save(tmp_path / "alone", replace=True)
        for name in ("run.json", "tensors.safetensors"):
            assert (tmp_path / "runs" / str(i) / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
        assert runs[i - 1].digest == Run.load(tmp_path / "runs" / str(i)).digest
    with pytest.raises(RunError, match="is there already"):
        simulate_batch(PROMPTS, model=tiny, save=tmp_path / "runs")
    with pytest.raises(RunError, match="is no saved run"):
        simulate_batch(PROMPTS, model=tiny, save=tmp_path / "alone", replace=True)
    simulate_batch(PROMPTS[:1], model=tiny, save=tmp_path / "runs", replace=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "runs"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["1"]


def test_an_interruption_leaves_no_folder(tiny, tmp_path):
    def stop(what, done, total):
        if done == total - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate_batch(tokens=[[1], [2] * 9], model=tiny, save=tmp_path / "runs", progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_the_layers_of_all_passes(tiny):
    seen = []
    words = {"model": tiny, "recipe": Recipe("bf16", at=RULE), "steps": 2, "taps": ()}
    simulate_batch(tokens=[[1], [2, 3]], **words, progress=lambda *told: seen.append(told[1:]))
    assert seen == [(i, 16) for i in range(1, 17)]
    assert np.all(np.diff([done for done, _ in seen]) == 1)
