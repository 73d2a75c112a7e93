"""Write a Hugging Face folder of a Llama as a GGUF file in f16 or bf16: what llama.cpp is given to run.

    python write_gguf.py FOLDER f16|bf16 OUT.gguf

As llama.cpp's conversion/llama.py does: rows of q and k permuted to neighbouring pairs, norms in f32, the other tensors
in the given format. The vocabulary is there by name only. Needs the packages gguf, safetensors, ml_dtypes and NumPy.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
from safetensors import safe_open

NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
KINDS = {"f16": gguf.GGMLQuantizationType.F16, "bf16": gguf.GGMLQuantizationType.BF16}


def main(folder: Path, kind: str, out: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(str(out), "llama")
    describe(writer, config)
    vocabulary(writer, folder, config)
    with safe_open(folder / "model.safetensors", framework="numpy") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - it is no dictionary
            add(writer, renamed(name), reordered(name, tensors.get_tensor(name), config), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def describe(writer: gguf.GGUFWriter, config: dict) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def vocabulary(writer: gguf.GGUFWriter, folder: Path, config: dict) -> None:
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    tokens += [f"[unused{i}]" for i in range(len(tokens), config["vocab_size"])]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])


def renamed(name: str) -> str:
    parts = name.removeprefix("model.").removesuffix(".weight").split(".")
    if parts[0] == "layers":
        return f"blk.{parts[1]}.{NAMES['.'.join(parts[2:])]}.weight"
    return {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}[parts[0]] + ".weight"


def reordered(name: str, tensor: np.ndarray, config: dict) -> np.ndarray:
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for part, count in heads.items():
        if part in name:
            halves = tensor.reshape(count, 2, -1, tensor.shape[1])
            return halves.swapaxes(1, 2).reshape(tensor.shape)
    return tensor


def add(writer: gguf.GGUFWriter, name: str, tensor: np.ndarray, kind: str) -> None:
    wide = tensor.astype(np.float32)
    if tensor.ndim == 1:
        writer.add_tensor(name, wide)
    elif kind == "f16":
        writer.add_tensor(name, wide.astype(np.float16))
    else:
        halves = wide.astype(ml_dtypes.bfloat16)
        writer.add_tensor(name, halves.view(np.uint8), raw_shape=(*halves.shape[:-1], 2 * halves.shape[-1]),
                          raw_dtype=KINDS[kind])  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
