"""Tensors of other tools: compared as runs are, under our names, with shapes, batch axes and formats seen to."""

from __future__ import annotations

import json

import numpy as np
import pytest

from softfloat_llm.analysis.compare import compare
from softfloat_llm.analysis.dumps import compare_tensors, is_tensors, taps_of
from softfloat_llm.errors import ArrayError, RunError
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.io.safetensors import write_tensors
from softfloat_llm.runs import simulate
from softfloat_llm.site_runs import local_run

PROMPT = [711, 456, 440, 14, 419, 456]
LAYERS = 4


@pytest.fixture(scope="module")
def tiny():
    return open_model("tiny")


@pytest.fixture(scope="module")
def runs(tiny):
    return {r: simulate(tokens=PROMPT, model=tiny, recipe=r) for r in ("f32", "bf16")}


def as_f32(run, names=None):
    return {name: run[name].astype(np.float32) for name in names or run.names}


def hidden_states(run):
    """As transformers gives them: (L + 1, 1, T, D)."""
    names = ["embed.out", *(f"layers.{i}.mlp.residual.out" for i in range(LAYERS - 1)), "norm.final.out"]
    return np.stack([run[name].astype(np.float32)[None] for name in names])


def test_a_run_against_its_own_taps_is_identical(runs, tmp_path):
    write_tensors(tmp_path / "ref.safetensors", dict(runs["f32"].arrays))
    np.savez(tmp_path / "ref.npz", **runs["f32"].arrays)
    for name in ("ref.safetensors", "ref.npz"):
        found = compare_tensors(runs["f32"], tmp_path / name)
        assert found.is_identical
        assert (found.flips, len(found.taps), found.notes) == (0, len(runs["f32"].names), ())
        assert found.reference_recipe is None
        assert found.reference_digest == runs["f32"].digest


def test_tensors_say_what_the_run_says(runs, tmp_path):
    """The same numbers as a comparison of the two runs: only what is known of the reference is less."""
    write_tensors(tmp_path / "ref.safetensors", dict(runs["f32"].arrays))
    found, wanted = compare_tensors(runs["bf16"], tmp_path / "ref.safetensors"), compare(runs["bf16"], runs["f32"])
    assert found.taps == wanted.taps
    assert found.steps == wanted.steps
    assert found.kl == wanted.kl
    assert found.sentences() == wanted.sentences()
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (told["reference_recipe"], told["recipe"]["name"]) == (None, "bf16")
    assert f"against  {tmp_path / 'ref.safetensors'}" in str(found)


def test_the_side_of_the_run_may_be_the_tensors(runs, tmp_path):
    np.savez(tmp_path / "run.npz", **as_f32(runs["bf16"]))
    found, wanted = compare_tensors(tmp_path / "run.npz", runs["f32"]), compare(runs["bf16"], runs["f32"])
    assert found.taps == wanted.taps
    assert found.format == wanted.format
    (note,) = found.notes
    count = len(runs["bf16"].names)
    assert f"holds f32, but {count} of {count} taps are bf16 values: so taken." in note
    assert str(found).startswith(f"run      {tmp_path / 'run.npz'}\nagainst  f32\n")


def test_hidden_states_and_logits_of_a_batch_of_one(runs, tmp_path):
    run = runs["f32"]
    np.savez(
        tmp_path / "hf.npz", hidden_states=hidden_states(run), logits=run["logits"][None], input_ids=np.array([PROMPT])
    )
    found = compare_tensors(runs["bf16"], tmp_path / "hf.npz")
    assert [tap.tap for tap in found.taps] == [
        "embed.out", "layers.0.mlp.residual.out", "layers.1.mlp.residual.out", "layers.2.mlp.residual.out",
        "norm.final.out", "lm_head.out",
    ]  # fmt: skip
    wanted = {tap.tap: tap for tap in compare(runs["bf16"], run).taps}
    assert all(tap == wanted[tap.tap] for tap in found.taps)
    np.savez(tmp_path / "more.npz", hidden_states=hidden_states(run)[:, 0, :4])
    with pytest.raises(ArrayError, match=r"embed\.out has the shape \(6, 96\) in the run of bf16, but \(4, 96\) in"):
        compare_tensors(runs["bf16"], tmp_path / "more.npz")


