"""S15: who can run what, and in which words the others refuse; PyTorch's words against PyTorch itself.

candle's words are read in its source (`refusals.toml` names the file); those of transformers come from running it.
"""

from __future__ import annotations

import pytest

from softfloat_llm.claims.engines import first_words
from softfloat_llm.refusals import check
from tests.claims import reproduced


def test_s15_candle_on_a_cpu_has_no_bf16_product_and_metal_and_pytorch_run_both_halves(tiny_bench):
    reproduced(tiny_bench, "S15")


@pytest.mark.parametrize(("recipe", "metal", "cpu"), [
    ("bf16,rope.table=f32", "dtype mismatch in rope BF16 F32 F32", "unsupported dtype for rope BF16 F32 F32"),
    ("f32,rope.table=bf16", "dtype mismatch in rope F32 BF16 BF16", "unsupported dtype for rope F32 BF16 BF16"),
    ("f16,norm.output=f32", "rmsnorm is not implemented for F16 F32", "unsupported dtype for rmsnorm F16"),
    ("f16,lm_head=f32", "dtype mismatch in matmul, lhs: F16, rhs: F32", "dtype mismatch in matmul, lhs: F16, rhs: F32"),
    (
        "f16,attn.o_proj.output=f32",
        "dtype mismatch in add, lhs: F32, rhs: F16",
        "dtype mismatch in add, lhs: F32, rhs: F16",
    ),
])  # fmt: skip
def test_s15_candle_promotes_nothing_and_names_both_types(recipe, metal, cpu):
    assert first_words(recipe, "candle-metal") == metal
    assert metal_or_cpu(recipe, cpu)


def metal_or_cpu(recipe, words):
    return words in [refusal.says for refusal in check(recipe, "candle-cpu")]


# --- transformers, live -----------------------------------------------------------------------------------------------


def llama(attention, dtype):
    """A random Llama of two layers, with weights of the type and the buffers of rope in f32, as from_pretrained has."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64, max_position_embeddings=64, attn_implementation=attention,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    return model


def modules(model, word):
    return [module for name, module in model.named_modules() if name.endswith(word)]


def weights(word, dtype):
    def change(model, torch):
        for module in modules(model, word):
            module.weight.data = module.weight.data.to(getattr(torch, dtype))

    return change


def outputs(word, dtype):
    def change(model, torch):
        for module in modules(model, word):
            module.register_forward_hook(lambda _module, _inputs, out: out.to(getattr(torch, dtype)))

    return change


def table(dtype):
    def change(model, torch):
        rope = model.model.rotary_emb
        forward = rope.forward
        rope.forward = lambda x, position_ids: forward(x.to(getattr(torch, dtype)), position_ids)

    return change


E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
STREAM = "embed={0},attn.residual={0},mlp.residual={0}"
CASES = [
    ("f32", "float32", None),
    ("f16", "float16", None),
    ("bf16", "bfloat16", None),
    ("storage=e4m3fn", E4M3, None),
    ("storage=e5m2", E5M2, None),
    ("bf16,norm.output=f32", "bfloat16", weights("norm", "float32")),
    ("f16,norm.output=f32", "float16", weights("norm", "float32")),
    ("bf16,norm.final.output=f32", "bfloat16", weights("model.norm", "float32")),
    ("bf16,lm_head=f32", "bfloat16", weights("lm_head", "float32")),
    (f"bf16,{STREAM.format('f32')}", "bfloat16", weights("embed_tokens", "float32")),
    (f"bf16,{STREAM.format('e4m3fn')}", "bfloat16", weights("embed_tokens", E4M3)),
    ("bf16,rope.table=f32", "bfloat16", table("float32")),
    ("bf16,rope.table=f16", "bfloat16", table("float16")),
    ("f16,rope.table=f32", "float16", table("float32")),
    ("f32,rope.table=bf16", "float32", table("bfloat16")),
    ("bf16,kv.v=f16", "bfloat16", outputs("v_proj", "float16")),
    ("bf16,kv.v=e4m3fn", "bfloat16", outputs("v_proj", E4M3)),
    ("bf16,mlp.down_proj.storage=e4m3fn", "bfloat16", weights("down_proj", E4M3)),
    ("f16,mlp.up_proj.storage=bf16", "float16", weights("up_proj", "bfloat16")),
    ("bf16,attn.o_proj.output=f32", "bfloat16", outputs("o_proj", "float32")),
    ("bf16,attn.o_proj.output=f16", "bfloat16", outputs("o_proj", "float16")),
    ("bf16,attn.o_proj.output=e4m3fn", "bfloat16", outputs("o_proj", E4M3)),
    ("bf16,mlp.down_proj.output=f16", "bfloat16", outputs("down_proj", "float16")),
    ("bf16,mlp.up_proj.output=f16", "bfloat16", outputs("up_proj", "float16")),
    ("bf16,mlp.up_proj.output=e5m2", "bfloat16", outputs("up_proj", E5M2)),
]


@pytest.mark.torch
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("recipe", "dtype", "change"), CASES, ids=[case[0] for case in CASES])
def test_s15_transformers_runs_or_refuses_in_the_words_that_are_foretold(recipe, dtype, change, attention):
    import torch

    model = llama(attention, dtype)
    if change is not None:
        change(model, torch)
    said = None
    try:
        with torch.no_grad():
            model(torch.arange(5)[None])
    except (RuntimeError, NotImplementedError) as refusal:
        said = str(refusal).split("\n")[0]
    assert first_words(recipe, f"transformers-{attention}") == said


@pytest.mark.torch
def test_s15_keys_of_another_type_are_refused_where_they_meet_the_queries(monkeypatch):
    import torch
    from transformers.models.llama import modeling_llama

    rotate = modeling_llama.apply_rotary_pos_emb

    def narrowed(*args, **options):
        query, key = rotate(*args, **options)
        return query, key.to(torch.float8_e4m3fn)

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", narrowed)
    for attention in ("eager", "sdpa"):
        with pytest.raises((RuntimeError, NotImplementedError)) as refusal, torch.no_grad():
            llama(attention, "bfloat16")(torch.arange(5)[None])
        assert str(refusal.value).split("\n")[0] == first_words("bf16,kv.k=e4m3fn", f"transformers-{attention}")
