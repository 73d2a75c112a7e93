"""Names of other tools: a map with layers, the usual names of Hugging Face, and what is refused."""

from __future__ import annotations

import json

import pytest

from softfloat_llm.errors import ArrayError
from softfloat_llm.io.tensor_names import HUGGING_FACE, read_map, tap_names
from softfloat_llm.runs import tap_names as every_tap


def test_the_modules_of_hugging_face_are_our_sites():
    theirs = [name.replace("{N}", "3") for name in HUGGING_FACE]
    found = tap_names([f"model.{name}" if name not in ("lm_head", "logits") else name for name in theirs])
    assert set(found.values()) <= set(every_tap(4))
    assert found["model.layers.3.self_attn.q_proj"] == "layers.3.attn.q_proj.out"
    assert found["model.layers.3"] == "layers.3.mlp.residual.out"
    assert found["model.norm"] == "norm.final.out"
    assert "model.layers.3.mlp" not in found  # the same values as its down_proj, which came first


@pytest.mark.parametrize(("theirs", "ours"), [
    ("model.layers.0.self_attn.o_proj.input", "layers.0.attn.o_proj.in"),
    ("layers.11.mlp.gate_proj.output", "layers.11.mlp.gate_proj.out"),
    ("model.layers.2.post_attention_layernorm.in", "layers.2.norm.post_attention.in"),
    ("layers.5.attn.pv.acc", "layers.5.attn.pv.acc"),
    ("attentions.1", "layers.1.attn.softmax.out"),
    ("logits", "lm_head.out"),
    ("model.layers.0.self_attn.input", None),
    ("model.layers.0.input", None),
    ("model.layers.0.self_attn.rotary_emb", None),
    ("layers.0.attn.q_prog.out", None),
    ("input_ids", None),
])  # fmt: skip
def test_one_name_is_one_tap_or_none(theirs, ours):
    assert tap_names([theirs]).get(theirs) == ours


@pytest.mark.parametrize("form", ["hidden_states.{}", "hidden_states[{}]", "hidden_states_{}", "out.hidden_states.{}"])
def test_hidden_states_are_the_embedding_the_layers_and_the_last_norm(form):
    names = [form.format(place) for place in range(5)]
    wanted = ["embed.out", *(f"layers.{layer}.mlp.residual.out" for layer in range(3)), "norm.final.out"]
    assert tap_names(names, layers=4) == tap_names(names) == dict(zip(names, wanted, strict=True))
    assert list(tap_names(names, layers=3)) == names[:4]  # one more than the model gives
    assert tap_names(names[:3], layers=4) == dict(zip(names[:3], wanted, strict=False))


def test_a_map_comes_first_and_counts_layers():
    theirs = ["l0_q", "l1_q", "blk.0.attn", "blk.1.attn", "model.layers.0.mlp.act_fn"]
    names = {"layers.N.attn.q_proj.out": "l{N}_q", "layers.N.attn.pv.out": "blk.N.attn"}
    assert tap_names(theirs, names) == {
        "l0_q": "layers.0.attn.q_proj.out", "l1_q": "layers.1.attn.q_proj.out",
        "blk.0.attn": "layers.0.attn.pv.out", "blk.1.attn": "layers.1.attn.pv.out",
        "model.layers.0.mlp.act_fn": "layers.0.mlp.act.out",
    }  # fmt: skip
    shifted = tap_names(["h.0", "h.1", "h.2"], {"layers.N.mlp.residual.out": "h.{N+1}"})
    assert shifted == {"h.1": "layers.0.mlp.residual.out", "h.2": "layers.1.mlp.residual.out"}
    twice = tap_names(["a.0.b.0", "a.0.b.1"], {"layers.N.mlp.act.out": "a.N.b.N"})
    assert twice == {"a.0.b.0": "layers.0.mlp.act.out"}
    assert tap_names(["x (1)"], {"embed.out": "x (1)"}) == {"x (1)": "embed.out"}  # no pattern of other kinds


def test_what_a_map_names_must_be_there_once():
    with pytest.raises(ArrayError, match=r"layers\.N\.mlp\.act\.out = 'acts\.N', but .* Did you mean 'act\.[01]'"):
        tap_names(["act.0", "act.1"], {"layers.N.mlp.act.out": "acts.N"})
    with pytest.raises(ArrayError, match=r"'x' or 'embed\.out' twice|'x' or 'lm_head\.out' twice"):
        tap_names(["x"], {"embed.out": "x", "lm_head.out": "x"})


def test_a_map_is_read_from_toml_with_tables_or_from_json(tmp_path):
    (tmp_path / "a.toml").write_text('"embed.out" = "x"\nlayers.N.attn.q_proj.out = "q.N"\n[lm_head]\nout = "y"\n')
    (tmp_path / "b.json").write_text(json.dumps(read_map(tmp_path / "a.toml")))
    wanted = {"embed.out": "x", "layers.N.attn.q_proj.out": "q.N", "lm_head.out": "y"}
    assert read_map(tmp_path / "a.toml") == read_map(tmp_path / "b.json") == wanted


@pytest.mark.parametrize(("text", "says"), [
    ('"embd.out" = "x"', r"'embd\.out' is no tap of ours\. Did you mean 'embed'"),
    ('"layers.N.attn.q_proj.output" = "x"', "is no tap of ours"),
    ("embed.out = 3", r"embed\.out is 3, expected a name"),
    ("embed.out = [", "Reading the names"),
    ("\xff", "Reading the names"),
])  # fmt: skip
def test_a_map_that_cannot_be_followed_is_refused(tmp_path, text, says):
    (tmp_path / "a.toml").write_text(text, encoding="latin-1")
    with pytest.raises(ArrayError, match=says):
        read_map(tmp_path / "a.toml")
    (tmp_path / "b.json").write_text("[1]")
    with pytest.raises(ArrayError, match="expected a table of names, found list"):
        read_map(tmp_path / "b.json")
    with pytest.raises(ArrayError, match="No such file"):
        read_map(tmp_path / "c.toml")