def test_heads_may_lie_apart_and_attentions_come_head_by_head(runs, tmp_path):
    run = runs["f32"]
    np.savez(
        tmp_path / "hf.npz",
        **{
            "model.layers.1.self_attn.q_proj": run["layers.1.attn.q_proj.out"].reshape(1, 6, 6, 16),
            "attentions.1": run["layers.1.attn.softmax.out"].transpose(1, 0, 2)[None],
        },
    )
    found = compare_tensors(run, tmp_path / "hf.npz")
    assert [tap.count for tap in found.taps] == [0, 0]  # six heads, six positions: the name says which comes first
    longer = simulate(tokens=[*PROMPT, 440], model="tiny", recipe="f32")
    np.savez(tmp_path / "long.npz", mine=longer["layers.1.attn.softmax.out"].swapaxes(0, 1))
    found = compare_tensors(longer, tmp_path / "long.npz", names={"layers.1.attn.softmax.out": "mine"})
    assert found.taps[0].count == 0


def test_a_map_names_what_has_another_name(runs, tmp_path):
    run = runs["f32"]
    np.savez(tmp_path / "mine.npz", **{f"block{i}/ffn": run[f"layers.{i}.mlp.down_proj.out"] for i in range(LAYERS)})
    with pytest.raises(RunError, match="have no tap in common"):
        compare_tensors(run, tmp_path / "mine.npz")
    (tmp_path / "map.toml").write_text('layers.N.mlp.down_proj.out = "block{N}/ffn"\n')
    for names in ({"layers.N.mlp.down_proj.out": "block{N}/ffn"}, tmp_path / "map.toml"):
        found = compare_tensors(run, tmp_path / "mine.npz", names=names)
        assert [tap.tap for tap in found.taps] == [f"layers.{i}.mlp.down_proj.out" for i in range(LAYERS)]
        assert found.is_identical
        assert (found.logits, found.kl, found.steps) == (None, None, ())
        assert "All 4 taps are identical." in str(found)


def test_what_has_no_tap_is_told(runs, tmp_path):
    np.savez(tmp_path / "a.npz", logits=runs["f32"]["logits"], mystery=np.zeros(3), ids=np.arange(3))
    (note,) = compare_tensors(runs["bf16"], tmp_path / "a.npz").notes
    assert note == f"1 tensors of {tmp_path / 'a.npz'} are no taps: mystery. Name them with --names."


def test_two_files_are_compared_under_their_own_names_too(runs, tmp_path):
    one, other = ({**as_f32(runs[r], ["layers.0.mlp.act.out"]), "other": np.full((2, 3), i + 1.0, np.float32)}
                  for i, r in enumerate(("bf16", "f32")))  # fmt: skip
    np.savez(tmp_path / "a.npz", **one, alone=np.zeros(1))
    np.savez(tmp_path / "b.npz", **other)
    found = compare_tensors(tmp_path / "a.npz", tmp_path / "b.npz")
    assert [tap.tap for tap in found.taps] == ["other", "layers.0.mlp.act.out"]
    assert found.taps[0].max_abs == 1.0
    assert (found.recipe, found.model, found.positions) == (None, None, 6)
    assert any(f"Not in both, so not compared: alone of {tmp_path / 'a.npz'}" in note for note in found.notes)
    np.savez(tmp_path / "c.npz", other=np.zeros((3, 2)))
    with pytest.raises(ArrayError, match=r"other cannot be compared: it has the shape \(2, 3\) in .* and \(3, 2\) in"):
        compare_tensors(tmp_path / "a.npz", tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", else_=np.zeros(2))
    with pytest.raises(ArrayError, match="no tensor in common"):
        compare_tensors(tmp_path / "a.npz", tmp_path / "d.npz")


def test_two_files_with_logits_are_judged_position_by_position(runs, tmp_path):
    for name in runs:
        np.savez(tmp_path / f"{name}.npz", logits=runs[name]["logits"].astype(np.float32)[None])
    found = compare_tensors(tmp_path / "bf16.npz", tmp_path / "f32.npz")
    assert (len(found.steps), found.are_positions, found.positions) == (6, True, 6)
    assert [step.margin for step in found.steps] == [
        float(np.diff(np.sort(row)[-2:])[0]) for row in runs["f32"]["logits"].astype(np.float64)
    ]
    assert "of 6 positions flip" in str(found)
    assert "| position |" in str(found)


def test_nan_in_tensors_is_told_first(runs, tmp_path):
    logits = runs["f32"]["logits"].copy()
    logits[3, 5] = np.nan
    np.savez(tmp_path / "a.npz", logits=logits)
    found = compare_tensors(tmp_path / "a.npz", runs["f32"])
    assert found.sentences()[0] == "NaN in the run, first at lm_head.out, position 3, element [5]."


def test_each_site_can_be_fed_the_tensors(tiny, runs, tmp_path):
    write_tensors(tmp_path / "ref.safetensors", dict(runs["f32"].arrays))
    fed = local_run(runs["bf16"], taps_of(tmp_path / "ref.safetensors", runs["bf16"]), model=tiny)
    found = compare_tensors(runs["bf16"], tmp_path / "ref.safetensors", local=fed)
    wanted = compare(runs["bf16"], runs["f32"], local=local_run(runs["bf16"], runs["f32"], model=tiny))
    assert found.local == wanted.local


def test_what_is_no_tensor_file_is_seen(runs, tmp_path):
    runs["f32"].save(tmp_path / "run")
    np.save(tmp_path / "a.npy", np.zeros(2))
    assert is_tensors(tmp_path / "a.npy")
    assert is_tensors(tmp_path)
    assert not any(map(is_tensors, (tmp_path / "run", "The cup is", None, "x" * 9999, "")))


@pytest.mark.parametrize(("arrays", "says"), [
    ({"x": np.arange(3)}, "no array of floating numbers"),
    ({"x\x1b[31m": np.zeros(2)}, "cannot be shown"),
    ({"x": np.array(["a"])}, "not an array of real numbers"),
])  # fmt: skip
def test_what_holds_no_numbers_is_refused(runs, tmp_path, arrays, says):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ArrayError, match=says):
        compare_tensors(runs["f32"], tmp_path / "a.npz")


@pytest.mark.torch
def test_what_hooks_in_transformers_give_is_one_side_of_a_comparison(runs, tmp_path):
    """All modules of a live model, under their own names, in float32: next to nothing from the recipe f32."""
    import torch
    from safetensors.torch import save_file

    from softfloat_llm.live.transformers_model import build
    from softfloat_llm.numerics.formats import f32

    net, kept = build(open_model("tiny"), f32, "eager"), {}

    def keep(name):
        return lambda _, __, out: kept.update({name: (out[0] if isinstance(out, tuple) else out).contiguous()})

    for name, module in net.named_modules():
        if name and "rotary" not in name and name not in ("model", "model.layers"):
            module.register_forward_hook(keep(name))
    with torch.no_grad():
        out = net(torch.tensor([PROMPT]), output_hidden_states=True)
    save_file({name: tensor.clone() for name, tensor in kept.items()}, tmp_path / "hooks.safetensors")
    found = compare_tensors(runs["f32"], tmp_path / "hooks.safetensors")
    assert len(found.taps) == 3 + 11 * LAYERS
    assert max(tap.max_row_ulp for tap in found.taps) < 64
    assert found.flips == 0
    np.savez(tmp_path / "states.npz", hidden_states=np.stack([state.numpy() for state in out.hidden_states]))
    states = compare_tensors(runs["f32"], tmp_path / "states.npz")
    assert max(tap.max_row_ulp for tap in states.taps) < 64
    assert [tap.tap for tap in states.taps][-1] == "norm.final.out"
